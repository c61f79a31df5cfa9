"""Completes the ConsumeQueue files behind the log after a crash.

`LogWalk` tells it the records in log order; it writes their units.

    unit in the files          pointing below `dispatched`         kept: they are complete and synced
                               anything behind                     written again from the records
    record of a topic's life   at or above its birth position      counts
                               below it, or of a deleted topic     belongs to nobody any more
    missing queue offset       after damage                        a unit that points at the damaged range
                               without                             RocketMQ's pre-blank
    damaged record             names the next offset of a queue    a unit: the offset was given out

Rules: (1) doing it twice writes the same bytes; (2) no unit points at or beyond the end of the log; (3) a record whose
topic cannot be a directory name is reported and skipped.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from shmq.delay_levels import SCHEDULE_TOPIC, DelayLevels
from shmq.shm.core import UNIT_BYTES, ScannedRecord
from shmq.shm.unit import PRE_BLANK, RECORD_BYTES_LIMIT, is_pre_blank, pack_unit, unpack_unit
from shmq.store.config import Log
from shmq.store.consumequeue import QUEUE_ID_MAX, ConsumeQueueFiles, Queue
from shmq.store.damage import Damage
from shmq.store.layout import is_safe_name

_TRANSACTION_MASK = 12
_NO_QUEUE_TYPES = (4, 12)  # prepared and rollback (also what an evicted claim leaves) belong to no queue


@dataclass(frozen=True)
class QueueBounds:
    """Queue offsets of what is readable: offset_min inclusive, offset_max exclusive."""

    offset_min: int
    offset_max: int


@dataclass
class _Run:
    """Units of one queue that follow each other, not written yet."""

    first: int
    units: bytearray = field(default_factory=bytearray)


class QueueRebuild:
    """One rebuild.

    Args:
        dispatched: log position below which the files are trusted; 0 trusts nothing.
        log_begin: where the log begins; 0 if retention never shortened it.
        born: topic -> log position of its present life's begin.
        deleted: topic -> log position of its deletion.
        levels: delays of the schedule topic's queues, whose units say due times.
    """

    def __init__(
        self,
        files: ConsumeQueueFiles,
        *,
        dispatched: int,
        log_begin: int,
        born: dict[str, int],
        deleted: dict[str, int],
        log: Log,
        levels: DelayLevels | None = None,
    ) -> None:
        self._files = files
        self._dispatched = dispatched
        self._log_begin = log_begin
        self._born = born
        self._deleted = deleted
        self._log = log
        self._levels = levels or DelayLevels()
        self._next: dict[Queue, int] = {}
        self._runs: dict[Queue, _Run] = {}
        self._damages: list[Damage] = []
        self._reached: dict[Queue, int] = {}  # log position of the last record of a queue
        self.records = 0
        self.store_ms_last = 0

    def add(self, records: list[ScannedRecord]) -> None:
        """Take records in log order. Raises OSError when the units cannot be written."""
        for position, size, topic, queue_id, queue_offset, store_ms, tag_hash, sys_flag in records:
            self.records += 1
            self.store_ms_last = store_ms
            if sys_flag & _TRANSACTION_MASK in _NO_QUEUE_TYPES:
                continue
            queue = self._queue_of(topic, queue_id, position)
            if queue is not None:
                code = self._levels.due_ms(queue_id, store_ms) if queue[0] == SCHEDULE_TOPIC else tag_hash
                self._place(queue, queue_offset, pack_unit(position, size, code))
                self._reached[queue] = position
        self._write_runs()

    def add_damage(self, damage: Damage) -> None:
        """Take a range that holds no readable record. Raises OSError."""
        self._damages.append(damage)
        if damage.record is None:
            return
        topic, queue_id, queue_offset, size = damage.record
        queue = self._queue_of(topic, queue_id, damage.position)
        if queue is None:
            return
        # One of its bytes is wrong, and nobody knows which; what fits a known queue exactly is believed.
        expected = self._expected(queue)
        if expected is None and queue[0] in self._born:
            expected = 0
        if queue_offset == expected:
            self._place(queue, queue_offset, pack_unit(damage.position, size, 0))
            self._write_run(queue)

    def is_plausible(self, record: ScannedRecord) -> bool:
        """Say whether a whole record behind damage can be of this log: its queue has not passed its offset."""
        if record.sys_flag & _TRANSACTION_MASK in _NO_QUEUE_TYPES:
            return True
        queue = self._queue_of(record.topic, record.queue_id, record.log_position)
        return queue is None or record.queue_offset >= (self._expected(queue) or 0)

    def _expected(self, queue: Queue) -> int | None:
        """The next queue offset as far as is known; None for a queue that has no units yet."""
        if queue in self._next:
            return self._next[queue]
        return self._trusted(queue) if self._files.files(queue) else None

    def finish(self, *, log_end: int) -> dict[Queue, QueueBounds]:
        """Cut what lies behind the log's end, and return the bounds of every queue. Raises OSError."""
        bounds: dict[Queue, QueueBounds] = {}
        for queue in sorted({*self._files.queues(), *self._next}):
            if queue[0] in self._deleted and queue not in self._next:
                continue
            offset_max = self._next[queue] if queue in self._next else self._trusted(queue)
            offset_max = self._behind_damaged(queue, offset_max)
            self._files.truncate(queue, offset_max)
            offset_min = self._files.bisect(
                queue,
                lambda position, size: size == 0 or is_pre_blank(position, size) or position < self._log_begin,
                high=offset_max,
            )
            bounds[queue] = QueueBounds(min(offset_min, offset_max), offset_max)
        for topic in sorted({topic for topic, _ in self._files.queues()} - {topic for topic, _ in bounds}):
            self._files.remove_topic(topic)
        assert all(damage.end <= log_end for damage in self._damages)
        return bounds

    def _behind_damaged(self, queue: Queue, offset_max: int) -> int:
        """Behind units of the files that point into damage: no record says it, but these offsets were given out."""
        while self._damages:
            unit = self._files.read(queue, offset_max, 1)
            position, size, _ = unpack_unit(unit) if len(unit) == UNIT_BYTES else (0, 0, 0)
            if size <= 0 or not any(damage.position <= position < damage.end for damage in self._damages):
                break
            offset_max += 1
        return offset_max

    def _queue_of(self, topic: bytes, queue_id: int, position: int) -> Queue | None:
        try:
            name = topic.decode()
        except UnicodeDecodeError:
            name = ""
        if not is_safe_name(name) or not 0 <= queue_id <= QUEUE_ID_MAX:
            self._log("recovery.unusable_topic", log_position=position, topic=repr(topic), queue_id=queue_id)
            return None
        if position < self._born.get(name, 0) or position < self._deleted.get(name, 0):
            return None
        return name, queue_id

    def _trusted(self, queue: Queue) -> int:
        """How many units of the files are complete, synced and below `dispatched`."""
        return self._files.bisect(queue, lambda position, size: size > 0 and position < self._dispatched)

    def _place(self, queue: Queue, queue_offset: int, unit: bytes) -> None:
        expected = self._next.get(queue)
        if expected is None:
            expected = self._expected(queue)
            if expected is None:
                # Its first record may lie in the damage; of a log that retention shortened nobody can say.
                expected = 0 if self._damages and not self._log_begin else queue_offset
            self._next[queue] = expected
        if queue_offset == 0 and expected > 0:
            # The topic was deleted and made again by a broker that notes no birth: the older life ends here.
            self._log("recovery.queue_begins_again", topic=queue[0], queue_id=queue[1], units=expected)
            self._runs.pop(queue, None)
            self._files.truncate(queue, 0)
            expected = 0
        if queue_offset > expected:
            self._fill(queue, expected, queue_offset)
        run = self._runs.get(queue)
        if run is None or run.first + len(run.units) // len(unit) != queue_offset:
            self._write_run(queue)
            run = self._runs[queue] = _Run(queue_offset)
        run.units += unit
        self._next[queue] = max(expected, queue_offset + 1)

    def _fill(self, queue: Queue, first: int, end: int) -> None:
        """Units for queue offsets whose records cannot be read."""
        reached = self._reached.get(queue, -1)
        damage = next((damage for damage in self._damages if damage.position > reached), None)
        self._log(
            "recovery.queue_gap",
            topic=queue[0],
            queue_id=queue[1],
            first=first,
            count=end - first,
            log_position=damage.position if damage else -1,
        )
        filler = (
            pack_unit(damage.position, max(1, min(damage.end - damage.position, RECORD_BYTES_LIMIT - 1)), 0)
            if damage
            else PRE_BLANK
        )
        self._write_run(queue)
        for at in range(first, end, 4096):
            self._files.write(queue, at, filler * min(4096, end - at))

    def _write_runs(self) -> None:
        for queue in list(self._runs):
            self._write_run(queue)

    def _write_run(self, queue: Queue) -> None:
        run = self._runs.pop(queue, None)
        if run is not None:
            self._files.write(queue, run.first, bytes(run.units))
