"""The interface of administration: what can be asked of, and changed in, a broker of this host or a cluster.

    BrokerFigures     what there is (`shmq.figures.model`)
    └─ Changes        topics and groups are made, changed, deleted
       └─ Figures     and what a connection adds: its queues, offsets that are moved, health

A broker of this host: local_figures.py. A cluster, whose brokers are asked: remote_figures.py.

How far the number of queues changes is decided here, too: a queue that is no longer read hides its messages from every
group, without an error. So the number falls in RocketMQ's own order, one step at a time:

    8 queues asked down to 2        write 2, read 8      nothing new comes to queues 2 to 7; what they hold is read
    the same, when they are empty   write 2, read 2
    read queues asked down to 2     write 2, read 2      the answer says how many messages that hides

Invariants:
    1. A number of queues never hides a message; only a number of *read* queues does, and that is asked for by name.
    2. No queue is written that is not read.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from shmq.client.kinds import whole_in
from shmq.errors import UsageError
from shmq.figures.model import BrokerFigures
from shmq.message import QUEUES_MAX

if TYPE_CHECKING:
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


class TopicQueues(NamedTuple):
    """The queues of a topic as each broker has them.

    Attributes:
        stored: messages by the number a broker gives its queue; with several brokers, of all together.
    """

    read_queues: int
    write_queues: int
    stored: Mapping[int, int]


class QueueChange(NamedTuple):
    """The queues that each broker reads and writes afterwards, and the messages that matter for it.

    Attributes:
        kept: messages in queues that are read but no longer written.
        hidden: messages in queues that are no longer read.
    """

    read_queues: int
    write_queues: int
    kept: int = 0
    hidden: int = 0


class TopicSettings(NamedTuple):
    """The settings a topic is to have on every broker; the one list of what can be set.

    Attributes:
        flush: None where the broker says when a message counts, or where it stays as it is.
        changes_kind: the topic exists, and is of another kind.
    """

    queues: QueueChange
    kind: str
    perm: int
    flush: str | None = None
    changes_kind: bool = False


def queue_count(name: str, count: int | None) -> int | None:
    """Return a number of queues that a topic can have; None stays None.

    Raises:
        UsageError: no topic can have it.
    """
    if count is None:
        return None
    number = whole_in(count, 1, QUEUES_MAX)
    if number is None:
        raise UsageError(f"a topic cannot have {name}={count!r:.80}", hint=f"{name} is 1 to {QUEUES_MAX}")
    return number


def change_queues(now: TopicQueues, *, queues: int | None = None, read_queues: int | None = None) -> QueueChange:
    """Return what a wish for `queues` or `read_queues` comes to; None leaves that number to the rules above.

    Raises:
        UsageError: a number that no topic can have, or queues that would be written and not read.
    """
    queues, read_queues = queue_count("queues", queues), queue_count("read_queues", read_queues)
    write = now.write_queues if queues is None else queues
    if read_queues is not None and read_queues < write:
        raise UsageError(
            f"{read_queues} queues to read are fewer than the {write} that are written: messages would be lost to all",
            hint=f"write fewer, too: queues={read_queues}, or --queues {read_queues}",
        )
    if read_queues is not None:
        read = read_queues
    elif queues is not None:
        held = [number + 1 for number, messages in now.stored.items() if messages and number < now.read_queues]
        read = max([write, *held])
    else:
        read = now.read_queues
    kept = sum(messages for number, messages in now.stored.items() if write <= number < read)
    hidden = sum(messages for number, messages in now.stored.items() if read <= number < now.read_queues)
    return QueueChange(read, write, kept, hidden)
