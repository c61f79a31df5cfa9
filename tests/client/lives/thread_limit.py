"""A process in which no thread can be started any more, as at its end or at its limit."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from unittest import mock

REFUSED = "can't start new thread"


@contextlib.contextmanager
def no_thread_starts(prefix: str = "shmq") -> Iterator[None]:
    """In the block no thread starts whose name begins so."""
    start = threading.Thread.start

    def refused(thread: threading.Thread) -> None:
        if thread.name.startswith(prefix):
            raise RuntimeError(REFUSED)
        start(thread)

    with mock.patch.object(threading.Thread, "start", refused):
        yield
