"""Ctrl-C takes effect between two steps of a command, so that what is counted and settled is what was done.

It takes effect once at least: the interpreter drops a KeyboardInterrupt that is raised where it cannot be passed on.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from shmq.shm.signal_event import ending_signals, handling

_came: list[int] = []  # in the block of `interrupts_kept`


def _interrupt(number: int, _frame: FrameType | None) -> None:
    _came.append(number)
    raise KeyboardInterrupt


@contextmanager
def interrupts_kept() -> Iterator[None]:
    """Note each Ctrl-C of the block for `raise_dropped`."""
    _came.clear()
    is_usual = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    with handling({signal.SIGINT: _interrupt} if is_usual else {}):
        yield


def raise_dropped() -> None:
    """Raise the KeyboardInterrupt of a block of `interrupts_kept` that was dropped: it ends the loop that calls."""
    if _came:
        raise KeyboardInterrupt


@contextmanager
def interrupt_deferred() -> Iterator[None]:
    """Finish the block before a first Ctrl-C is heeded; a second one is heeded at once."""
    came = False

    def note(_number: int, _frame: FrameType | None) -> None:
        nonlocal came
        if came:
            raise KeyboardInterrupt
        came = True

    # Else it is ignored, as in a background job, or has another handler.
    is_usual = signal.getsignal(signal.SIGINT) in (signal.default_int_handler, _interrupt)
    with handling({signal.SIGINT: note} if is_usual else {}):
        yield
    if came:
        raise KeyboardInterrupt


@contextmanager
def ended_in_order() -> Iterator[None]:
    """Let SIGTERM, SIGHUP and SIGQUIT end the block as Ctrl-C does, so that processes and directories are removed."""
    numbers = [number for number in ending_signals() if number != signal.SIGINT]
    with handling(dict.fromkeys(numbers, signal.default_int_handler)):
        yield
