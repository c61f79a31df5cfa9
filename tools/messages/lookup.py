"""Finding one message by its id alone, in whichever topic it is.

An id does not say the topic. An offset message id says a place in the log, which is read; a unique key is looked up
topic by topic, in the key index and in what was stored lately.

    offset message id      the record at that place of the log, if it has the same id: the digits of a unique key may
                           lead to some record, too
    unique key             applications' topics by name, then %RETRY%, %DLQ% and those of the broker itself

Bound: at most `TOPICS_MAX` topics are asked; with more topics, name the message's own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from shmq.errors import MessageNotFound, RemoteError, TopicNotFound, UsageError
from shmq.message import is_system_topic

if TYPE_CHECKING:
    import shmq

TOPICS_MAX: Final = 10_000


def find_message(mq: shmq.Connection, topic: str | None, message_id: str) -> shmq.Message:
    """Return the message of an id, the newest one if several have the key.

    Args:
        topic: None looks everywhere.

    Raises:
        MessageNotFound: there is none.
        TopicNotFound: the topic does not exist.
    """
    if not message_id:
        raise UsageError("an empty id", hint="an offset message id or a unique key, as receipts and mqadmin show them")
    found = mq.browse(topic, id=message_id) if topic is not None else _anywhere(mq, message_id)
    if not found:
        where = f"topic {topic} has" if topic is not None else "there is"
        raise no_message(f"{where} no message {message_id}")
    return found[-1]


def no_message(text: str) -> MessageNotFound:
    """Return the error for a message that is not there."""
    return MessageNotFound(text, hint="see what there is: shmq message find TOPIC --since -1h")


def names_a_topic(mq: shmq.Connection, text: str) -> bool:
    """Say whether a word is the name of a topic."""
    return text in mq._figures().topic_names()


def _anywhere(mq: shmq.Connection, message_id: str) -> list[shmq.Message]:
    search = mq._live().search
    at_place = search.find_by_place(None, message_id)
    if at_place is not None and at_place.offset_message_id == message_id.upper():
        return [at_place]
    names = sorted(mq._figures().topic_names(), key=lambda name: (is_system_topic(name), name.startswith("%"), name))
    for name in names[:TOPICS_MAX]:
        try:
            found = search.find_by_unique_key(name, message_id)
        except (TopicNotFound, RemoteError):  # deleted meanwhile, or not to be read
            continue
        if found:
            return found
    if len(names) > TOPICS_MAX:
        raise UsageError(
            f"{message_id} is in none of the first {TOPICS_MAX} of {len(names)} topics",
            hint="name the topic: shmq message show TOPIC ID",
        )
    return []
