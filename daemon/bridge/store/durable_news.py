"""News of the disk for the event loop: the log is on disk up to a position that somebody waits for.

A thread of the core sleeps on the durable end and writes to an eventfd (`core/log/durable_watch.c`); the loop sleeps on
that like on any connection. It is told once for each position that it wanted, however many answers wait for it, and no
thread of Python stands in between.

    loop: want(position) ──▶ thread: sleeps until then ──eventfd──▶ loop: news() ──▶ want(next) …

Invariant: after `close` nothing is told.
"""

import asyncio
import contextlib
import os
from collections.abc import Callable

from shmq.shm.core import DurableWatch, Store


class DurableNews:
    """Tells the loop of the thread that makes it.

    Args:
        ships: what is wanted is the end of the log, for who ships it.
        news: called when the disk has what was wanted last, or when a flush has failed.
    """

    def __init__(self, store: Store, news: Callable[[], None], *, ships: bool = False) -> None:
        self._news = news
        self._loop = asyncio.get_running_loop()
        self._descriptor = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        try:
            self._watch = DurableWatch(store, self._descriptor, ships=ships)
        except BaseException:
            os.close(self._descriptor)
            raise
        self._loop.add_reader(self._descriptor, self._readable)

    def want(self, position: int) -> None:
        """Be told when the log is on disk up to a position, instead of what was wanted before."""
        self._watch.want(position)

    def close(self) -> None:
        """End the thread."""
        self._loop.remove_reader(self._descriptor)
        self._watch.close()
        os.close(self._descriptor)

    def _readable(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self._descriptor)
        self._news()
