"""Checks a store without changing it: records of the log, and whether the units of the queues point at them.

It works on the files alone, whether a broker runs or not, and needs no right but to read.

    walk     records from the log's begin on: length, magic, position, both CRCs; where the next one begins; a budget
             of bytes ends it early. The core checks many with one call and stops in front of the first thing that is
             no whole record; that one is judged here
    sample   units at random places of random queues: a whole record of that topic, queue and offset lies there

    a record that is not whole   below the durable mark      damage
                                 above it, or without one    damage if a record follows, in whatever file, else the end

Rules: (1) nothing is opened for writing, nothing is mapped, so a file that goes away is no signal; (2) a file that
retention removes while it is read counts as not there.
"""

from __future__ import annotations

import contextlib
import os
import random
import shlex
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from shmq.errors import CorruptionError
from shmq.plain_file import open_plain, read_past_errors
from shmq.record import (
    BLANK_MAGIC,
    HEAD_BYTES,
    HOLE_TOPIC,
    LENGTH_AND_MAGIC,
    RECORD_BYTES_MAX,
    RECORD_MAGICS,
    log_position_of,
    record_starts,
)
from shmq.shm.access import Access
from shmq.shm.core import UNIT_BYTES, CoreError, RecordBatch, record_batch, record_decode, record_verify
from shmq.shm.unit import is_pre_blank, unpack_unit
from shmq.store.consumequeue import FILE_BYTES
from shmq.store.durable import DurableMark, Mark
from shmq.store.layout import StoreLayout, file_fault, file_name, position_of
from shmq.store.lineage.loss import is_shortened_elsewhere, missing_cure, missing_ranges, missing_text

ReadBytes = Callable[[int, int], bytes]  # log position, size

FAULTS_MAX = 20  # listed one by one; the rest is counted

_READ_BYTES = RECORD_BYTES_MAX + (4 << 20)
_BATCH_RECORDS = 1 << 17  # more than there are in so many bytes


@dataclass(frozen=True)
class StoreFault:
    """One thing that is not as it must be; `position` is a log position."""

    position: int
    reason: str


@dataclass
class Verification:
    """The extent of a verification, and its findings."""

    files: int = 0
    log_begin: int = 0
    log_end: int = 0  # as far as the walk came
    durable_end: int | None = None
    complete: bool = False  # the walk reached the end of the log
    records: int = 0
    record_bytes: int = 0
    queues: int = 0
    units: int = 0  # of the sample
    fault_count: int = 0
    faults: list[StoreFault] = field(default_factory=list)

    def add_fault(self, position: int, reason: str) -> None:
        """Count a fault, and keep it while there are few."""
        self.fault_count += 1
        if len(self.faults) < FAULTS_MAX:
            self.faults.append(StoreFault(position, reason))


def verify_store(root: Path, *, bytes_max: int | None = None, samples: int = 256, seed: int = 0) -> Verification:
    """Look at a store and say what is wrong with it.

    Args:
        bytes_max: how much of the log to walk; None walks all of it.
        samples: how many units to compare with their records.
        seed: chooses them; the same seed chooses the same ones of the same store.

    Raises:
        OSError: the store cannot be read at all.
    """
    layout = StoreLayout(root, Access(-1))
    result = Verification()
    for fault in layout.faults(writable=False):
        result.add_fault(0, f"{fault.path.relative_to(root)}: {fault.reason}; {fault.cure}")
    if result.fault_count:
        return result
    try:
        mark = DurableMark(layout).load()
    except CorruptionError as error:
        mark = None
        result.add_fault(0, str(error))
    result.durable_end = mark.durable_end if mark else None
    log = LogFiles(layout.commitlog)
    result.files, result.log_begin = len(log.positions), log.begin
    result.log_end = log.begin
    for problem in log_problems(layout, log, mark):
        result.add_fault(log.begin, problem)
    if log.positions:
        RecordWalk(log, result).run(bytes_max)
    if samples:
        _sample(layout, log, result, samples, random.Random(seed))
    return result


def log_problems(layout: StoreLayout, log: LogFiles, mark: Mark | None) -> list[str]:
    """Say what is wrong with the files of a log, and what is missing of what was on disk.

    Args:
        mark: read before the files were listed, so that they reach as far as it says.
    """
    missing = missing_ranges(log, with_newer_begin(mark, layout))
    if is_shortened_elsewhere(layout, log, missing):
        del missing[0]
    return log.problems + [f"{missing_text(missing, log.file_bytes)}; {missing_cure(missing)}"] * bool(missing)


