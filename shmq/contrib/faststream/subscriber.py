"""One subscriber: a member of a consumer group whose listener hands messages to FastStream.

Each subscriber has a connection of its own, because stopping one subscriber must not stop the others, and a connection
stops its listeners together.

Invariants:
    1. At most `max_workers` handlers run at once; with `ordered=True` at most one for each queue.
    2. What was not settled when the subscriber stops is delivered again.
    3. A listener that failed is reported, never silent.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from faststream._internal.configs import BrokerConfig, SubscriberSpecificationConfig, SubscriberUsecaseConfig
from faststream._internal.constants import EMPTY
from faststream._internal.endpoint.subscriber import SubscriberSpecification
from faststream._internal.endpoint.subscriber.usecase import SubscriberUsecase
from faststream._internal.endpoint.utils import process_msg
from faststream.middlewares import AckPolicy
from faststream.specification.asyncapi.utils import resolve_payloads
from faststream.specification.schema import Message, Operation, SubscriberSpec

import shmq.aio
from shmq.contrib.faststream.message import Delivery, ShmqMessage
from shmq.contrib.faststream.publisher import RequestAnswer, TopicAnswer
from shmq.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from faststream._internal.endpoint.publisher import PublisherProto
    from faststream._internal.endpoint.subscriber.call_item import CallsCollection
    from faststream.message import StreamMessage

DRAIN_SECONDS = 15.0


@dataclass(kw_only=True)
class SubscriberConfig(SubscriberUsecaseConfig):
    """The declaration of a subscriber."""

    topic: str
    group: str
    max_workers: int = 1
    ordered: bool = False
    listening: dict[str, Any] = field(default_factory=dict)

    @property
    def ack_policy(self) -> AckPolicy:
        """What an exception of a handler means; shmq's own rule unless something else was said."""
        if self._ack_policy is not EMPTY:
            return self._ack_policy
        outer = self._outer_config.ack_policy
        return AckPolicy.NACK_ON_ERROR if outer is EMPTY else outer


@dataclass(kw_only=True)
class SubscriberPageConfig(SubscriberSpecificationConfig):
    """The subscriber's part of AsyncAPI."""

    topic: str


class SubscriberPage(SubscriberSpecification[BrokerConfig, SubscriberPageConfig]):
    """A subscriber in AsyncAPI."""

    @property
    def topic(self) -> str:
        """The topic with the prefixes of routers."""
        return f"{self._outer_config.prefix}{self.config.topic}"

    @property
    def channel_labels(self) -> list[str]:
        """Its one channel."""
        return [self.topic]

    def get_schema(self) -> dict[str, SubscriberSpec]:
        """Return its channel."""
        message = Message(title=f"{self.name}:Message", payload=resolve_payloads(self.get_payloads()))
        operation = Operation(message=message, bindings=None)
        return {
            self.name: SubscriberSpec(
                address=self.topic, description=self.description, operation=operation, bindings=None
            )
        }


