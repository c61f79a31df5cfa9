"""The index directory: RocketMQ's hash files from a message's keys to its place in the log.

The keeper fills the files behind the log, 100 ns a record; bindings/core/files/index.c fills and searches one file.
Every append of a record with properties raises one word beside the log end, so a log without keys costs nothing. A
file is committed one record at a time by its entry count, from which the successor of a killed keeper goes on; after
a host crash the file that was open is built again behind the running broker, as RocketMQ does it. The checksums of
those that are synced are in sums.py.

    index/20260131235959999       named by local time of creation; names rise. 420,000,040 bytes, mostly holes:
                                  blocks are reserved for head and slots (20 MB), then for entries, a step at a time
    <root>/.index.<name>.tmp      one that is being made; in index/ if that is on a disk of its own

Rules: (1) a file gets its name when it has its size and the blocks of its slots, one that replaces another when it is
filled and synced; (2) blocks are reserved before they
are written to, so that a full disk is an error here and never a SIGBUS; (3) a searched file is mapped read-only and
may be unlinked meanwhile; (4) the head of a file is input.
"""

from __future__ import annotations

import errno
import heapq
import itertools
import mmap
import os
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from shmq.errors import SegmentFull, ShmqError, StoreError
from shmq.plain_file import open_plain
from shmq.shm.core import IndexProgress, KeeperStore, index_bytes, index_find, index_hash, index_head
from shmq.store.atomic import adopt, forget, sync_directory
from shmq.store.layout import StoreLayout

_HEAD_BYTES = 40  # SHMQ_INDEX_HEAD_BYTES
INDEX_ENTRY_BYTES = 20
_ROOM_STEP = 8 << 20
_NAME_DIGITS = 17
_STEPS_MAX = 200_000  # of one search in one file; bounds what an overused key can cost
_STEPS_AT_ONCE = 2_000  # about a tenth of a millisecond
_ALL_AT_ONCE = 1_000  # and no more than the core answers with at once
_TEMPORARY = ".index."


def is_index_name(name: str) -> bool:
    """Whether that is how an index file is called."""
    return len(name) == _NAME_DIGITS and name.isascii() and name.isdigit()


def index_name(number: int) -> str:
    """Return the name that stands for a number; a later file has a higher one."""
    return f"{number:0{_NAME_DIGITS}d}"


@dataclass(frozen=True)
class IndexShape:
    """The numbers of slots and entries of a file; RocketMQ's maxHashSlotNum and maxIndexNum."""

    slots: int = 5_000_000
    entries: int = 20_000_000

    @property
    def file_bytes(self) -> int:
        """Size of a file."""
        return index_bytes(self.slots, self.entries)

    @property
    def entries_at(self) -> int:
        """The position of entry 0."""
        return _HEAD_BYTES + 4 * self.slots


@dataclass(frozen=True)
class IndexHead:
    """The head of a file; times in ms of the wall clock, positions in the log."""

    begin_ms: int
    end_ms: int
    begin_position: int
    end_position: int
    slots_used: int
    next_entry: int
    last_position: int

    @property
    def is_empty(self) -> bool:
        """Whether it holds no entry."""
        return self.next_entry <= 1


