"""The view of a broker for commands: its topics, queues and groups, wherever they are read from and changed.

    BrokerView   ├─ Memory    (memory.py)    the broker's segments on this host, mapped for reading
                 └─ Cluster   (cluster.py)   every broker behind a name server, asked over TCP

Both give the types of `shmq.figures.model`, as `mq.admin` does.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from shmq.client.administration.interface import Changes
from shmq.errors import ConsumeError, GroupNotFound, TopicNotFound
from shmq.message import is_system_topic, missing_group, missing_topic, nearest

if TYPE_CHECKING:
    from shmq.client.position import Position
    from shmq.figures.model import QueueInfo, QueueLag, TopicInfo

_NUMBER = re.compile(r"\d+")


class BrokerView(Changes, Protocol):
    """Topics, groups and progress of one broker or cluster."""

    @property
    def broker_name(self) -> str:
        """The broker's name; of a cluster, its name servers."""

    def topic(self, name: str) -> TopicInfo:
        """Return one topic.

        Raises:
            TopicNotFound: there is none of that name; the hint has the nearest ones.
        """
        for topic in self.topics([name]):
            return topic
        raise topic_not_found(name, self.broker_name, self.topic_names())

    def oldest_ms(self, topic: TopicInfo) -> int | None:
        """Return when the oldest message still stored was stored, or None when there is none."""

    def place_in(self, topic: TopicInfo, queue: QueueInfo, position: Position) -> int:
        """Return the offset a position means in a queue now.

        Raises:
            TopicNotFound: the topic was deleted meanwhile.
        """

    def subscribers(self, group: str) -> tuple[list[dict[str, Any]], Mapping[str, Any] | None]:
        """Return the members of a group as `shmq group show` lists them, and what the broker tells of the group.

        Brokers of a cluster tell one subscription for a whole group, so there is nothing to tell of it.

        Raises:
            ConnectError: the broker does not answer.
        """

    def readers(self, group: str, queues: Collection[tuple[str, int]]) -> str:
        """Return who reads one of these (topic, queue id) for a group, "" for none.

        Over TCP a broker does not say which member reads which queue, so any member counts.
        """

    def commit(self, group: str, moves: Sequence[tuple[str, int, int]]) -> None:
        """Write (topic, queue id, offset) down for a group: all, or none.

        Raises:
            ConsumeError: it is being read; its readers' next commit would undo it.
        """


def on_topic(view: BrokerView, topic: str) -> dict[str, list[QueueLag]]:
    """Return how far every group that has an offset in a topic is there."""
    rows = {group: [row for row in rows if row.topic == topic] for group, rows in view.progress().items()}
    return {group: found for group, found in rows.items() if found}


def being_read(group: str, readers: str) -> ConsumeError:
    """Return the error for a group whose offsets cannot be moved now."""
    return ConsumeError(
        f'group "{group}" is being read by {readers}, which would write its own progress over yours',
        hint="stop the members of the group, then run it again",
    )


def topic_not_found(name: str, broker: str, names: list[str]) -> TopicNotFound:
    """Return the error for a topic that does not exist, with what may have been meant."""
    return missing_topic(name, f'on broker "{broker}"', names, "see: shmq topic list")


def group_not_found(name: str, broker: str, names: list[str]) -> GroupNotFound:
    """Return the error for a group that does not exist, with what may have been meant."""
    return missing_group(name, f'on broker "{broker}"', names, "see: shmq group list")


def meant_topic(name: str, names: Iterable[str], *, slips_max: int = 3) -> str | None:
    """Return the topic that `name`, which does not exist, may be a slip of.

    Names that differ in their numbers only are a series, `orders-1` and `orders-2`, and no slip of a finger.
    """
    series = _NUMBER.sub("0", name)
    others = (other for other in names if not is_system_topic(other) and _NUMBER.sub("0", other) != series)
    return next(iter(nearest(name, others, count_max=1, slips_max=slips_max)), None)
