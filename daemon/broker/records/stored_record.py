"""A stored record, taken apart.

Parts read records of the log through these functions, and store copies of them through `copy_of`.
"""

from collections.abc import Iterator
from typing import NamedTuple

from shmq.daemon.broker.log import Log, NewRecord, Pulled
from shmq.daemon.broker.tables import Queues
from shmq.record import LENGTH_BYTES, record_bytes_at
from shmq.shm.core import CoreError, record_decode

_UNSEEN_COUNT = 64  # records that are not on disk yet, read at a time
_IPV6_FLAGS = 16 | 32  # the log sets them by the hosts it stores


class StoredRecord(NamedTuple):
    """One record; `properties` is its text, with the record's CRC if the bytes had it."""

    topic: str
    queue_id: int
    queue_offset: int
    log_position: int
    flag: int
    sys_flag: int
    born_ms: int
    store_ms: int
    born_host: bytes
    store_host: bytes
    reconsume_times: int
    prepared_position: int
    properties: bytes
    body: bytes


def stored_record(data: bytes) -> StoredRecord | None:
    """Take a record apart; None when these bytes are none."""
    try:
        fields = record_decode(data)
    except CoreError:
        return None
    fields["topic"] = fields["topic"].decode(errors="replace")
    return StoredRecord._make(fields[name] for name in StoredRecord._fields)


def records_of(body: bytes) -> Iterator[StoredRecord]:
    """Take records apart that lie one behind the other, as `Log.read` returns them; ends at what is none."""
    for data in pieces_of(body):
        record = stored_record(data)
        if record is None:
            return
        yield record


def pieces_of(body: bytes) -> Iterator[bytes]:
    """Cut records apart that lie one behind the other; each begins with its length."""
    at = 0
    while at + LENGTH_BYTES <= len(body):
        record_bytes = record_bytes_at(body, at)
        if record_bytes < LENGTH_BYTES:
            return
        yield body[at : at + record_bytes]
        at += record_bytes


def record_at(log: Log, log_position: int) -> StoredRecord | None:
    """Return the record at a log position; None where there is none that can be read."""
    data = log.record_at(log_position) if log_position >= 0 else None
    return stored_record(data) if data is not None else None


def kept_record_at(log: Log, log_position: int) -> StoredRecord | None:
    """Return the record at a log position, durable or not; None where it is deleted, or damaged."""
    data = log.stored_at(log_position) if log_position >= 0 else None
    return stored_record(data) if data is not None else None


def is_queued(queues: Queues, record: StoredRecord) -> bool:
    """Say whether a record is the one its queue has at its offset.

    A request may name a log position inside of a message, whose sender can have written a record there.
    """
    topic = queues.topic(record.topic)
    if topic is None or not 0 <= record.queue_id < len(topic.queues):
        return False
    units = queues.units(topic.queues[record.queue_id], record.queue_offset, 1)
    return any(unit.log_position == record.log_position for unit in units)


def portions(
    log: Log, queue: int, queue_offset: int, *, count_max: int = 512, bytes_max: int = 256 << 10
) -> Iterator[Pulled]:
    """Yield what is visible of a queue (by index) from an offset on, a portion at a time."""
    while True:
        pulled = log.read(queue, queue_offset, count_max=count_max, bytes_max=bytes_max)
        if pulled.next_offset <= queue_offset:
            return
        yield pulled
        queue_offset = pulled.next_offset


def kept_portions(queues: Queues, log: Log, queue: int, queue_offset: int) -> Iterator[Pulled]:
    """Yield what is stored in a queue from an offset on, durable or not: `portions`, and what is behind them.

    For a part that asks whether it, or a predecessor, has stored something already.
    """
    for pulled in portions(log, queue, queue_offset):
        yield pulled
        queue_offset = pulled.next_offset
    while units := queues.units(queue, queue_offset, _UNSEEN_COUNT):
        found = [data for unit in units if (data := log.stored_at(unit.log_position)) is not None]
        queue_offset += len(units)
        yield Pulled(queue_offset, len(found), b"".join(found))


def copy_of(
    record: StoredRecord,
    properties: bytes,
    *,
    reconsume_times: int | None = None,
    tag_code: int | None = None,
    names: int = 0,
) -> NewRecord:
    """Return the same message to be stored once more, with these properties.

    Args:
        names: what the copy says it was made from, in the field where a committed message names its half.
    """
    return NewRecord(
        record.body,
        properties,
        flag=record.flag,
        sys_flag=record.sys_flag & ~_IPV6_FLAGS,
        born_ms=record.born_ms,
        born_host=record.born_host,
        reconsume_times=record.reconsume_times if reconsume_times is None else reconsume_times,
        prepared_position=names,
        tag_code=tag_code,
    )
