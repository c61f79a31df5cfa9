"""Which queue a record of the log belongs to, and which unit stands for it there.

transaction type prepared or rollback    no queue; also what an evicted claim leaves
a topic that cannot be a directory name  no queue, and said
below the birth of its topic's life,     no queue any more
or below the deletion of its topic
schedule topic                           the unit's code is the due time
"""

from __future__ import annotations

from shmq.delay_levels import SCHEDULE_TOPIC, DelayLevels
from shmq.shm.core import ScannedRecord
from shmq.shm.unit import pack_unit
from shmq.store.config import Log
from shmq.store.consumequeue import QUEUE_ID_MAX, Queue
from shmq.store.layout import is_safe_name

_TRANSACTION_MASK = 12
_NO_QUEUE_TYPES = (4, 12)


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

    def queue_of(self, record: ScannedRecord) -> Queue | None:
        """Return the queue of a record; None when it belongs to none."""
        if record.sys_flag & _TRANSACTION_MASK in _NO_QUEUE_TYPES:
            return None
        return self.queue_at(record.topic, record.queue_id, record.log_position)

    def queue_at(self, topic: bytes, queue_id: int, position: int) -> Queue | None:
        """Return the queue that a record at a log position names; None when there is none, or not any more."""
        try:
            name = topic.decode()
        except UnicodeDecodeError:
            name = ""
        if not is_safe_name(name) or not 0 <= queue_id <= QUEUE_ID_MAX:
            self._log("recovery.unusable_topic", log_position=position, topic=repr(topic), queue_id=queue_id)
            return None
        if position < self.born.get(name, 0) or position < self.deleted.get(name, 0):
            return None
        return name, queue_id

    def unit_of(self, record: ScannedRecord) -> bytes:
        """Return the unit of a record that belongs to a queue."""
        due = record.topic == SCHEDULE_TOPIC.encode()
        code = self._levels.due_ms(record.queue_id, record.store_ms) if due else record.tag_hash
        return pack_unit(record.log_position, record.record_bytes, code)
