"""The asyncio twins of the consumers: what talks to the broker, or waits, is awaited."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import time
from collections.abc import Callable, Coroutine
from typing import Any, Self, TypeVar

from shmq.aio.message import Message
from shmq.aio.offload import Face, Waiter, awaited, offload
from shmq.aio.receiving import Receiving
from shmq.client import options
from shmq.client.consumers.consumer import Consumer as SyncConsumer
from shmq.client.consumers.consumer import Subscription as SyncSubscription
from shmq.client.consumers.pull import PullConsumer as SyncPullConsumer
from shmq.client.consumers.simple import SimpleConsumer as SyncSimpleConsumer
from shmq.client.consumers.simple import check_invisible
from shmq.client.place import is_remote
from shmq.errors import ShmqError
from shmq.shm.core import Message as SyncMessage

WAKE_TIMEOUT = 1.0
"""How long a cancelled `poll` waits for its thread, which needs microseconds."""

ConsumerT = TypeVar("ConsumerT", bound=SyncConsumer)


class Consumer(Face[ConsumerT]):
    """What the twins of `Subscription` and `SimpleConsumer` share."""

    def __init__(self, topic: str, group: str | None, make: Callable[[], Coroutine[Any, Any, ConsumerT]]) -> None:
        super().__init__(make)
        self.topic = topic
        self.group = group
        self._receiving: Receiving | None = None
        self._stopped = False

    def _opened(self, made: ConsumerT) -> None:
        self._receiving = Receiving(made)
        if self._stopped:
            self._receiving.stop()

    async def _receiver(self) -> Receiving:
        await self._open()
        assert self._receiving is not None
        return self._receiving

    @property
    def queues(self) -> list[int]:
        """Queue ids this member reads now; [] before it is open."""
        return self._made.queues if self._made is not None else []

    async def lag(self) -> int:
        """Return how many messages of the queues read here are not acknowledged yet."""
        return (await self._open()).lag()

    async def reject(self, message: Message, reason: str = "") -> None:
        """Move the message to the dead-letter topic of the group, then acknowledge it."""
        (await self._open()).reject(message._sync, reason)

    def stop(self) -> None:
        """End every iteration and wait; `close()` still has to follow."""
        self._stopped = True
        if self._receiving is not None:
            self._receiving.stop()

    async def close(self) -> None:
        """Leave the group; unacknowledged messages are delivered again, to whoever reads next. Twice is harmless."""
        self.stop()
        if self._made is not None:
            await offload(self._made.close)

    def __repr__(self) -> str:
        return f"<shmq.aio.{type(self).__name__} {self.topic!r} group={self.group!r}>"


class Subscription(Consumer[SyncSubscription]):
    """Messages of a topic, as they come: `async for message in mq.subscribe(…)`."""

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Message:
        receiving = self._receiving or await self._receiver()
        message = await receiving.next(options.RECEIVE_MAX)
        if message is None:
            raise StopAsyncIteration
        return Message(message)

    async def receive(self, max: int = options.RECEIVE_MAX, wait: float = 0.0) -> list[Message]:
        """Return at most `max` messages; [] when none came within `wait` seconds."""
        receiving = await self._receiver()
        return [Message(message) for message in await receiving.fetch(max, wait)]


class SimpleConsumer(Consumer[SyncSimpleConsumer]):
    """Takes messages in batches and hides each for `invisible` seconds."""

    def __init__(
        self,
        topic: str,
        group: str | None,
        invisible: float,
        make: Callable[[], Coroutine[Any, Any, SyncSimpleConsumer]],
    ) -> None:
        super().__init__(topic, group, make)
        self.invisible = invisible

    async def receive(
        self, max: int = options.RECEIVE_MAX, wait: float = 0.0, *, invisible: float | None = None
    ) -> list[Message]:
        """Return at most `max` messages; [] when none came within `wait` seconds."""
        if invisible is not None:
            check_invisible(invisible)
        consumer = await self._open()
        receiving = await self._receiver()
        return [Message(message) for message in consumer._hide(await receiving.fetch(max, wait), invisible)]


class PullConsumer(Face[SyncPullConsumer]):
    """The application decides where it reads; see `shmq.PullConsumer`."""

    def __init__(
        self, topic: str, group: str | None, make: Callable[[], Coroutine[Any, Any, SyncPullConsumer]]
    ) -> None:
        super().__init__(make)
        self.topic = topic
        self.group = group
        self._waiter = Waiter()

    queues = awaited(SyncPullConsumer.queues)
    seek = awaited(SyncPullConsumer.seek)
    committed = awaited(SyncPullConsumer.committed)
    commit = awaited(SyncPullConsumer.commit)
    lag = awaited(SyncPullConsumer.lag)

    async def poll(self, max: int = options.RECEIVE_MAX, wait: float = 0.0) -> list[Message]:
        """Return at most `max` messages and move the positions behind them; [] when none came in `wait` seconds."""
        consumer = await self._open()
        deadline = time.monotonic() + wait
        if is_remote(consumer._context.url):
            messages = await self._wait(consumer, max, wait)
        else:
            messages = consumer.poll(max, 0.0)
        while not messages and (remaining := deadline - time.monotonic()) > 0:
            messages = await self._wait(consumer, max, remaining)
        return [Message(message) for message in messages]

    async def _wait(self, consumer: SyncPullConsumer, count_max: int, seconds: float) -> list[SyncMessage]:
        pending = self._waiter.submit(functools.partial(consumer._poll_once, count_max, seconds))
        try:
            return await asyncio.wrap_future(pending)
        except asyncio.CancelledError:
            # Whoever waited is gone, so the positions must not move: the thread is woken, and returns at once.
            consumer._wake()
            if pending.cancel():
                raise
            with contextlib.suppress(TimeoutError, ShmqError):
                consumer._rewind(pending.result(WAKE_TIMEOUT))
            raise

    async def positions(self) -> dict[int, int]:
        """Return {queue: offset of the next message}."""
        return (await self._open()).positions()

    async def close(self) -> None:
        """Stop reading; commits nothing. Twice is harmless."""
        self._waiter.stop()
        if self._made is not None:
            await offload(self._made.close)

    def __repr__(self) -> str:
        return f"<shmq.aio.PullConsumer {self.topic!r} group={self.group!r}>"