def known_mark(layout: StoreLayout) -> Mark | None:
    """Return the durable mark; None where it is missing, or cannot be read."""
    try:
        return DurableMark(layout).load()
    except CorruptionError:
        return None


def with_newer_begin(mark: Mark | None, layout: StoreLayout) -> Mark | None:
    """Return a mark with the log's begin as it is noted now: of a running broker files may have gone since."""
    newer = known_mark(layout) if mark else None
    return mark._replace(log_begin=newer.log_begin) if mark and newer else mark


def _file_bytes(sizes: dict[int, int]) -> int:
    """The size that most files have; of a tie the one that their names can have."""
    counts = Counter(size for size in sizes.values() if size)
    return max(counts, key=lambda size: (counts[size], not any(at % size for at in sizes), size), default=0)


class LogFiles:
    """The files of a log, for reading.

    Args:
        begin: log position in the first file where the log begins; that of a tail is where it was cut off.
        reads_past_errors: what the disk refuses to read is zeros, so no record there is whole, and the next one is
            found; without it that raises OSError.
    """

    def __init__(self, directory: Path, *, begin: int = 0, reads_past_errors: bool = False) -> None:
        self._begin = begin
        self._reads_past_errors = reads_past_errors
        self.directory = directory
        sizes, self.problems = {}, []
        for entry in os.scandir(directory):
            if (position := position_of(entry.name)) is None:
                continue
            if fault := file_fault(Path(entry.path), writable=False):
                self.problems.append(f"log file {entry.name}: {fault.reason}; {fault.cure}")
            else:
                with contextlib.suppress(FileNotFoundError):
                    sizes[position] = entry.stat().st_size
        self.file_bytes = _file_bytes(sizes)
        # Behind the others an empty file is what a stock broker leaves that dies while it makes one.
        self.positions = sorted(at for at, size in sizes.items() if size or at < max(sizes) or len(sizes) == 1)
        self.problems += [
            f"log file {file_name(at)} has {sizes[at]} bytes, the others {self.file_bytes}; restore it, or give it its "
            f"size: truncate -s {self.file_bytes} {shlex.quote(str(directory / file_name(at)))}"
            for at in self.positions
            if sizes[at] != self.file_bytes
        ]

    @property
    def begin(self) -> int:
        return max(self._begin, self.positions[0]) if self.positions else 0

    @property
    def end(self) -> int:
        """Log position behind the last file."""
        return self.positions[-1] + self.file_bytes if self.positions else 0

    @property
    def gaps(self) -> list[tuple[int, int]]:
        """Where files are missing between others: begin and end of each range, ascending."""
        pairs = zip(self.positions, self.positions[1:], strict=False)
        return [(at + self.file_bytes, then) for at, then in pairs if then > at + self.file_bytes]

    def read(self, position: int, size: int) -> bytes:
        """Return up to `size` bytes, not crossing the end of a file; none where there is no file."""
        within = position % self.file_bytes if self.file_bytes else 0
        if (descriptor := self._opened(position)) < 0:
            return b""
        try:
            return self._bytes_of(descriptor, min(size, self.file_bytes - within), within)
        finally:
            os.close(descriptor)

    def fill(self, position: int, room: memoryview) -> memoryview:
        """Read into `room`, not crossing the end of a file, and let the kernel read on; returns what was filled."""
        within = position % self.file_bytes
        if (descriptor := self._opened(position)) < 0:
            return room[:0]
        try:
            room = room[: self.file_bytes - within]
            os.posix_fadvise(descriptor, within + len(room), len(room), os.POSIX_FADV_WILLNEED)
            return room[: os.preadv(descriptor, [room], within)]
        except OSError:
            data = self._bytes_of(descriptor, len(room), within)
            room[: len(data)] = data
            return room[: len(data)]
        finally:
            os.close(descriptor)

    def data_at(self, position: int) -> int:
        """Return the first log position from one on whose block was written, or the end of its file."""
        within = position % self.file_bytes
        file_end = position - within + self.file_bytes
        if (descriptor := self._opened(position)) < 0:
            return file_end
        try:
            return min(file_end, position - within + os.lseek(descriptor, within, os.SEEK_DATA))
        except OSError:  # nothing but unwritten blocks
            return file_end
        finally:
            os.close(descriptor)

    def _bytes_of(self, descriptor: int, size: int, at: int) -> bytes:
        if not self._reads_past_errors:
            return os.pread(descriptor, size, at)
        return read_past_errors(lambda size, at: os.pread(descriptor, size, at), size, at)

    def _opened(self, position: int) -> int:
        """The descriptor of the file of a position; -1 where there is none, or it is no plain file that may be read."""
        if not self.file_bytes:
            return -1
        path = self.directory / file_name(position - position % self.file_bytes)
        try:
            return open_plain(path, os.O_RDONLY)
        except OSError:
            return -1


