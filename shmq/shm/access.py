"""Grants access to users beside the broker's own: the Unix group `shmq`, if this host has it, may append.

    group `shmq` exists and is ours to give   segments, semaphores and log files 0660 group shmq, directories 0750
    otherwise                                 0600 and 0700: only the broker's own user

Rule: nothing of a broker is ever readable or writable by all users.
"""

from __future__ import annotations

import os
from typing import NamedTuple

WRITER_GROUP = "shmq"
UMASK = 0o077  # of daemons: what is made without a mode of its own is ours alone
_GROUP_WRITES = 0o020


class Access(NamedTuple):
    """Group and modes of what a broker creates; gid -1 leaves the group as it is."""

    gid: int

    @property
    def mode(self) -> int:
        """Mode of what writers map: segments, semaphores, log files."""
        return 0o660 if self.gid >= 0 else 0o600

    @property
    def read_mode(self) -> int:
        """Mode of what clients only read: ConsumeQueue files, instance.json."""
        return read_mode_beside(self.mode)

    @property
    def directory_mode(self) -> int:
        """Mode of directories that clients have to pass."""
        return 0o750 if self.gid >= 0 else 0o700


def read_mode_beside(mode: int) -> int:
    """Return the mode of what clients only read, where what they write into has `mode`."""
    return mode & ~_GROUP_WRITES


def access_rights() -> Access:
    """Return the rights a broker of this user gives away."""
    import grp  # needed only to make something

    try:
        gid = grp.getgrnam(WRITER_GROUP).gr_gid
    except KeyError:
        return Access(-1)
    may_give = os.geteuid() == 0 or gid == os.getegid() or gid in os.getgroups()
    return Access(gid if may_give else -1)
