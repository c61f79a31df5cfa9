"""Handlers without a broker: what is published goes straight to the handlers whose topic it names.

Each group gets a message once. Tags select as they do at a broker; `where=` expressions do not, every message passes.
With `with_real=True` messages go through the real broker.
"""

from __future__ import annotations

import asyncio
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, cast

from faststream._internal.endpoint.subscriber.usecase import SubscriberUsecase
from faststream._internal.testing.broker import TestBroker, change_producer
from faststream.exceptions import SubscriberNotFound

from shmq.contrib.faststream.broker import ShmqBroker
from shmq.contrib.faststream.message import Delivery
from shmq.contrib.faststream.producer import ShmqProducer, ShmqPublishCommand
from shmq.contrib.faststream.publisher import ShmqPublisher
from shmq.contrib.faststream.subscriber import ShmqSubscriber
from shmq.words import tags_in

FAKE_GROUP = "test_publisher"


class TestShmqBroker(TestBroker[ShmqBroker, ShmqBroker], broker=ShmqBroker):
    """`async with TestShmqBroker(broker) as broker: await broker.publish(…)`; see FastStream's pages on tests."""

    def create_publisher_fake_subscriber(
        self, broker: ShmqBroker, publisher: ShmqPublisher
    ) -> tuple[SubscriberUsecase[Any], bool]:
        """Return the receiver of a publisher: a subscriber of its topic, or one made for the test."""
        for subscriber in _subscribers(self.brokers):
            if subscriber.topic == publisher.topic:
                return subscriber, True
        return broker.subscriber(publisher.topic, group=FAKE_GROUP, persistent=False), False

    @contextmanager
    def _patch_producer(self, broker: ShmqBroker) -> Generator[None, None, None]:
        with change_producer(broker.config.broker_config, _FakeProducer(broker, self.brokers)):
            yield

    async def _fake_connect(self, broker: ShmqBroker, *args: Any, **kwargs: Any) -> None:
        """Connect to nothing."""


@dataclass
class _FakeMessage:
    """Stands for a `shmq.aio.Message` that was never stored."""

    topic: str
    body: bytes
    properties: dict[str, str]
    tag: str | None = None
    keys: list[str] = field(default_factory=list)
    message_group: str | None = None
    message_id: str = "0" * 32
    attempt: int = 1

    async def ack(self) -> None:
        """Does nothing."""


class _FakeProducer(ShmqProducer):
    """Calls the handlers that a message would have reached."""

    def __init__(self, broker: ShmqBroker, brokers: tuple[ShmqBroker, ...]) -> None:
        super().__init__(broker._parser, broker._decoder)
        self._serializer = broker.config.fd_config._serializer
        self.codec = broker.config.broker_codec or self.codec
        self._brokers = brokers

    async def publish(self, cmd: ShmqPublishCommand) -> Any:
        for subscriber in self._reached(cmd):
            await subscriber.process_message(await self._delivery(cmd, cmd.body))

    async def publish_batch(self, cmd: ShmqPublishCommand) -> Any:
        for body in cmd.batch_bodies:
            for subscriber in self._reached(cmd):
                await subscriber.process_message(await self._delivery(cmd, body))

    async def request(self, cmd: ShmqPublishCommand) -> Delivery:
        for subscriber in self._reached(cmd):
            response = await asyncio.wait_for(
                subscriber.process_message(await self._delivery(cmd, cmd.body)), cmd.timeout
            )
            data, content_type = await self.encode(response.body)
            answer = ShmqPublishCommand(None, correlation_id=response.correlation_id, headers=response.headers)
            return _delivery_of(cmd, data, answer.properties(content_type))
        raise SubscriberNotFound

    async def _delivery(self, cmd: ShmqPublishCommand, body: Any) -> Delivery:
        data, content_type = await self.encode(body)
        return _delivery_of(cmd, data, cmd.properties(content_type))

    def _reached(self, cmd: ShmqPublishCommand) -> Iterator[ShmqSubscriber]:
        groups = set()
        for subscriber in _subscribers(self._brokers):
            is_heard = subscriber.topic == cmd.destination and _is_tagged(subscriber, cmd.options.get("tag"))
            if is_heard and subscriber.group not in groups:
                groups.add(subscriber.group)
                yield subscriber


def _delivery_of(cmd: ShmqPublishCommand, data: bytes, properties: dict[str, str]) -> Delivery:
    options = cmd.options
    keys = [*([options["key"]] if "key" in options else []), *options.get("keys", ())]
    message = _FakeMessage(cmd.destination, data, properties, options.get("tag"), keys, options.get("message_group"))
    return Delivery(cast("Any", message))


def _is_tagged(subscriber: ShmqSubscriber, tag: str | None) -> bool:
    tags = subscriber.config.listening.get("tags")
    wanted = tags_in(tags or "") if tags is None or isinstance(tags, str) else list(tags)
    return wanted == [""] or "*" in wanted or tag in wanted


def _subscribers(brokers: tuple[ShmqBroker, ...]) -> list[ShmqSubscriber]:
    return [cast("ShmqSubscriber", subscriber) for broker in brokers for subscriber in broker.subscribers]
