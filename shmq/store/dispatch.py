"""Maps a record of the log to its queue, and to the unit that stands for it there.

transaction type prepared or rollback    no queue; also what an evicted claim leaves
a topic that cannot be a directory name  no queue, and said
below the birth of its topic's life,     no queue any more
or below the deletion of its topic
schedule topic                           the unit's code is the due time
"""

from __future__ import annotations

from collections.abc import Iterator

from shmq.delay_levels import SCHEDULE_TOPIC, DelayLevels
from shmq.shm.core import UNIT_BYTES, RecordBatch, ScannedRecord
from shmq.shm.unit import log_positions_of, pack_unit, unpack_unit
from shmq.store.config import Log
from shmq.store.consumequeue import QUEUE_ID_MAX, Queue
from shmq.store.layout import is_safe_name

WATCHED_TOPICS = (SCHEDULE_TOPIC.encode(),)  # what a walk has to know the store times of

_TRANSACTION_MASK = 12
_NO_QUEUE_TYPES = (4, 12)
_NAMES_MAX = 1 << 17


class Dispatch:
    """The rules of one store.

    Args:
        born: topic -> log position of its present life's begin.
        deleted: topic -> log position of its deletion.
        levels: delays of the schedule topic's queues, whose units say due times.
    """

    def __init__(self, *, born: dict[str, int], deleted: dict[str, int], levels: DelayLevels, log: Log) -> None:
        self.born = born
        self.deleted = deleted
        self._levels = levels
        self._log = log
        self._names: dict[bytes, str | None] = {}

    def queue_of(self, record: ScannedRecord) -> Queue | None:
        """Return the queue of a record; None when it belongs to none."""
        if record.sys_flag & _TRANSACTION_MASK in _NO_QUEUE_TYPES:
            return None
        return self.queue_at(record.topic, record.queue_id, record.log_position)

    def queue_at(self, topic: bytes, queue_id: int, position: int) -> Queue | None:
        """Return the queue that a record at a log position names; None when there is none, or not any more."""
        name = self._name_of(topic)
        if name is None or not 0 <= queue_id <= QUEUE_ID_MAX:
            self._log("recovery.unusable_topic", log_position=position, topic=repr(topic), queue_id=queue_id)
            return None
        if position < self.born.get(name, 0) or position < self.deleted.get(name, 0):
            return None
        return name, queue_id

    def runs_of(self, batch: RecordBatch) -> Iterator[tuple[Queue, int, bytes]]:
        """The runs of a batch by queue: queue, first queue offset, units whose offsets follow each other.

        What `queue_of` says of each record; those of one queue are in the order of the log.
        """
        for topic, queue_id, first, units, store_ms in batch.runs:
            name = self._name_of(topic)
            if name is None or queue_id > QUEUE_ID_MAX:
                at = unpack_unit(units).log_position
                self._log("recovery.unusable_topic", log_position=at, topic=repr(topic), queue_id=queue_id)
                continue
            begin = max(self.born.get(name, 0), self.deleted.get(name, 0))
            if store_ms is not None and name == SCHEDULE_TOPIC:
                units = self._due_units(queue_id, units, memoryview(store_ms).cast("Q").tolist())
            if begin and unpack_unit(units).log_position < begin:
                former = sum(position < begin for position in log_positions_of(units))
                first, units = first + former, units[former * UNIT_BYTES :]
            if units:
                yield (name, queue_id), first, units

    def _due_units(self, queue_id: int, units: bytes, store_ms: list[int]) -> bytes:
        parts = []
        for index, stored_ms in enumerate(store_ms):
            position, size, _ = unpack_unit(units, index)
            parts.append(pack_unit(position, size, self._levels.due_ms(queue_id, stored_ms)))
        return b"".join(parts)

    def _name_of(self, topic: bytes) -> str | None:
        """The name of a topic, if it can be one of a directory."""
        if topic not in self._names:
            if len(self._names) == _NAMES_MAX:  # what damage and strangers call topics has no end
                self._names.clear()
            try:
                name = topic.decode()
            except UnicodeDecodeError:
                name = ""
            self._names[topic] = name if is_safe_name(name) else None
        return self._names[topic]
