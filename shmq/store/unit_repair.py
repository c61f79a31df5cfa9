"""Checks units against their sums, and writes those that are wrong again from the log.

It works on a store that is being recovered, and on one that a broker runs on.

    bad blocks  ──▶  ranges of queue offsets  ──▶  where their records lie  ──▶  one walk over the log  ──▶  units
    (unit_sums)                                    between the records of the
                                                   next right units around

    offset whose record is found             its unit
    not found, a found one behind it         a unit that points at damage of the log, or RocketMQ's pre-blank
    not found, none behind it                damage of the log: as above; a log that retention shortened and that holds
                                             nothing of the range: pre-blank; else the queue ends there

Rules: (1) a unit is right only if a whole record of its queue and queue offset lies where it points; (2) what is
written is taken from records whose CRCs hold; (3) repairing twice writes the same bytes.
"""

from __future__ import annotations

import time
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from shmq.shm.core import UNIT_BYTES, CoreError, KeeperStore, RecordBatch, ScannedRecord
from shmq.shm.unit import PRE_BLANK, RECORD_BYTES_LIMIT, is_pre_blank, pack_unit, unpack_unit
from shmq.store.commitlog import CommitLogFiles
from shmq.store.consumequeue import FILE_UNITS, ConsumeQueueFiles
from shmq.store.damage import Damage, LogWalk
from shmq.store.dispatch import WATCHED_TOPICS, Dispatch
from shmq.store.unit_sums import BLOCK_BYTES, BLOCK_UNITS, Queue

_FILE_BLOCKS = FILE_UNITS // BLOCK_UNITS
_FILLER_UNITS = 4096
_DISTANCES = (*range(1, 9), *(1 << bits for bits in range(4, 24)))  # of the neighbours that are tried


@dataclass(frozen=True)
class UnitFault:
    """Queue offsets of one queue whose units are not what they were; `is_tail` when no sum says that more follow."""

    queue: Queue
    first: int
    end: int
    is_tail: bool = False


