"""The store directory: what lies where, exactly as RocketMQ lays it out.

    <root>/commitlog/<20 digits>                          the log, files named by the position of their first byte
    <root>/consumequeue/<topic>/<queue id>/<20 digits>    units, files named by the byte position of their first unit
    <root>/index/<17 digits>                              key index, files named by the time of their creation
    <root>/config/*.json, *.json.bak                      tables
    <root>/checkpoint  abort  lock                        RocketMQ's own
    <root>/shmq.durable                                   the durable mark (durable.py); RocketMQ ignores it
    <root>/shmq.units                                     checksums of the units (unit_sums.py); likewise
    <root>/shmq.scrub  shmq.scrub.now                     what the scrubber found (scrub_state.py); likewise
    <root>/shmq.index                                     how far the index goes (index/mark.py); likewise
    <root>/shmq.index.sums/<17 digits>                    checksums of the index files (index/sums.py); likewise
    <root>/shmq.begin                                     where a new slave's log is to begin (lineage/); likewise
    <root>/epochFileCheckpoint                            the master that wrote each part of the log; RocketMQ's text
    <root>/shmq.identity  shmq.role                       whose copy it is, and its broker's role (lineage/)
    <root>/shmq.cut  tails/                               where the log is to be cut, and what was (lineage/)
    <root>/quarantine/                                    copies of damaged records (quarantine.py); likewise

The directories right below the root may be symbolic links, for instance to another disk, and are followed. Every other
name is a plain file, or a directory in its place: `faults_of` finds what is not, since a file that is a link can be
changed, or lost, by the owner of its target.

Rule: a name that came from the log or a JSON file becomes part of a path only through `is_safe_name`.
"""

from __future__ import annotations

import os
import shlex
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from shmq.errors import StoreError
from shmq.plain_file import kind_of
from shmq.shm.access import Access
from shmq.store.atomic import sync_directory

_LISTED = os.R_OK | os.X_OK
_NAME_BYTES_MAX = 255
_NAME_DIGITS = 20
_INDEX_DIGITS = 17


class StoreLayout:
    """Paths of one store, and the modes of what is made there."""

    def __init__(self, root: Path, access: Access) -> None:
        self.root = root
        self.access = access
        self.commitlog = root / "commitlog"
        self.consumequeue = root / "consumequeue"
        self.index = root / "index"  # made with its first file
        self.config = root / "config"
        self.quarantine = root / "quarantine"  # made with its first file
        self.checkpoint = root / "checkpoint"
        self.abort = root / "abort"  # exists while a broker runs
        self.lock = root / "lock"
        self.durable_mark = root / "shmq.durable"
        self.unit_sums = root / "shmq.units"
        self.scrub_state = root / "shmq.scrub"
        self.scrub_request = root / "shmq.scrub.now"
        self.index_mark = root / "shmq.index"
        self.beginning = root / "shmq.begin"
        self.epochs = root / "epochFileCheckpoint"
        self.identity = root / "shmq.identity"
        self.role = root / "shmq.role"
        self.cut = root / "shmq.cut"
        self.follows = root / "shmq.follows"  # empty; the log's files were renewed since this broker was a master
        self.tails = root / "tails"  # made with the first one
        self.index_sums = root / "shmq.index.sums"  # made with its first file

    @property
    def _directories(self) -> tuple[Path, ...]:
        """The directories that may be symbolic links to others."""
        own = (self.quarantine, self.tails, self.index, self.index_sums)
        return (self.root, self.commitlog, self.consumequeue, self.config, *own)

    def prepare(self) -> None:
        """Create the directories that are missing.

        Raises:
            StoreError: a directory cannot be made or is not one.
        """
        try:
            for directory in (self.root, self.commitlog, self.consumequeue, self.config):
                if directory.is_symlink() and not directory.exists():
                    raise StoreError(
                        f"{directory} is a symbolic link to {os.path.realpath(directory)}, which is not there",
                        hint="mount or restore that directory",
                    )
                if self.make_directory(directory):
                    sync_directory(directory.parent)
        except OSError as error:
            raise StoreError(
                f"the store {self.root} cannot be used: {error.strerror} ({error.filename})",
                hint="shmq serve --store DIRECTORY, or fix its owner and mode",
            ) from error

    def faults(self, *, writable: bool = True) -> Iterator[FileFault]:
        """Find every name of the store that is no plain file where one has to be, or cannot be opened."""
        unlisted = [fault for each in self._directories if (fault := directory_fault(each, writable=writable))]
        if unlisted:
            yield from unlisted
            return
        for path in self._files():
            if fault := file_fault(path, writable=writable):
                yield fault
        yield from _unit_faults(str(self.consumequeue), 2, writable=writable)

    def strangers(self) -> Iterator[FileFault]:
        """Find what has the name of a file and is none; not among units, which may be a hundred thousand."""
        for path in self._files():
            if os.path.lexists(path) and not stat.S_ISREG(path.lstat().st_mode) and (fault := file_fault(path)):
                yield fault

    def _files(self) -> Iterator[Path]:
        """Every file but those of units."""
        for name in vars(self).values():
            if isinstance(name, Path) and name not in self._directories:
                yield name
        yield from _named(self.commitlog, _NAME_DIGITS)
        for directory in (self.index, self.index_sums):
            yield from _named(directory, _INDEX_DIGITS)
        if self.config.is_dir():
            yield from (path for path in self.config.iterdir() if path.name.endswith((".json", ".json.bak")))

    def make_directory(self, directory: Path) -> bool:
        """Create a directory with the store's group and mode, whatever the umask; False when it is there already.

        The caller syncs the parent. Raises OSError.
        """
        if directory.is_dir():
            return False
        directory.mkdir(parents=True, exist_ok=True)
        os.chown(directory, -1, self.access.gid)
        os.chmod(directory, self.access.directory_mode)
        return True

    def drafts_of(self, directory: Path) -> Path:
        """Return where files of a directory are made before they get their names there, on the same disk.

        That is outside of it, where a stock broker would refuse to start over a file of the wrong size, unless the
        directory lies on a disk of its own.
        """
        is_elsewhere = directory.exists() and directory.stat().st_dev != self.root.stat().st_dev
        return directory if is_elsewhere else self.root

    @contextmanager
    def new_file(self, path: Path, mode: int) -> Iterator[int]:
        """Give the descriptor of a new file to fill, in place of one that a crash interrupted.

        At the end of the block the file has the store's group and this mode, and is synced. Raises OSError.
        """
        path.unlink(missing_ok=True)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            yield descriptor
            os.fchown(descriptor, -1, self.access.gid)
            os.fchmod(descriptor, mode)
            os.fsync(descriptor)
        except OSError as error:
            error.filename = error.filename or os.fspath(path)
            raise
        finally:
            os.close(descriptor)


