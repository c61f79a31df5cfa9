"""An event that a signal handler may set while the same thread waits for it.

`threading.Event` takes a lock in `set`, `wait` and `clear`. A handler runs in the main thread, between two instructions
of whatever that does: where they are inside `wait` or `clear`, `set` waits for a lock of its own thread, for ever.

    state     an eventfd: readable = set
    set       writes to it; wait polls it; clear reads it

Invariant: no method takes a lock, so each may be called at every point of every other one, by any thread.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import threading

from shmq.shm.descriptors import above_standard


def ending_signals() -> tuple[signal.Signals, ...]:
    """Return what ends a process in order: SIGTERM, Ctrl-C, and the end of its terminal unless `nohup` ignores that."""
    ends = (signal.SIGTERM, signal.SIGINT)
    return ends if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN else (*ends, signal.SIGHUP)


class SignalEvent(threading.Event):
    """A `threading.Event` for handlers of signals; it keeps one descriptor open for as long as it lives."""

    _descriptor = -1  # where none could be had

    @above_standard
    def __init__(self) -> None:
        self._descriptor = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)

    def __del__(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)

    def is_set(self) -> bool:
        """Whether it was set since it was last cleared."""
        return self.wait(0.0)

    def set(self) -> None:
        """Let every wait end, now and until it is cleared."""
        with contextlib.suppress(BlockingIOError):  # it was set 2^64 times, which is set
            os.eventfd_write(self._descriptor, 1)

    def clear(self) -> None:
        """Let waits last again."""
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self._descriptor)

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until it is set, for `timeout` seconds at most; return whether it is set."""
        poll = select.poll()  # one that is polling already refuses a second call
        poll.register(self._descriptor, select.POLLIN)
        return bool(poll.poll(None if timeout is None else max(0.0, timeout) * 1000))
