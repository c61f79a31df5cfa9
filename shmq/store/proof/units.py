"""Proves the ConsumeQueue units against the log and against their checksums.

    a record of a queue           its unit lies at its queue offset: position, length, and the code of its tag
    a unit without a record       only before the log's begin, in damage of the log, or RocketMQ's pre-blank
    behind the last record        nothing
    the sums of the units         hold

What is not yet on disk for certain is not compared: while a broker runs, or after it was killed, units of records from
`settled_end` on may be missing or torn, and the next start writes them again.

Units of a queue are compared with those of its files as bytes; where these differ, one by one.

A tag code is not compared where more than one is right: delayed and timed messages say their due time there, and a
stock broker may say where `consumequeue_ext` has more.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field

from shmq.delay_levels import SCHEDULE_TOPIC
from shmq.plain_file import open_plain
from shmq.shm.core import UNIT_BYTES, RecordBatch, tag_hash
from shmq.shm.unit import is_pre_blank, pack_unit, unpack_unit
from shmq.store.consumequeue import FILE_BYTES, ConsumeQueueFiles, Queue
from shmq.store.dispatch import Dispatch
from shmq.store.proof.findings import Damages, Findings, offsets_text
from shmq.store.proof.record import WalkedRecord
from shmq.store.unit_repair import find_faults
from shmq.store.verify import ReadBytes
from shmq.timing import TIMER_TOPIC

_BUFFERED_BYTES = 16 << 20  # of units that are not compared yet
_EXT_CODE_MOST = -(1 << 31) - 1  # RocketMQ's address of an entry of consumequeue_ext lies below every hash
_READ_UNITS = 4096


@dataclass
class _QueueState:
    """The walk's state of one queue."""

    first: int = 0  # of the expected units that are not compared yet
    expected: bytearray = field(default_factory=bytearray)
    covered: list[tuple[int, int]] = field(default_factory=list)  # queue offsets with records, as ranges
    wrong: list[tuple[int, int, str]] = field(default_factory=list)  # ranges, and what is wrong with their units

    @property
    def end(self) -> int:
        return self.covered[-1][1] if self.covered else 0


