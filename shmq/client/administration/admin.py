"""Owns administration from Python: topics, groups, dead letters, health.

It does not know how the broker keeps them: topics and offsets are read from shared memory, changes go through the
control plane.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from shmq.client.administration.group import Group, Groups
from shmq.client.administration.health import Health, examine
from shmq.errors import UsageError
from shmq.message import (
    DEAD_LETTER_REASON,
    RESERVED_PROPERTIES,
    check_group,
    check_topic,
    dead_letter_topic,
    is_broker_topic,
)

if TYPE_CHECKING:
    from shmq.client.connection import Connection
    from shmq.shm.core import Message, Receipt, Store

KINDS = ("normal", "fifo", "delay", "transaction")
"""Topic kinds by their number in shared memory."""

Kind = Literal["normal", "fifo", "delay", "transaction"]
DEAD_LETTERS_MAX = 10_000


class QueueInfo(NamedTuple):
    """One queue: offsets count messages, `size_bytes` is what its records take in the log."""

    queue_id: int
    offset_min: int
    offset_max: int
    size_bytes: int


class TopicInfo(NamedTuple):
    """One topic, as it is now."""

    name: str
    kind: str
    queues: tuple[QueueInfo, ...]
    read_queues: int
    write_queues: int
    perm: int

    @property
    def messages(self) -> int:
        """Messages stored and not deleted by retention."""
        return sum(queue.offset_max - queue.offset_min for queue in self.queues)

    @property
    def size_bytes(self) -> int:
        """Bytes appended to the topic since the segments were made."""
        return sum(queue.size_bytes for queue in self.queues)

    @property
    def is_system(self) -> bool:
        """Whether the broker made it for its own use."""
        return is_broker_topic(self.name, self.perm) or self.name.startswith("%")


class DeadLetter:
    """One message a group gave up on. Made by `mq.admin.dlq(group)`."""

    __slots__ = ("_connection", "group", "message")

    def __init__(self, connection: Connection, group: str, message: Message) -> None:
        self._connection = connection
        self.group = group
        self.message = message

    @property
    def body(self) -> bytes:
        """The body, as it was sent."""
        return self.message.body

    @property
    def reason(self) -> str:
        """Why it was given up."""
        return self.message.properties.get(DEAD_LETTER_REASON, "")

    @property
    def origin_topic(self) -> str:
        """The topic it was sent to; empty when a stranger wrote the dead letter."""
        properties = self.message.properties
        return properties.get("DLQ_ORIGIN_TOPIC") or properties.get("RETRY_TOPIC", "")

    @property
    def origin_message_id(self) -> str:
        """Its id there."""
        properties = self.message.properties
        return properties.get("DLQ_ORIGIN_MESSAGE_ID") or properties.get("ORIGIN_MESSAGE_ID", "")

    def resend(self) -> Receipt:
        """Send it to its topic again; the dead letter itself stays until retention deletes it.

        Raises:
            UsageError: it does not say which topic it came from.
        """
        if not self.origin_topic:
            raise UsageError(f"dead letter {self.message.message_id} names no topic", hint="send its body yourself")
        return self._connection.send(
            self.origin_topic,
            self.message.body,
            tag=self.message.tag,
            keys=self.message.keys or None,
            properties=_application_properties(self.message) or None,
            message_group=self.message.message_group,
            flag=self.message.flag,
        )

    def __repr__(self) -> str:
        return f"<shmq.DeadLetter of {self.group!r} from {self.origin_topic!r}: {self.reason}>"


class Admin:
    """What `mq.admin` offers."""

    __slots__ = ("_connection",)

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def create_topic(self, name: str, *, queues: int | None = None, kind: Kind = "normal") -> TopicInfo:
        """Create a topic, or change the number of its queues, and return it.

        Args:
            queues: None takes the broker's default.
            kind: "normal", "fifo", "delay" or "transaction".
        """
        check_topic(name)
        if kind not in KINDS:
            raise UsageError(f"kind={kind!r} does not exist", hint=f"one of {', '.join(KINDS)}")
        session = self._connection._local()
        count = session.control.attachment.default_queues if queues is None else queues
        if count < 1:
            raise UsageError(f"a topic cannot have {count} queues", hint="queues is at least 1")
        session.put_topic(name, queues=count, kind=kind)
        return self.topics[name]

    def delete_topic(self, name: str) -> None:
        """Delete a topic; its messages are gone for every group at once.

        Raises:
            TopicNotFound: there is none of this name.
        """
        session = self._connection._local()
        if session.store.topic_find(name) < 0:
            raise session.topic_not_found(name)
        session.control.delete_topic(name)

    @property
    def topics(self) -> dict[str, TopicInfo]:
        """All topics by name, those of the broker itself included (`is_system`)."""
        store = self._connection._local().store
        found = [_topic_info(store, entry) for entry in store.topics()]
        return {info.name: info for info in sorted(found)}

    @property
    def groups(self) -> Mapping[str, Group]:
        """All consumer groups by name."""
        return Groups(self._connection)

    def dlq(self, group: str, *, limit: int = 1000) -> list[DeadLetter]:
        """Return what a group gave up on, oldest first; [] when there is nothing."""
        topic = dead_letter_topic(check_group(group))
        if not 1 <= limit <= DEAD_LETTERS_MAX:
            raise UsageError(f"limit={limit} is not possible", hint=f"1 to {DEAD_LETTERS_MAX}")
        if self._connection._local().store.topic_find(topic) < 0:
            return []
        with self._connection.pull_consumer(topic) as consumer:
            letters: list[DeadLetter] = []
            while len(letters) < limit and (messages := consumer.poll(limit - len(letters))):
                letters += (DeadLetter(self._connection, group, message) for message in messages)
            return letters

    def status(self) -> dict[str, Any]:
        """Return what the broker says about itself: processes, members, version."""
        return dict(self._connection._local().control.status())

    def health(self) -> Health:
        """Look at the broker and say whether it is well: OK, WARNING or CRITICAL, with figures."""
        return examine(self._connection)

    def __repr__(self) -> str:
        return f"<shmq.Admin of {self._connection.url}>"


def _application_properties(message: Message) -> dict[str, str]:
    """Return the properties the sender chose, without those of RocketMQ and of the burial."""
    kept = message.properties.items()
    return {name: text for name, text in kept if name not in RESERVED_PROPERTIES and name != DEAD_LETTER_REASON}


def _topic_info(store: Store, entry: dict[str, Any]) -> TopicInfo:
    queues = []
    for queue_id, index in enumerate(entry["queues"]):
        offset_min, offset_max, _, _, _, size_bytes = store.queue(index)
        queues.append(QueueInfo(queue_id, offset_min, offset_max, size_bytes))
    kind = KINDS[entry["kind"]] if 0 <= entry["kind"] < len(KINDS) else f"kind {entry['kind']}"
    return TopicInfo(entry["name"], kind, tuple(queues), entry["read_queues"], entry["write_queues"], entry["perm"])
