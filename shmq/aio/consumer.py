"""The asyncio twins of the consumers: what talks to the broker, or waits, is awaited."""

from __future__ import annotations

import asyncio
import functools
import time
from collections.abc import Callable, Coroutine
from typing import Any, Self, TypeVar

from shmq.aio.message import Message
from shmq.aio.offload import Waiter, awaited, carried_out
from shmq.aio.opening import Face, Opening
from shmq.aio.receiving import WAIT_MAX, Receiving
from shmq.client import options
from shmq.client.consumers.consumer import Consumer as SyncConsumer
from shmq.client.consumers.consumer import Subscription as SyncSubscription
from shmq.client.consumers.pull import PullConsumer as SyncPullConsumer
from shmq.client.consumers.simple import SimpleConsumer as SyncSimpleConsumer
from shmq.client.consumers.simple import check_invisible
from shmq.client.place import is_remote
from shmq.client.spec import check_poll
from shmq.errors import UsageError
from shmq.shm.core import Message as SyncMessage
from shmq.waits import slice_seconds

ConsumerT = TypeVar("ConsumerT", bound=SyncConsumer)
SyncT = TypeVar("SyncT")
Prepare = Callable[[], Coroutine[Any, Any, Opening[SyncT]]]


class Consumer(Face[ConsumerT]):
    """The shared part of the twins of `Subscription` and `SimpleConsumer`."""

    def __init__(self, topic: str, group: str | None, prepare: Prepare[ConsumerT]) -> None:
        super().__init__(prepare)
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
        await carried_out((await self._open()).reject, message._sync, reason)

    def stop(self) -> None:
        """End every iteration and wait; `close()` still has to follow."""
        self._stopped = True
        if self._receiving is not None:
            self._receiving.stop()

    async def close(self) -> None:
        """Leave the group; unacknowledged messages are delivered again, to the next reader. Twice is harmless."""
        self.stop()
        await self._end(SyncConsumer.close)

    def __repr__(self) -> str:
        return f"<shmq.aio.{type(self).__name__} {self.topic!r} group={self.group!r}>"


class Subscription(Consumer[SyncSubscription]):
    """Messages of a topic, as they come: `async for message in mq.subscribe(…)`."""

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Message:
        receiving = self._receiving
        if receiving is None:
            try:
                receiving = await self._receiver()
            except UsageError:
                if not self._closed:
                    raise
                raise StopAsyncIteration from None  # closed before it was open
        message = await receiving.next(options.RECEIVE_MAX)
        if message is None:
            raise StopAsyncIteration
        return Message(message)

    async def receive(self, max: int = options.RECEIVE_MAX, wait: float = 0.0) -> list[Message]:
        """Return at most `max` messages; [] when none came within `wait` seconds."""
        receiving = await self._receiver()
        return [Message(message) for message in await receiving.fetch(*check_poll(max, wait))]


class SimpleConsumer(Consumer[SyncSimpleConsumer]):
    """Takes messages in batches and hides each for `invisible` seconds."""

    def __init__(
        self,
        topic: str,
        group: str | None,
        invisible: float,
        prepare: Prepare[SyncSimpleConsumer],
    ) -> None:
        super().__init__(topic, group, prepare)
        self.invisible = invisible

    async def receive(
        self, max: int = options.RECEIVE_MAX, wait: float = 0.0, *, invisible: float | None = None
    ) -> list[Message]:
        """Return at most `max` messages; [] when none came within `wait` seconds."""
        hidden = self.invisible if invisible is None else check_invisible(invisible)
        consumer = await self._open()
        receiving = await self._receiver()
        messages = await receiving.fetch(*check_poll(max, wait))
        consumer._hider.hide(messages, hidden)
        return [Message(message) for message in messages]


class PullConsumer(Face[SyncPullConsumer]):
    """The application decides where it reads; see `shmq.PullConsumer`."""

    def __init__(self, topic: str, group: str | None, prepare: Prepare[SyncPullConsumer]) -> None:
        super().__init__(prepare)
        self.topic = topic
        self.group = group
        self._waiter = Waiter()
        self._polling: Opening[list[SyncMessage]] | None = None

    async def _open(self) -> SyncPullConsumer:
        made = await super()._open()
        if self._polling is not None:
            await self._polling.left()  # a cancelled poll: what it takes is put back first
        return made

    queues = awaited(SyncPullConsumer.queues)
    seek = awaited(SyncPullConsumer.seek)
    committed = awaited(SyncPullConsumer.committed)
    commit = awaited(SyncPullConsumer.commit)
    lag = awaited(SyncPullConsumer.lag)

    async def poll(self, max: int = options.RECEIVE_MAX, wait: float = 0.0) -> list[Message]:
        """Return at most `max` messages and move the positions behind them; [] when none came in `wait` seconds."""
        consumer = await self._open()
        max, wait = check_poll(max, wait)
        deadline = time.monotonic() + wait
        if is_remote(consumer._context.url):
            messages = await self._wait(consumer, max, min(wait, slice_seconds(WAIT_MAX)))
        else:
            messages = consumer.poll(max, 0.0)
        while not messages and (remaining := deadline - time.monotonic()) > 0:
            messages = await self._wait(consumer, max, min(remaining, slice_seconds(WAIT_MAX)))
        return [Message(message) for message in messages]

    async def _wait(self, consumer: SyncPullConsumer, count_max: int, seconds: float) -> list[SyncMessage]:
        # What no task gets must not move the positions: it is put back.
        polling = Opening(functools.partial(consumer._poll_once, count_max, seconds), consumer._rewind)
        self._polling = polling
        self._waiter.submit(polling.run)
        try:
            return await polling.wait() or []
        except asyncio.CancelledError:
            consumer._wake()
            raise

    async def positions(self) -> dict[int, int]:
        """Return {queue: offset of the next message}."""
        return (await self._open()).positions()

    async def close(self) -> None:
        """Stop reading; commits nothing. Twice is harmless."""
        self._waiter.stop()
        await self._end(SyncPullConsumer.close)

    def __repr__(self) -> str:
        return f"<shmq.aio.PullConsumer {self.topic!r} group={self.group!r}>"
