"""A cluster that is reached over TCP, seen and changed through its brokers.

`Cluster` is a `BrokerView`: each figure is asked of the brokers when it is needed, through the public connection and
its administration.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from shmq.client.administration.queue_change import TopicQueues
from shmq.client.administration.remote_figures import RemoteFigures
from shmq.client.position import Position
from shmq.client.wire import QueueSlot
from shmq.tools.broker.view import being_read, topic_not_found

if TYPE_CHECKING:
    import shmq
    from shmq.figures.model import QueueInfo, QueueLag, TopicInfo


def figures_of_cluster(connection: shmq.Connection) -> RemoteFigures:
    """Return what administration knows over a remote connection."""
    figures = connection._figures()
    assert isinstance(figures, RemoteFigures), "a cluster is reached by a remote connection"
    return figures


class Cluster:
    """A cluster as a `BrokerView`."""

    def __init__(self, connection: shmq.Connection) -> None:
        self._connection = connection
        self._figures = figures_of_cluster(connection)

    @property
    def broker_name(self) -> str:
        return self._connection.broker_name

    def topics(self) -> list[TopicInfo]:
        return self._figures.topics()

    def topic(self, name: str) -> TopicInfo:
        for topic in self._figures.topics([name]):
            return topic
        raise topic_not_found(name, self.broker_name, self.topic_names())

    def topic_names(self) -> list[str]:
        return self._figures.topic_names()

    def group_names(self) -> list[str]:
        return self._figures.group_names()

    def progress(self, group: str | None = None) -> dict[str, list[QueueLag]]:
        names = self.group_names() if group is None else [group]
        rows = {name: self._figures.lags(name) for name in names}
        return {name: found for name, found in rows.items() if found}

    def members(self, group: str) -> list[dict[str, Any]]:
        """Return the members of a group, as `shmq group show` lists them."""
        return self._figures.connections(group)

    def oldest_ms(self, topic: TopicInfo) -> int | None:
        firsts = [(topic.name, queue.queue_id, queue.offset_min) for queue in topic.queues if queue.messages]
        return min((message.store_ms for message in self._figures.queues.messages_at(firsts)), default=None)

    def topic_queues(self, topic: TopicInfo) -> TopicQueues:
        found = self._figures.topic_queues(topic.name)
        return TopicQueues(topic.read_queues, topic.write_queues, {}) if found is None else found

    def place_in(self, topic: TopicInfo, queue: QueueInfo, position: Position) -> int:
        return self._figures.queues.place_in(topic.name, QueueSlot(queue.queue_id, queue.queue_id), position)


def topic_names(mq: shmq.Connection) -> list[str]:
    """Return the names of all topics of a cluster."""
    return figures_of_cluster(mq).topic_names()


def commit_offsets(figures: RemoteFigures, group: str, moves: Sequence[tuple[str, int, int]]) -> None:
    """Write (topic, queue, offset) down for a group that has no members.

    Raises:
        ConsumeError: it has; their next commit would undo it.
    """
    members = figures.members(group)
    if members:
        raise being_read(group, ", ".join(members[:5]))
    for topic in dict.fromkeys(move[0] for move in moves):
        figures.queues.commit(group, topic, {queue: offset for name, queue, offset in moves if name == topic})
