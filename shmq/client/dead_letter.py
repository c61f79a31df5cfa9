"""Owns the copy of a message that a group gave up on, as RocketMQ keeps it.

It does not know why a message was given up, nor when it is acknowledged.

    topic        %DLQ%<group>, one queue, created when it is needed
    kept         body (inflated if it was compressed), tag, keys, application properties, message group, flag
    added        ORIGIN_MESSAGE_ID and RETRY_TOPIC as RocketMQ 4, DLQ_ORIGIN_MESSAGE_ID and DLQ_ORIGIN_TOPIC as
                 RocketMQ 5, and SHMQ_REASON in words
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from shmq.message import RESERVED_PROPERTIES, dead_letter_topic

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
    return producer.send(
        topic,
        message.body,
        tag=message.tag,
        keys=message.keys or None,
        properties=dead_letter_properties(message, reason),
        message_group=message.message_group,
        queue_id=0,
        flag=message.flag,
    )


def dead_letter_properties(message: Message, reason: str) -> dict[str, str]:
    """Return the properties of the copy."""
    properties = application_properties(message)
    properties["ORIGIN_MESSAGE_ID"] = message.message_id
    properties["RETRY_TOPIC"] = message.topic
    properties["DLQ_ORIGIN_MESSAGE_ID"] = message.message_id
    properties["DLQ_ORIGIN_TOPIC"] = message.topic
    properties[REASON] = reason.translate(_SEPARATORS)[:REASON_CHARACTERS_MAX] or "rejected"
    return properties


def application_properties(message: Message) -> dict[str, str]:
    """Return the properties the sender chose, without those that RocketMQ or a former burial added."""
    return {
        name: text for name, text in message.properties.items() if name not in RESERVED_PROPERTIES and name != REASON
    }
