"""The store directory: what lies where, exactly as RocketMQ lays it out.

    <root>/commitlog/<20 digits>                          the log, files named by the position of their first byte
    <root>/consumequeue/<topic>/<queue id>/<20 digits>    units, files named by the byte position of their first unit
    <root>/index/<17 digits>                              key index, files named by the time of their creation
    <root>/config/*.json, *.json.bak                      tables
    <root>/checkpoint  abort  lock                        RocketMQ's own
    <root>/shmq.durable                                   the durable mark (durable.py); RocketMQ ignores it
    <root>/shmq.index                                     how far the index goes (index_mark.py); likewise

Rule: a name that came from the log or a JSON file becomes part of a path only through `is_safe_name`.
"""

from __future__ import annotations

import os
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

    @property
    def commitlog(self) -> Path:
        """Directory of the log files."""
        return self.root / "commitlog"

    @property
    def consumequeue(self) -> Path:
        """Directory of the unit files."""
        return self.root / "consumequeue"

    @property
    def index(self) -> Path:
        """Directory of the index files; made with the first of them."""
        return self.root / "index"

    @property
    def config(self) -> Path:
        """Directory of the tables."""
        return self.root / "config"

    @property
    def checkpoint(self) -> Path:
        """RocketMQ's flush times."""
        return self.root / "checkpoint"

    @property
    def abort(self) -> Path:
        """Exists while a broker runs."""
        return self.root / "abort"

    @property
    def lock(self) -> Path:
        """What the running broker holds locked."""
        return self.root / "lock"

    @property
    def durable_mark(self) -> Path:
        """The durable mark."""
        return self.root / "shmq.durable"

    @property
    def index_mark(self) -> Path:
        """The index mark."""
        return self.root / "shmq.index"

    def prepare(self) -> None:
        """Create the directories that are missing, whatever the umask.

        Raises:
            StoreError: a directory cannot be made or is not one.
        """
        try:
            for directory in (self.root, self.commitlog, self.consumequeue, self.config):
                created = not directory.exists()
                directory.mkdir(parents=True, exist_ok=True)
                if created:
                    os.chown(directory, -1, self.access.gid)
                    os.chmod(directory, self.access.directory_mode)
                    sync_directory(directory.parent)
        except OSError as error:
            raise StoreError(
                f"the store {self.root} cannot be used: {error.strerror} ({error.filename})",
                hint="shmq serve --store DIRECTORY, or fix its owner and mode",
            ) from error


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
