"""A broker of this host as its shared memory shows it: topics, queues, groups, progress.

Nothing here needs a daemon, a socket or a lock: a list of thousands of topics is a loop over mapped memory, and it
works while the broker is busy, stopped in a debugger or dead. The segments are mapped read-only.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from shmq.client.administration.queue_change import TopicQueues
from shmq.client.position import Position, start_offset
from shmq.client.wire import poll_whole
from shmq.errors import PermissionDenied, SegmentError
from shmq.protocol.roster import popped_messages
from shmq.shm.core import Reader, Store, StoreFigures
from shmq.shm.discovery import find_place, none_runs
from shmq.shm.instance import Instance, read_instance
from shmq.shm.liveness import is_alive
from shmq.shm.log_reach import check_log_is_here
from shmq.shm.place import Place
from shmq.shm.segment import open_store
from shmq.tools.broker.view import ProgressView, QueueView, TopicView, by_group, flush_name, kind_text, topic_not_found


class Memory:
    """The segments of one broker, mapped for reading; a `BrokerView`. Made by `open_memory`."""

    def __init__(self, place: Place, instance: Instance, store: Store) -> None:
        self.place = place
        self.instance = instance
        self.store = store

    @property
    def broker_name(self) -> str:
        return self.instance.broker_name

    def topics(self) -> list[TopicView]:
        return sorted(map(self._topic, self.store.topics()), key=lambda view: view.name)

    def topic(self, name: str) -> TopicView:
        index = self.store.topic_find(name)
        if index < 0:
            raise topic_not_found(name, self.broker_name, self.topic_names())
        return self._topic(self.store.topic(index))

    def topic_names(self) -> list[str]:
        return sorted(entry["name"] for entry in self.store.topics())

    def group_names(self) -> list[str]:
        return sorted(name for _, name in self.store.groups())

    def progress(self) -> list[ProgressView]:
        groups = dict(self.store.groups())
        # By the queues of living topics: a deleted topic leaves offsets behind, also under a name that lives again.
        topics = {queue: entry["name"] for entry in self.store.topics() for queue in entry["queues"]}
        pids = {slot: pid for slot, state, pid, *_ in StoreFigures(self.store).clients() if state}
        popped = popped_messages(self.place.roster_path, self.instance.generation)
        views = []
        for _, group, queue, committed, owner, updated_ms in self.store.offsets():
            if group in groups and queue in topics:
                view = self._queue(queue)
                place = groups[group], topics[queue], view.queue_id
                views.append(
                    ProgressView(
                        group=groups[group],
                        topic=topics[queue],
                        queue=view,
                        in_flight=popped.get(place, 0),
                        committed=None if committed < 0 else committed,
                        owner_pid=pids.get(owner),
                        updated_ms=updated_ms,
                    )
                )
        return sorted(views, key=by_group)

    def oldest_ms(self, topic: TopicView) -> int | None:
        times = []
        for queue in topic.queues:
            if queue.messages:
                reader = Reader(self.store, spin_us=0)
                try:
                    reader.assign(topic.name, queue.index, queue.queue_id, queue.offset_min)
                    times += [message.store_ms for message in poll_whole(reader, 1, 0.0)]
                finally:
                    reader.close()
        return min(times, default=None)

    def topic_queues(self, topic: TopicView) -> TopicQueues:
        stored = {queue.queue_id: queue.messages for queue in topic.queues}
        return TopicQueues(topic.read_queues, topic.write_queues, stored)

    def place_in(self, topic: TopicView, queue: QueueView, position: Position) -> int:
        return start_offset(self.store, queue.index, position)

    def _topic(self, entry: dict[str, Any]) -> TopicView:
        return TopicView(
            name=entry["name"],
            kind=kind_text(entry["kind"]),
            perm=entry["perm"],
            read_queues=entry["read_queues"],
            write_queues=entry["write_queues"],
            queues=tuple(map(self._queue, entry["queues"])),
            flush=flush_name(entry["flush"]),
        )

    def _queue(self, index: int) -> QueueView:
        offset_min, offset_max, _, _, queue_id, size_bytes = self.store.queue(index)
        return QueueView(index, queue_id, offset_min, offset_max, size_bytes)


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
