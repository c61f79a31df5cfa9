"""Completes the ConsumeQueue files behind the log after a crash.

`LogWalk` tells it the records in log order; it writes their units.

    unit in the files          pointing below `dispatched`         kept: they are complete and synced
                               anything behind                     written again from the records
    record of a topic's life   at or above its birth position      counts
                               below it, or of a deleted topic     belongs to no topic any more
    missing queue offset       after damage                        a unit that points at the damaged range
                               without                             RocketMQ's pre-blank
    damaged record             names the next offset of a queue    a unit: the offset was given out

Rules: (1) doing it twice writes the same bytes; (2) no unit points at or beyond the end of the log; (3) a record whose
topic cannot be a directory name is reported and skipped.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from shmq.shm.core import UNIT_BYTES, RecordBatch, ScannedRecord
from shmq.shm.unit import PRE_BLANK, RECORD_BYTES_LIMIT, is_pre_blank, pack_unit, unpack_unit
from shmq.store.config import Log
from shmq.store.consumequeue import ConsumeQueueFiles, Queue
from shmq.store.damage import Damage
from shmq.store.dispatch import Dispatch
from shmq.store.lineage.log_range import Range

_BUFFERED_BYTES = 16 << 20  # of units that are not written yet: thousands of queues take one write a queue, not many


@dataclass(frozen=True)
class QueueBounds:
    """Queue offsets of what is readable: offset_min inclusive, offset_max exclusive."""

    offset_min: int
    offset_max: int


@dataclass
class _Run:
    """Units of one queue that follow each other, not written yet."""

    first: int
    end: int
    parts: list[bytes] = field(default_factory=list)


class QueueRebuild:
    """One rebuild.

    Args:
        dispatched: log position below which the files are trusted; 0 trusts nothing.
        synced: log position below which units that are right are on disk already, and need no second writing.
        proven: the units below it are what their sums say, and there are no others.
        clean: the last broker stopped in order, so nothing was written behind what the sums say.
        log_begin: where the log begins; 0 if retention never shortened it.
    """

    def __init__(
        self,
        files: ConsumeQueueFiles,
        *,
        dispatch: Dispatch,
        dispatched: int,
        synced: int,
        proven: bool,
        clean: bool,
        log_begin: int,
        log: Log,
    ) -> None:
        self._files = files
        self._dispatch = dispatch
        self._dispatched = dispatched
        self._synced = synced
        self._proven = proven
        self._clean = proven and clean
        self._log_begin = log_begin
        self._log = log
        self._next: dict[Queue, int] = {}
        self._runs: dict[Queue, _Run] = {}
        self._buffered_bytes = 0
        self._damages: list[Damage] = []
        self._lost: list[Range] = []
        self._reached: dict[Queue, int] = {}  # log position of the last record of a queue
        self.records = 0
        self.store_ms_last = 0

    def add(self, batch: RecordBatch) -> None:
        """Take records in log order. Raises OSError when the units cannot be written."""
        self.records += batch.records
        self.store_ms_last = batch.store_ms
        for queue, first, units in self._dispatch.runs_of(batch):
            self._place(queue, first, units)
            self._reached[queue] = unpack_unit(units, len(units) // UNIT_BYTES - 1).log_position
        if self._buffered_bytes >= _BUFFERED_BYTES:
            self._write_runs()

    def add_damage(self, damage: Damage) -> None:
        """Take a range that holds no readable record. Raises OSError."""
        self._damages.append(damage)
        if damage.record is None:
            return
        topic, queue_id, queue_offset, size = damage.record
        queue = self._dispatch.queue_at(topic, queue_id, damage.position)
        if queue is None:
            return
        # One of its bytes is wrong, and unknown which; what fits a known queue exactly is believed.
        expected = self._expected(queue)
        if expected is None and queue[0] in self._dispatch.born:
            expected = 0
        if queue_offset == expected:
            self._place(queue, queue_offset, pack_unit(damage.position, size, 0))
            self._write_run(queue)

    def add_lost(self, lost: list[Range]) -> None:
        """Take ranges of the log that were on disk once, and are not there any more."""
        self._lost += lost

    def is_plausible(self, record: ScannedRecord) -> bool:
        """Say whether a whole record behind damage can be of this log: its queue has not passed its offset."""
        queue = self._dispatch.queue_of(record)
        return queue is None or record.queue_offset >= (self._expected(queue) or 0)

    def _expected(self, queue: Queue) -> int | None:
        """The next queue offset as far as is known; None for a queue that has no units yet."""
        if queue in self._next:
            return self._next[queue]
        return self._trusted(queue) if self._files.sums.of(queue) or self._files.files(queue) else None

    def finish(self, *, log_end: int) -> dict[Queue, QueueBounds]:
        """Cut what lies behind the log's end, and return the bounds of every queue. Raises OSError."""
        self._write_runs()
        bounds: dict[Queue, QueueBounds] = {}
        # Queues whose records retention took, and whose files are gone or cannot be read: what was given out stays so.
        floors = self._files.sums.floors if self._log_begin else {}
        for queue in sorted({*self._files.queues(), *self._next, *floors}):
            if queue[0] in self._dispatch.deleted and queue not in self._next:
                continue
            known = self._next.get(queue)
            offset_max = max(self._trusted(queue), floors.get(queue, 0)) if known is None else known
            offset_max = self._keep_damaged(queue, offset_max)
            if queue in self._next or not self._clean:
                self._files.truncate(queue, offset_max)
            bounds[queue] = QueueBounds(min(self._first_left(queue, offset_max), offset_max), offset_max)
        for topic in sorted({topic for topic, _ in self._files.queues()} - {topic for topic, _ in bounds}):
            self._files.remove_topic(topic)
        assert all(damage.end <= log_end for damage in self._damages)
        return bounds

    def _first_left(self, queue: Queue, offset_max: int) -> int:
        """The first queue offset whose record retention left."""

        def is_gone(position: int, size: int) -> bool:
            return size == 0 or is_pre_blank(position, size) or position < self._log_begin

        unit = self._files.read(queue, 0, 1) if offset_max else b""
        if len(unit) == UNIT_BYTES and not is_gone(*unpack_unit(unit)[:2]):
            return 0
        # Without a file there is no unit: all that is known of the queue is how many there were.
        return self._files.bisect(queue, is_gone, high=offset_max) if self._files.files(queue) else offset_max

    def _keep_damaged(self, queue: Queue, offset_max: int) -> int:
        """Keep units that point into what cannot be read, with their sums, or the next start would not see why."""
        behind = self._behind_damaged(queue, offset_max)
        if behind > offset_max:
            self._files.write(queue, offset_max, self._files.read(queue, offset_max, behind - offset_max))
        return behind

    def _behind_damaged(self, queue: Queue, offset_max: int) -> int:
        """Behind units that point into damage, or into what is lost: no record says it, but these were given out."""
        ranges = [(damage.position, damage.end) for damage in self._damages] + self._lost
        while ranges:
            unit = self._files.read(queue, offset_max, 1)
            position, size, _ = unpack_unit(unit) if len(unit) == UNIT_BYTES else (0, 0, 0)
            if size <= 0 or not any(begin <= position < end for begin, end in ranges):
                break
            offset_max += 1
        return offset_max

    def _trusted(self, queue: Queue) -> int:
        """How many units of the files are complete, synced and below `dispatched`."""
        end = self._files.sums.end(queue)
        if self._proven:
            unit = self._files.read(queue, end - 1, 1) if end else b""
            if not end or (len(unit) == UNIT_BYTES and sum(unpack_unit(unit)[:2]) <= self._dispatched):
                return end
        return self._files.bisect(
            queue,
            lambda position, size: size > 0 and position < self._dispatched,
            high=end if self._proven else None,
        )

    def _place(self, queue: Queue, queue_offset: int, units: bytes) -> None:
        """Put units whose queue offsets follow each other behind what is there of their queue."""
        expected = self._next.get(queue)
        if expected is None:
            expected = self._expected(queue)
            if expected is None:
                # Its first record may lie in the damage; of a log that retention shortened it is unknown.
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
        if run is None or run.end != queue_offset:
            self._write_run(queue)
            run = self._runs[queue] = _Run(queue_offset, queue_offset)
        run.parts.append(units)
        run.end += len(units) // UNIT_BYTES
        self._buffered_bytes += len(units)
        self._next[queue] = max(expected, run.end)

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
        self._buffered_bytes = 0

    def _write_run(self, queue: Queue) -> None:
        run = self._runs.pop(queue, None)
        if run is None:
            return
        units = b"".join(run.parts)
        count = len(units) // UNIT_BYTES
        if unpack_unit(units, count - 1)[0] < self._synced and self._files.read(queue, run.first, count) == units:
            self._files.sums.wrote(queue, run.first, units)  # thousands of files that are right are not synced again
        else:
            self._files.write(queue, run.first, units)
