"""Owns what the end of a listener's call means for its message.

It does not know threads or tasks; push and the asyncio twin call it with what came out.

    returned anything but RECONSUME_LATER   consumed
    Retry(after=…)                          again after that time        RECONSUME_LATER   again after the next delay
    Reject("why")                           dead-letter topic
    any other Exception                     logged once with traceback and message id, again after the next delay
    KeyboardInterrupt, SystemExit, …        given back at once, and raised again
"""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING

from shmq.errors import Reject, Retry

if TYPE_CHECKING:
    from shmq.client.consumers.consumer import Consumer
    from shmq.shm.core import Message


class Action(enum.Enum):
    """What a listener may return if it does not want to raise; None means COMMIT_MESSAGE."""

    COMMIT_MESSAGE = "commit"
    RECONSUME_LATER = "later"


def settle(consumer: Consumer, message: Message, outcome: object) -> bool:
    """Settle a message whose listener returned; True when it will not come again."""
    if outcome is Action.RECONSUME_LATER:
        return not consumer._returns.give_back(message, None)
    message.ack()
    return True


def settle_failed(consumer: Consumer, message: Message, error: BaseException) -> bool:
    """Settle a message whose listener raised; True when it will not come again. Raises what is not an Exception."""
    if isinstance(error, Retry):
        return not consumer._returns.give_back(message, error.after)
    if isinstance(error, Reject):
        return not consumer._returns.reject(message, str(error) or "rejected")
    if not isinstance(error, Exception):
        consumer._returns.give_back(message, 0.0)
        raise error
    import logging

    logging.getLogger("shmq").error(
        'listener of topic "%s", group "%s" failed for message %s (queue %d, offset %d, attempt %d)',
        consumer.topic,
        consumer.group,
        message.message_id,
        message.queue_id,
        message.offset,
        message.attempt,
        exc_info=error,
    )
    return not consumer._returns.give_back(message, None)
