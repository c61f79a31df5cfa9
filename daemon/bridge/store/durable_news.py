"""Wakes the event loop when the log is on disk up to the position that its answers wait for.

A thread of the core sleeps on the durable end and writes to an eventfd (`core/log/durable_watch.c`); the loop sleeps on
that like on any connection. It is woken once for each wanted position, however many answers wait for it, and no Python
thread stands in between.

    loop: want(position) ──▶ thread: sleeps until then ──eventfd──▶ loop: news() ──▶ want(next) …

Invariant: after `close` no news comes.
"""

import asyncio
import contextlib
import os
from collections.abc import Callable

from shmq.shm.core import DurableWatch, Store


class DurableNews:
    """Tells the loop of the thread that makes it.

    Args:
        ships: what is wanted is the end of the log, for shipping.
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
        """Call `news` when the log is on disk up to a position; it replaces what was wanted before."""
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
