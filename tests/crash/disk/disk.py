"""A disk that can be slow, full, broken or cut off, for any process: `faulty_disk.c` between it and its files.

    with FaultyDisk(store) as disk, disk.around():     # what is started in here sees this disk below `store`
        broker.start()
    disk.slow(0, 3000)                                  # each sync takes 0 to 3 s
    disk.fail({Kind.SYNC}, at=7, error=errno.EIO)       # the 7th sync from now on fails
    snapshot = disk.snapshot(directory)                 # everything a power cut at this moment could leave

The control page is that of `struct control` in the C file.
"""

from __future__ import annotations

import contextlib
import ctypes
import enum
import functools
import mmap
import os
import shutil
import struct
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Self

from tests.crash.disk.snapshot import Snapshot

_PAGE = 4096
_SOURCE = Path(__file__).with_name("faulty_disk.c")
_FLAGS = ("-std=gnu11", "-O2", "-g", "-Wall", "-Wextra", "-Werror", "-fPIC", "-shared")


class Kind(enum.IntEnum):
    """What a call on a watched file does."""

    SYNC = 0
    WRITE = 1
    ALLOCATE = 2
    NAME = 3
    SYNC_DIRECTORY = 4
    OPEN = 5
    READ = 6


PERSISTENCE = frozenset({Kind.SYNC, Kind.WRITE, Kind.ALLOCATE, Kind.NAME, Kind.SYNC_DIRECTORY})
"""Every call by which something gets on disk."""

_KINDS_FAILING, _FAIL_AT, _FAIL_ERRNO, _FAIL_AFTER, _FAILED, _COUNTED, _CALLS = 4, 8, 16, 20, 24, 32, 40
_SYNC_MS, _WALL, _KILL_AT, _ONLY, _ONLY_BYTES = 96, 104, 112, 120, 256


@functools.cache
def _built() -> Path:
    directory = tempfile.TemporaryDirectory(prefix="shmq-disk-", dir="/tmp")  # outlives what `tempdir` names now
    _kept.append(directory)
    library = Path(directory.name) / "faulty_disk.so"
    subprocess.run(["cc", *_FLAGS, "-o", str(library), str(_SOURCE), "-ldl"], check=True)
    return library


_kept: list[tempfile.TemporaryDirectory[str]] = []


class FaultyDisk:
    """The disk below one directory.

    Args:
        root: the directory; it need not be there yet, and what it holds already counts as never synced.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self._place = Path(tempfile.mkdtemp(prefix="shmq-disk-"))
        for name in ("shadow", "lost"):
            (self._place / name).mkdir()
        (self._place / "control").write_bytes(bytes(_PAGE))
        (self._place / "journal").touch()
        with (self._place / "control").open("r+b") as file:
            self._control = mmap.mmap(file.fileno(), _PAGE)
        self._library: ctypes.CDLL | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        shutil.rmtree(self._place, ignore_errors=True)

    @contextlib.contextmanager
    def around(self) -> Iterator[None]:
        """Let the processes that are started in here use this disk."""
        values = {"LD_PRELOAD": str(_built()), "FAULTY_DISK": str(self._place), "FAULTY_DISK_ROOT": str(self.root)}
        before = {name: os.environ.get(name) for name in values}
        os.environ.update(values)
        try:
            yield
        finally:
            for name, value in before.items():
                if value is None:
                    del os.environ[name]
                else:
                    os.environ[name] = value

    def slow(self, sync_ms_min: int, sync_ms_max: int) -> None:
        """Let every sync take that long."""
        struct.pack_into("<II", self._control, _SYNC_MS, sync_ms_min, sync_ms_max)

    def wall(self, ahead_ms: int) -> None:
        """Put the wall clock of all processes on this disk ahead, or back when it is negative."""
        struct.pack_into("<q", self._control, _WALL, ahead_ms)

    def fail(
        self, kinds: frozenset[Kind] | set[Kind], *, at: int, error: int, after: bool = False, only: str = ""
    ) -> None:
        """Let the `at`-th call of these kinds fail, counted from now on; with `after` every later one too.

        Args:
            only: count only calls on paths that contain this text.
        """
        text = only.encode()
        assert len(text) < _ONLY_BYTES
        self._control[_ONLY : _ONLY + _ONLY_BYTES] = text.ljust(_ONLY_BYTES, b"\0")
        struct.pack_into("<QQ", self._control, _FAILED, 0, 0)
        struct.pack_into("<qII", self._control, _FAIL_AT, at, error, after)
        struct.pack_into("<I", self._control, _KINDS_FAILING, sum(1 << kind for kind in kinds))

    def kill(self, kinds: frozenset[Kind] | set[Kind], *, at: int, only: str = "") -> None:
        """Kill whichever process makes the `at`-th call of these kinds, before it is carried out."""
        self.fail(kinds, at=0, error=0, only=only)
        struct.pack_into("<q", self._control, _KILL_AT, at)

    @property
    def failed(self) -> int:
        """How many calls failed since `fail`."""
        return int(struct.unpack_from("<Q", self._control, _FAILED)[0])

    @property
    def counted(self) -> int:
        """How many calls of the kinds of `fail` there were since then."""
        return int(struct.unpack_from("<Q", self._control, _COUNTED)[0])

    def calls(self, kind: Kind) -> int:
        """How many calls of a kind there were."""
        return int(struct.unpack_from("<Q", self._control, _CALLS + 8 * kind)[0])

    def snapshot(self, into: Path) -> Snapshot:
        """Copy everything that decides what a power cut now would leave; no sync goes on meanwhile."""
        library = self._attached()
        library.faulty_disk_lock()
        try:
            for name, source in (
                ("live", self.root),
                ("shadow", self._place / "shadow"),
                ("lost", self._place / "lost"),
            ):
                subprocess.run(["cp", "-r", "--sparse=always", str(source), str(into / name)], check=True)
            shutil.copy(self._place / "journal", into / "journal")
            inodes = {path.relative_to(self.root): path.stat().st_ino for path in _files(self.root)}
        finally:
            library.faulty_disk_unlock()
        return Snapshot(into, inodes)

    def _attached(self) -> ctypes.CDLL:
        if self._library is None:
            copy = self._place / "faulty_disk.so"  # each disk has an instance of its own in this process
            shutil.copy(_built(), copy)
            with self.around():
                preload = os.environ.pop("LD_PRELOAD")
                self._library = ctypes.CDLL(str(copy))
                os.environ["LD_PRELOAD"] = preload
        return self._library


def _files(root: Path) -> Iterator[Path]:
    for directory, _, names in os.walk(root):
        for name in names:
            path = Path(directory) / name
            if path.is_file() and not path.is_symlink():
                yield path
