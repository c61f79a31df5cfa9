"""The CommitLog files: creating, listing, syncing, cleaning and removing them. Records are appended by the core.

The core says what is a record; here are only files.

    commitlog/00000000000000000000  00000000001073741824 …      every file has file_bytes bytes, blocks reserved

Rules: (1) a file gets its name only when it has its full size, its blocks are reserved and it is synced, so that a full
disk is an error here and never a SIGBUS in a client;
(2) names are contiguous; a gap, a wrong size, or a name that is no plain file, such as a symbolic link, is refused with
its reason, and nothing is deleted to make it fit; `commitlog/` itself may be a link, and on another disk than the rest;
(3) a file is unlinked, never truncated or used again, while the store is open; its name may come again only if no
process has mapped it, which the core says;
(4) bytes behind the end of the log are zero before a process may append, so stale records cannot come back.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shlex
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path

from shmq.errors import CorruptionError, SegmentFull, StoreError, UsageError
from shmq.plain_file import open_plain, read_whole, write_whole
from shmq.store.atomic import sync_directory
from shmq.store.layout import StoreLayout, file_fault, file_name, position_of

FILE_BYTES_MIN = 64 << 10
FILE_BYTES_MULTIPLE = 4096
_CHUNK_BYTES = 1 << 20
_ZEROS = bytes(_CHUNK_BYTES)
AHEAD_BYTES = 64 << 20  # of a walk over the log: the disk works while the processor does


class CommitLogFiles:
    """The log files of one store; one process creates and removes them."""

    def __init__(self, layout: StoreLayout, file_bytes: int) -> None:
        self._layout = layout
        self.file_bytes = file_bytes
        self.positions: list[int] = []  # first byte of each file, ascending

    @property
    def begin(self) -> int:
        """Log position of the first byte there is a file for."""
        return self.positions[0] if self.positions else 0

    @property
    def end(self) -> int:
        """Log position behind the last file."""
        return self.positions[-1] + self.file_bytes if self.positions else 0

    def path(self, position: int) -> Path:
        """Return the path of the file that holds a log position."""
        return self._layout.commitlog / file_name(position - position % self.file_bytes)

    def load(self, *, with_gaps: bool = False) -> None:
        """List the files that are there and check that they can be one log.

        Args:
            with_gaps: the caller asks `gaps` what is missing in between.

        Raises:
            UsageError: all files have another size than configured.
            CorruptionError: a file is missing in between, is no plain file, has another size than the others, or a name
                is no multiple of the file size.
        """
        found: list[int] = []
        for entry in os.scandir(self._layout.commitlog):
            if (position := position_of(entry.name)) is None:
                continue
            if fault := file_fault(Path(entry.path)):
                raise CorruptionError(entry.path, position, fault.reason, hint=fault.cure)
            found.append(position)
        found.sort()
        self._check_sizes(found)
        for position in found:
            if position % self.file_bytes:
                path = self._layout.commitlog / file_name(position)
                raise CorruptionError(path, position, f"the name is no multiple of {self.file_bytes}")
        self.positions = found
        if self.gaps and not with_gaps:
            begin, end = self.gaps[0]
            self.positions = []
            raise CorruptionError(
                self._layout.commitlog / file_name(end),
                begin,
                f"{(end - begin) // self.file_bytes} log files are missing before it",
                hint="restore them; nothing was changed",
            )

    def _check_sizes(self, found: list[int]) -> None:
        sizes = [(self._layout.commitlog / file_name(position)).stat().st_size for position in found]
        if len(found) > 1 and sizes[-1] == 0:
            # What a stock broker leaves when it dies while it creates the next file (RocketMQ #9728).
            path = self._layout.commitlog / file_name(found.pop())
            path.unlink()
            sync_directory(path.parent)
            sizes.pop()
        for position, size in zip(found, sizes, strict=True):
            if size == self.file_bytes:
                continue
            path = self._layout.commitlog / file_name(position)
            is_possible = size >= FILE_BYTES_MIN and not size % FILE_BYTES_MULTIPLE
            if is_possible and len(set(sizes)) == 1:
                raise UsageError(
                    f"{path} has {size} bytes, the broker is configured for {self.file_bytes}",
                    hint=f"shmq serve --file-size {size}, or restore the file",
                )
            raise CorruptionError(
                path,
                position,
                f"the file has {size} bytes, not the {self.file_bytes} of a log file of this broker",
                hint=f"restore the file; or give it its size, so that what is left of it can be read and the rest "
                f"counts as damaged: truncate -s {self.file_bytes} {shlex.quote(str(path))}",
            )

    @property
    def gaps(self) -> list[tuple[int, int]]:
        """Where files are missing between others: begin and end of each range, ascending."""
        pairs = zip(self.positions, self.positions[1:], strict=False)
        return [(first + self.file_bytes, then) for first, then in pairs if then != first + self.file_bytes]

    def create_missing(self, begin: int, end: int) -> None:
        """Put blank files where others are missing, so that the log is one again. Raises as `create_next`."""
        for position in range(begin, end, self.file_bytes):
            self._create(position)
            self.positions = sorted([*self.positions, position])

    def create_next(self, first_position: int = 0) -> int:
        """Create the file behind the last one and return the new end of the log's files.

        Args:
            first_position: where the log begins when there is no file yet; a multiple of the file size.

        Raises:
            SegmentFull: the disk has no room for a whole file.
            StoreError: any other refusal of the file system.
        """
        position = self.end if self.positions else first_position
        self._create(position)
        self.positions.append(position)
        return self.end

    def _create(self, position: int) -> None:
        path = self._layout.commitlog / file_name(position)
        temporary = self._temporary(position)
        try:
            with self._layout.new_file(temporary, self._layout.access.mode) as descriptor:
                os.posix_fallocate(descriptor, 0, self.file_bytes)
            os.rename(temporary, path)
            sync_directory(path.parent)
        except OSError as error:
            with contextlib.suppress(OSError):
                temporary.unlink(missing_ok=True)
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                free = shutil.disk_usage(path.parent).free
                raise SegmentFull(
                    f"no room for the next log file: {path.parent} has {free} bytes free, "
                    f"a file takes {self.file_bytes}",
                    hint="free disk space or shorten the retention; reading goes on",
                    used=free,
                    limit=self.file_bytes,
                ) from error
            raise StoreError(f"the log file {path} cannot be made: {error.strerror}") from error

    def _temporary(self, position: int) -> Path:
        return self._layout.drafts_of(self._layout.commitlog) / f".commitlog.{file_name(position)}.tmp"

    def remove_temporaries(self) -> None:
        """Remove files whose creation a crash interrupted."""
        for place in (self._layout.root, self._layout.commitlog):
            for path in place.glob(".commitlog.*.tmp"):
                path.unlink(missing_ok=True)

    def reserve_blocks(self) -> None:
        """Make sure that no file has holes, as a stock broker creates them sparse.

        Raises:
            SegmentFull: the disk has no room for them.
        """
        for position in self.positions:
            path = self.path(position)
            with self._open(position) as descriptor:
                try:
                    os.posix_fallocate(descriptor, 0, self.file_bytes)
                except OSError as error:
                    raise SegmentFull(
                        f"no room to reserve the blocks of {path}: {error.strerror}", hint="free disk space"
                    ) from error

    def is_blank(self) -> bool:
        """Whether no file holds a byte other than zero."""
        for start, size in self._pieces(self.begin, self.end):
            with self._open(start) as descriptor:
                base = start - start % self.file_bytes
                for at, length in _data_ranges(descriptor, start - base, start - base + size):
                    if not _is_zero(descriptor, at, length):
                        return False
        return True

    def remove_all(self) -> None:
        """Unlink every file of a log that is not mapped; from the last one on, so that what is left is a log."""
        while self.positions:
            self._remove(self.positions[-1])
            self.positions.pop()

    def remove_first(self) -> int:
        """Unlink the oldest file and return the new begin; never the last file."""
        assert len(self.positions) > 1, "the last file stays"
        self._remove(self.positions[0])
        self.positions.pop(0)
        return self.begin

    def remove_last(self) -> int:
        """Unlink the last file, which is unused, and return the new end; never the only one."""
        assert len(self.positions) > 1, "the only file stays"
        self._remove(self.positions[-1])
        self.positions.pop()
        return self.end

    def remove_behind(self, position: int) -> None:
        """Unlink every file behind that of a position, the last one first. Raises OSError."""
        while self.positions and self.positions[-1] > position:
            self._remove(self.positions[-1])
            self.positions.pop()

    def _remove(self, position: int) -> None:
        with contextlib.suppress(OSError), self._open(position) as descriptor:
            _give_up(descriptor)
        self.path(position).unlink(missing_ok=True)
        sync_directory(self._layout.commitlog)

    def renew(self, position: int, *, until: int) -> None:
        """Replace the file of a position by a copy with another inode: its bytes up to `until`, behind it zeros.

        A process that has the old one mapped changes nothing of this log any more. Raises OSError.
        """
        with self._open(position) as original:
            temporary = self._copied(position, original, until=until)
            _give_up(original)
            self._name(temporary, position)

    def put(self, position: int, original: int, *, until: int) -> None:
        """Give the file of a position an open file's bytes up to `until`, and zeros behind them. Raises OSError."""
        self._name(self._copied(position, original, until=until), position)

    def _copied(self, position: int, original: int, *, until: int) -> Path:
        base = position - position % self.file_bytes
        temporary = self._temporary(base)
        with self._layout.new_file(temporary, self._layout.access.mode) as copy:
            os.posix_fallocate(copy, 0, self.file_bytes)
            for start, size in list(_data_ranges(original, 0, until - base)):
                for at in range(start, start + size, _CHUNK_BYTES):
                    write_whole(copy, self._read(base, original, min(_CHUNK_BYTES, start + size - at), at), at)
        return temporary

    def _read(self, base: int, original: int, size: int, at: int) -> bytes:
        try:
            return read_whole(original, size, at)
        except OSError as error:
            error.filename = os.fspath(self.path(base))  # not the file that is being made
            raise

    def _name(self, temporary: Path, position: int) -> None:
        os.replace(temporary, self._layout.commitlog / file_name(position - position % self.file_bytes))
        sync_directory(self._layout.commitlog)

    def modified_seconds(self, position: int) -> float:
        """Return the time of the last change of the file at a position, seconds since the epoch."""
        return self.path(position).stat().st_mtime

    def sync(self, position: int, end: int) -> None:
        """Sync the files that hold bytes from `position` to `end`. Raises OSError."""
        for start, _ in self._pieces(position, end):
            with self._open(start) as descriptor:
                os.fdatasync(descriptor)

    def read(self, position: int, size: int) -> bytes:
        """Return up to `size` bytes, not crossing the end of a file."""
        within = position % self.file_bytes
        with self._open(position) as descriptor:
            return os.pread(descriptor, min(size, self.file_bytes - within), within)

    def will_need(self, position: int, end: int) -> int:
        """Let the kernel read what is looked at next, beside the work; never what may be unwritten. Says how far."""
        end = min(end, position + AHEAD_BYTES)
        for start, size in self._pieces(position, end):
            with self._open(start) as descriptor:
                os.posix_fadvise(descriptor, start % self.file_bytes, size, os.POSIX_FADV_WILLNEED)
        return end

    def data_ranges(self, position: int) -> list[tuple[int, int]]:
        """Return (position, size) of what may hold something else than zeros, from `position` to the end of its file.

        Told before anything is read, because what was read counts as data from then on.
        """
        base = position - position % self.file_bytes
        with self._open(position) as descriptor:
            return [(base + at, size) for at, size in _data_ranges(descriptor, position - base, self.file_bytes)]

    def zero_from(self, position: int) -> int:
        """Zero whatever is not zero from `position` to the end of the last file, and sync; returns bytes changed.

        Low addresses first, so that an interrupted run leaves the broken record broken.
        """
        changed = 0
        for start, size in self._pieces(position, self.end):
            with self._open(start) as descriptor:
                before = changed
                base = start - start % self.file_bytes
                for at, length in list(_data_ranges(descriptor, start - base, start - base + size)):
                    changed += _zero(descriptor, at, length)
                if changed != before:
                    os.fdatasync(descriptor)
        return changed

    def write_again(self, position: int, end: int) -> None:
        """Write bytes over themselves and sync them, so that what only the page cache had is on disk.

        After a failed sync the kernel may call pages clean that never reached the disk; a later sync would lie.
        """
        for start, size in self._pieces(position, end):
            within = start % self.file_bytes
            with self._open(start) as descriptor:
                for at in range(within, within + size, _CHUNK_BYTES):
                    write_whole(descriptor, read_whole(descriptor, min(_CHUNK_BYTES, within + size - at), at), at)
                os.fdatasync(descriptor)

    def _pieces(self, position: int, end: int) -> Iterator[tuple[int, int]]:
        """Split a range of the log at file borders."""
        while position < end:
            size = min(end, position - position % self.file_bytes + self.file_bytes) - position
            yield position, size
            position += size

    @contextlib.contextmanager
    def _open(self, position: int) -> Iterator[int]:
        descriptor = open_plain(self.path(position), os.O_RDWR)
        # Read-ahead would fill the page cache with zeros, and what is in the page cache counts as data for SEEK_DATA.
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_RANDOM)
        try:
            yield descriptor
        except OSError as error:
            error.filename = error.filename or os.fspath(self.path(position))
            raise
        finally:
            os.close(descriptor)


