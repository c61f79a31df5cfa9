"""Leases on the log: a reader that planned to read from a log position keeps retention from passing it for a while.

A lease is an empty file: it outlives its taker, needs no process, and all processes see it. A table of leases in shared
memory would have to be cleaned of dead readers, and a lock would end with the process that plans a read, long before
the tasks that carry it out.

    <store>/leases/00000000001073741824.5f3a…      name: the first log position that is needed
                                                   modification time: until when, in the future

Rules: (1) a lease ends by itself; a reader renews it, and may give it back early;
(2) it bounds retention by age only: a disk that gets full is emptied all the same;
(3) a lease longer than LEASE_SECONDS_MAX from now is none: a clock was set, or it was made by hand.
"""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path

from shmq.shm.descriptors import above_standard

LEASE_SECONDS_MAX = 86_400.0
_DIRECTORY = "leases"
_DIGITS = 20


@above_standard
def take_lease(store_path: Path | str, log_position: int, seconds: float) -> Path | None:
    """Keep the log from `log_position` on for so many seconds; None where this user may not write."""
    directory = Path(store_path) / _DIRECTORY
    path = directory / f"{log_position:0{_DIGITS}d}.{os.urandom(8).hex()}"
    try:
        directory.mkdir(mode=0o700, exist_ok=True)
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_NOFOLLOW, 0o600))
        return path if renew_lease(path, seconds) else None
    except OSError:
        return None


def renew_lease(path: Path | str, seconds: float) -> bool:
    """Let a lease last for so many seconds from now; False when it has ended meanwhile."""
    until = time.time() + min(seconds, LEASE_SECONDS_MAX)
    try:
        os.utime(path, (until, until), follow_symlinks=False)
    except OSError:
        return False
    return True


def release_lease(path: Path | str) -> None:
    """End a lease before its time."""
    with contextlib.suppress(OSError):
        os.unlink(path)


def leased_position(store_path: Path | str, now: float) -> int | None:
    """Return the lowest log position that has a lease, None without one; leases that ended are removed.

    Args:
        now: seconds since the epoch.
    """
    lowest: int | None = None
    try:
        entries = list(os.scandir(Path(store_path) / _DIRECTORY))
    except OSError:
        return None
    for entry in entries:
        digits = entry.name.partition(".")[0]
        if len(digits) != _DIGITS or not digits.isdecimal():
            continue
        with contextlib.suppress(OSError):
            if 0 < entry.stat(follow_symlinks=False).st_mtime - now <= LEASE_SECONDS_MAX:
                lowest = int(digits) if lowest is None else min(lowest, int(digits))
            else:
                os.unlink(entry.path)
    return lowest
