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
    <root>/epochFileCheckpoint                            who wrote which part of the log; RocketMQ's text
    <root>/shmq.identity  shmq.role                       whose copy it is, and its broker's role (lineage/)
    <root>/shmq.cut  tails/                               where the log is to be cut, and what was (lineage/)
    <root>/quarantine/                                    copies of damaged records (quarantine.py); likewise

Rule: a name that came from the log or a JSON file becomes part of a path only through `is_safe_name`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from shmq.errors import StoreError
from shmq.shm.access import Access
from shmq.store.atomic import sync_directory

_NAME_BYTES_MAX = 255
_NAME_DIGITS = 20


class StoreLayout:
    """Paths of one store, and who may read what is made there."""

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

    def prepare(self) -> None:
        """Create the directories that are missing.

        Raises:
            StoreError: a directory cannot be made or is not one.
        """
        try:
            for directory in (self.root, self.commitlog, self.consumequeue, self.config):
                if self.make_directory(directory):
                    sync_directory(directory.parent)
        except OSError as error:
            raise StoreError(
                f"the store {self.root} cannot be used: {error.strerror} ({error.filename})",
                hint="shmq serve --store DIRECTORY, or fix its owner and mode",
            ) from error

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
        finally:
            os.close(descriptor)


def file_name(position: int) -> str:
    """Return the name of the file that begins at a byte position."""
    return f"{position:0{_NAME_DIGITS}d}"


def position_of(name: str) -> int | None:
    """Return the byte position a file name stands for, or None when it is another file."""
    return int(name) if len(name) == _NAME_DIGITS and name.isascii() and name.isdigit() else None


def is_safe_name(name: str) -> bool:
    """Say whether a topic or group name may be one component of a path."""
    if not 0 < len(os.fsencode(name)) <= _NAME_BYTES_MAX:
        return False
    return "/" not in name and "\0" not in name and name not in (".", "..")
