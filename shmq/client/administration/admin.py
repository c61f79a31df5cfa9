"""Administration from Python: topics, groups, dead letters, health.

`Admin` and `Group` say what can be asked for; interface.py is what they ask.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Literal, Protocol

from shmq.client.administration.group import Group, Groups
from shmq.client.administration.interface import Figures, TopicQueues, TopicSettings, change_queues, queue_count
from shmq.client.edge import edge
from shmq.client.kinds import refuse_wrong, whole_in
from shmq.errors import TopicExists, TopicNotFound, UsageError
from shmq.figures.model import TOPIC_FLUSHES, TOPIC_KINDS, TopicInfo
from shmq.message import (
    DEAD_LETTER_REASON,
    PERM_READ_WRITE,
    check_group,
    check_topic,
    dead_letter_topic,
    missing_topic,
    refuse_system_topic,
)
from shmq.shm.pickling import stays_here
from shmq.words import sent_again

if TYPE_CHECKING:
    from shmq.client.search import Found
    from shmq.figures.verdict import Health
    from shmq.shm.core import Message, Receipt

Kind = Literal["normal", "fifo", "delay", "transaction"]
Flush = Literal["broker", "async", "sync"]
DEAD_LETTERS_MAX = 10_000
READ_PATIENCE = 1.0
"""Seconds to wait for dead letters that are there."""


def refuse_unlike(name: str, have: Mapping[str, object], wanted: Mapping[str, object]) -> None:
    """Refuse to create a topic that exists, where it is not what is asked for; None asks for nothing.

    Raises:
        TopicExists: it names each setting that differs.
    """
    unlike = {setting: value for setting, value in wanted.items() if value not in (None, have[setting])}
    if unlike:
        told = (f"{setting} is {have[setting]}, not {value}" for setting, value in unlike.items())
        options = (f"--{setting.replace('_', '-')} {value}" for setting, value in unlike.items())
        raise TopicExists(
            f'topic "{name}" exists already: {", ".join(told)}',
            hint=f"mq.admin.update_topic changes it, and so does: shmq topic update {name} {' '.join(options)}",
        )


class Topics(dict[str, TopicInfo]):
    """All topics of the broker or cluster by name, asked for once."""

    def __init__(self, figures: Figures) -> None:
        super().__init__((info.name, info) for info in sorted(figures.topics()))
        self._place = figures.place

    def __missing__(self, name: str) -> TopicInfo:
        if not isinstance(name, str):
            check_topic(name)
        raise self.not_found(name)

    def not_found(self, name: str) -> TopicNotFound:
        """Return the error for a name that no topic has; it says which may have been meant."""
        return missing_topic(name, self._place, self, "see: list(mq.admin.topics)")


class LetterReader(Protocol):
    """A consumer of one topic that begins at its first message, as `PullConsumer` is."""

    def poll(self, max: int, wait: float) -> list[Message]:
        """Return at most `max` messages."""

    def lag(self) -> dict[int, int]:
        """Return {queue: messages behind the newest one}."""


class DeadLetter:
    """One message a group gave up on. Made by `mq.admin.dlq(group)`."""

    __slots__ = ("_send", "group", "message")
    __reduce_ex__ = stays_here("hand over its body, reason and origin_message_id, or its group: mq.admin.dlq(group)")

    def __init__(self, send: Callable[..., Receipt], group: str, message: Message) -> None:
        self._send = send
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
        return self._send(
            self.origin_topic,
            self.message.body,
            **sent_again(self.message.properties, without=(DEAD_LETTER_REASON,)),
            flag=self.message.flag,
        )

    def __repr__(self) -> str:
        return f"<shmq.DeadLetter of {self.group!r} from {self.origin_topic!r}: {self.reason}>"


class Admin:
    """Administration, as `mq.admin`.

    Args:
        figures: of the broker or cluster, as it is reached now.
        read: returns a reader of a topic.
        send: sends a message.
    """

    __slots__ = ("_figures", "_read", "_send", "_url")
    __reduce_ex__ = stays_here("hand over the connection, and use its admin there")

    def __init__(
        self,
        figures: Figures,
        read: Callable[[str], AbstractContextManager[LetterReader]],
        send: Callable[..., Receipt],
        url: str,
    ) -> None:
        self._figures = figures
        self._read = read
        self._send = send
        self._url = url

    @edge
    def create_topic(
        self,
        name: str,
        *,
        queues: int | None = None,
        kind: Kind | None = None,
        read_queues: int | None = None,
        flush: Flush | None = None,
    ) -> TopicInfo:
        """Create a topic and return it; over TCP on every broker. One that exists and is as asked stays as it is.

        Args:
            queues: on each broker, to write and to read; None takes the broker's default (over TCP 8).
            kind: "normal", "fifo", "delay" or "transaction"; None is normal. Brokers before RocketMQ 5 know normal
                topics only.
            read_queues: how many to read, on each broker; None as many as are written.
            flush: when a message counts: "async" once it is stored, "sync" once it is on disk, "broker" or None as the
                broker says.

        Raises:
            InvalidName, UsageError: what cannot be made, and why.
            TopicExists: a topic of this name has other settings than those given; `update_topic` changes it.
        """
        now, known = self._look(name, kind, flush)
        queues, read_queues = queue_count("queues", queues), queue_count("read_queues", read_queues)
        figures = self._figures
        if now is not None and known is not None:
            change_queues(now, queues=queues, read_queues=read_queues)
            have = {"queues": now.write_queues, "kind": known.kind, "read_queues": now.read_queues}
            wanted = {"queues": queues, "kind": kind, "read_queues": read_queues, "flush": flush}
            refuse_unlike(name, have | {"flush": known.flush}, wanted)
            if figures.is_on_every_broker(name):
                return known
            figures.create_topic(name, TopicSettings(change_queues(now), known.kind, known.perm, known.own_flush))
            return next(iter(figures.topics([name])))
        count = figures.default_queues if queues is None else queues
        change = change_queues(TopicQueues(count, count, {}), queues=count, read_queues=read_queues)
        figures.create_topic(name, TopicSettings(change, kind or TOPIC_KINDS[0], PERM_READ_WRITE, flush))
        return next(iter(figures.topics([name])))

    @edge
    def update_topic(
        self,
        name: str,
        *,
        queues: int | None = None,
        kind: Kind | None = None,
        read_queues: int | None = None,
        flush: Flush | None = None,
    ) -> TopicInfo:
        """Change a topic that exists and return it; over TCP on every broker. None leaves a setting as it is.

        Messages stay readable: queues that still hold some are read until `read_queues` says otherwise, so a topic
        that gets fewer queues first has fewer to write, and fewer to read when it is called again later.

        Args:
            queues: on each broker, to write and to read.
            kind, flush: as of `create_topic`.
            read_queues: how many to read, on each broker; what the others hold is delivered to no group.

        Raises:
            TopicNotFound: there is none of this name.
            InvalidName, UsageError: what cannot be made, and why.
        """
        now, known = self._look(name, kind, flush)
        if now is None or known is None:
            raise Topics(self._figures).not_found(name)
        if all(wish is None for wish in (queues, kind, read_queues, flush)):
            raise UsageError("nothing to change was given", hint="give queues=, read_queues=, kind= or flush=")
        change = change_queues(now, queues=queues, read_queues=read_queues)
        is_other = kind not in (None, known.kind)
        settings = TopicSettings(change, kind or known.kind, known.perm, flush, changes_kind=is_other)
        self._figures.create_topic(name, settings)
        return next(iter(self._figures.topics([name])))

    def _look(self, name: str, kind: str | None, flush: str | None) -> tuple[TopicQueues | None, TopicInfo | None]:
        """Return a topic that is to be created or changed, as far as it exists."""
        check_topic(name)
        refuse_system_topic(name)
        if kind is not None and kind not in TOPIC_KINDS:
            raise UsageError(f"kind={kind!r} does not exist", hint=f"one of {', '.join(TOPIC_KINDS)}")
        if flush is not None and flush not in TOPIC_FLUSHES:
            raise UsageError(f"flush={flush!r} does not exist", hint=f"one of {', '.join(TOPIC_FLUSHES)}")
        now = self._figures.topic_queues(name)
        return now, next(iter(self._figures.topics([name])), None) if now is not None else None

    @edge
    def delete_topic(self, name: str) -> None:
        """Delete a topic, over TCP on every broker; its messages are gone for every group at once.

        Raises:
            TopicNotFound: there is none of this name.
        """
        refuse_wrong({"topic": name})
        refuse_system_topic(name)
        self._figures.delete_topic(name)

    @property
    def topics(self) -> dict[str, TopicInfo]:
        """All topics by name, those of the broker itself included (`is_system`).

        `topics[name]` of a topic that does not exist raises `TopicNotFound`, which is a KeyError.
        """
        return Topics(self._figures)

    @property
    def groups(self) -> Mapping[str, Group]:
        """All consumer groups by name."""
        return Groups(self._figures)

    @edge
    def dlq(self, group: str, *, limit: int = 1000) -> Found[DeadLetter]:
        """Return what a group gave up on, oldest first; [] for nothing. `is_cut` says whether there is more."""
        from shmq.client.search import Found

        topic = dead_letter_topic(check_group(group))
        count_max = whole_in(limit, 1, DEAD_LETTERS_MAX)
        if count_max is None:
            raise UsageError(f"limit={limit!r:.80} is not possible", hint=f"1 to {DEAD_LETTERS_MAX}")
        if not self._figures.has_topic(topic):
            return Found()
        letters: Found[DeadLetter] = Found()
        with self._read(topic) as reader:
            while len(letters) < count_max and any(reader.lag().values()):
                messages = reader.poll(count_max - len(letters), READ_PATIENCE)
                if not messages:
                    break
                letters += (DeadLetter(self._send, group, message) for message in messages)
            letters.is_cut = len(letters) >= count_max and any(reader.lag().values())
        return letters

    def status(self) -> dict[str, Any]:
        """Return what the broker says about itself: processes, members, version; over TCP every broker, by name."""
        return self._figures.status()

    def health(self) -> Health:
        """Look at the broker or cluster and say whether it is well: OK, WARNING or CRITICAL, with figures."""
        return self._figures.health()

    def __repr__(self) -> str:
        return f"<shmq.Admin of {self._url}>"
