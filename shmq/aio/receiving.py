"""Receiving on an event loop: what is there is taken at once, what is not is waited for in a thread.

Invariant: a message taken from the core is never dropped. When the task that waited is cancelled, the batch that
arrives later is kept for the next one.
"""

from __future__ import annotations

import asyncio
import functools
import time
from collections import deque
from concurrent.futures import Future
from typing import TYPE_CHECKING

from shmq.aio.offload import Waiter
from shmq.client.spec import check_poll
from shmq.waits import slice_seconds

if TYPE_CHECKING:
    from shmq.client.consumers.consumer import Consumer
    from shmq.shm.core import Message

WAIT_MAX = 3600.0
"""Longest single wait of the thread; it is woken when something happens, this only bounds the call."""


class Receiving:
    """Messages of one sync consumer, awaited."""

    def __init__(self, consumer: Consumer) -> None:
        self.consumer = consumer
        self._buffer: deque[Message] = deque()
        self._waiter = Waiter()
        self._wait_max = slice_seconds(WAIT_MAX)
        self._pending: Future[list[Message]] | None = None

    async def fetch(self, count_max: int, wait: float | None) -> list[Message]:
        """Return at most `count_max` messages; [] when none came within `wait` seconds (None: until stopped)."""
        count_max, seconds = check_poll(count_max, 0.0 if wait is None else wait)
        deadline = None if wait is None else time.monotonic() + seconds
        while not self.consumer._stopped:
            if self._pending is not None and self._pending.done():
                self._take_pending()
            if not self._buffer and self._pending is None:
                self._buffer.extend(self.consumer._poll(count_max, 0.0))
            if self._buffer:
                return [self._buffer.popleft() for _ in range(min(count_max, len(self._buffer)))]
            remaining = self._wait_max if deadline is None else min(self._wait_max, deadline - time.monotonic())
            if remaining <= 0:
                return []
            await self._wait(count_max, remaining)
        return []

    async def next(self, prefetch: int) -> Message | None:
        """Return the next message, taking up to `prefetch` at once; None when the consumer was stopped."""
        if self._buffer:
            return self._buffer.popleft()
        messages = await self.fetch(prefetch, None)
        if not messages:
            return None
        self._buffer.extendleft(reversed(messages[1:]))
        return messages[0]

    def stop(self) -> None:
        """End every wait; what was taken and not handed out is given back with its queue."""
        self.consumer.stop()
        self._waiter.stop()

    async def _wait(self, count_max: int, seconds: float) -> None:
        if self._pending is None:
            self._pending = self._waiter.submit(functools.partial(self.consumer._poll_once, count_max, seconds))
        pending = asyncio.wrap_future(self._pending)
        pending.add_done_callback(_look_at)  # raised by `_take_pending` if a fetch follows
        try:
            # Not wait_for: that would cancel the wait, and the batch that is just arriving would have no owner.
            await asyncio.wait({pending}, timeout=seconds)
        finally:
            if not pending.done():
                self.consumer._wake()

    def _take_pending(self) -> None:
        pending, self._pending = self._pending, None
        if pending is not None:
            self._buffer.extend(pending.result())


def _look_at(future: asyncio.Future[list[Message]]) -> None:
    """Keep asyncio from reporting an error that is not awaited: the wait was cancelled before its consumer closed."""
    if not future.cancelled():
        future.exception()
