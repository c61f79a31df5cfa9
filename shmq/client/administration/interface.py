"""The interface of administration: what can be asked of, and changed in, a broker of this host or a cluster.

    BrokerFigures     what there is (`shmq.figures.model`)
    └─ Changes        topics and groups are made, changed, deleted
       └─ Figures     and what a connection adds: its queues, offsets that are moved, health

A broker of this host: local_figures.py. A cluster, whose brokers are asked: remote_figures.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from shmq.figures.model import BrokerFigures

if TYPE_CHECKING:
    from shmq.client.administration.queue_change import TopicQueues, TopicSettings
    from shmq.client.wire import Queues
    from shmq.figures.verdict import Health


class Changes(BrokerFigures, Protocol):
    """The topics and groups of a broker or cluster, which can be changed."""

    @property
    def default_queues(self) -> int:
        """Queues of a new topic."""

    def is_on_every_broker(self, topic: str) -> bool:
        """Whether no broker lacks a topic: one that joined a cluster later does."""

    def topic_queues(self, topic: str) -> TopicQueues | None:
        """Return the queues of a topic as each broker has them, None when there is no such topic."""

    def create_topic(self, name: str, settings: TopicSettings) -> bool:
        """Create or change a topic, and wait until it can be used; return whether it is new."""

    def delete_topic(self, name: str) -> None:
        """Delete a topic, over TCP on its brokers and at every name server.

        Raises:
            TopicNotFound: there is none of this name.
        """

    def create_group(self, name: str) -> None:
        """Create a group on every broker; harmless if it exists."""

    def delete_group(self, group: str) -> None:
        """Forget a group and its offsets."""

    def members(self, group: str) -> list[str]:
        """Return the client ids of a group, sorted; [] when it has no members."""


class ResetStep(NamedTuple):
    """The reset of one queue; `now` is -1 when the group never committed there."""

    queue_id: int
    now: int
    new: int

    @property
    def again(self) -> int:
        """Messages that will be delivered again."""
        return max(0, self.now - self.new)

    @property
    def skipped(self) -> int:
        """Messages that will not be delivered."""
        return max(0, self.new - max(0, self.now))


class Figures(Changes, Protocol):
    """The same as a connection reaches it."""

    @property
    def is_asked(self) -> bool:
        """Whether figures are asked of brokers, so that a look may wait; else they are read from memory."""

    @property
    def place(self) -> str:
        """Return where they are, as in 'on broker "orders"', for the words of errors."""

    @property
    def queues(self) -> Queues:
        """Return the topics and queues of the place."""

    def move(self, group: str, topic: str, wanted: Mapping[int, int], *, dry_run: bool) -> list[ResetStep]:
        """Let a group go on at {queue id: offset} of a topic, or say what that would do.

        Raises:
            ConsumeError: a member reads the topic now.
        """

    def status(self) -> dict[str, Any]:
        """Return what the broker says about itself, or every broker of a cluster by name."""

    def health(self) -> Health:
        """Look whether the broker or cluster is well."""
