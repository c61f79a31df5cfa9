"""A /dev/shm and System V objects of a test's own: brokers that start meanwhile sweep what is dead on their host.

The calling thread, and what it starts, moves into namespaces of its own and back. Only root may, and not in every
container; who may not shares the host's memory with everybody, as before.
"""

import contextlib
import ctypes
import os
from collections.abc import Iterator

_CLONE_NEWNS, _CLONE_NEWIPC = 0x00020000, 0x08000000  # <sched.h>
_MS_REC, _MS_PRIVATE = 16384, 1 << 18  # <sys/mount.h>


@contextlib.contextmanager
def private_memory() -> Iterator[None]:
    """Have shared memory alone for the length of a with block."""
    if os.geteuid() != 0:
        yield
        return
    libc = ctypes.CDLL(None, use_errno=True)
    where = os.getcwd()
    before = [os.open(f"/proc/thread-self/ns/{name}", os.O_RDONLY | os.O_CLOEXEC) for name in ("mnt", "ipc")]
    try:
        if libc.unshare(_CLONE_NEWNS | _CLONE_NEWIPC) != 0:  # root of a container that may not
            yield
            return
        try:
            _must(libc.mount(b"none", b"/", None, _MS_REC | _MS_PRIVATE, None), "mount --make-rprivate /")
            _must(libc.mount(b"tmpfs", b"/dev/shm", b"tmpfs", 0, b"size=2g"), "mount /dev/shm")
            yield
        finally:
            for descriptor in before:
                _must(libc.setns(descriptor, 0), "setns")
            os.chdir(where)
    finally:
        for descriptor in before:
            os.close(descriptor)


def _must(status: int, what: str) -> None:
    if status != 0:
        raise OSError(ctypes.get_errno(), f"{what}: {os.strerror(ctypes.get_errno())}")
