"""Descriptors 0, 1 and 2 of processes that were started without them (`2>&-`, cron, managers of daemons).

The kernel gives away the lowest number that is free, so a log file, a segment or a socket would become "stdout", and
the next line that anything in the process prints would be written into it.

    a program of ours    `open_standard()`, before it opens anything: what is missing, or is open the wrong way, is
                         /dev/null from then on, in its children too, and what it prints there is dropped
    a library            `with above_standard:` around whatever is opened: it lies above 2, and the program's own 0 to 2
                         stay as they are. The C core does the same for what it opens

Invariant: nothing of shmq that stays open, or that can be written to, ever has number 0, 1 or 2.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import sys
from types import TracebackType
from typing import Final

_STREAMS: Final = (("stdin", "r", os.O_WRONLY), ("stdout", "w", os.O_RDONLY), ("stderr", "w", os.O_RDONLY))
"""Its name, how Python opens it, and how the descriptor is of no use for that."""


def open_standard() -> None:
    """Point what is missing of descriptors 0 to 2 at /dev/null, and give Python its streams there."""
    for number, (name, mode, useless) in enumerate(_STREAMS):
        if not _is_open(number, useless):
            nothing = os.open(os.devnull, os.O_RDWR)
            if nothing == number:
                os.set_inheritable(nothing, True)
            else:
                os.dup2(nothing, number)
                os.close(nothing)
        if getattr(sys, name) is None:
            stream = open(number, mode, errors="backslashreplace", closefd=False)  # noqa: SIM115 - as long as we run
            setattr(sys, name, stream)
            setattr(sys, f"__{name}__", stream)


def _is_open(number: int, useless: int) -> bool:
    try:
        flags = fcntl.fcntl(number, fcntl.F_GETFL)
    except OSError:
        return False
    return not flags & os.O_PATH and flags & (os.O_RDONLY | os.O_WRONLY | os.O_RDWR) != useless


class _AboveStandard(contextlib.ContextDecorator):
    """Descriptors opened within, by this thread or another one, lie above 2; may be entered again."""

    def __enter__(self) -> None:
        # Here, because a program calls open_standard() before it knows whether there is a core.
        from shmq.shm.core import standard_hold

        standard_hold()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        from shmq.shm.core import standard_release

        standard_release()


above_standard: Final = _AboveStandard()
"""For `with`, or as a decorator of a function that opens something."""
