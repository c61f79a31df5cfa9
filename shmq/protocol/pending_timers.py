"""Bodies of our own request for the timed messages that wait. It does not know who asks."""

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
