"""What the end of a listener's call means for its message; threads and the asyncio twin's tasks ask here.

returned anything but RECONSUME_LATER   consumed
Retry(after=…)                          again after that time        RECONSUME_LATER   again after the next delay
Reject("why")                           dead-letter topic
any other Exception                     logged once with traceback and message id, again after the next delay
KeyboardInterrupt, SystemExit, …        again at once, and raised again
"""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING

from shmq.errors import Reject, Retry

if TYPE_CHECKING:
    from shmq.client.redelivery.redelivery import Redelivery
    from shmq.shm.core import Message


class Action(enum.Enum):
    """What a listener may return if it does not want to raise; None means COMMIT_MESSAGE."""

    COMMIT_MESSAGE = "commit"
    RECONSUME_LATER = "later"


def settle(redelivery: Redelivery, message: Message, outcome: object) -> bool:
    """Settle a message whose listener returned; True when it will not come again."""
    if outcome is Action.RECONSUME_LATER:
        return not redelivery.nack(message, None)
    message.ack()
    return True


def settle_failed(redelivery: Redelivery, group: str | None, message: Message, error: BaseException) -> bool:
    """Settle a message whose listener raised; True when it will not come again. Raises what is not an Exception."""
    if isinstance(error, Retry):
        return not redelivery.nack(message, error.after)
    if isinstance(error, Reject):
        return not redelivery.dead_letter(message, str(error) or "rejected")
    if not isinstance(error, Exception):
        redelivery.nack(message, 0.0)
        raise error
    import logging

    logging.getLogger("shmq").error(
        'listener of topic "%s", group "%s" failed for message %s (queue %d, offset %d, attempt %d)',
        message.topic,
        group,
        message.message_id,
        message.queue_id,
        message.offset,
        message.attempt,
        exc_info=error,
    )
    return not redelivery.nack(message, None)
