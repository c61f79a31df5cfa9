"""The kernel's own list of System V segments: /proc/sysvipc/shm of this IPC namespace.

Reading the list attaches to nothing, so it leaves no trace and needs no permission on the segments.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from shmq.shm.descriptors import above_standard

PRIVATE_KEY = 0  # of what is found by its identifier alone

_TABLE = "/proc/sysvipc/shm"
_DESTROYED = 0o1000  # SHM_DEST: removed, and kept only for attached processes


class SysvSegment(NamedTuple):
    """A shared memory segment; `attached` counts mappings, of every process that shares the namespace."""

    identifier: int
    size_bytes: int
    resident_bytes: int
    attached: int
    uid: int  # of its creator
    mode: int
    key: int = PRIVATE_KEY
    creator: int = 0  # pid


def sysv_segments() -> dict[int, SysvSegment]:
    """Return the segments that have not been removed, by identifier; {} where there is no such table."""
    return {
        int(row["shmid"]): SysvSegment(
            identifier=int(row["shmid"]),
            size_bytes=int(row["size"]),
            resident_bytes=int(row.get("rss", row["size"])),
            attached=int(row["nattch"]),
            uid=int(row["cuid"]),
            mode=int(row["perms"], 8) & 0o777,
            key=int(row["key"]),
            creator=int(row["cpid"]),
        )
        for row in _rows()
        if not int(row["perms"], 8) & _DESTROYED
    }


def _rows() -> Iterator[dict[str, str]]:
    try:
        with above_standard, open(_TABLE) as file:
            lines = file.read().splitlines()
    except OSError:
        return
    names = lines[0].split() if lines else []
    for line in lines[1:]:
        yield dict(zip(names, line.split(), strict=False))
