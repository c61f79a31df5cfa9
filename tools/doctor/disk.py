"""Checks of the store's place and content: file system, room, and records and units compared offline."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from shmq.figures.broker_rules import disk_finding
from shmq.figures.quantity import count_text, size_text
from shmq.figures.verdict import Finding
from shmq.store.verify import verify_store
from shmq.tools.doctor.case import Case
from shmq.tools.doctor.finding import fail, ok, warn

WALK_BYTES = 64 << 20
INODES_LEAST = 1000
_NETWORK = frozenset({"nfs", "nfs4", "cifs", "smb3", "9p", "ceph", "glusterfs", "lustre", "afs"})
_MEMORY = frozenset({"tmpfs", "ramfs"})
_LAYERS = frozenset({"overlay", "aufs"})


def check_file_system(case: Case) -> Iterator[Finding]:
    """The kind of file system of the store."""
    path = _existing(case.store_path)
    mount = case.host.mount_of(os.path.realpath(path))
    if mount is None:
        yield warn("store.file_system", f"the file system of {path} is not known", "mount /proc")
        return
    text, kind = f"store {case.store_path} on {mount.kind}, mounted at {mount.path}", mount.kind
    figures = {"kind": kind, "mount": mount.path, "options": list(mount.options)}
    if mount.is_read_only:
        fix = f"dmesg; umount {mount.path}; fsck, if an error made it so; mount {mount.path}"
        yield fail("store.file_system", f"{text}: read-only", fix, **figures)
    elif kind in _NETWORK or kind.startswith("fuse"):
        fix = "put the store on a local disk: shmq serve --store DIRECTORY"
        yield warn("store.file_system", f"{text}: mapped files and locks are not safe there", fix, **figures)
    elif kind in _MEMORY:
        fix = "put the store on a disk: shmq serve --store DIRECTORY"
        yield warn("store.file_system", f"{text}: a reboot forgets every message", fix, **figures)
    elif kind in _LAYERS:
        fix = "mount a volume: docker run -v shmq:/var/lib/shmq …"
        yield warn("store.file_system", f"{text}: it goes with the container", fix, **figures)
    else:
        yield ok("store.file_system", text, **figures)


def _existing(path: str) -> str:
    while not os.path.exists(path) and os.path.dirname(path) not in ("", path):
        path = os.path.dirname(path)
    return path


def check_room(case: Case) -> Iterator[Finding]:
    """How full the disk is, against the marks at which something happens."""
    disk = case.snapshot.disk
    inodes = os.statvfs(_existing(case.store_path))
    if inodes.f_files and inodes.f_favail < INODES_LEAST:
        text = f"{count_text(inodes.f_favail)} inodes are left for {case.store_path}"
        yield fail("store.inodes", text, "remove files: each queue takes one or more", inodes=inodes.f_favail)
    if disk is None:
        free = inodes.f_bavail * inodes.f_frsize
        yield ok("store.room", f"{size_text(free)} free for {case.store_path}", free_bytes=free)
        return
    text = (
        f"disk {disk.used_percent} % used, {size_text(disk.free_bytes)} free "
        f"(marks {disk.warn_percent}, {disk.force_percent}, {disk.refuse_percent} %)"
    )
    figures = {"used_percent": disk.used_percent, "free_bytes": disk.free_bytes}
    judged = disk_finding(disk)
    yield judged._replace(check="store.room", subject="", what=text, measures={}, facts=figures)


def check_content(case: Case) -> Iterator[Finding]:
    """Records and units of the store, compared without the broker's help: a part of it, all with --deep."""
    root = Path(case.store_path)
    if not (root / "commitlog").is_dir():
        yield ok("store.content", f"no store at {root} yet")
        return
    try:
        found = verify_store(root, bytes_max=None if case.deep else WALK_BYTES)
    except PermissionError:
        yield warn("store.content", f"{root} may not be read by this user", "run doctor as the broker's user")
        return
    part = "all" if found.complete else f"{size_text(found.record_bytes)}, --deep reads all"
    text = (
        f"store offline: {count_text(found.records)} records whole ({part}), "
        f"{count_text(found.units)} queue units compared, {found.files} log files"
    )
    figures = {
        "records": found.records,
        "record_bytes": found.record_bytes,
        "complete": found.complete,
        "units": found.units,
        "log_begin": found.log_begin,
        "log_end": found.log_end,
        "durable_end": found.durable_end,
        "faults": found.fault_count,
        "first_faults": [{"position": fault.position, "reason": fault.reason} for fault in found.faults],
    }
    if found.fault_count:
        first = found.faults[0]
        text += f"; {count_text(found.fault_count)} faults, the first at byte {first.position}: {first.reason}"
        fix = "keep a copy of the store; a start of the broker steps over what is unreadable, and says so"
        yield fail("store.content", text, fix, **figures)
    else:
        yield ok("store.content", text, **figures)
