"""What commands see of a broker: its topics, queues and groups, wherever they are read from.

    BrokerView   ├─ Memory    (memory.py)    the broker's segments on this host, mapped for reading
                 └─ Cluster   (cluster.py)   every broker behind a name server, asked over TCP

Each figure is read once; figures of one call may be a few microseconds apart. What RocketMQ's protocol does not carry
reads as nothing over TCP: sizes in bytes are 0, and nobody has a pid.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from shmq.errors import ConsumeError, GroupNotFound, TopicNotFound
from shmq.message import DEAD_LETTER_PREFIX, RETRY_PREFIX, is_broker_topic, is_hidden_topic, is_system_topic, nearest
from shmq.progress import Backlog
from shmq.protocol.codes import TopicFlush, TopicKind

if TYPE_CHECKING:
    from shmq.client.administration.queue_change import TopicQueues
    from shmq.client.position import Position

KINDS = tuple(kind.name.lower() for kind in TopicKind)
FLUSHES = tuple(flush.name.lower() for flush in TopicFlush)
_NUMBER = re.compile(r"\d+")


@dataclass(frozen=True)
class QueueView:
    """One queue: what of it is stored, and its number in the broker's tables."""

    index: int
    queue_id: int
    offset_min: int
    offset_max: int
    size_bytes: int

    @property
    def messages(self) -> int:
        """Messages that can still be read."""
        return max(0, self.offset_max - self.offset_min)


@dataclass(frozen=True)
class TopicView:
    """One topic and its queues."""

    name: str
    kind: str
    perm: int
    read_queues: int
    write_queues: int
    queues: tuple[QueueView, ...]
    flush: str = "broker"

    @property
    def messages(self) -> int:
        """Messages that can still be read, in all queues."""
        return sum(queue.messages for queue in self.queues)

    @property
    def size_bytes(self) -> int:
        """Bytes of all records ever stored in the queues."""
        return sum(queue.size_bytes for queue in self.queues)

    @property
    def is_system(self) -> bool:
        """Whether the broker made it for itself."""
        return is_broker_topic(self.name, self.perm)

    @property
    def is_hidden(self) -> bool:
        """Whether lists leave it out unless everything is asked for."""
        return is_hidden_topic(self.name, self.perm)

    @property
    def role(self) -> str:
        """What it is for: system, retry, dlq, or its kind when applications send to it."""
        return topic_role(self.name, self.perm, self.kind)


def topic_role(name: str, perm: int, kind: str) -> str:
    """Return what a topic is for: system, retry, dlq, or its kind when applications send to it."""
    if is_broker_topic(name, perm):
        return "system"
    if name.startswith(RETRY_PREFIX):
        return "retry"
    return "dlq" if name.startswith(DEAD_LETTER_PREFIX) else kind


def flush_name(flush: int) -> str:
    """Return how a topic is flushed: "broker", "async" or "sync"."""
    return FLUSHES[flush] if flush < len(FLUSHES) else f"flush {flush}"


def kind_text(kind: int) -> str:
    """Return the name of a topic kind; one that this version does not know by its number."""
    return KINDS[kind] if kind < len(KINDS) else f"kind {kind}"


@dataclass(frozen=True)
class ProgressView:
    """How far one group is in one queue."""

    group: str
    topic: str
    queue: QueueView
    committed: int | None  # next queue offset to deliver; None when never set
    owner_pid: int | None  # process that reads it now
    updated_ms: int
    in_flight: int = 0  # popped and not settled: the group's offset is behind them already

    @property
    def lag(self) -> int:
        """Messages that are stored and that the group has not settled."""
        committed = -1 if self.committed is None else self.committed
        return Backlog(committed, self.queue.offset_min, self.queue.offset_max, self.in_flight).lag


class BrokerView(Protocol):
    """Topics, groups and progress of one broker or cluster."""

    @property
    def broker_name(self) -> str:
        """The broker's name; of a cluster, its name servers."""

    def topics(self) -> list[TopicView]:
        """Return every topic, by name."""

    def topic(self, name: str) -> TopicView:
        """Return one topic.

        Raises:
            TopicNotFound: there is none of that name; the hint has the nearest ones.
        """

    def topic_names(self) -> list[str]:
        """Return the names of all topics, sorted."""

    def group_names(self) -> list[str]:
        """Return the names of all groups, sorted."""

    def progress(self) -> list[ProgressView]:
        """Return how far every group is in every queue it has an offset for, sorted."""

    def oldest_ms(self, topic: TopicView) -> int | None:
        """Return when the oldest message still stored was stored, or None when there is none."""

    def topic_queues(self, topic: TopicView) -> TopicQueues:
        """Return the queues of a topic as each broker has them."""

    def place_in(self, topic: TopicView, queue: QueueView, position: Position) -> int:
        """Return the offset a position means in a queue now."""


def by_group(view: ProgressView) -> tuple[str, str, int]:
    """Order of progress: group, topic, queue."""
    return view.group, view.topic, view.queue.queue_id


def being_read(group: str, readers: str) -> ConsumeError:
    """Return the error for a group whose offsets cannot be moved now."""
    return ConsumeError(
        f'group "{group}" is being read by {readers}, which would write its own progress over yours',
        hint="stop the members of the group, then run it again",
    )


def topic_not_found(name: str, broker: str, names: list[str]) -> TopicNotFound:
    """Return the error for a topic that does not exist, with what may have been meant."""
    near = nearest(name, names, count_max=1)
    return TopicNotFound(
        f'topic "{name}" does not exist on broker "{broker}"',
        hint=f'did you mean "{near[0]}"?' if near else "see: shmq topic list",
    )


def group_not_found(name: str, broker: str, names: list[str]) -> GroupNotFound:
    """Return the error for a group that does not exist, with what may have been meant."""
    near = nearest(name, names, count_max=1)
    return GroupNotFound(
        f'group "{name}" does not exist on broker "{broker}"',
        hint=f'did you mean "{near[0]}"?' if near else "see: shmq group list",
    )


def meant_topic(name: str, names: Iterable[str], *, slips_max: int = 3) -> str | None:
    """Return the topic that somebody who typed `name`, which does not exist, may have meant.

    Names that differ in their numbers only are a series, `orders-1` and `orders-2`, and no slip of a finger.
    """
    series = _NUMBER.sub("0", name)
    others = (other for other in names if not is_system_topic(other) and _NUMBER.sub("0", other) != series)
    return next(iter(nearest(name, others, count_max=1, slips_max=slips_max)), None)
