"""Owns messages on their way back to the broker, and offsets and locks that are given up.

`shmq.client.redelivery.send_back` makes the request. The broker stores a copy in the group's retry topic or its
dead-letter topic; then the original counts as settled.

Rule: the original is settled only after the broker has confirmed the copy: never lost, at worst there twice.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from shmq.client.administration.service import AdminService
from shmq.client.redelivery.send_back import DEAD_LETTER, is_members_own, retry_ext, send_back_ext
from shmq.errors import ConsumeError, RemoteError, ShmqError
from shmq.protocol.codes import Request, Response
from shmq.protocol.command import Command
from shmq.protocol.dialect import MessageQueue
from shmq.protocol.failure import error_of

if TYPE_CHECKING:
    from shmq.client.spec import ConsumerSpec
    from shmq.client.wire_tcp.process_queue import ProcessQueue
    from shmq.client.wire_tcp.reader import RemoteReader
    from shmq.client.wire_tcp.session import RemoteSession
    from shmq.shm.core import Message


def hand_back(
    session: RemoteSession,
    spec: ConsumerSpec,
    message: Message,
    after: float | None,
    *,
    failed: Callable[[Message], None],
) -> bool:
    """Begin to hand a message to the broker; False when the client has to keep it. Never waits."""
    if is_members_own(spec, after):
        return False
    return _begin(session, spec, message, retry_ext(spec, message, after), failed)


def bury(
    session: RemoteSession, spec: ConsumerSpec, message: Message, reason: str, *, failed: Callable[[Message], None]
) -> bool:
    """Begin to hand a message over for the dead letters. Never waits.

    Raises:
        ConsumeError: the consumer has no group, or each member reads everything.
    """
    if spec.group is None or spec.model != "clustering":
        raise ConsumeError(f"message {message.message_id} has no dead-letter topic to go to: {reason}")
    return _begin(session, spec, message, send_back_ext(spec, message, DEAD_LETTER, reason), failed)


def _begin(
    session: RemoteSession,
    spec: ConsumerSpec,
    message: Message,
    ext: dict[str, str],
    failed: Callable[[Message], None],
) -> bool:
    for reader in session.readers:
        queue = reader.find(message.queue_id) if reader.spec[:2] == spec[:2] else None
        if queue is not None and queue.holds(message.offset):
            queue.handed.add(message.offset)
            message.ack()  # not before the queue knows, so that only the object counts as settled
            session.network.submit(_hand_back(session, reader, queue, message, ext, failed))
            return True
    return True  # its queue is somebody else's now, who gets it from there


async def _hand_back(
    session: RemoteSession,
    reader: RemoteReader,
    queue: ProcessQueue,
    message: Message,
    ext: dict[str, str],
    failed: Callable[[Message], None],
) -> None:
    ext["bname"] = queue.queue.brokerName
    try:
        address = await session.queues.master(queue.queue, session.timeout)
        reply = await session.network.request(
            address, Command(code=Request.CONSUMER_SEND_MSG_BACK, ext=ext), session.timeout
        )
        error = error_of(reply)
    except ShmqError as raised:
        error = raised
    with reader.changed:
        queue.handed.discard(message.offset)
        if error is None:
            queue.settle(message.offset)
            return
    import logging

    logging.getLogger("shmq").warning(
        "message %s could not be handed back to broker %s, and is delivered again here: %s",
        message.message_id,
        queue.queue.brokerName,
        error,
    )
    failed(message)


async def release(session: RemoteSession, spec: ConsumerSpec, ends: Mapping[MessageQueue, int]) -> None:
    """Commit where the reading of queues ended (-1: where it began), and give up their locks."""
    assert spec.group is not None
    for queue, offset in ends.items():
        try:
            if offset >= 0:
                await session.queues.commit(spec.group, queue, offset, session.timeout)
            if spec.ordered:
                await session.queues.unlock(spec.group, session.client_id, [queue], session.timeout)
        except ShmqError as error:
            import logging

            logging.getLogger("shmq").warning(
                'offset %d of queue %d of topic "%s" could not be committed for group "%s": %s',
                offset,
                queue.queueId,
                queue.topic,
                spec.group,
                error,
            )


async def commit(session: RemoteSession, group: str, queue: MessageQueue, offset: int) -> None:
    """Write an offset down for a group, which comes into being by that."""
    try:
        await session.queues.commit(group, queue, offset, session.timeout)
    except RemoteError as error:
        if error.code != Response.SUBSCRIPTION_GROUP_NOT_EXIST:
            raise
        # RocketMQ 5 wants the group to exist; where that is allowed, offsets make it, as they do in RocketMQ 4.
        await AdminService(session).put_group(group)
        await session.queues.commit(group, queue, offset, session.timeout)