@dataclass
class _Wanted:
    """A fault, and between which log positions its records lie."""

    fault: UnitFault
    low: int
    high: int
    units: dict[int, bytes] = field(default_factory=dict)

    def take(self, first: int, units: bytes) -> None:
        """Keep of units whose offsets follow each other those that are wanted."""
        begin, end = max(first, self.fault.first), min(first + len(units) // UNIT_BYTES, self.fault.end)
        for offset in range(begin, end):
            at = (offset - first) * UNIT_BYTES
            self.units[offset] = units[at : at + UNIT_BYTES]


def find_faults(
    files: ConsumeQueueFiles, queue: Queue, first_block: int = 0, block_end: int | None = None
) -> list[UnitFault]:
    """Compare blocks of a queue with their sums, all of them by default; neighbouring bad ones make one fault."""
    sums = files.sums.of(queue)
    faults: list[UnitFault] = []
    if sums is None or sums.stale_block is not None:
        return faults
    last_block = -(-sums.end // BLOCK_UNITS)
    block = max(first_block, sums.first_block)
    block_end = last_block if block_end is None else min(block_end, last_block)
    while block < block_end:
        stop = min(block_end, block - block % _FILE_BLOCKS + _FILE_BLOCKS)
        end = min(stop * BLOCK_UNITS, sums.end)
        data = files.read(queue, block * BLOCK_UNITS, end - block * BLOCK_UNITS)
        for number in range(block, stop):
            at = (number - block) * BLOCK_BYTES
            units = min(BLOCK_UNITS, sums.end - number * BLOCK_UNITS)
            full = number < sums.block_end
            wanted = sums.sums[number - sums.first_block] if full else sums.tail_crc
            if len(data) < at + units * UNIT_BYTES or zlib.crc32(data[at : at + units * UNIT_BYTES]) != wanted:
                first, behind = number * BLOCK_UNITS, number * BLOCK_UNITS + units
                if faults and faults[-1].end == first:
                    first = faults.pop().first
                faults.append(UnitFault(queue, first, behind, is_tail=behind == sums.end))
        block = stop
    return faults


def find_faults_at_start(files: ConsumeQueueFiles, *, seconds: float) -> tuple[list[UnitFault], bool]:
    """Check the end of every queue, and the rest of as many as the time allows; whether it was all of them."""
    faults: list[UnitFault] = []
    rest: list[tuple[Queue, int]] = []
    until = time.monotonic() + seconds
    for queue in files.sums.queues():
        sums = files.sums.of(queue)
        assert sums is not None
        border = max(sums.first_block, sums.block_end - 1)
        found = find_faults(files, queue, border)
        if not found and border > sums.first_block:
            rest.append((queue, border))
        elif found:
            found = find_faults(files, queue)  # where one is bad, others are likely
        faults += found
    for number, (queue, border) in enumerate(rest):
        if time.monotonic() >= until:
            return faults, number == len(rest)
        faults += find_faults(files, queue, 0, border)
    return faults, True


class UnitRepair:
    """Writes units again from the log.

    Args:
        log_end: the log position behind the last record that is looked at.
    """

    def __init__(
        self,
        keeper_store: KeeperStore,
        commitlog: CommitLogFiles,
        files: ConsumeQueueFiles,
        dispatch: Dispatch,
        *,
        log_end: int,
    ) -> None:
        self._keeper_store = keeper_store
        self._commitlog = commitlog
        self._files = files
        self._dispatch = dispatch
        self._log_end = log_end
        self._damages: list[Damage] = []

    def run(self, faults: Iterable[UnitFault]) -> int:
        """Repair units in the files; returns how many were written. Raises OSError, CoreError."""
        wanted = [self._bounded(fault) for fault in faults]
        self._collect(wanted)
        return sum(self._write(item) for item in wanted)

    def units(self, queue: Queue, first: int, end: int) -> bytes:
        """Return units as the log says they are, and as few as it holds of the last ones; nothing is written."""
        wanted = self._bounded(UnitFault(queue, first, end, is_tail=True))
        self._collect([wanted])
        return b"".join(unit for _, unit in self._filled(wanted))

    def found(self, queue: Queue, first: int, end: int) -> tuple[dict[int, bytes], list[Damage]]:
        """Return the units of some offsets whose records are in the log, and the damage of the log where they should
        be; nothing is written."""
        wanted = self._bounded(UnitFault(queue, first, end))
        self._collect([wanted])
        return wanted.units, [damage for damage in self._damages if wanted.low <= damage.position < wanted.high]

    def is_right(self, queue: Queue, offset: int, unit: bytes) -> bool:
        """Say whether a unit points at the record of its queue and offset."""
        return self._record_of(queue, offset, unit) is not None

    def _bounded(self, fault: UnitFault) -> _Wanted:
        low, high = self._commitlog.begin, self._log_end
        for offset in _away(fault.first, -1, 0):
            record = self._record_at(fault.queue, offset)
            if record is not None:
                low = record.log_position + record.record_bytes
                break
        for offset in () if fault.is_tail else _away(fault.end - 1, 1, self._files.sums.end(fault.queue)):
            record = self._record_at(fault.queue, offset)
            if record is not None:
                high = record.log_position
                break
        return _Wanted(fault, low, high)

    def _record_at(self, queue: Queue, offset: int) -> ScannedRecord | None:
        """The record of a queue offset, if its unit is right."""
        return self._record_of(queue, offset, self._files.read(queue, offset, 1))

    def _record_of(self, queue: Queue, offset: int, unit: bytes) -> ScannedRecord | None:
        position, size, _ = unpack_unit(unit) if len(unit) == UNIT_BYTES else (0, 0, 0)
        if size <= 0 or is_pre_blank(position, size) or not self._commitlog.begin <= position < self._log_end:
            return None
        try:
            _, records, _ = self._keeper_store.scan(position, self._log_end, 1)
        except CoreError:
            return None
        if not records or records[0].log_position != position or records[0].queue_offset != offset:
            return None
        return records[0] if self._dispatch.queue_of(records[0]) == queue else None

    def _collect(self, wanted: list[_Wanted]) -> None:
        """One walk over each stretch of the log that holds wanted records."""
        by_queue: dict[Queue, list[_Wanted]] = {}
        for item in wanted:
            by_queue.setdefault(item.fault.queue, []).append(item)

        def take(batch: RecordBatch) -> None:
            for queue, first, units in self._dispatch.runs_of(batch):
                for item in by_queue.get(queue, ()):
                    item.take(first, units)

        for low, high in _merged((item.low, item.high) for item in wanted):
            walk = LogWalk(
                self._keeper_store,
                self._commitlog,
                durable_end=high,
                log_end=high,
                on_records=take,
                on_damage=self._damages.append,
                watched=WATCHED_TOPICS,
            )
            walk.run(low)

    def _filled(self, item: _Wanted) -> Iterator[tuple[int, bytes]]:
        """The units of a range without gaps."""
        fault, end = item.fault, item.fault.end
        last = max(item.units, default=-1)
        reached = unpack_unit(item.units[last])[0] if item.units else item.low
        damages = [damage for damage in self._damages if item.low <= damage.position < item.high]
        if fault.is_tail and not any(damage.position > reached for damage in damages):
            is_cleaned = not item.units and self._commitlog.begin > 0
            end = fault.end if is_cleaned else max(fault.first, last + 1)
        filler = PRE_BLANK
        if damages:
            size = max(1, min(damages[0].end - damages[0].position, RECORD_BYTES_LIMIT - 1))
            filler = pack_unit(damages[0].position, size, 0)
        for offset in range(fault.first, end):
            yield offset, item.units.get(offset, filler)

    def _write(self, item: _Wanted) -> int:
        queue, first = item.fault.queue, item.fault.first
        units = b"".join(unit for _, unit in self._filled(item))
        for at in range(0, len(units), _FILLER_UNITS * UNIT_BYTES):
            self._files.write(queue, first + at // UNIT_BYTES, units[at : at + _FILLER_UNITS * UNIT_BYTES])
        count = len(units) // UNIT_BYTES
        if first + count < item.fault.end:
            self._files.truncate(queue, first + count)
        return count


def _away(offset: int, direction: int, limit: int) -> Iterator[int]:
    """Queue offsets farther and farther away from one."""
    for distance in _DISTANCES:
        at = offset + direction * distance
        if (at < limit) if direction < 0 else (at >= limit):
            return
        yield at


def _merged(ranges: Iterable[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """Ranges that overlap as one."""
    current: tuple[int, int] | None = None
    for low, high in sorted(ranges):
        if low >= high:
            continue
        if current is not None and low <= current[1]:
            current = current[0], max(current[1], high)
            continue
        if current is not None:
            yield current
        current = low, high
    if current is not None:
        yield current
