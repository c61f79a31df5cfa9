"""Tells the shipping tasks when the log has grown.

A thread of the core sleeps on that while one of them has shipped all there is (`core/log/durable_watch.c`), and not at
all otherwise. Where senders wait for slaves an append rings, and what it has stored is shipped at once; else an append
does not know that there are slaves, and the thread looks every few milliseconds.
"""

from __future__ import annotations

import asyncio

from shmq.daemon.bridge.store.durable_news import DurableNews
from shmq.shm.core import Store

_IDLE_SECONDS = 0.2  # heartbeats and silent slaves are looked for this often


class Growth:
    """The growth of one log, inside one event loop.

    Args:
        store: mapped writable.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._news: DurableNews | None = None
        self._waiting: set[asyncio.Future[None]] = set()
        self._is_wanted = False

    def close(self) -> None:
        """End what sleeps on the log."""
        if self._news is not None:
            self._news.close()
            self._news = None

    async def wait(self, position: int) -> None:
        """Wait until the log may reach beyond a position, or `ring` was called, or a moment."""
        if self._news is None:
            self._news = DurableNews(self._store, self._grown, ships=True)
        if not self._is_wanted:
            self._is_wanted = True
            self._news.want(position + 1)
        loop = asyncio.get_running_loop()
        look: asyncio.Future[None] = loop.create_future()
        self._waiting.add(look)
        idle = loop.call_later(_IDLE_SECONDS, _end, look)
        try:
            await look
        finally:
            idle.cancel()
            self._waiting.discard(look)

    def ring(self) -> None:
        """Let those who wait look again."""
        for look in self._waiting:
            _end(look)

    def _grown(self) -> None:
        self._is_wanted = False
        self.ring()


def _end(look: asyncio.Future[None]) -> None:
    if not look.done():
        look.set_result(None)
