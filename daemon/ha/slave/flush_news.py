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
    """A descriptor that is readable when the disk has what was wanted of this host's log."""

    def __init__(self, store: Store) -> None:
        self._descriptor = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._watch = DurableWatch(store, self._descriptor)
        self._is_wanted = False

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

    def wait(self, connection: socket.socket | None) -> bool:
        """Wait a moment for the disk or the connection; return whether that has something."""
        poll = select.poll()
        poll.register(self._descriptor, select.POLLIN)
        if connection is not None:
            poll.register(connection, select.POLLIN)
        ready = {descriptor for descriptor, _ in poll.poll(_LOOK_SECONDS * 1000)}
        if self._descriptor in ready:
            os.eventfd_read(self._descriptor)
            self._is_wanted = False
        return bool(ready - {self._descriptor})
