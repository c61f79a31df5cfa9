"""A /dev/shm and System V objects of its own for each process of a run of pytest.

Brokers sweep what is dead on their host, and `shmq health` judges all of it, so a test would meet what the tests of
another process leave. What a test starts has the memory of the test; processes and networks are the host's as before.

A namespace is entered by one thread, and all that this thread starts later is in it too. So the process that the user
started enters when pytest is configured, with one thread, and each process of xdist before it is Python:

    python -P tests/shm/private_memory.py ARGUMENTS...    python ARGUMENTS... in memory of its own

Only root may, and not in every container. A process that may not shares the host's memory; the head of the run says so.
"""

from __future__ import annotations

import ctypes
import os
import shlex
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # pytest is not read by each process that only enters
    import pytest

_CLONE_NEWNS, _CLONE_NEWIPC = 0x00020000, 0x08000000  # <sched.h>
_MS_REC, _MS_PRIVATE = 16384, 1 << 18  # <sys/mount.h>


def enter() -> bool:
    """Move this thread into memory of its own; return whether the kernel let it."""
    libc = ctypes.CDLL(None, use_errno=True)
    where = os.getcwd()
    before = [os.open(f"/proc/thread-self/ns/{name}", os.O_RDONLY | os.O_CLOEXEC) for name in ("mnt", "ipc")]
    try:
        if libc.unshare(_CLONE_NEWNS | _CLONE_NEWIPC) != 0:
            return False
        is_apart = libc.mount(b"none", b"/", None, _MS_REC | _MS_PRIVATE, None) == 0
        if is_apart and libc.mount(b"tmpfs", b"/dev/shm", b"tmpfs", 0, None) == 0:  # half of the RAM, like the host's
            return True
        for namespace in before:  # files of the host with semaphores of our own are nothing that a broker can judge
            if libc.setns(namespace, 0) != 0:
                raise OSError(ctypes.get_errno(), "setns")
        os.chdir(where)
        return False
    finally:
        for namespace in before:
            os.close(namespace)


class _Memory:
    """Whose memory the run has: what its head says, and what the processes of xdist get."""

    def __init__(self, is_own: bool) -> None:
        self._is_own = is_own

    def pytest_report_header(self) -> str:
        whose = "each process's own" if self._is_own else "the host's, shared with all that runs there"
        return f"memory: /dev/shm and System V objects are {whose}"

    def pytest_xdist_setupnodes(self, specs: list[Any]) -> None:
        for spec in specs if self._is_own else ():
            spec.python = shlex.join([sys.executable, "-P", __file__])


def pytest_configure(config: pytest.Config) -> None:
    """Enter, unless this is a process of xdist: that did, if it may."""
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(_Memory(enter()))


if __name__ == "__main__":
    enter()
    os.execv(sys.executable, [sys.executable, *sys.argv[1:]])