def is_given_up(status: os.stat_result) -> bool:
    """Whether the store itself has replaced or removed a log file: what processes still have of it is in no log."""
    return bool(status.st_mode & stat.S_ISVTX)


def _give_up(descriptor: int) -> None:
    # A bit that means nothing for a file. Without a name, a file that another program has removed looks like this one.
    with contextlib.suppress(PermissionError):
        os.fchmod(descriptor, stat.S_IMODE(os.fstat(descriptor).st_mode) | stat.S_ISVTX)


def _data_ranges(descriptor: int, begin: int, end: int) -> Iterator[tuple[int, int]]:
    """Ranges that may hold something else than zeros; unwritten blocks are skipped without reading them."""
    at = begin
    while at < end:
        try:
            data = os.lseek(descriptor, at, os.SEEK_DATA)
        except OSError as error:
            if error.errno == errno.ENXIO:  # only unwritten blocks are left
                return
            data = at
        if data >= end:
            return
        hole = min(end, os.lseek(descriptor, data, os.SEEK_HOLE))
        if hole <= data:
            hole = end
        yield data, hole - data
        at = hole


def _zero(descriptor: int, at: int, size: int) -> int:
    changed = 0
    for begin in range(at, at + size, _CHUNK_BYTES):
        length = min(_CHUNK_BYTES, at + size - begin)
        chunk = os.pread(descriptor, length, begin)
        if chunk != _ZEROS[:length]:
            write_whole(descriptor, _ZEROS[:length], begin)
            changed += length
    return changed


def _is_zero(descriptor: int, at: int, size: int) -> bool:
    for begin in range(at, at + size, _CHUNK_BYTES):
        length = min(_CHUNK_BYTES, at + size - begin)
        if os.pread(descriptor, length, begin) != _ZEROS[:length]:
            return False
    return True
