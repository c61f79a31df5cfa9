"""The types of what a broker holds: topics, their queues, and how far groups are. One read model for every door.

    TopicInfo ──queues──▶ QueueInfo        settings and what is stored
    QueueLag                               a group's progress on one queue; `shmq.progress` says what lag means

`BrokerFigures` gives them: read from mapped segments (`shmq.figures.mapped`), or asked of the brokers of a cluster
(`shmq.client.administration.remote_figures`). `mq.admin`, the commands and the console show these very objects, so an
attribute of a topic is added here, where it is read, and where it is shown.

Rules: (1) what RocketMQ's protocol does not carry reads as nothing over TCP: sizes are 0, owners unknown; (2) figures
of one call are each exact at their moment, together not one snapshot.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final, NamedTuple, Protocol

from shmq.message import DEAD_LETTER_PREFIX, RETRY_PREFIX, is_broker_topic, is_hidden_topic
from shmq.progress import Backlog
from shmq.protocol.codes import TopicFlush, TopicKind

TOPIC_KINDS: Final = tuple(kind.name.lower() for kind in TopicKind)
"""Topic kinds by their number in shared memory."""
TOPIC_FLUSHES: Final = tuple(flush.name.lower() for flush in TopicFlush)
"""When a message of a topic counts, by its number in shared memory."""


class QueueInfo(NamedTuple):
    """One queue: offsets count messages, `size_bytes` is what its records take in the log."""

    queue_id: int
    offset_min: int
    offset_max: int
    size_bytes: int

    @property
    def messages(self) -> int:
        """Messages that can still be read."""
        return max(0, self.offset_max - self.offset_min)


class TopicInfo(NamedTuple):
    """One topic, as it is now."""

    name: str
    kind: str
    queues: tuple[QueueInfo, ...]
    read_queues: int
    write_queues: int
    perm: int
    flush: str = TOPIC_FLUSHES[TopicFlush.BROKER]
    """When a message counts: "async" once it is stored, "sync" once it is on disk, "broker" as the broker says."""

    @property
    def own_flush(self) -> str | None:
        """The flush that it was given; None where the broker's holds."""
        return None if self.flush == TOPIC_FLUSHES[TopicFlush.BROKER] else self.flush

    @property
    def messages(self) -> int:
        """Messages stored and not deleted by retention."""
        return sum(queue.messages for queue in self.queues)

    @property
    def size_bytes(self) -> int:
        """Bytes appended to the topic since the segments were made."""
        return sum(queue.size_bytes for queue in self.queues)

    @property
    def is_system(self) -> bool:
        """Whether the broker made it for its own use, redeliveries and dead letters included."""
        return is_broker_topic(self.name, self.perm) or self.name.startswith("%")

    @property
    def is_hidden(self) -> bool:
        """Whether lists leave it out unless everything is asked for."""
        return is_hidden_topic(self.name, self.perm)

    @property
    def role(self) -> str:
        """Its role: system, retry, dlq, or its kind when applications send to it."""
        return topic_role(self.name, self.perm, self.kind)


class QueueLag(NamedTuple):
    """Progress of a group on one queue; `committed` is -1 when it never committed, `owner` -1 without a reader."""

    topic: str
    queue_id: int
    committed: int
    offset_min: int
    offset_max: int
    owner: int
    updated_ms: int
    in_flight: int = 0  # of those before `committed`: in hand, hidden by the broker until they are settled
    cleaned: int = 0  # counted as lost when they were deleted; a broker over TCP does not say
    owner_pid: int | None = None  # of the process in client slot `owner`; a broker over TCP does not say

    @property
    def offset(self) -> int | None:
        """The queue offset the group goes on at; None when it never committed."""
        return None if self.committed < 0 else self.committed

    @property
    def backlog(self) -> Backlog:
        """The same offsets, and what they come to."""
        return Backlog(self.committed, self.offset_min, self.offset_max, self.in_flight, cleaned=self.cleaned)

    @property
    def waiting(self) -> int:
        """Messages from `committed` on."""
        return self.backlog.waiting

    @property
    def lost(self) -> int:
        """Messages that cleaning deleted before the group had acknowledged them; they are no part of the lag."""
        return self.backlog.lost

    @property
    def behind(self) -> int:
        """Messages that are stored and not acknowledged."""
        return self.backlog.lag


class BrokerFigures(Protocol):
    """The figures of one broker or cluster."""

    def topics(self, names: Collection[str] | None = None) -> list[TopicInfo]:
        """Return topics by name, those of these names if they exist."""

    def topic_names(self) -> list[str]:
        """Return the names of all topics, sorted."""

    def has_topic(self, name: str) -> bool:
        """Whether there is a topic of this name."""

    def group_names(self) -> list[str]:
        """Return the names of all groups, sorted."""

    def has_group(self, name: str) -> bool:
        """Whether there is a group of this name."""

    def progress(self, group: str | None = None) -> dict[str, list[QueueLag]]:
        """Return how far groups are, by topic and queue, on every queue that they have an offset for.

        Args:
            group: only this one.
        """


def topic_role(name: str, perm: int, kind: str) -> str:
    """Return what a topic is for: system, retry, dlq, or its kind when applications send to it."""
    if is_broker_topic(name, perm):
        return "system"
    if name.startswith(RETRY_PREFIX):
        return "retry"
    return "dlq" if name.startswith(DEAD_LETTER_PREFIX) else kind


def kind_name(kind: int) -> str:
    """Return the name of a topic kind; one that this version does not know by its number."""
    return TOPIC_KINDS[kind] if 0 <= kind < len(TOPIC_KINDS) else f"kind {kind}"


def flush_name(flush: int) -> str:
    """Return how a topic is flushed: "broker", "async" or "sync"; one that this version does not know by its number."""
    return TOPIC_FLUSHES[flush] if 0 <= flush < len(TOPIC_FLUSHES) else f"flush {flush}"
