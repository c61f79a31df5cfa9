"""Mounted file systems, as the kernel lists them in /proc/self/mountinfo.

    36 35 98:0 /root /mount/point rw,noatime shared:1 - ext4 /dev/sda1 rw,errors=remount-ro,emergency_ro
       of the mount ────────────▲                       of the file system ────▲

A file system that met an error of its disk takes no more writes. Its mount goes on to say `rw`, and since Linux 6.15
statvfs() and access() do, too: only the options of the file system tell.
"""

from __future__ import annotations

import os
import re
from typing import NamedTuple

MOUNTS = "/proc/self/mountinfo"
_READ_ONLY_OPTIONS = frozenset({"ro", "emergency_ro", "shutdown"})


class Mount(NamedTuple):
    """One mounted file system."""

    path: str
    kind: str
    options: tuple[str, ...]

    @property
    def is_read_only(self) -> bool:
        """Whether nothing can be written there, by the will of the operator or after an error."""
        return not _READ_ONLY_OPTIONS.isdisjoint(self.options)


def mount_of(path: str, mountinfo: str) -> Mount | None:
    """Return the file system that holds an absolute path without links, None when the kernel does not say."""
    best: Mount | None = None
    for line in mountinfo.splitlines():
        fields = line.split(" ")
        if "-" not in fields:
            continue
        at, kind = _unescaped(fields[4]), fields[fields.index("-") + 1]
        if path == at or path.startswith(at.rstrip("/") + "/"):
            options = (*fields[5].split(","), *fields[-1].split(","))
            if best is None or len(at) >= len(best.path):
                best = Mount(at, kind, options)
    return best


def mounted_at(path: str) -> Mount | None:
    """Return the file system of this process's mounts that holds a path, None when the kernel does not say."""
    try:
        with open(MOUNTS, errors="surrogateescape") as file:
            return mount_of(os.path.realpath(path), file.read())
    except OSError:
        return None


def _unescaped(text: str) -> str:
    """Mount points carry blanks as octal escapes."""
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), text)
