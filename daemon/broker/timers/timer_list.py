"""The timed messages that wait, for people: our own request TIMERS."""

from collections.abc import Iterable

import msgspec

from shmq.daemon.broker.records.property_text import property_of
from shmq.daemon.broker.records.stored_record import StoredRecord
from shmq.daemon.logic.header_fields import number_of
from shmq.daemon.logic.requests import Call
from shmq.delay_levels import REAL_QUEUE_ID, REAL_TOPIC
from shmq.protocol.backlog import PendingTimer, PendingTimers
from shmq.timing import UNIQUE_KEY, RecallHandle

COUNT_MAX = 1000  # each costs the reading of a record


def wanted_count(call: Call) -> int:
    """Return how many are asked for."""
    return number_of(call.ext, "count", least=1, most=COUNT_MAX, default=COUNT_MAX)


def timers_body(broker_name: str, count: int, found: Iterable[tuple[int, StoredRecord]]) -> bytes:
    """Return the body of the answer; `found` are due times and records."""
    return msgspec.json.encode(PendingTimers(count, [_pending(broker_name, *entry) for entry in found]))


def _pending(broker_name: str, due_ms: int, record: StoredRecord) -> PendingTimer:
    topic, queue_id, key, unique_key = (
        property_of(record.properties, name) or "" for name in (REAL_TOPIC, REAL_QUEUE_ID, "KEYS", UNIQUE_KEY)
    )
    return PendingTimer(
        topic=topic,
        queue_id=int(queue_id) if queue_id.isdecimal() and len(queue_id) < 10 else 0,
        key=key,
        unique_key=unique_key,
        handle=RecallHandle(topic, broker_name, due_ms, unique_key).encode() if unique_key else "",
        offset=record.queue_offset,
        store_ms=record.store_ms,
        due_ms=due_ms,
        body_bytes=len(record.body),
    )