class FileFault(NamedTuple):
    """A name of a store that is not what has to be there, and what to do."""

    path: Path
    reason: str
    cure: str


def file_fault(path: Path, *, writable: bool = True) -> FileFault | None:
    """Return what is wrong with the kind and the rights of one file; None: nothing, or it is not there."""
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return None
    quoted = shlex.quote(str(path))
    if stat.S_ISLNK(mode):
        target = os.path.realpath(path)
        if not os.path.exists(target):
            return FileFault(path, f"it is a symbolic link to {target}, which is not there", "restore the file")
        cure = f"mv {shlex.quote(target)} {quoted}; a directory of the store as a whole may be a link"
        return FileFault(path, f"it is a symbolic link to {target}, and a link to a file is not followed", cure)
    if not stat.S_ISREG(mode):
        cure = f"mv {quoted} {quoted}.away, and restore the file"
        return FileFault(path, f"it is {kind_of(mode)} and no plain file", cure)
    if not os.access(path, os.R_OK | os.W_OK * writable, effective_ids=True):
        user = f"uid {os.geteuid()}"
        what = "read and written" if writable else "read"
        cure = f"run this as the broker's user; or chown {os.geteuid()} {quoted}; chmod u+rw {quoted}"
        return FileFault(path, f"it cannot be {what} by {user}", cure)
    return None


def directory_fault(path: Path, *, writable: bool = True) -> FileFault | None:
    """Return what is wrong with a directory of a store; None: nothing, or it is not there."""
    if path.is_symlink() and not path.exists():
        return FileFault(
            path, f"it is a symbolic link to {os.path.realpath(path)}, which is not there", "mount or restore it"
        )
    if not path.exists() or (path.is_dir() and os.access(path, _LISTED | os.W_OK * writable, effective_ids=True)):
        return None
    quoted = shlex.quote(str(path))
    if not path.is_dir():
        return FileFault(path, "it is no directory", f"mv {quoted} {quoted}.away, and restore the directory")
    cure = f"run this as the broker's user; or chown {os.geteuid()} {quoted}; chmod u+rwx {quoted}"
    return FileFault(path, f"it cannot be listed{' and written' * writable} by uid {os.geteuid()}", cure)


def _unit_faults(directory: str, depth: int, *, writable: bool) -> Iterator[FileFault]:
    """The faults of topics, queues and files below; of a hundred thousand their directories tell the kinds."""
    rights = os.R_OK | os.W_OK * writable
    try:
        entries = list(os.scandir(directory))
    except PermissionError:
        entries = []
        if fault := directory_fault(Path(directory), writable=writable):
            yield fault
    except (FileNotFoundError, NotADirectoryError):  # a topic that is deleted meanwhile
        return
    for entry in entries:
        if depth and entry.is_dir(follow_symlinks=False):
            yield from _unit_faults(entry.path, depth - 1, writable=writable)
        elif entry.is_symlink() if depth else position_of(entry.name) is not None:
            is_file = not depth and entry.is_file(follow_symlinks=False)
            if not (is_file and os.access(entry.path, rights, effective_ids=True)):
                fault = file_fault(Path(entry.path), writable=writable)
                if fault:
                    yield fault


def file_name(position: int) -> str:
    """Return the name of the file that begins at a byte position."""
    return f"{position:0{_NAME_DIGITS}d}"


def _named(directory: Path, digits: int) -> list[Path]:
    """The files of a directory whose names are numbers."""
    try:
        return [
            path
            for path in directory.iterdir()
            if len(path.name) == digits and path.name.isascii() and path.name.isdigit()
        ]
    except (FileNotFoundError, NotADirectoryError):
        return []


def position_of(name: str) -> int | None:
    """Return the byte position a file name stands for, or None when it is another file."""
    return int(name) if len(name) == _NAME_DIGITS and name.isascii() and name.isdigit() else None


def is_safe_name(name: str) -> bool:
    """Say whether a topic or group name may be one component of a path."""
    if not 0 < len(os.fsencode(name)) <= _NAME_BYTES_MAX:
        return False
    return "/" not in name and "\0" not in name and name not in (".", "..")
