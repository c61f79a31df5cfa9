"""Ctrl-C takes effect between two steps of a command, so that what is counted and settled is what was done."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from shmq.shm.signal_event import ending_signals


@contextmanager
def interrupt_deferred() -> Iterator[None]:
    """Finish the block before a first Ctrl-C is heeded; a second one is heeded at once."""
    came = False

    def note(_number: int, _frame: FrameType | None) -> None:
        nonlocal came
        if came:
            raise KeyboardInterrupt
        came = True

    before = signal.getsignal(signal.SIGINT)
    if before is not signal.default_int_handler:  # ignored, as in a background job, or another handler
        yield
        return
    signal.signal(signal.SIGINT, note)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
    if came:
        raise KeyboardInterrupt


@contextmanager
def ended_in_order() -> Iterator[None]:
    """Let SIGTERM, SIGHUP and SIGQUIT end the block as Ctrl-C does, so that processes and directories are removed."""
    numbers = [number for number in ending_signals() if number != signal.SIGINT]
    before = [(number, signal.signal(number, signal.default_int_handler)) for number in numbers]
    try:
        yield
    finally:
        for number, handler in before:
            signal.signal(number, handler)
