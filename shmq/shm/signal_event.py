"""Handlers of signals for the length of a block, and an event that a handler may set while its thread waits for it.

`threading.Event` takes a lock in `set`, `wait` and `clear`. A handler runs in the main thread, between two instructions
of whatever that does: where they are inside `wait` or `clear`, `set` waits for a lock of its own thread, for ever.

    state     an eventfd: readable = set
    set       writes to it; wait polls it; clear reads it

Invariant: no method takes a lock, so each may be called at every point of every other one, by any thread.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from types import FrameType
from typing import Any

from shmq.shm.descriptors import above_standard
from shmq.waits import is_ready

_UNLESS_IGNORED = (signal.SIGHUP, signal.SIGQUIT)
_UNUSED = (signal.SIGUSR1, signal.SIGUSR2, signal.SIGALRM, signal.SIGVTALRM, signal.SIGPROF, signal.SIGIO)


def ending_signals() -> tuple[signal.Signals, ...]:
    r"""Return what ends a process in order: SIGTERM, Ctrl-C, and where they are not ignored, as under `nohup` or in a
    background job of a script, the end of its terminal and Ctrl-\."""
    ends = (signal.SIGTERM, signal.SIGINT)
    return ends + tuple(end for end in _UNLESS_IGNORED if signal.getsignal(end) is not signal.SIG_IGN)


def ignore_unused_signals() -> None:
    """Let the signals that a daemon of ours has no use for do nothing, here and in what it starts.

    They come from rules that were written for others ("send SIGUSR1 after the logs were rotated"); the kernel's default
    would kill a process of the broker for them.
    """
    for number in _UNUSED:
        signal.signal(number, signal.SIG_IGN)


@contextlib.contextmanager
def handling(handlers: Mapping[int, Callable[[int, FrameType | None], Any]]) -> Iterator[None]:
    """Let these have their signals during the block; not in other threads than the main one, which may set none."""
    is_main = threading.current_thread() is threading.main_thread()
    before = {number: signal.signal(number, handler) for number, handler in handlers.items()} if is_main else {}
    try:
        yield
    finally:
        for number, handler in before.items():
            if handler is not None:  # None: it was set by a program in C, and Python has no word for it
                signal.signal(number, handler)


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
        return is_ready(self._descriptor, timeout)
