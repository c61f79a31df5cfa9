"""The messages, results and numbers of the old packages; see `shmq.compat.rocketmq`."""

from __future__ import annotations

import enum
from typing import Any, NamedTuple

import shmq
from shmq.words import keys_in


def text_of(value: str | bytes) -> str:
    """Return text that the old packages take as bytes, too."""
    return value.decode() if isinstance(value, bytes) else value


class SendStatus(enum.IntEnum):
    """The outcome of a send."""

    OK = 0
    FLUSH_DISK_TIMEOUT = 1
    FLUSH_SLAVE_TIMEOUT = 2
    SLAVE_NOT_AVAILABLE = 3


class ConsumeStatus(enum.IntEnum):
    """The result of a callback."""

    CONSUME_SUCCESS = 0
    RECONSUME_LATER = 1


class MessageModel(enum.IntEnum):
    """The receivers of a message: every consumer, or one of the group."""

    BROADCASTING = 0
    CLUSTERING = 1


class SendResult(NamedTuple):
    """The place of a message."""

    status: SendStatus
    msg_id: str
    offset: int


class Message:
    """A message to be sent."""

    def __init__(self, topic: str) -> None:
        self.topic = topic
        self.tags: str | None = None
        self.keys: str | None = None
        self.body = b""
        self.properties: dict[str, str] = {}
        self.delay_time_level = 0

    def set_keys(self, keys: str | bytes) -> None:
        """Set the keys, separated by blanks."""
        self.keys = text_of(keys)

    def set_tags(self, tags: str | bytes) -> None:
        """Set the tag."""
        self.tags = text_of(tags)

    def set_body(self, body: str | bytes) -> None:
        """Set the body; text is sent as UTF-8."""
        self.body = body.encode() if isinstance(body, str) else bytes(body)

    def set_property(self, key: str | bytes, value: str | bytes) -> None:
        """Set a free property."""
        self.properties[text_of(key)] = text_of(value)

    def set_delay_time_level(self, delay_time_level: int) -> None:
        """Deliver it later: RocketMQ's levels 1 (1 s) to 18 (2 h)."""
        self.delay_time_level = int(delay_time_level)

    def arguments(self) -> dict[str, Any]:
        """Return the arguments of `shmq.Producer.send`."""
        found: dict[str, Any] = {"tag": self.tags or None, "keys": keys_in(self.keys or "") or None}
        found["properties"] = self.properties or None
        if self.delay_time_level:
            found["delay_level"] = self.delay_time_level
        return found


class RecvMessage:
    """A received message, with the attributes of the old packages."""

    def __init__(self, message: shmq.Message) -> None:
        self.message = message

    topic = property(lambda self: self.message.topic, doc="The topic.")
    tags = property(lambda self: (self.message.tag or "").encode(), doc="The tag, as bytes.")
    keys = property(lambda self: " ".join(self.message.keys).encode(), doc="The keys, as bytes.")
    body = property(lambda self: self.message.body, doc="The body.")
    id = property(lambda self: self.message.message_id, doc="The message id.")
    queue_id = property(lambda self: self.message.queue_id, doc="The queue.")
    queue_offset = property(lambda self: self.message.offset, doc="The queue offset.")
    commit_log_offset = property(lambda self: self.message.log_position, doc="The log position.")
    reconsume_times = property(lambda self: self.message.attempt - 1, doc="Deliveries before this one.")
    store_size = property(lambda self: self.message.record_bytes, doc="Bytes of the record.")
    born_timestamp = property(lambda self: self.message.born_ms, doc="When it was sent, ms.")
    store_timestamp = property(lambda self: self.message.store_ms, doc="When it was stored, ms.")
    delay_time_level = property(lambda self: int(self.message.properties.get("DELAY", "0")), doc="The delay level.")
    prepared_transaction_offset = property(lambda self: 0, doc="Not used.")

    def get_property(self, prop: str | bytes) -> bytes | None:
        """Return a property as bytes; None when there is none."""
        value = self.message.properties.get(text_of(prop))
        return None if value is None else value.encode()

    def __getitem__(self, key: str | bytes) -> bytes | None:
        return self.get_property(key)

    def __bytes__(self) -> bytes:
        return self.message.body

    def __str__(self) -> str:
        return self.message.body.decode(errors="replace")

    def __repr__(self) -> str:
        return f"<RecvMessage topic={self.topic!r} id={self.id!r} body={self.body!r}>"