class RecordWalk:
    """One pass over the log; what it finds goes into `result`.

    Args:
        on_record: gets the position and the bytes of every whole record, in order.
        on_batch: gets many whole records at once, and how to read their bytes; `on_record` gets the others then.
        watched: topics whose records a batch lists one by one, too.
        on_damage: gets begin, end and reason of what is none, in order with the records.
    """

    def __init__(
        self,
        log: LogFiles,
        result: Verification,
        *,
        on_record: Callable[[int, bytes], None] | None = None,
        on_batch: Callable[[RecordBatch, ReadBytes], None] | None = None,
        watched: tuple[bytes, ...] = (),
        on_damage: Callable[[int, int, str], None] = lambda position, end, reason: None,
    ) -> None:
        self._log = log
        self._result = result
        self._on_record = on_record
        self._on_batch = on_batch
        self._watched = None if on_batch is None else watched
        self._on_damage = on_damage
        self._base = 0
        self._data: bytes | memoryview = b""
        self._room = memoryview(b"")

    def run(self, bytes_max: int | None = None) -> None:
        """Walk until the log ends or so many bytes are behind."""
        result, log = self._result, self._log
        budget_end = None if bytes_max is None else log.begin + bytes_max
        for first in log.positions:
            at, file_end = max(first, log.begin), first + log.file_bytes
            while at < file_end:
                if budget_end is not None and at >= budget_end:
                    return
                reached = self._whole(at, file_end if budget_end is None else min(budget_end, file_end))
                next_at = reached if reached > at else self._step(at, file_end)
                if next_at is None:
                    result.complete = True
                    return
                at = result.log_end = next_at
        result.complete = True

    def _whole(self, at: int, end: int) -> int:
        """Go over whole records that end at `end` at the latest; where that led."""
        if self._on_record is not None and self._on_batch is None:
            return at  # each is wanted by itself
        if not self._base <= at <= at + min(end - at, RECORD_BYTES_MAX) <= self._base + len(self._data):
            if not self._room:
                self._room = memoryview(bytearray(_READ_BYTES))
            self._base, self._data = at, self._log.fill(at, self._room)
        window = memoryview(self._data)[at - self._base : end - self._base]
        batch = record_batch(window, at, _BATCH_RECORDS, self._watched, self._on_batch is not None)
        self._result.records += batch.records
        self._result.record_bytes += batch.record_bytes
        if self._on_batch is not None and batch.records:
            self._on_batch(batch, self._window)
        return batch.position

    def _step(self, at: int, file_end: int) -> int | None:
        """Check what lies at a position; where the next one begins, None at the end of the log."""
        head = self._window(at, LENGTH_AND_MAGIC.size).ljust(LENGTH_AND_MAGIC.size, b"\0")
        size, magic = LENGTH_AND_MAGIC.unpack(head)
        if magic == BLANK_MAGIC and size == file_end - at:
            return file_end
        reason = self._wrong(at, size, magic, file_end)
        if not reason:
            self._result.records += 1
            self._result.record_bytes += size
            if self._on_record is not None:
                self._on_record(at, self._window(at, size))
            return at + int(size)
        return self._after(at, reason, file_end)

    def _wrong(self, at: int, size: int, magic: int, file_end: int) -> str:
        if magic not in RECORD_MAGICS:
            return "no record begins here"
        if not HEAD_BYTES < size <= min(RECORD_BYTES_MAX, file_end - at):
            return f"a record cannot have {size} bytes here"
        window = self._window(at, size)
        if (position := log_position_of(window.ljust(HEAD_BYTES))) != at:
            return f"the record says it lies at byte {position}"
        try:
            if len(window) == size and (record_verify(window) or _is_hole(window)):
                return ""
        except CoreError as error:
            return str(error.args[1])
        return "a checksum is wrong"

    def _after(self, at: int, reason: str, file_end: int) -> int | None:
        """The position to go on at behind something that is no record, None when the log ends there."""
        durable_end = self._result.durable_end
        after = self._next_record(at + 1, file_end)
        if durable_end is None or at >= durable_end:
            if after is None and not self._follows(file_end):
                return None
            # A running broker may have stored this record after it was read, and the one behind it since.
            self._data = b""
            size, magic = LENGTH_AND_MAGIC.unpack(self._window(at, LENGTH_AND_MAGIC.size))
            if not self._wrong(at, size, magic, file_end):
                return at
        end = file_end if after is None else after
        self._result.add_fault(at, reason)
        self._on_damage(at, end, reason)
        return end

    def _follows(self, file_end: int) -> bool:
        """Whether a record is in a file behind one: the end of that was damaged then, and is not the log's."""
        behind = (first for first in self._log.positions if first >= file_end)
        return any(self._next_record(first, first + self._log.file_bytes) is not None for first in behind)

    def _next_record(self, at: int, file_end: int) -> int | None:
        while at < file_end:
            # A head that begins in front of a block may lie in it.
            at = max(at, self._log.data_at(at) - LENGTH_AND_MAGIC.size)
            data = self._log.read(at, _READ_BYTES)
            for candidate in (at + start for start in record_starts(data) if start >= 0):
                size, magic = LENGTH_AND_MAGIC.unpack(self._window(candidate, LENGTH_AND_MAGIC.size))
                if not self._wrong(candidate, size, magic, file_end):
                    return candidate
            at += max(1, len(data) - LENGTH_AND_MAGIC.size + 1)  # a head may lie across two reads
        return None

    def _window(self, at: int, size: int) -> bytes:
        if not self._base <= at <= at + size <= self._base + len(self._data):
            self._base, self._data = at, self._log.read(at, max(_READ_BYTES, size))
        return bytes(self._data[at - self._base : at - self._base + size])