class IndexFile:
    """One file, mapped. Raises OSError, or ShmqError for a file of another shape."""

    def __init__(self, path: Path, shape: IndexShape, *, writable: bool) -> None:
        self.path = path
        self.shape = shape
        flags = os.O_RDWR if writable else os.O_RDONLY
        self._descriptor = open_plain(path, flags)
        try:
            size = os.fstat(self._descriptor).st_size
            if size != shape.file_bytes:
                raise StoreError(f"{path} has {size} bytes, an index file has {shape.file_bytes}")
            access = mmap.ACCESS_WRITE if writable else mmap.ACCESS_READ
            self.data = mmap.mmap(self._descriptor, size, access=access)
        except BaseException:
            os.close(self._descriptor)
            raise
        self.data.madvise(mmap.MADV_RANDOM)
        self.room = 0  # entries with a lower number have blocks

    @property
    def name(self) -> str:
        """Its name, which is its age."""
        return self.path.name.removeprefix(_TEMPORARY).removesuffix(".tmp")

    def head(self) -> IndexHead:
        """Read the head.

        Raises:
            CorruptionError: the numbers in it cannot be.
        """
        return IndexHead(*index_head(self.data, self.shape.slots, self.shape.entries))

    def reserve(self, entries: int) -> None:
        """Reserve blocks for that many entries and a step more. Raises SegmentFull, StoreError."""
        at = self.shape.entries_at + self.room * INDEX_ENTRY_BYTES
        end = min(self.shape.entries_at + entries * INDEX_ENTRY_BYTES + _ROOM_STEP, self.shape.file_bytes)
        _reserve(self._descriptor, self.path, at, end - at)
        self.room = (end - self.shape.entries_at) // INDEX_ENTRY_BYTES

    def follow(self, keeper_store: KeeperStore, position: int, until: int, end: int) -> IndexProgress:
        """As `KeeperStore.index_follow`."""
        return keeper_store.index_follow(
            position, until, end, self.data, self.shape.slots, self.shape.entries, self.room
        )

    def search(self, hash_code: int, *, begin_ms: int, end_ms: int, count: int | None) -> Iterator[list[int]]:
        """Yield log positions of entries with a hash, the newest first; none yet is a place to pause at.

        Args:
            count: so many, within what an overused key may cost; None: all, however many steps that takes.
        """
        slots, entries, following = self.shape.slots, self.shape.entries, 0
        for taken in itertools.count(0, _STEPS_AT_ONCE):
            if self.data.closed or (count is not None and taken >= _STEPS_MAX):
                return  # the file was removed in a pause; or the key is too dear
            steps, wanted = (_ALL_AT_ONCE, _ALL_AT_ONCE + 1) if count is None else (_STEPS_AT_ONCE, max(0, count))
            found, following = index_find(
                self.data, slots, entries, hash_code,
                begin_ms=begin_ms, end_ms=end_ms, count=wanted, steps=steps, next=following,
            )  # fmt: skip
            if count is not None:
                count -= len(found)
            yield found
            if not following:
                return

    def sync(self) -> None:
        """Bring it to disk; after an OSError it is unknown what of it is there."""
        os.fdatasync(self._descriptor)

    def read(self, at: int, size: int) -> bytes:
        """Return bytes of the file without mapping them. Raises OSError."""
        return os.pread(self._descriptor, size, at)

    def data_range(self, at: int) -> tuple[int, int]:
        """Begin and end of the first stretch from `at` on that was written to; behind the file: none is."""
        try:
            begin = os.lseek(self._descriptor, at, os.SEEK_DATA)
            return begin, os.lseek(self._descriptor, begin, os.SEEK_HOLE)
        except OSError as error:
            if error.errno != errno.ENXIO:
                raise
            return self.shape.file_bytes, self.shape.file_bytes

    def close(self) -> None:
        """Unmap it; twice is harmless."""
        if not self.data.closed:
            self.data.close()
            os.close(self._descriptor)


class IndexFiles:
    """The directory; one process makes and removes files."""

    def __init__(self, layout: StoreLayout, shape: IndexShape | None = None) -> None:
        self._layout = layout
        self.shape = shape or IndexShape()
        self.known: set[str] = set()  # files that this process has made, or adopted

    def adopt_all(self) -> None:
        """Take the files that are there for ours."""
        for name in self.names():
            adopt(self.directory / name)
            self.known.add(name)

    @property
    def directory(self) -> Path:
        """The directory of the files."""
        return self._layout.index

    def names(self) -> list[str]:
        """Names of the files there are, the oldest first."""
        try:
            found = os.listdir(self.directory)
        except FileNotFoundError:
            return []
        return sorted(filter(is_index_name, found))

    def open(self, name: str, *, writable: bool = False) -> IndexFile:
        """Map a file. Raises OSError, ShmqError."""
        return IndexFile(self.directory / name, self.shape, writable=writable)

    def create(self, *, after: str = "") -> IndexFile:
        """Make the next file, named later than `after`, and map it.

        Raises:
            SegmentFull: the disk has no room.
            StoreError: any other refusal of the file system.
        """
        now = time.time()
        stamp = time.strftime("%Y%m%d%H%M%S", time.localtime(now)) + f"{int(now * 1000) % 1000:03d}"
        file = self.begin(index_name(max(int(stamp), int(after or 0) + 1)))
        try:
            self.publish(file)
        except BaseException:
            file.close()
            raise
        return file

    def begin(self, name: str) -> IndexFile:
        """Make a file that is not in the directory before it is published, and map it. Raises as `create`."""
        temporary = self._layout.drafts_of(self.directory) / f"{_TEMPORARY}{name}.tmp"
        try:
            with self._layout.new_file(temporary, self._layout.access.read_mode) as descriptor:
                os.ftruncate(descriptor, self.shape.file_bytes)
                _reserve(descriptor, temporary, 0, self.shape.entries_at)
            return IndexFile(temporary, self.shape, writable=True)
        except BaseException as error:
            temporary.unlink(missing_ok=True)
            if not isinstance(error, OSError):
                raise
            raise StoreError(f"the index file {temporary} cannot be made: {error.strerror}") from error

    def publish(self, file: IndexFile) -> None:
        """Give a file its name, in place of one that has it. Raises StoreError."""
        path = self.directory / file.name
        try:
            if self._layout.make_directory(self.directory):
                sync_directory(self.directory.parent)
            os.rename(file.path, path)
            file.path = path
            adopt(path)
            self.known.add(file.name)
            sync_directory(self.directory)
        except OSError as error:
            file.path.unlink(missing_ok=True)
            raise StoreError(f"the index file {path} cannot be made: {error.strerror}") from error

    def remove(self, name: str) -> None:
        """Unlink a file; a process that has it mapped goes on reading. Raises OSError."""
        forget(self.directory / name)
        self.known.discard(name)
        if self.directory.is_dir():
            (self.directory / name).unlink(missing_ok=True)
            sync_directory(self.directory)

    def remove_temporaries(self) -> None:
        """Remove files whose creation was interrupted."""
        for place in (self._layout.root, self.directory):
            for path in place.glob(f"{_TEMPORARY}*.tmp"):
                path.unlink(missing_ok=True)


