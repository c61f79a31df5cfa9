"""Owns the copy of a message that a group gave up on, as RocketMQ keeps it.

It does not know why a message was given up, nor when it is acknowledged.

    topic        %DLQ%<group>, one queue, created when it is needed
    kept         body (inflated if it was compressed), flag, and every property: tag, keys, message group, …
    added        ORIGIN_MESSAGE_ID and RETRY_TOPIC as RocketMQ 4, DLQ_ORIGIN_MESSAGE_ID and DLQ_ORIGIN_TOPIC as
                 RocketMQ 5, and SHMQ_REASON in words
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from shmq.message import RESERVED_PROPERTIES, dead_letter_topic, encode_properties

if TYPE_CHECKING:
    from shmq.client.session import Session
    from shmq.shm.core import Message, Producer, Receipt

REASON = "SHMQ_REASON"
REASON_CHARACTERS_MAX = 500
_SEPARATORS = str.maketrans({"\x01": " ", "\x02": " "})


def bury(session: Session, producer: Producer, message: Message, group: str, reason: str) -> Receipt:
    """Append the dead-letter copy of `message` and return where it is.

    Raises:
        ShmqError: the topic could not be created, or the copy not be stored.
    """
    topic = dead_letter_topic(group)
    session.create(topic, queues=1)
    # Text instead of a mapping: a mapping may not hold the names that RocketMQ keeps for itself.
    text: Any = encode_properties(dead_letter_properties(message, reason)).encode()
    return producer.send(topic, message.body, properties=text, queue_id=0, flag=message.flag)


def dead_letter_properties(message: Message, reason: str) -> dict[str, str]:
    """Return the properties of the copy."""
    return {
        **message.properties,
        "ORIGIN_MESSAGE_ID": message.message_id,
        "RETRY_TOPIC": message.topic,
        "DLQ_ORIGIN_MESSAGE_ID": message.message_id,
        "DLQ_ORIGIN_TOPIC": message.topic,
        REASON: reason.translate(_SEPARATORS)[:REASON_CHARACTERS_MAX] or "rejected",
    }


def application_properties(message: Message) -> dict[str, str]:
    """Return the properties the sender chose, without those of RocketMQ and of the burial."""
    kept = message.properties.items()
    return {name: text for name, text in kept if name not in RESERVED_PROPERTIES and name != REASON}