def _is_hole(record: bytes) -> bool:
    """The hole of an evicted claim that its owner did not settle has a wrong body CRC, and nothing is missing."""
    return bool(record_decode(record)["topic"] == HOLE_TOPIC)


def _sample(layout: StoreLayout, log: LogFiles, result: Verification, samples: int, choice: random.Random) -> None:
    files = sorted(_unit_files(layout.consumequeue))
    result.queues = len({(topic, queue_id) for topic, queue_id, _, _ in files})
    if not files:
        return
    for _ in range(samples):
        topic, queue_id, first_byte, path = choice.choice(files)
        offset, unit = _any_unit(path, first_byte, choice)
        if unit is None:
            continue
        position, size, _ = unit
        if position < log.begin:  # retention has passed it
            continue
        result.units += 1
        reason = _wrong_unit(log, topic, queue_id, offset, position, size)
        if reason and not (result.durable_end is not None and position >= result.durable_end):
            result.add_fault(position, f"unit {offset} of queue {queue_id} of topic {topic}: {reason}")


def _unit_files(directory: Path) -> Iterator[tuple[str, int, int, str]]:
    if not directory.is_dir():
        return
    for topic in os.scandir(directory):
        if not topic.is_dir(follow_symlinks=False):
            continue
        for queue in os.scandir(topic.path):
            if not (queue.name.isascii() and queue.name.isdigit()):
                continue
            for entry in os.scandir(queue.path):
                position = position_of(entry.name)
                if position is not None and entry.stat().st_size == FILE_BYTES:
                    yield topic.name, int(queue.name), position, entry.path


def _any_unit(path: str, first_byte: int, choice: random.Random) -> tuple[int, tuple[int, int, int] | None]:
    """A unit of a file and its queue offset; the written ones are its first, so a bisection finds how many."""
    try:
        descriptor = open_plain(path, os.O_RDONLY)
    except OSError:
        return 0, None
    try:
        low, high = 0, FILE_BYTES // UNIT_BYTES
        while low < high:
            middle = (low + high) // 2
            _, size, _ = unpack_unit(os.pread(descriptor, UNIT_BYTES, middle * UNIT_BYTES))
            low, high = (middle + 1, high) if size else (low, middle)
        if not low:
            return 0, None
        index = choice.randrange(low)
        unit = unpack_unit(os.pread(descriptor, UNIT_BYTES, index * UNIT_BYTES))
    finally:
        os.close(descriptor)
    return first_byte // UNIT_BYTES + index, None if is_pre_blank(unit[0], unit[1]) else unit


def _wrong_unit(log: LogFiles, topic: str, queue_id: int, offset: int, position: int, size: int) -> str:
    if position < 0 or not 0 < size <= RECORD_BYTES_MAX:
        return f"it speaks of {size} bytes at {position}"
    record = log.read(position, size)
    try:
        found: dict[str, Any] = record_decode(record)
        whole = record_verify(record)
    except CoreError as error:
        return f"at byte {position} lies no record: {error.args[1]}"
    if not whole:
        return f"the record at byte {position} has a wrong checksum"
    said = (found["topic"].decode(errors="replace"), found["queue_id"], found["queue_offset"], found["log_position"])
    if said != (topic, queue_id, offset, position):
        return f"the record there is of queue {said[1]} of topic {said[0]}, offset {said[2]}, byte {said[3]}"
    return ""