@dataclass(frozen=True)
class IndexAnswer:
    """The answer to a search: log positions, and how far the index goes."""

    positions: list[int]
    last_ms: int
    last_position: int


class IndexReader:
    """Searches the index of a store that another process fills.

    Not for more than one thread at a time.
    """

    def __init__(self, files: IndexFiles) -> None:
        self._files = files
        self._open: dict[tuple[str, int], IndexFile] = {}

    def find(self, topic: str, key: str, *, begin_ms: int, end_ms: int, count: int) -> IndexAnswer:
        """Return where records with a key may be; see `search`."""
        *_, answer = self.search(topic, key, begin_ms=begin_ms, end_ms=end_ms, count=count)
        assert answer is not None
        return answer

    def search(
        self, topic: str, key: str, *, begin_ms: int, end_ms: int, count: int, oldest_from: int | None = None
    ) -> Iterator[IndexAnswer | None]:
        """Yield None wherever the search may pause, and in the end where records with a key may be.

        As RocketMQ searches: whole seconds, the newest files first. Two keys may have the same hash: the caller looks
        at the records.

        Args:
            oldest_from: the oldest ones from this log position on, instead of the newest.
        """
        hash_code = index_hash(topic, key)
        positions: list[int] = []
        last_ms = last_position = 0
        for number, file in enumerate(list(self._newest_first())):
            try:
                head = file.head()
            except (ShmqError, ValueError):
                continue  # its filler says so in the log, and builds it anew; or it was removed in a pause
            if not number:
                last_ms, last_position = head.end_ms, head.end_position
            if head.is_empty:
                continue
            if begin_ms <= head.end_ms and end_ms >= head.begin_ms:
                wanted = count - len(positions) if oldest_from is None else None
                for found in file.search(hash_code, begin_ms=begin_ms, end_ms=end_ms, count=wanted):
                    positions += found
                    if oldest_from is not None:
                        positions = heapq.nsmallest(count, {each for each in positions if each >= oldest_from})
                    yield None
            if head.begin_ms < begin_ms or (oldest_from is None and len(positions) >= count):
                break
        yield IndexAnswer(positions, last_ms, last_position)

    def _newest_first(self) -> Iterator[IndexFile]:
        known, self._open = self._open, {}
        try:
            for name in reversed(self._files.names()):
                with suppress(OSError, ShmqError):  # removed, or about to be
                    key = name, (self._files.directory / name).stat().st_ino
                    self._open[key] = known.pop(key) if key in known else self._files.open(name)
        finally:
            for file in known.values():
                file.close()
        return iter(list(self._open.values()))

    def close(self) -> None:
        """Unmap everything."""
        for file in self._open.values():
            file.close()
        self._open.clear()


def _reserve(descriptor: int, path: Path, at: int, size: int) -> None:
    try:
        if size > 0:
            os.posix_fallocate(descriptor, at, size)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise SegmentFull(f"no room for the index file {path}", hint="free disk space") from error
        raise StoreError(f"the blocks of the index file {path} cannot be reserved: {error.strerror}") from error
