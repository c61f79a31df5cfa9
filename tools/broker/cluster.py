"""A cluster that is reached over TCP, seen and changed through its brokers: figures are asked for when needed."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from shmq.client.administration.remote_figures import RemoteFigures
from shmq.client.wire import QueueSlot
from shmq.tools.broker.view import BrokerView, being_read

if TYPE_CHECKING:
    import shmq
    from shmq.client.position import Position
    from shmq.figures.model import QueueInfo, TopicInfo


class Cluster(RemoteFigures, BrokerView):
    """A cluster as a `BrokerView`."""

    def __init__(self, connection: shmq.Connection) -> None:
        super().__init__(lambda: connection._remote().wire, connection._queues, connection.broker_name)
        self._name = connection.broker_name

    @property
    def broker_name(self) -> str:
        return self._name

    def oldest_ms(self, topic: TopicInfo) -> int | None:
        firsts = [(topic.name, queue.queue_id, queue.offset_min) for queue in topic.queues if queue.messages]
        return min((message.store_ms for message in self.queues.messages_at(firsts)), default=None)

    def place_in(self, topic: TopicInfo, queue: QueueInfo, position: Position) -> int:
        return self.queues.place_in(topic.name, QueueSlot(queue.queue_id, queue.queue_id), position)

    def subscribers(self, group: str) -> tuple[list[dict[str, Any]], Mapping[str, Any] | None]:
        return self.connections(group), None

    def readers(self, group: str, queues: Collection[tuple[str, int]]) -> str:
        return ", ".join(self.members(group)[:5])

    def commit(self, group: str, moves: Sequence[tuple[str, int, int]]) -> None:
        if readers := self.readers(group, ()):
            raise being_read(group, readers)
        for topic in dict.fromkeys(move[0] for move in moves):
            self.queues.commit(group, topic, {queue: offset for name, queue, offset in moves if name == topic})
