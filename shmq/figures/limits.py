"""Limits and use of shared memory, memory and disk of a broker.

cgroup v2 and v1 are both read; the lowest limit on the way to the root counts.
"""

from __future__ import annotations

import os
from pathlib import Path

from shmq.figures.snapshot import Disk, Memory
from shmq.shm.segment import SHM_DIRECTORY
from shmq.store.mounts import mounted_at

_CGROUP_ROOT = Path("/sys/fs/cgroup")
_UNLIMITED = 1 << 60  # cgroup v1 says "none" with a number near 2^63
DEFAULT_MARKS = (75, 85, 90)


def collect_memory(pid: int | str = "self") -> Memory:
    """Return the limits that a process lives under, the caller by default; raises OSError."""
    shm = os.statvfs(SHM_DIRECTORY)
    group, limit, used, reclaimable = _cgroup(pid)
    return Memory(
        shm_bytes=shm.f_blocks * shm.f_frsize,
        shm_free_bytes=shm.f_bavail * shm.f_frsize,
        cgroup=group,
        cgroup_limit_bytes=limit,
        cgroup_used_bytes=used,
        cgroup_reclaimable_bytes=reclaimable,
    )


def _cgroup(pid: int | str) -> tuple[str, int | None, int | None, int | None]:
    try:
        lines = Path(f"/proc/{pid}/cgroup").read_text().splitlines()
    except OSError:
        return "", None, None, None
    for line in lines:
        number, controllers, group = line.split(":", 2)
        if number == "0" and not controllers:
            base, names = _CGROUP_ROOT, ("memory.max", "memory.current")
        elif "memory" in controllers.split(","):
            base, names = _CGROUP_ROOT / "memory", ("memory.limit_in_bytes", "memory.usage_in_bytes")
        else:
            continue
        found = _lowest(base, group, names)
        if found is not None:
            return group, *found
    return "", None, None, None


def _lowest(base: Path, group: str, names: tuple[str, str]) -> tuple[int | None, int | None, int | None] | None:
    """The lowest limit from the group up, what is used of it, and what of that can be had back.

    None when the group has no memory controller.
    """
    directory = base / group.lstrip("/")
    limit: int | None = None
    used: int | None = None
    where = directory
    seen = False
    while True:
        bound, taken = _number(directory / names[0]), _number(directory / names[1])
        seen = seen or taken is not None
        if bound is not None and bound < _UNLIMITED and (limit is None or bound < limit):
            limit, used, where = bound, taken, directory
        elif used is None:
            used, where = taken, directory
        if directory in (base, directory.parent) or base not in directory.parents:
            return (limit, used, _inactive_file(where)) if seen else None
        directory = directory.parent


def _inactive_file(directory: Path) -> int | None:
    try:
        fields = dict(line.split() for line in (directory / "memory.stat").read_text().splitlines())
        return int(fields.get("total_inactive_file") or fields["inactive_file"])
    except (OSError, ValueError, KeyError):
        return None


def _number(path: Path) -> int | None:
    try:
        return int(path.read_text())
    except (OSError, ValueError):  # missing, or "max"
        return None


def collect_disk(path: str, marks: tuple[int, int, int]) -> Disk:
    """Return the room of the disk that holds a path; raises OSError.

    Percentages as the keeper counts them: what is used of all blocks.
    """
    disk, mount = os.statvfs(path), mounted_at(path)
    size, used = disk.f_blocks * disk.f_frsize, (disk.f_blocks - disk.f_bfree) * disk.f_frsize
    warn, force, refuse = marks
    return Disk(
        path=path,
        size_bytes=size,
        used_bytes=used,
        free_bytes=disk.f_bavail * disk.f_frsize,
        used_percent=100 * used // size if size else 0,
        warn_percent=warn,
        force_percent=force,
        refuse_percent=refuse,
        writable=not (disk.f_flag & os.ST_RDONLY or (mount is not None and mount.is_read_only)),
    )
