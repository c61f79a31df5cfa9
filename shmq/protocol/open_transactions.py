"""Bodies of our own request for the transactions that are open. It does not know who asks."""

from __future__ import annotations

import msgspec


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