class ShmqSubscriber(SubscriberUsecase[Delivery]):
    """A member of a group. Made by `broker.subscriber(…)`."""

    def __init__(
        self,
        config: SubscriberConfig,
        specification: SubscriberPage,
        calls: CallsCollection[Delivery],
        connect: Callable[[], shmq.aio.Connection],
    ) -> None:
        super().__init__(config, specification, calls)  # type: ignore[arg-type]
        self.config = config
        self._connect = connect
        self._connection: shmq.aio.Connection | None = None
        self._listening: asyncio.Task[None] | None = None
        self._closing: asyncio.Task[None] | None = None
        self._handling: set[asyncio.Task[Any]] = set()
        self._one: shmq.aio.Subscription | None = None

    @property
    def topic(self) -> str:
        """The topic with the prefixes of routers."""
        return f"{self._outer_config.prefix}{self.config.topic}"

    @property
    def group(self) -> str:
        """The consumer group."""
        return self.config.group

    # -- life
    async def start(self) -> None:
        """Join the group and take messages."""
        if self.running:
            return
        await super().start()
        self._closing = None
        self._connection = self._connect()
        self._post_start()
        if self.calls:
            self._decorate(self._connection)
            # Opens the connection, so a missing broker raises here and not in a task.
            await self._connection.start()
            self._listening = asyncio.create_task(self._connection.run())
            self._listening.add_done_callback(self._ended)

    def _decorate(self, mq: shmq.aio.Connection) -> None:
        listening = {"group": self.group, "threads": self.config.max_workers, **self.config.listening}
        if self._no_reply or self.config.ordered:
            mq.listener(self.topic, ordered=self.config.ordered, **listening)(self._handle)
        else:
            mq.replier(self.topic, **listening)(self._handle)

    async def stop(self) -> None:
        """Take no more messages, let handlers end, give back what was not handled. Twice is harmless."""
        is_own = asyncio.current_task() in self._handling
        await super().stop()
        if self._closing is None:
            self._closing = asyncio.create_task(self._close())
        if not is_own:  # a handler that stops its subscriber cannot wait for its own end
            await self._closing

    async def _close(self) -> None:
        listening, self._listening = self._listening, None
        mq, self._connection = self._connection, None
        one, self._one = self._one, None
        if one is not None:
            await one.close()
        if mq is not None:
            seconds = self._outer_config.graceful_timeout
            await mq.close(DRAIN_SECONDS if seconds is None else seconds)
        if listening is not None:
            await asyncio.gather(listening, return_exceptions=True)

    def _ended(self, listening: asyncio.Task[None]) -> None:
        if not listening.cancelled() and (failure := listening.exception()) is not None:
            error = failure if isinstance(failure, Exception) else None
            self._log(logging.ERROR, f"subscriber of topic {self.topic} has ended: {failure!r}", exc_info=error)

    # -- messages
    async def _handle(self, message: shmq.aio.Message) -> bytes | None:
        delivery = Delivery(message)
        task = asyncio.current_task()
        assert task is not None
        self._handling.add(task)
        try:
            await self.consume(delivery)
        finally:
            self._handling.discard(task)
        return delivery.end()

    def _make_response_publisher(self, message: StreamMessage[Delivery]) -> Iterable[PublisherProto]:
        producer = self._outer_config.producer
        if message.raw_message.is_request:
            return (RequestAnswer(producer, message.raw_message),)
        return (TopicAnswer(producer, message.reply_to),)

    async def get_one(self, *, timeout: float = 5.0) -> ShmqMessage | None:
        """Return the next message, or None after `timeout` seconds; the caller settles it."""
        messages = await self._subscription().receive(1, wait=timeout)
        return await self._parsed(messages[0]) if messages else None

    async def __aiter__(self) -> AsyncIterator[ShmqMessage]:
        async for message in self._subscription():
            yield await self._parsed(message)

    def _subscription(self) -> shmq.aio.Subscription:
        if self.calls:
            raise UsageError(
                "a subscriber with a handler gives its messages to that", hint="make a subscriber without one"
            )
        if self._connection is None:
            raise UsageError("the subscriber has not started", hint="await subscriber.start()")
        if self._one is None:
            self._one = self._connection.subscribe(self.topic, group=self.group, **self.config.listening)
        return self._one

    async def _parsed(self, message: shmq.aio.Message) -> ShmqMessage:
        delivery = _Pulled(message, self._subscription())
        context = self._outer_config.context
        parser, decoder = self._get_parser_and_decoder()
        parsed: Any = await process_msg(
            msg=delivery,
            middlewares=(middleware(delivery, context=context) for middleware in self._broker_middlewares),
            parser=parser,
            decoder=decoder,
        )
        assert isinstance(parsed, ShmqMessage)
        return parsed

    def get_log_context(self, message: StreamMessage[Delivery] | None) -> dict[str, str]:
        """Return what log lines say of a message."""
        return {"topic": self.topic, "group": self.group, "message_id": getattr(message, "message_id", "")}


class _Pulled(Delivery):
    """A message taken without a handler: what is decided happens at once."""

    __slots__ = ("_subscription",)

    def __init__(self, message: shmq.aio.Message, subscription: shmq.aio.Subscription) -> None:
        super().__init__(message)
        self._subscription = subscription

    async def fail(self, failure: shmq.Retry | shmq.Reject) -> None:
        if self.is_settled:
            return
        self.is_settled = True
        if isinstance(failure, shmq.Reject):
            await self._subscription.reject(self.message, str(failure))
        else:
            await self.message.nack(failure.after)


def listening_options(tags: str | Sequence[str] | None, where: str | None, attempts_max: int | None) -> dict[str, Any]:
    """Return what was given of the options that listeners and subscriptions share."""
    given = {"tags": tags, "where": where, "attempts_max": attempts_max}
    return {name: value for name, value in given.items() if value is not None}
