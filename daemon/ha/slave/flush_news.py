"""Wakes a slave when its disk has what its master asked about.

Invariant: one place of the log is waited for at a time; what is wanted meanwhile is wanted again after it.
"""

from __future__ import annotations

import os
import select
import socket

from shmq.shm.core import DurableWatch, Store

_LOOK_SECONDS = 0.2


class FlushNews:
    """A descriptor that is readable when the disk has what was wanted of this host's log.

    Args:
        connection: to the master, which is waited for beside it.
    """

    def __init__(self, store: Store, connection: socket.socket) -> None:
        self._descriptor = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._watch = DurableWatch(store, self._descriptor)
        self._is_wanted = False
        self._alone, self._both = select.poll(), select.poll()
        for poll in (self._alone, self._both):
            poll.register(self._descriptor, select.POLLIN)
        self._both.register(connection, select.POLLIN)

    def close(self) -> None:
        """End the thread that looks."""
        self._watch.close()
        os.close(self._descriptor)

    def want(self, log_end: int) -> None:
        """Have the log flushed up to here; news of what is wanted already come first."""
        if not self._is_wanted:
            self._is_wanted = True
            self._watch.want(log_end)

    def ring(self) -> None:
        """Let who waits look again; any thread may call."""
        os.eventfd_write(self._descriptor, 1)

    def wait(self, *, reads: bool) -> bool:
        """Wait a moment for the disk, and for the connection if that `reads`; return whether that has something."""
        ready = {descriptor for descriptor, _ in (self._both if reads else self._alone).poll(_LOOK_SECONDS * 1000)}
        if self._descriptor in ready:
            os.eventfd_read(self._descriptor)
            self._is_wanted = False
        return bool(ready - {self._descriptor})