class UnitProof:
    """One pass.

    Args:
        read: returns bytes of the log by position and size.
        settled_end: log position below which units have to be right.
    """

    def __init__(
        self,
        files: ConsumeQueueFiles,
        dispatch: Dispatch,
        findings: Findings,
        *,
        read: ReadBytes,
        log_begin: int,
        settled_end: int | None,
    ) -> None:
        self._read = read
        self._files = files
        self._dispatch = dispatch
        self._findings = findings
        self._log_begin = log_begin
        self._settled_end = settled_end
        self._queues: dict[Queue, _QueueState] = {}
        self._buffered_bytes = 0
        self.units = 0
        self.ext_units = 0

    def ends(self) -> dict[Queue, tuple[int, int]]:
        """Queue offsets of the first record and behind the last one, of every queue the log has records of."""
        return {queue: (state.covered[0][0], state.end) for queue, state in self._queues.items() if state.covered}

    def add(self, record: WalkedRecord) -> None:
        """Take the next whole record of the log."""
        if not record.has_queue:
            return
        queue = self._dispatch.queue_at(record.fields["topic"], record.queue_id, record.position)
        if queue is not None:
            self._take(queue, record.queue_offset, pack_unit(record.position, record.size, _code_of(record) or 0))

    def add_batch(self, batch: RecordBatch) -> None:
        """Take the next whole records of the log."""
        for queue, first, units in self._dispatch.runs_of(batch):
            self._take(queue, first, units)
        if self._buffered_bytes >= _BUFFERED_BYTES:
            for queue, state in self._queues.items():
                self._compare(queue, state)
            self._buffered_bytes = 0

    def _take(self, queue: Queue, first: int, units: bytes) -> None:
        state = self._queues.get(queue)
        if state is None or (first == 0 and state.end > 0):
            # Of a topic deleted and made again by a broker that notes no birth: these files are of the later life.
            state = self._queues[queue] = _QueueState()
        count = len(units) // UNIT_BYTES
        if not state.expected or first != state.first + len(state.expected) // UNIT_BYTES:
            self._compare(queue, state)
            state.first = first
        if state.covered and state.covered[-1][1] == first:
            state.covered[-1] = state.covered[-1][0], first + count
        else:
            state.covered.append((first, first + count))
        state.expected += units
        self._buffered_bytes += len(units)

    def finish(self, log_end: int, damages: Damages) -> None:
        """Compare the rest, and look for units that no record has."""
        for queue, state in self._queues.items():
            self._compare(queue, state)
        for queue in sorted({*self._queues, *self._files.queues()}):
            state = self._queues.get(queue, _QueueState())
            for first, end, reason in state.wrong:
                self._findings.add("units", f"{queue[0]}/{queue[1]} {offsets_text(first, end)}", reason)
            self._prove_gaps(queue, state)
            self._prove_others(queue, state, log_end, damages)
        if self.ext_units:
            self._findings.note("units", "consumequeue_ext", f"{self.ext_units} units say an address there, not a tag")

    def prove_sums(self) -> None:
        """Compare the units with their checksums, which the caller has loaded."""
        for queue in self._files.sums.queues():
            for fault in find_faults(self._files, queue):
                where = f"{queue[0]}/{queue[1]} {offsets_text(fault.first, fault.end)}"
                self._findings.add("sums", where, "the units are not what their checksum says")

    def _compare(self, queue: Queue, state: _QueueState) -> None:
        """Compare the collected units with those of the files."""
        expected = bytes(state.expected)
        state.expected.clear()
        if not expected:
            return
        count = len(expected) // UNIT_BYTES
        found = self._files.read(queue, state.first, count)
        last = unpack_unit(expected, count - 1)
        is_settled = self._settled_end is None or last.log_position + last.record_bytes <= self._settled_end
        if is_settled and found == expected:
            self.units += count
        else:
            self._compare_each(queue, state, expected, found)

    def _compare_each(self, queue: Queue, state: _QueueState, expected: bytes, found: bytes) -> None:
        for index in range(len(expected) // UNIT_BYTES):
            position, size, code = unpack_unit(expected, index)
            if self._settled_end is not None and position + size > self._settled_end:
                break
            self.units += 1
            offset = state.first + index
            if (index + 1) * UNIT_BYTES > len(found):
                _append(state.wrong, offset, "the log has records there, and there are no units")
                continue
            unit = unpack_unit(found, index)
            if unit.record_bytes == 0 and unit.log_position == 0:
                _append(state.wrong, offset, "the log has records there, and there are no units")
            elif (unit.log_position, unit.record_bytes) != (position, size):
                said = f"the unit says {unit.record_bytes} bytes at byte {unit.log_position}"
                state.wrong.append((offset, offset + 1, f"{said}, the record is {size} bytes at byte {position}"))
            elif unit.tag_code != code and queue[0] not in (SCHEDULE_TOPIC, TIMER_TOPIC):
                self._compare_code(state, offset, unit.tag_code, WalkedRecord(position, self._read(position, size)))

    def _compare_code(self, state: _QueueState, offset: int, tag_code: int, record: WalkedRecord) -> None:
        code = _code_of(record)
        if code is None or code == tag_code:
            return
        if tag_code <= _EXT_CODE_MOST:
            self.ext_units += 1
        else:
            reason = f"the unit says tag code {tag_code}, the record at byte {record.position} has {code}"
            state.wrong.append((offset, offset + 1, reason))

    def _prove_gaps(self, queue: Queue, state: _QueueState) -> None:
        """Queue offsets between records that have neither record nor unit."""
        for (_, first), (end, _) in zip(state.covered, state.covered[1:], strict=False):
            units = self._files.read(queue, first, end - first)
            empty = [at for at in range(len(units) // UNIT_BYTES) if not unpack_unit(units, at).record_bytes]
            if empty or len(units) < (end - first) * UNIT_BYTES:
                where = f"{queue[0]}/{queue[1]} {offsets_text(first, end)}"
                self._findings.add("units", where, "the log has no records there, and nothing says where they were")

    def _prove_others(self, queue: Queue, state: _QueueState, log_end: int, damages: Damages) -> None:
        """Units where the log has no record of that queue offset."""
        runs: list[tuple[int, int, str]] = []
        for offset, unit in self._written(queue, state.covered):
            position, size, _ = unit
            if is_pre_blank(position, size) or 0 <= position < self._log_begin or damages.holds(position):
                continue
            if self._settled_end is not None and position + max(size, 0) > self._settled_end:
                continue
            if position >= log_end:
                _append(runs, offset, f"units point at byte {position} and on, the log ends at byte {log_end}")
            else:
                _append(runs, offset, f"units point at byte {position} and on, where no record of these offsets lies")
        for first, end, reason in runs:
            self._findings.add("units", f"{queue[0]}/{queue[1]} {offsets_text(first, end)}", reason)

    def _written(self, queue: Queue, covered: list[tuple[int, int]]) -> Iterator[tuple[int, tuple[int, int, int]]]:
        """Units that are not zero, and not where records are; blocks that were never written cost nothing."""
        skip = iter(covered)
        first, end = next(skip, (0, 0))
        for base in self._files.files(queue):
            path, _ = self._files.place_of(queue, base // UNIT_BYTES)
            for at, size in _data_ranges(path):
                offset, stop = (base + at) // UNIT_BYTES, -(-(base + at + size) // UNIT_BYTES)
                while offset < stop:
                    while end and offset >= end:
                        first, end = next(skip, (0, 0))
                    if end and first <= offset:
                        offset = end
                        continue
                    until = min(stop, first, offset + _READ_UNITS) if end else min(stop, offset + _READ_UNITS)
                    units = self._files.read(queue, offset, until - offset)
                    if units.strip(b"\0"):
                        for index in range(len(units) // UNIT_BYTES):
                            unit = unpack_unit(units, index)
                            if unit.record_bytes or unit.log_position:
                                yield offset + index, unit
                    offset = until


def _code_of(record: WalkedRecord) -> int | None:
    """The code behind the length in the unit; None where more than one thing is right."""
    if record.topic in (SCHEDULE_TOPIC, TIMER_TOPIC):
        return None
    tag = record.properties.get("TAGS", "")
    try:
        return tag_hash(tag) if tag else 0
    except UnicodeError:
        return None


def _append(runs: list[tuple[int, int, str]], offset: int, reason: str) -> None:
    """Add an offset, to the last range if it goes on there; a range says the reason of its first offset."""
    if runs and runs[-1][1] == offset and runs[-1][2][:12] == reason[:12]:
        runs[-1] = runs[-1][0], offset + 1, runs[-1][2]
    else:
        runs.append((offset, offset + 1, reason))


def _data_ranges(path: str) -> Iterator[tuple[int, int]]:
    try:
        descriptor = open_plain(path, os.O_RDONLY)
    except FileNotFoundError:
        return
    try:
        at = 0
        while at < FILE_BYTES:
            try:
                data = os.lseek(descriptor, at, os.SEEK_DATA)
            except OSError:  # only unwritten blocks are left
                return
            at = min(FILE_BYTES, os.lseek(descriptor, data, os.SEEK_HOLE))
            yield data, at - data
    finally:
        os.close(descriptor)
