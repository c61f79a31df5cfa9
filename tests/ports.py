"""Owns the ports that a test must know before a server listens there, or while none does.

A port that the kernel chose and that was closed again may be in use the moment after: each outgoing connection takes
one of the same range. So these lie outside that range, and a lock of the process that claimed one keeps other test
processes away until it ends.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import random
import socket
import tempfile
from pathlib import Path

LOWEST = 10240
_RANGE_PATH = Path("/proc/sys/net/ipv4/ip_local_port_range")
_TRIES = 10_000
_locks = -1
_own: set[int] = set()


def _ports() -> range:
    """Ports that no outgoing connection takes."""
    first, last = (int(word) for word in _RANGE_PATH.read_text().split())
    return range(LOWEST, first) if first - LOWEST >= 65535 - last else range(last + 1, 65536)


def _is_claimed(port: int) -> bool:
    """Claim a port among test processes; the kernel gives it back when this process ends."""
    global _locks
    if _locks < 0:  # closing a second descriptor of this file would drop all locks: there is one
        path = Path(tempfile.gettempdir(), f"shmq-test-ports-{os.geteuid()}")
        _locks = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.lockf(_locks, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, port)
    except OSError:
        return False
    return True


def free_ports(*distances: int) -> int:
    """Return a port P of loopback so that P and P + each distance are ours until this process ends."""
    candidates = _ports()
    for _ in range(_TRIES):
        port = random.choice(candidates)
        wanted = {port, *(port + distance for distance in distances)}
        if wanted & _own or not all(each in candidates and _is_claimed(each) for each in wanted):
            continue
        with contextlib.ExitStack() as bound:
            try:
                for each in wanted:
                    bound.enter_context(socket.socket()).bind(("127.0.0.1", each))
            except OSError:
                continue
        _own.update(wanted)
        return port
    raise AssertionError(f"no free ports among {candidates} after {_TRIES} tries")
