"""Bodies of our own requests TIMERS and TRANSACTIONS: the messages that wait at a broker for their time or their end.

Each answer holds the first of them and says how many there are.
"""

from __future__ import annotations

import msgspec


class PendingTimer(msgspec.Struct):
    """One timed message as TIMERS tells it; `handle` takes it back, "" when it has no unique key."""

    topic: str
    queue_id: int
    key: str
    unique_key: str
    handle: str
    offset: int
    store_ms: int
    due_ms: int
    body_bytes: int


class PendingTimers(msgspec.Struct):
    """Body of the answer to TIMERS: what is due first, and how many wait."""

    count: int
    timers: list[PendingTimer]


class OpenTransaction(msgspec.Struct):
    """One open transaction as TRANSACTIONS tells it; the offset and the position are those of its half now."""

    topic: str
    queue_id: int
    group: str
    key: str
    message_id: str
    offset: int
    log_position: int
    store_ms: int
    checks: int
    body_bytes: int
    local: bool


class OpenTransactions(msgspec.Struct):
    """Body of the answer to TRANSACTIONS: the oldest, and how many there are."""

    count: int
    transactions: list[OpenTransaction]
