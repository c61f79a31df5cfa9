"""Finds the processes that have a file of shared memory open or mapped, before it is removed.

    proof     answers for                                    asked by
    lease     every process of this kernel, any user, any    F_SETLEASE on the file: refused while any other has it
              namespace, mapped or only open                 open; held until the name is gone
    maps      processes whose /proc/<pid>/maps we may read   device and inode of each mapping; says who it is

Rules: (1) what cannot be proven free counts as held; (2) while a lease is held, a process that opens the file waits
until it is given back, and then finds a file without a name, which `open_store` refuses; (3) processes are named by
pid and start time.
"""

from __future__ import annotations

import errno
import fcntl
import os
import random
import signal
import stat
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from shmq.plain_file import open_plain
from shmq.shm.descriptors import above_standard
from shmq.shm.liveness import ProcessMark, is_alive, mark_of

File = tuple[int, int]  # device and inode

_PROC = Path("/proc")
_CHANCE = random.SystemRandom()  # the state of `random` itself is the program's
_ASK_AGAIN_SECONDS = 0.01
_NO_LEASES = (errno.EINVAL, errno.EOPNOTSUPP, errno.ENOLCK, errno.ENOSYS)


class StillHeld(Exception):
    """A process has the file open, or it cannot be proven that none has; the argument says which."""


class _IsOpen(StillHeld):
    """A process has it open, which may be over in a moment."""


def identity(path: Path) -> File | None:
    """Return device and inode of a regular file, None when there is none of that name."""
    try:
        status = os.lstat(path)
    except OSError:
        return None
    return (status.st_dev, status.st_ino) if stat.S_ISREG(status.st_mode) else None


def mapping_processes(files: Iterable[File]) -> dict[File, list[ProcessMark]]:
    """Return for each of these files the processes that map it, as far as this user may look; one pass over /proc.

    Args:
        files: device and inode of each, as `identity` returns them.
    """
    found: dict[File, list[ProcessMark]] = {file: [] for file in files}
    keys = {_maps_key(*file): file for file in found}
    for pid in sorted(int(name) for name in os.listdir(_PROC) if name.isdecimal()) if keys else ():
        mark = mark_of(pid)
        try:
            text = (_PROC / str(pid) / "maps").read_bytes()
        except OSError:  # not ours to see, or it has just ended
            continue
        if mark is not None and is_alive(mark):
            for key in keys.keys() & _keys_in(text):
                found[keys[key]].append(mark)
    return found


def _maps_key(device: int, inode: int) -> bytes:
    return b"%02x:%02x %d" % (os.major(device), os.minor(device), inode)


def _keys_in(text: bytes) -> set[bytes]:
    """Device and inode of every mapping of a file: `begin-end perm offset dev inode path`."""
    lines = (line.split(None, 5) for line in text.splitlines())
    return {fields[3] + b" " + fields[4] for fields in lines if len(fields) >= 5 and fields[4] != b"0"}


@contextmanager
def proven_free(paths: Iterable[Path], *, uid: int, patience_seconds: float = 0.0) -> Iterator[None]:
    """Prove for the length of a with block that no other process has one of these files open or mapped.

    Args:
        uid: whose files they must be.
        patience_seconds: how long to ask again, in all: a process may just be looking at what is there.

    Raises:
        StillHeld: a process has, or the proof is not possible; nothing was changed.
    """
    files: list[File] = []
    until = time.monotonic() + patience_seconds
    with ExitStack() as held:
        for path in paths:
            file = _patient_lease(path, uid, held, until)
            if file is not None:
                files.append(file)
        pids = sorted({mark.pid for marks in mapping_processes(files).values() for mark in marks})
        if pids:
            raise StillHeld(f"pid {', '.join(map(str, pids))} maps it")
        yield


def _patient_lease(path: Path, uid: int, held: ExitStack, until: float) -> File | None:
    while True:
        try:
            return _lease(path, uid, held)
        except _IsOpen:
            if time.monotonic() >= until:
                raise
        # Two processes that ask at once refuse each other; the first one back while the other sleeps gets it.
        time.sleep(_CHANCE.uniform(0.1, 1.0) * _ASK_AGAIN_SECONDS)


@above_standard
def _lease(path: Path, uid: int, held: ExitStack) -> File | None:
    try:
        descriptor = open_plain(path, os.O_RDONLY)
    except FileNotFoundError:
        return None
    except BlockingIOError as error:
        raise _IsOpen(f"{path} is just being removed by another process") from error
    except OSError as error:
        raise StillHeld(f"{path} cannot be opened: {error.strerror}") from error
    status = os.fstat(descriptor)
    if status.st_uid != uid:
        os.close(descriptor)
        raise StillHeld(f"{path} belongs to uid {status.st_uid}, not {uid}")
    try:
        # The kernel tells a holder that an open waits. SIGIO would end the process, or need a handler, which threads
        # may not set; this one is ignored unless a program wants it.
        fcntl.fcntl(descriptor, fcntl.F_SETSIG, signal.SIGURG)
        fcntl.fcntl(descriptor, fcntl.F_SETLEASE, fcntl.F_WRLCK)
    except OSError as error:
        os.close(descriptor)
        if error.errno == errno.EAGAIN:
            raise _IsOpen(f"{path} is open in {_holder_text(status)}") from error
        known = "this file system knows no leases" if error.errno in _NO_LEASES else error.strerror
        raise StillHeld(f"whether a process has {path} open is unknown: {known}") from error
    held.callback(os.close, descriptor)
    return status.st_dev, status.st_ino


def _holder_text(status: os.stat_result) -> str:
    [marks] = mapping_processes([(status.st_dev, status.st_ino)]).values()
    pids = ", ".join(str(mark.pid) for mark in marks)
    return f"pid {pids}" if pids else "a process that cannot be looked into"
