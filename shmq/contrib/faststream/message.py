"""One delivery: FastStream settles a message step by step, a listener of shmq by how its function ends.

    FastStream                  here                           for shmq
    ack()                       at once                        acknowledged
    nack(after=…)               noted until the handler ended  Retry: again later, a dead letter at the last attempt
    reject(reason)              noted until the handler ended  Reject: a dead letter now
    nothing (a handler that     noted as nothing               Retry: it is not lost
    settles by hand, or stop)

Invariant: the first decision counts.
"""

from __future__ import annotations

from typing import Any

from faststream.message import StreamMessage

import shmq
import shmq.aio

REPLY_ADDRESS = "REPLY_TO_CLIENT"
"""RocketMQ's property of a request: the client that waits for the reply."""
CORRELATION_ID = "CORRELATION_ID"
"""RocketMQ's property of a request and its reply; FastStream's own id travels as `correlation_id`."""


class Delivery:
    """A message of shmq on its way through FastStream, and what is to become of it."""

    __slots__ = ("correlation_id", "failure", "is_settled", "message", "reply")

    def __init__(self, message: shmq.aio.Message, correlation_id: str | None = None) -> None:
        """
        Args:
            correlation_id: of the request, if this is a reply: RocketMQ's replies carry no properties of ours.
        """
        self.message = message
        self.correlation_id = correlation_id
        self.is_settled = False
        self.failure: shmq.Retry | shmq.Reject | None = None
        self.reply: bytes | None = None

    @property
    def is_request(self) -> bool:
        """Whether a requester waits for the reply of the handler."""
        properties = self.message.properties
        return REPLY_ADDRESS in properties and CORRELATION_ID in properties

    async def ack(self) -> None:
        """Mark consumed."""
        if not self.is_settled:
            self.is_settled = True
            await self.message.ack()

    async def fail(self, failure: shmq.Retry | shmq.Reject) -> None:
        """Note what is to become of it when the handler has ended."""
        if not self.is_settled:
            self.is_settled = True
            self.failure = failure

    def end(self) -> bytes | None:
        """Return the reply, if there is one.

        Raises:
            Retry, Reject: what was decided; Retry when nothing was.
        """
        if self.failure is not None:
            raise self.failure
        if not self.is_settled:
            raise shmq.Retry
        return self.reply


class ShmqMessage(StreamMessage[Delivery]):
    """A message as handlers see it; `raw_message.message` is the `shmq.aio.Message`."""

    async def ack(self) -> None:
        """Mark consumed."""
        await self.raw_message.ack()
        await super().ack()

    async def nack(self, after: float | None = None) -> None:
        """Deliver again: `after` seconds, or after the next delay of RocketMQ's table."""
        await self.raw_message.fail(shmq.Retry(after=after))
        await super().nack()

    async def reject(self, reason: str = "") -> None:
        """Make it a dead letter of the group."""
        await self.raw_message.fail(shmq.Reject(reason))
        await super().reject()


def parse(delivery: Delivery) -> ShmqMessage:
    """Return a delivery as FastStream's message."""
    message = delivery.message
    headers: dict[str, Any] = dict(message.properties)
    return ShmqMessage(
        raw_message=delivery,
        body=message.body,
        headers=headers,
        reply_to=headers.get(REPLY_ADDRESS, "") if delivery.is_request else headers.get("reply_to", ""),
        content_type=headers.get("content-type"),
        correlation_id=delivery.correlation_id or headers.get("correlation_id") or headers.get(CORRELATION_ID),
        message_id=message.message_id,
    )
