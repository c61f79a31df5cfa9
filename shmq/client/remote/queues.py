"""The queues of a cluster for any thread, by the numbers that users see; the I/O thread asks (`questions.py`)."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

from shmq.client.position import Position
from shmq.client.remote.questions import QueueQuestions
from shmq.client.wire import QueueSlot
from shmq.client.wire_tcp.wire import TcpWire
from shmq.protocol.dialect import MessageQueue
from shmq.shm.core import Message


class TcpQueues:
    """The queues of a cluster for any thread; see `shmq.client.wire.Queues`."""

    def __init__(self, wire: TcpWire, questions: QueueQuestions) -> None:
        self._wire = wire
        self._questions = questions

    is_copy = False

    def version(self, topic: str) -> int:
        """Return 0: the answer to a pull says that a topic was made again."""
        return 0

    def born(self, topic: str) -> int:
        return 0

    def is_to_come(self, topic: str) -> bool:
        return False

    def resolve(self, topic: str) -> int:
        """Ask for the route of a topic; a consumer may wait for a topic that does not exist yet."""
        wire = self._wire
        route = wire.call(wire.names.route(topic))
        return len(route.readable) if route is not None else 0

    def write_queues(self, topic: str, *, with_master: bool = False) -> list[int]:
        wire = self._wire
        route = wire.call(wire.names.writable_route(topic, timeout=wire.timeout))
        queues = route.writable if with_master else route.permitted
        return list(map(wire.numbers.number, queues))  # in the order in which every other program has them

    def read_queues(self, topic: str, *, must_exist: bool = False) -> list[QueueSlot]:
        """Return the readable queues of a topic; looking never creates one here.

        Raises:
            TopicNotFound: there is no such topic.
        """
        wire = self._wire
        route = wire.call(wire.names.readable_route(topic, timeout=wire.timeout, may_be_made=not must_exist))
        return sorted(map(wire.slot, route.readable))

    def bounds(self, topic: str, queue: QueueSlot) -> tuple[int, int]:
        return self._wire.call(self._questions.bounds(self.message_queue(topic, queue.queue_index)))

    def place_in(self, topic: str, queue: QueueSlot, position: Position) -> int:
        return self._wire.call(self._questions.place_in(self.message_queue(topic, queue.queue_index), position))

    def message_queue(self, topic: str, queue_id: int) -> MessageQueue:
        return self._wire.numbers.queue(topic, queue_id)

    def queue_id(self, queue: MessageQueue) -> int:
        return self._wire.numbers.number(queue)

    def messages_at(self, places: Sequence[tuple[str, int, int]]) -> list[Message]:
        named = [(self.message_queue(topic, number), offset) for topic, number, offset in places]
        return self._wire.call(self._questions.messages_at(named))

    def committed(self, group: str, topic: str) -> dict[int, int]:
        return self._wire.call(self._committed(group, topic))

    async def _committed(self, group: str, topic: str) -> dict[int, int]:
        wire = self._wire
        route = await wire.names.route(topic)
        if route is None:
            return {}
        found = await self._questions.committed_exactly(group, route.readable)
        return {wire.numbers.number(queue): offset for queue, offset in found.items()}

    def commit(self, group: str, topic: str, offsets: Mapping[int, int]) -> None:
        self._wire.call(self._commit(group, {self.message_queue(topic, number): at for number, at in offsets.items()}))

    async def _commit(self, group: str, offsets: Mapping[MessageQueue, int]) -> None:
        await asyncio.gather(*(self._questions.commit_made(group, queue, at) for queue, at in offsets.items()))
