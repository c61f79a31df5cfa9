"""The view of a broker for commands: its topics, queues and groups, wherever they are read from.

    BrokerView   ├─ Memory    (memory.py)    the broker's segments on this host, mapped for reading
                 └─ Cluster   (cluster.py)   every broker behind a name server, asked over TCP

Both give the types of `shmq.figures.model`, as `mq.admin` does.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TYPE_CHECKING, Protocol

from shmq.errors import ConsumeError, GroupNotFound, TopicNotFound
from shmq.message import is_system_topic, missing_group, missing_topic, nearest

if TYPE_CHECKING:
    from shmq.client.administration.queue_change import TopicQueues
    from shmq.client.position import Position
    from shmq.figures.model import QueueInfo, QueueLag, TopicInfo

_NUMBER = re.compile(r"\d+")


class BrokerView(Protocol):
    """Topics, groups and progress of one broker or cluster."""

    @property
    def broker_name(self) -> str:
        """The broker's name; of a cluster, its name servers."""

    def topics(self) -> list[TopicInfo]:
        """Return every topic, by name."""

    def topic(self, name: str) -> TopicInfo:
        """Return one topic.

        Raises:
            TopicNotFound: there is none of that name; the hint has the nearest ones.
        """

    def topic_names(self) -> list[str]:
        """Return the names of all topics, sorted."""

    def group_names(self) -> list[str]:
        """Return the names of all groups, sorted."""

    def progress(self, group: str | None = None) -> dict[str, list[QueueLag]]:
        """Return how far groups are, by topic and queue, on every queue that they have an offset for.

        Args:
            group: only this one.
        """

    def oldest_ms(self, topic: TopicInfo) -> int | None:
        """Return when the oldest message still stored was stored, or None when there is none."""

    def topic_queues(self, topic: TopicInfo) -> TopicQueues:
        """Return the queues of a topic as each broker has them."""

    def place_in(self, topic: TopicInfo, queue: QueueInfo, position: Position) -> int:
        """Return the offset a position means in a queue now.

        Raises:
            TopicNotFound: the topic was deleted meanwhile.
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
