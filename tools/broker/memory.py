"""A broker of this host as its shared memory shows it: topics, queues, groups, progress.

It needs no daemon, socket or lock, so it works while the broker is busy, stopped in a debugger or dead. The segments
are mapped read-only, and `shmq.figures.mapped` reads them.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from shmq.client.administration.queue_change import TopicQueues
from shmq.client.position import Position, start_offset
from shmq.client.wire import poll_whole
from shmq.errors import PermissionDenied, SegmentError
from shmq.figures.mapped import MappedFigures
from shmq.figures.model import QueueInfo, QueueLag, TopicInfo
from shmq.protocol.roster import popped_messages
from shmq.shm.core import Reader, Store
from shmq.shm.discovery import find_place, none_runs
from shmq.shm.instance import Instance, read_instance
from shmq.shm.liveness import is_alive
from shmq.shm.log_reach import check_log_is_here
from shmq.shm.place import Place
from shmq.shm.segment import open_store
from shmq.tools.broker.view import topic_not_found


class Memory:
    """The segments of one broker, mapped for reading; a `BrokerView`. Made by `open_memory`."""

    def __init__(self, place: Place, instance: Instance, store: Store) -> None:
        self.place = place
        self.instance = instance
        self.store = store
        self._figures = MappedFigures(store, lambda: popped_messages(place.roster_path, instance.generation))

    @property
    def broker_name(self) -> str:
        return self.instance.broker_name

    def topics(self) -> list[TopicInfo]:
        return self._figures.topics()

    def topic(self, name: str) -> TopicInfo:
        topic = self._figures.topic(name)
        if topic is None:
            raise topic_not_found(name, self.broker_name, self.topic_names())
        return topic

    def topic_names(self) -> list[str]:
        return self._figures.topic_names()

    def group_names(self) -> list[str]:
        return self._figures.group_names()

    def progress(self, group: str | None = None) -> dict[str, list[QueueLag]]:
        return self._figures.progress(group)

    def oldest_ms(self, topic: TopicInfo) -> int | None:
        times = []
        for queue in topic.queues:
            if queue.messages:
                reader = Reader(self.store, spin_us=0)
                try:
                    reader.assign(topic.name, self.queue_index(topic, queue), queue.queue_id, queue.offset_min)
                    times += [message.store_ms for message in poll_whole(reader, 1, 0.0)]
                finally:
                    reader.close()
        return min(times, default=None)

    def topic_queues(self, topic: TopicInfo) -> TopicQueues:
        stored = {queue.queue_id: queue.messages for queue in topic.queues}
        return TopicQueues(topic.read_queues, topic.write_queues, stored)

    def place_in(self, topic: TopicInfo, queue: QueueInfo, position: Position) -> int:
        return start_offset(self.store, self.queue_index(topic, queue), position)

    def queue_index(self, topic: TopicInfo, queue: QueueInfo) -> int:
        """Return the number of a queue in the broker's tables.

        Raises:
            TopicNotFound: the topic was deleted meanwhile.
        """
        number = self.store.topic_find(topic.name)
        index = self.store.queue_index(number, queue.queue_id) if number >= 0 else -1
        if index < 0:
            raise topic_not_found(topic.name, self.broker_name, self.topic_names())
        return index


def find_instance(url: str | None) -> tuple[Place, Instance]:
    """Return where the broker is and what it left there about itself; it may be dead.

    Raises:
        BrokerNotRunning: it left nothing.
        PermissionDenied: its runtime directory is closed to us.
    """
    place = find_place(url)
    try:
        instance = read_instance(place.instance_path)
    except PermissionError as error:
        raise PermissionDenied(
            f"{place.instance_path} may not be read by this user", hint="run as the broker's user or join its group"
        ) from error
    except NotADirectoryError:
        instance = None
    if instance is None:
        raise none_runs(place)
    return place, instance


@contextmanager
def open_memory(url: str | None) -> Iterator[Memory]:
    """Map the broker's segments for reading, for the length of a with block.

    Raises:
        BrokerNotRunning: there is no broker, and nothing left of one.
        PermissionDenied, VersionMismatch, ForeignNamespace: the segments are not for us.
    """
    place, instance = find_instance(url)
    try:
        check_log_is_here(instance)
        store = open_store(instance, writable=False)
    except SegmentError as error:
        if is_alive(instance.processes.get("supervisor")):
            raise
        raise none_runs(place) from error
    try:
        yield Memory(place, instance, store)
    finally:
        store.close()
