"""Owns messages on their way back to the broker, and offsets and locks that are given up.

It does not know listeners or timers. A message goes back by CONSUMER_SEND_MSG_BACK: the broker stores a copy in the
group's retry topic, due after a delay level, or in its dead-letter topic; then the original counts as settled.

    after (seconds)   1  5  10  30  60  120 ... 7200     the next level that is not shorter; longer ones take the last
    level             1  2   3   4   5    6 ...   18     0: the broker takes 3 + reconsume times, -1: dead letter

Rules:
    (1) the original is settled only after the broker has confirmed the copy: never lost, at worst there twice;
    (2) what would be due within a second, and what an ordered consumer gives back, stays here.
"""

from __future__ import annotations

import bisect
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final

from shmq.client import options
from shmq.client.remote.admin_service import AdminService
from shmq.errors import RemoteError, ShmqError
from shmq.protocol.codes import Request, Response
from shmq.protocol.command import Command
from shmq.protocol.dialect import MessageQueue
from shmq.protocol.failure import error_of

if TYPE_CHECKING:
    from shmq.client.consumer import ConsumerSpec
    from shmq.client.remote.process_queue import ProcessQueue
    from shmq.client.remote.reader import RemoteReader
    from shmq.client.remote.session import RemoteSession
    from shmq.shm.core import Message

DELAY_SECONDS: Final = (1.0, 5.0, *options.RETRY_DELAYS)
"""RocketMQ's delay levels 1 to 18."""
SHORTEST_DELAY: Final = DELAY_SECONDS[0]
BROKERS_CHOICE: Final = 0
DEAD_LETTER: Final = -1


def delay_level(after: float | None) -> int:
    """Return the level for a delay in seconds; None leaves it to the broker."""
    if after is None:
        return BROKERS_CHOICE
    return min(bisect.bisect_left(DELAY_SECONDS, after) + 1, len(DELAY_SECONDS))


def hand_back(
    session: RemoteSession,
    spec: ConsumerSpec,
    message: Message,
    after: float | None,
    *,
    bury: bool,
    failed: Callable[[Message], None],
) -> bool:
    """Begin to hand a message to the broker; False when the client has to keep it. Never waits."""
    if spec.group is None or spec.model != "clustering":
        return False
    if not bury and (spec.ordered or (after is not None and after < SHORTEST_DELAY)):
        return False
    for reader in session.readers:
        queue = reader.find(message.queue_id) if reader.spec[:2] == spec[:2] else None
        if queue is not None and queue.holds(message.offset):
            queue.handed.add(message.offset)
            message.ack()  # not before the queue knows, so that only the object counts as settled
            level = DEAD_LETTER if bury else delay_level(after)
            session.network.submit(_hand_back(session, spec, reader, queue, message, level, failed))
            return True
    return True  # its queue is somebody else's now, who gets it from there


async def _hand_back(
    session: RemoteSession,
    spec: ConsumerSpec,
    reader: RemoteReader,
    queue: ProcessQueue,
    message: Message,
    level: int,
    failed: Callable[[Message], None],
) -> None:
    ext = {
        "offset": str(message.log_position),
        "group": spec.group or "",
        "delayLevel": str(level),
        "originMsgId": message.offset_message_id,
        "originTopic": message.topic,
        "unitMode": "false",
        "maxReconsumeTimes": str(spec.attempts_max),
        "bname": queue.queue.brokerName,
    }
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
