"""The ConsumeQueue files: one directory a queue, files of 300,000 units, exactly as RocketMQ has them.

    queue  queue offset n lies at byte n * 20 of the queue; `shmq/shm/unit.py` has the bytes of a unit
    file   6,000,000 bytes, named by the byte position of its first unit; sparse, as units are written with pwrite
    before the first unit of a queue that begins in the middle of a file: RocketMQ's pre-blank units

Rules: (1) units are derived: whatever is wrong here is rebuilt from the log; `unit_sums.py` says where;
(2) the units of a queue point at ascending log positions, so every border is found by bisection;
(3) the number of open files is bounded; what is dirty is remembered by path and synced later;
(4) a sync that failed is final for what it covered: the kernel calls such pages clean, so they are lost until they
have been written again, and only then the file may be synced.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from shmq.plain_file import open_plain, write_whole
from shmq.shm.core import UNIT_BYTES
from shmq.shm.unit import PRE_BLANK, is_pre_blank, unpack_unit
from shmq.store.atomic import sync_directory
from shmq.store.layout import StoreLayout, file_name, is_safe_name, position_of
from shmq.store.unit_sums import Queue as Queue
from shmq.store.unit_sums import UnitSums

FILE_UNITS = 300_000
FILE_BYTES = FILE_UNITS * UNIT_BYTES
QUEUE_ID_MAX = 65535

_OPEN_MAX = 64
_SYNC_THREADS = 8  # syncs of many small files wait for the journal together


@dataclass(frozen=True)
class UnitRange:
    """Units of one queue in one file."""

    queue: Queue
    first: int
    end: int

    def joined(self, other: UnitRange | None) -> UnitRange:
        """Return the range that holds both, which are of one file."""
        if other is None:
            return self
        return UnitRange(self.queue, min(self.first, other.first), max(self.end, other.end))


@dataclass
class UnitSync:
    """Files on their way to the disk; `run` is for a thread of its own."""

    ranges: dict[str, UnitRange]  # by path
    directories: list[str]
    failed: dict[str, OSError] = field(default_factory=dict)

    def run(self) -> None:
        """Sync every file, then every directory; what was removed counts as synced."""
        self._each(list(self.ranges), self._sync_file)
        self._each(list(self.directories), self._sync_directory)

    def _each(self, waiting: list[str], sync: Callable[[str], None]) -> None:
        threads = [
            threading.Thread(target=self._take, args=(waiting, sync), name="unit-sync", daemon=True)
            for _ in range(min(_SYNC_THREADS, len(waiting)) - 1)
        ]
        for thread in threads:
            thread.start()
        self._take(waiting, sync)
        for thread in threads:
            thread.join()

    def _take(self, waiting: list[str], sync: Callable[[str], None]) -> None:
        while waiting:
            try:
                path = waiting.pop()
            except IndexError:
                return
            try:
                sync(path)
            except FileNotFoundError:
                continue
            except OSError as error:
                self.failed[path] = error

    def _sync_file(self, path: str) -> None:
        descriptor = open_plain(path, os.O_RDWR)
        try:
            os.fdatasync(descriptor)
        finally:
            os.close(descriptor)

    def _sync_directory(self, path: str) -> None:
        sync_directory(Path(path))


class ConsumeQueueFiles:
    """The unit files of one store; one process writes them.

    Args:
        writable: False to only `read`, beside the process that writes.
    """

    def __init__(self, layout: StoreLayout, *, writable: bool = True) -> None:
        self._layout = layout
        self._flags = os.O_RDWR if writable else os.O_RDONLY
        self._open: OrderedDict[str, int] = OrderedDict()  # by path, as the next ones
        self._dirty: dict[str, UnitRange] = {}
        self._lost: dict[str, UnitRange] = {}
        self._dirty_directories: set[str] = set()
        self._unsynced: dict[str, set[str]] = {}  # topic -> paths that are dirty or lost
        self.sums = UnitSums(layout)

    def queues(self) -> list[Queue]:
        """Return every queue that has a directory."""
        found: list[Queue] = []
        if not self._layout.consumequeue.is_dir():
            return []
        for topic in os.scandir(self._layout.consumequeue):
            if topic.is_dir(follow_symlinks=False):
                for queue in os.scandir(topic.path):
                    if queue.name.isascii() and queue.name.isdigit() and int(queue.name) <= QUEUE_ID_MAX:
                        found.append((topic.name, int(queue.name)))
        return sorted(found)

    def files(self, queue: Queue) -> list[int]:
        """Return the byte positions of a queue's files, ascending; a zero-length last file is not counted."""
        found: list[int] = []
        try:
            for entry in os.scandir(self._directory(queue)):
                position = position_of(entry.name)
                if position is not None and position % FILE_BYTES == 0 and entry.stat().st_size == FILE_BYTES:
                    found.append(position)
        except FileNotFoundError:
            return []
        return sorted(found)

    def misshapen(self) -> Iterator[tuple[str, int]]:
        """Find files that have another size than units have, and which; empty ones are what a stock broker left."""
        for queue in self.queues():
            with contextlib.suppress(FileNotFoundError):  # a topic that is deleted meanwhile
                for entry in os.scandir(self._directory(queue)):
                    if position_of(entry.name) is not None and (size := entry.stat().st_size) not in (0, FILE_BYTES):
                        yield entry.path, size

    def write(self, queue: Queue, first: int, units: bytes) -> None:
        """Put units at queue offset `first`. Raises OSError when the disk refuses."""
        at, end = first * UNIT_BYTES, first * UNIT_BYTES + len(units)
        while at < end:
            base = at - at % FILE_BYTES
            size = min(end, base + FILE_BYTES) - at
            begin, begin_at = at - first * UNIT_BYTES, at - base
            descriptor = self._file(queue, base, first_unit_at=begin_at)
            view = memoryview(units)[begin : begin + size]
            write_whole(descriptor, view, at - base)
            at += size
            path = self._path(queue, base)
            written = UnitRange(queue, (base + begin_at) // UNIT_BYTES, at // UNIT_BYTES)
            self._note_dirty(path, written)
        self.sums.wrote(queue, first, units)

    def read(self, queue: Queue, first: int, count: int) -> bytes:
        """Return up to `count` units from queue offset `first`; shorter where a file is missing."""
        parts: list[bytes] = []
        at, end = first * UNIT_BYTES, (first + count) * UNIT_BYTES
        while at < end:
            base = at - at % FILE_BYTES
            size = min(end, base + FILE_BYTES) - at
            path = self._path(queue, base)
            try:
                descriptor = self._cached(path, self._flags)
            except FileNotFoundError:
                break
            part = os.pread(descriptor, size, at - base)
            parts.append(part[: len(part) - len(part) % UNIT_BYTES])
            if len(part) < size:
                break
            at += size
        return b"".join(parts)

    def place_of(self, queue: Queue, offset: int) -> tuple[str, int]:
        """Return the path of a queue offset's file and the byte at which its unit lies there."""
        base = offset // FILE_UNITS * FILE_BYTES
        return self._path(queue, base), offset * UNIT_BYTES - base

    def reopen(self, queue: Queue, first: int, end: int) -> tuple[int, int]:
        """Let go of files whose names are gone; returns the range, extended over every unit of such a file."""
        for offset in range(first // FILE_UNITS * FILE_UNITS, end, FILE_UNITS):
            path, _ = self.place_of(queue, offset)
            if not os.path.exists(path):
                self._forget(path)
                first, end = min(first, offset), max(end, offset + FILE_UNITS)
        return first, end

    def open_files(self) -> list[tuple[Queue, int, int]]:
        """Return queue, byte position and descriptor of every file that is open."""
        found = []
        for path, descriptor in self._open.items():
            topic, queue_id, name = path.rsplit("/", 3)[1:]
            found.append(((topic, int(queue_id)), int(name), descriptor))
        return found

    def put_back(self, queue: Queue, base: int) -> None:
        """Write an open file that lost its name to its path again. Raises OSError."""
        path = self._path(queue, base)
        descriptor = self._open.pop(path)
        try:
            written = [(at, chunk) for at, chunk in _chunks(descriptor, 0)]
        finally:
            os.close(descriptor)
        copy = self._file(queue, base, first_unit_at=0)
        for at, chunk in written:
            write_whole(copy, chunk, at)
        self._note_dirty(path, UnitRange(queue, base // UNIT_BYTES, (base + FILE_BYTES) // UNIT_BYTES))

    def bisect(self, queue: Queue, is_before: Callable[[int, int], bool], *, high: int | None = None) -> int:
        """Return the first queue offset whose unit is not `before`; units must be ordered by it.

        Args:
            is_before: takes log position and record bytes of a unit; (0, 0) is a unit never written.
            high: look only below this queue offset.
        """
        files = self.files(queue)
        if not files:
            return 0
        files = _contiguous_tail(files)
        low, last = files[0] // UNIT_BYTES, files[-1] // UNIT_BYTES + FILE_UNITS
        high = last if high is None else min(high, last)
        while low < high:
            middle = (low + high) // 2
            unit = self.read(queue, middle, 1)
            position, size, _ = unpack_unit(unit) if len(unit) == UNIT_BYTES else (0, 0, 0)
            if is_before(position, size):
                low = middle + 1
            else:
                high = middle
        return low

    def offsets_within(self, queue: Queue, begin: int, end: int) -> tuple[int, int]:
        """Return the first queue offset whose unit points into a range of the log, and the one behind the last."""
        first, behind = (
            self.bisect(queue, lambda at, size, limit=limit: size > 0 and (is_pre_blank(at, size) or at < limit))  # type: ignore[misc]
            for limit in (begin, end)
        )
        return first, behind

    def messages_within(self, begin: int, end: int) -> int:
        """Return how many units point into a range of the log, as far as they are in files."""
        ranges = (self.offsets_within(queue, begin, end) for queue in self.queues())
        return sum(behind - first for first, behind in ranges)

    def truncate(self, queue: Queue, offset_max: int) -> bool:
        """Zero every unit from `offset_max` on and remove files that only held such; True when something changed."""
        changed = False
        for base in self.files(queue):
            keep = offset_max * UNIT_BYTES - base
            path = self._path(queue, base)
            if keep <= 0 and base:
                self._forget(path)
                os.unlink(path)
                self._dirty_directories.add(os.path.dirname(path))
                changed = True
            elif keep < FILE_BYTES:
                changed |= self._zero_tail(queue, base, max(keep, 0))
        self.sums.cut(queue, offset_max)
        return changed

    def remove_below(self, queue: Queue, offset_min: int) -> int:
        """Unlink files whose units all lie below `offset_min`, never the last; returns how many."""
        removed = 0
        for base in self.files(queue)[:-1]:
            if base + FILE_BYTES > offset_min * UNIT_BYTES:
                break
            path = self._path(queue, base)
            self._forget(path)
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)
            removed += 1
            self.sums.drop_below(queue, (base + FILE_BYTES) // UNIT_BYTES)
        return removed

    def remove_topic(self, topic: str, *, born: int = 0) -> None:
        """Remove every unit file of a topic that was deleted; a later life of it begins at log position `born`."""
        assert is_safe_name(topic)
        directory = f"{self._layout.consumequeue}/{topic}"
        self._dirty_directories.discard(directory)
        for path in self._unsynced.pop(topic, set()).union(
            path for path in self._open if path.startswith(f"{directory}/")
        ):
            self._forget(path)
            self._dirty_directories.discard(os.path.dirname(path))
        self.sums.forget_topic(topic, born)
        shutil.rmtree(directory, ignore_errors=True)

    def dirty_paths(self) -> list[str]:
        """Return the files written since their last sync."""
        return list(self._dirty)

    @property
    def is_dirty(self) -> bool:
        """Whether there is something to sync, or to write again first."""
        return bool(self._dirty or self._dirty_directories or self._lost)

    def begin_sync(self) -> UnitSync:
        """Return what is dirty now, to be synced; call `end_sync` afterwards. Nothing may be lost when it begins."""
        assert not self._lost, "units that a failed sync covered are written again before the next one"
        sync = UnitSync(self._dirty, sorted(self._dirty_directories))
        self._dirty, self._dirty_directories, self._unsynced = {}, set(), {}
        return sync

    def end_sync(self, sync: UnitSync) -> None:
        """Take the outcome of a sync. Raises the first OSError; what it covered is in `lost` until it is rewritten."""
        for path in sync.failed:
            if path in sync.ranges:
                self._lost[path] = sync.ranges[path].joined(self._dirty.get(path))
                self._unsynced.setdefault(sync.ranges[path].queue[0], set()).add(path)
            else:
                self._dirty_directories.add(path)
        for error in sync.failed.values():
            raise error

    @property
    def lost(self) -> list[UnitRange]:
        """Units that a failed sync covered: they have to be written again, from anywhere but the files."""
        return list(self._lost.values())

    def rewrite(self, lost: UnitRange, units: bytes) -> None:
        """Write all units of a lost range again. Raises OSError."""
        assert len(units) == (lost.end - lost.first) * UNIT_BYTES
        self.write(lost.queue, lost.first, units)
        base = lost.first * UNIT_BYTES // FILE_BYTES * FILE_BYTES
        self._lost.pop(self._path(lost.queue, base), None)

    def sync_all(self) -> None:
        """Sync everything written so far. Raises OSError."""
        sync = self.begin_sync()
        sync.run()
        self.end_sync(sync)

    def store_sums(self) -> int:
        """Write the sums of what is in the files to disk; returns the sequence that says so. Raises OSError."""
        batch, whole = self.sums.batch(self.read)
        self.sums.store(batch, whole=whole)
        return self.sums.sequence

    def close(self) -> None:
        """Close every file; nothing is synced."""
        for descriptor in self._open.values():
            os.close(descriptor)
        self._open.clear()

    def _directory(self, queue: Queue) -> str:
        topic, queue_id = queue
        assert is_safe_name(topic)
        return f"{self._layout.consumequeue}/{topic}/{queue_id}"

    def _path(self, queue: Queue, base: int) -> str:
        return f"{self._directory(queue)}/{file_name(base)}"

    def _note_dirty(self, path: str, written: UnitRange) -> None:
        self._dirty[path] = written.joined(self._dirty.get(path))
        self._unsynced.setdefault(written.queue[0], set()).add(path)

    def _file(self, queue: Queue, base: int, *, first_unit_at: int) -> int:
        path = self._path(queue, base)
        try:
            return self._cached(path, os.O_RDWR)
        except FileNotFoundError:
            pass
        parent = Path(path).parent
        for directory in (parent.parent, parent):
            if self._layout.make_directory(directory):
                self._dirty_directories.add(str(directory.parent))
        descriptor = open_plain(path, os.O_RDWR | os.O_CREAT)
        os.fchown(descriptor, -1, self._layout.access.gid)
        os.fchmod(descriptor, self._layout.access.read_mode)
        os.ftruncate(descriptor, FILE_BYTES)
        if first_unit_at and not self._has_predecessor(queue, base):
            write_whole(descriptor, PRE_BLANK * (first_unit_at // UNIT_BYTES), 0)
        self._dirty_directories.add(str(parent))
        self._remember(path, descriptor)
        return descriptor

    def _has_predecessor(self, queue: Queue, base: int) -> bool:
        return base > 0 and os.path.exists(self._path(queue, base - FILE_BYTES))

    def _cached(self, path: str, flags: int) -> int:
        descriptor = self._open.get(path)
        if descriptor is not None:
            self._open.move_to_end(path)
            return descriptor
        descriptor = open_plain(path, flags)
        if flags == os.O_RDWR and os.fstat(descriptor).st_size != FILE_BYTES:  # a crash between creation and sizing
            os.ftruncate(descriptor, FILE_BYTES)
        self._remember(path, descriptor)
        return descriptor

    def _remember(self, path: str, descriptor: int) -> None:
        self._open[path] = descriptor
        if len(self._open) > _OPEN_MAX:
            _, oldest = self._open.popitem(last=False)
            os.close(oldest)

    def _forget(self, path: str) -> None:
        self._dirty.pop(path, None)
        self._lost.pop(path, None)
        descriptor = self._open.pop(path, None)
        if descriptor is not None:
            os.close(descriptor)

    def _zero_tail(self, queue: Queue, base: int, keep: int) -> bool:
        path = self._path(queue, base)
        descriptor = self._cached(path, os.O_RDWR)
        changed = False
        for at, chunk in _chunks(descriptor, keep):
            if chunk != bytes(len(chunk)):
                write_whole(descriptor, bytes(len(chunk)), at)
                zeroed = UnitRange(queue, (base + keep) // UNIT_BYTES, -(-(base + at + len(chunk)) // UNIT_BYTES))
                self._note_dirty(path, zeroed)
                changed = True
        return changed


def _chunks(descriptor: int, at: int) -> Iterator[tuple[int, bytes]]:
    """The written parts of a unit file from byte `at`, skipping holes."""
    while at < FILE_BYTES:
        try:
            at = os.lseek(descriptor, at, os.SEEK_DATA)
        except OSError:
            return  # nothing but holes
        chunk = os.pread(descriptor, 1 << 16, at)
        if not chunk:
            return
        yield at, chunk
        at += len(chunk)


def _contiguous_tail(files: list[int]) -> list[int]:
    """The last run of neighbouring files; what lies before a gap cannot be reached by bisection."""
    first = len(files) - 1
    while first > 0 and files[first - 1] == files[first] - FILE_BYTES:
        first -= 1
    return files[first:]
