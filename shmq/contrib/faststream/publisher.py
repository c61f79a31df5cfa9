"""Sends the result of a handler to a topic of its decorator, or to the requester."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from faststream._internal.configs import BrokerConfig, PublisherSpecificationConfig, PublisherUsecaseConfig
from faststream._internal.endpoint.publisher import PublisherSpecification, PublisherUsecase
from faststream._internal.endpoint.publisher.fake import FakePublisher
from faststream._internal.producer import ProducerProto
from faststream.response import PublishCommand
from faststream.response.publish_type import PublishType
from faststream.specification.asyncapi.utils import resolve_payloads
from faststream.specification.schema import Message, Operation, PublisherSpec

from shmq.contrib.faststream.producer import REQUEST_TIMEOUT, ShmqPublishCommand

if TYPE_CHECKING:
    from faststream._internal.types import PublisherMiddleware

    import shmq
    from shmq.contrib.faststream.message import Delivery, ShmqMessage


@dataclass(kw_only=True)
class PublisherConfig(PublisherUsecaseConfig):
    """The declaration of a publisher."""

    topic: str
    headers: dict[str, Any] = field(default_factory=dict)
    reply_to: str = ""
    options: dict[str, Any] = field(default_factory=dict)


@dataclass(kw_only=True)
class PublisherPageConfig(PublisherSpecificationConfig):
    """The publisher's part of AsyncAPI."""

    topic: str


class PublisherPage(PublisherSpecification[BrokerConfig, PublisherPageConfig]):
    """A publisher in AsyncAPI."""

    @property
    def topic(self) -> str:
        """The topic with the prefixes of routers."""
        return f"{self._outer_config.prefix}{self.config.topic}"

    @property
    def name(self) -> str:
        """Its key."""
        return self.config.title_ or f"{self.topic}:Publisher"

    def get_schema(self) -> dict[str, PublisherSpec]:
        """Return its channel."""
        payload = resolve_payloads(self.get_payloads(), "Publisher")
        operation = Operation(message=Message(title=f"{self.name}:Message", payload=payload), bindings=None)
        return {
            self.name: PublisherSpec(
                address=self.topic, description=self.config.description_, operation=operation, bindings=None
            )
        }


class ShmqPublisher(PublisherUsecase):
    """Publishes to one topic: what a decorated handler returns, or what it is given."""

    def __init__(self, config: PublisherConfig, specification: PublisherPage) -> None:
        super().__init__(config, specification)  # type: ignore[arg-type]
        self.config = config

    @property
    def topic(self) -> str:
        """The topic with the prefixes of routers."""
        return f"{self._outer_config.prefix}{self.config.topic}"

    async def publish(
        self,
        message: Any,
        topic: str = "",
        *,
        headers: dict[str, Any] | None = None,
        correlation_id: str | None = None,
        reply_to: str = "",
        **options: Any,
    ) -> shmq.Receipt:
        """Store one message; `topic`, `headers` and options overrule what the publisher was declared with."""
        cmd = ShmqPublishCommand(
            message,
            topic=topic,
            headers=headers,
            correlation_id=correlation_id or self._outer_config.id_generator(),
            reply_to=reply_to,
            options=options,
        )
        receipt: shmq.Receipt = await self._basic_publish(
            self._fill(cmd), producer=self._outer_config.producer, _extra_middlewares=()
        )
        return receipt

    async def request(
        self,
        message: Any,
        topic: str = "",
        *,
        timeout: float = REQUEST_TIMEOUT,
        headers: dict[str, Any] | None = None,
        correlation_id: str | None = None,
        **options: Any,
    ) -> ShmqMessage:
        """Send a request and return the reply as a message."""
        cmd = ShmqPublishCommand(
            message,
            topic=topic,
            timeout=timeout,
            headers=headers,
            correlation_id=correlation_id or self._outer_config.id_generator(),
            options=options,
            _publish_type=PublishType.REQUEST,
        )
        reply: ShmqMessage = await self._basic_request(self._fill(cmd), producer=self._outer_config.producer)
        return reply

    async def _publish(self, cmd: PublishCommand, *, _extra_middlewares: Iterable[PublisherMiddleware]) -> None:
        """Publish what a handler returned."""
        await self._basic_publish(
            self._fill(ShmqPublishCommand.from_cmd(cmd)),
            producer=self._outer_config.producer,
            _extra_middlewares=_extra_middlewares,
        )

    def _fill(self, cmd: ShmqPublishCommand) -> ShmqPublishCommand:
        cmd.destination = cmd.destination or self.topic
        cmd.reply_to = cmd.reply_to or self.config.reply_to
        cmd.add_headers(self.config.headers, override=False)
        cmd.options = {**self.config.options, **cmd.options}
        return cmd


class TopicAnswer(FakePublisher):
    """Answers a message that names a topic for the answer."""

    def __init__(self, producer: ProducerProto[ShmqPublishCommand], topic: str) -> None:
        super().__init__(producer=producer)
        self.topic = topic

    def patch_command(self, cmd: PublishCommand) -> ShmqPublishCommand:
        """Return the command with its destination."""
        answer = ShmqPublishCommand.from_cmd(super().patch_command(cmd))
        answer.destination = self.topic
        return answer


class RequestAnswer(FakePublisher):
    """Answers a request: the listener of shmq brings the reply to the requester when the handler has ended."""

    def __init__(self, producer: Any, delivery: Delivery) -> None:
        keeping: Any = _Keeping(producer, delivery)
        super().__init__(producer=keeping)

    def patch_command(self, cmd: PublishCommand) -> ShmqPublishCommand:
        """Return the command as ours."""
        return ShmqPublishCommand.from_cmd(super().patch_command(cmd))


class _Keeping:
    """Stands where a producer stands, and keeps the reply with its delivery."""

    def __init__(self, producer: Any, delivery: Delivery) -> None:
        self._producer = producer
        self._delivery = delivery

    async def publish(self, cmd: ShmqPublishCommand) -> None:
        self._delivery.reply, _ = await self._producer.encode(cmd.body)
