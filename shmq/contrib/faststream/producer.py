"""A command of FastStream becomes a message of shmq, and a message or a reply becomes FastStream's.

body                bytes as they are; text, JSON and models as FastStream encodes them
headers             properties of the message, as text; a broker refuses the names it keeps for itself
content-type, correlation_id, reply_to      properties of these names
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from faststream._internal.endpoint.utils import ParserComposition
from faststream._internal.parser import DefaultCodec
from faststream._internal.producer import ProducerProto
from faststream.message import decode_message
from faststream.response import BatchPublishCommand, PublishCommand, Response
from faststream.response.publish_type import PublishType

import shmq
import shmq.aio
from shmq.contrib.faststream.message import Delivery, ShmqMessage, parse
from shmq.errors import UsageError

if TYPE_CHECKING:
    from faststream._internal.parser import CodecProto

REQUEST_TIMEOUT = 5.0
OPTIONS = ("tag", "key", "keys", "message_group", "delay", "delay_level", "deliver_at")
"""What `publish` takes beside FastStream's arguments; as `shmq.Connection.send`."""


def check_options(options: dict[str, Any]) -> dict[str, Any]:
    """Return the options of a send that were given.

    Raises:
        UsageError: one that no send has.
    """
    for name in options:
        if name not in OPTIONS:
            raise UsageError(f"publishing has no argument {name}=", hint=f"one of {', '.join(OPTIONS)}")
    return {name: value for name, value in options.items() if value is not None}


class ShmqPublishCommand(BatchPublishCommand):
    """FastStream's command to publish, with the options of a send."""

    def __init__(
        self,
        body: Any,
        /,
        *bodies: Any,
        topic: str = "",
        options: dict[str, Any] | None = None,
        timeout: float = REQUEST_TIMEOUT,
        _publish_type: PublishType = PublishType.PUBLISH,
        **arguments: Any,
    ) -> None:
        super().__init__(body, *bodies, destination=topic, _publish_type=_publish_type, **arguments)
        self.options = check_options(options or {})
        self.timeout = timeout

    @classmethod
    def from_cmd(cls, cmd: PublishCommand, *, batch: bool = False) -> ShmqPublishCommand:
        """Return a command of FastStream's as one of ours."""
        if isinstance(cmd, ShmqPublishCommand):
            return cmd
        body, bodies = cls._parse_bodies(cmd.body, batch=batch)
        return cls(
            body,
            *bodies,
            topic=cmd.destination,
            reply_to=cmd.reply_to,
            headers=cmd.headers,
            correlation_id=cmd.correlation_id,
            _publish_type=cmd.publish_type,
        )

    def properties(self, content_type: str | None) -> dict[str, str]:
        """Return the properties of the message."""
        own = {"content-type": content_type, "correlation_id": self.correlation_id, "reply_to": self.reply_to}
        found = {**own, **self.headers}
        return {name: str(value) for name, value in found.items() if value is not None and value != ""}


class ShmqResponse(Response):
    """A result of a handler with headers and the options of a send: `return ShmqResponse(order, key="o-42")`."""

    def __init__(
        self,
        body: Any,
        *,
        headers: dict[str, Any] | None = None,
        correlation_id: str | None = None,
        **options: Any,
    ) -> None:
        super().__init__(body, headers=headers, correlation_id=correlation_id)
        self.options = options

    def as_publish_command(self) -> ShmqPublishCommand:
        """Return what publishes it."""
        return ShmqPublishCommand(
            self.body, headers=self.headers, correlation_id=self.correlation_id, options=self.options
        )


class ShmqProducer(ProducerProto[ShmqPublishCommand]):
    """Sends what FastStream publishes."""

    def __init__(self, parser: Any, decoder: Any) -> None:
        self._parser = ParserComposition(parser, parse_message)
        self._decoder = ParserComposition(decoder, decode_reply)
        self.codec: CodecProto = DefaultCodec()
        self._serializer: Any = None
        self._connected: Callable[[], shmq.aio.Connection] = _not_connected

    def connect(self, connection: Callable[[], shmq.aio.Connection], serializer: Any, codec: CodecProto | None) -> None:
        """Send over this connection from now on."""
        self._connected = connection
        self._serializer = serializer
        self.codec = codec or DefaultCodec()

    def disconnect(self) -> None:
        """Send no more."""
        self._connected = _not_connected

    async def encode(self, body: Any) -> tuple[bytes, str | None]:
        """Return the bytes of a body, and their content type."""
        data, content_type = await self.codec.encode(body, self._serializer)
        return data, content_type

    async def publish(self, cmd: ShmqPublishCommand) -> shmq.Receipt:
        """Store one message."""
        data, content_type = await self.encode(cmd.body)
        mq = self._connected()
        return await mq.send(cmd.destination, data, properties=cmd.properties(content_type), **cmd.options)

    async def publish_batch(self, cmd: ShmqPublishCommand) -> list[shmq.Receipt]:
        """Store messages in order, in one queue."""
        encoded = [await self.encode(body) for body in cmd.batch_bodies]
        if not encoded:
            return []
        if len({content_type for _, content_type in encoded}) > 1:
            raise UsageError(
                "a batch with bodies of more than one content type shares its headers, so it cannot be stored",
                hint="publish bytes, texts and objects in batches of their own",
            )
        properties = cmd.properties(encoded[0][1])
        bodies: Sequence[bytes] = [data for data, _ in encoded]
        return await self._connected().send_batch(cmd.destination, bodies, properties=properties, **cmd.options)

    async def request(self, cmd: ShmqPublishCommand) -> Delivery:
        """Send a request and return the reply."""
        data, content_type = await self.encode(cmd.body)
        properties = cmd.properties(content_type)
        mq = self._connected()
        reply = await mq.request(cmd.destination, data, timeout=cmd.timeout, properties=properties, **cmd.options)
        return Delivery(reply, cmd.correlation_id)


async def parse_message(delivery: Delivery) -> ShmqMessage:
    """Return a delivery as FastStream's message."""
    return parse(delivery)


async def decode_reply(message: Any) -> Any:
    """Return the body of a reply: JSON, else text, else bytes; a reply of RocketMQ's carries no properties of ours."""
    body = decode_message(message)
    if isinstance(body, bytes) and message.content_type is None:
        try:
            return body.decode()
        except UnicodeDecodeError:
            return body
    return body


def _not_connected() -> shmq.aio.Connection:
    raise UsageError("the broker is not connected", hint="await broker.connect(), or broker.start()")
