"""A read-only look into a broker's segments: topics, queues, groups, progress, attached processes.

It asks nobody: no socket, no daemon, no lock, so a list of thousands of topics costs a loop over memory, and it works
while the broker is busy, stopped in a debugger or dead. It changes nothing; the public API does that.

Every figure is copied out once. Figures of one call may be a few microseconds apart.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from shmq.client.position import Position
from shmq.client.wire_shm.share import start_offset
from shmq.errors import BrokerNotRunning, PermissionDenied, RemoteError, SegmentError, TopicNotFound
from shmq.message import DEAD_LETTER_PREFIX, RETRY_PREFIX, is_broker_topic, nearest
from shmq.progress import Backlog
from shmq.protocol.codes import Response, TopicKind
from shmq.protocol.roster import popped_messages
from shmq.shm.core import READ_ONLY_REASONS, Reader, Store
from shmq.shm.instance import Instance, read_instance
from shmq.shm.liveness import is_alive
from shmq.shm.log_reach import check_log_is_here
from shmq.shm.place import Place, place_of
from shmq.shm.segment import open_store
from shmq.tools.command import is_remote_url

KINDS = tuple(kind.name.lower() for kind in TopicKind)
ROLES = ("system", "retry", "dlq")


@dataclass(frozen=True)
class QueueView:
    """One queue: what of it is stored, and where."""

    index: int
    queue_id: int
    offset_min: int
    offset_max: int
    size_bytes: int

    @property
    def messages(self) -> int:
        """Messages that can still be read."""
        return max(0, self.offset_max - self.offset_min)


@dataclass(frozen=True)
class TopicView:
    """One topic and its queues."""

    index: int
    name: str
    kind: str
    perm: int
    read_queues: int
    write_queues: int
    queues: tuple[QueueView, ...]

    @property
    def messages(self) -> int:
        """Messages that can still be read, in all queues."""
        return sum(queue.messages for queue in self.queues)

    @property
    def size_bytes(self) -> int:
        """Bytes of all records ever stored in the queues."""
        return sum(queue.size_bytes for queue in self.queues)

    @property
    def is_system(self) -> bool:
        """Whether the broker made it for itself."""
        return is_broker_topic(self.name, self.perm)

    @property
    def role(self) -> str:
        """What it is for: one of `ROLES`, or its kind when applications send to it."""
        if self.is_system:
            return "system"
        if self.name.startswith(RETRY_PREFIX):
            return "retry"
        return "dlq" if self.name.startswith(DEAD_LETTER_PREFIX) else self.kind

    @property
    def is_derived(self) -> bool:
        """Whether it belongs to a group: redeliveries or dead letters."""
        return self.name.startswith((RETRY_PREFIX, DEAD_LETTER_PREFIX))


@dataclass(frozen=True)
class ProgressView:
    """How far one group is in one queue."""

    group: str
    topic: str
    queue: QueueView
    committed: int | None  # next queue offset to deliver; None when never set
    owner_pid: int | None  # process that reads it now
    updated_ms: int
    in_flight: int = 0  # popped and not settled: the group's offset is behind them already

    @property
    def lag(self) -> int:
        """Messages the group has not consumed; all that are stored when it never set an offset."""
        committed = -1 if self.committed is None else self.committed
        return Backlog(committed, self.queue.offset_min, self.queue.offset_max, self.in_flight).lag


@dataclass(frozen=True)
class ClientView:
    """One attached process."""

    slot: int
    pid: int
    role: str
    received: int
    sent: int


_ROLES = {1: "consumer", 2: "producer", 3: "both"}


class Memory:
    """The segments of one broker, mapped for reading. Made by `open_memory`."""

    def __init__(self, place: Place, instance: Instance, store: Store) -> None:
        self.place = place
        self.instance = instance
        self.store = store

    @property
    def broker_name(self) -> str:
        """The broker's name."""
        return self.instance.broker_name

    @property
    def served(self) -> bool:
        """Whether the broker's supervisor lives."""
        return is_alive(self.instance.processes.get("supervisor"))

    @property
    def read_only_reason(self) -> str:
        """Why appends are refused; empty when they are not."""
        reason = self.store.read_only
        return READ_ONLY_REASONS.get(reason, f"reason {reason}") if reason else ""

    def topics(self) -> list[TopicView]:
        """Return every topic, by name."""
        return sorted((self._view(entry, entry["index"]) for entry in self.store.topics()), key=lambda view: view.name)

    def topic(self, name: str) -> TopicView:
        """Return one topic.

        Raises:
            TopicNotFound: there is none of that name; the hint has the nearest ones.
        """
        index = self.store.topic_find(name)
        if index < 0:
            raise topic_not_found(name, self.instance.broker_name, self.topic_names())
        return self._view(self.store.topic(index), index)

    def topic_names(self) -> list[str]:
        """Return the names of all topics."""
        return sorted(entry["name"] for entry in self.store.topics())

    def group_names(self) -> list[str]:
        """Return the names of all groups."""
        return sorted(name for _, name in self.store.groups())

    def progress(self) -> list[ProgressView]:
        """Return how far every group is in every queue it has an offset for."""
        groups = dict(self.store.groups())
        # By the queues of living topics: a deleted topic leaves offsets behind, also under a name that lives again.
        topics = {queue: entry["name"] for entry in self.store.topics() for queue in entry["queues"]}
        pids = {client.slot: client.pid for client in self.clients()}
        popped = popped_messages(self.place.roster_path, self.instance.generation)
        views = []
        for _, group, queue, committed, owner, updated_ms in self.store.offsets():
            if group in groups and queue in topics:
                view = self._queue(queue)
                views.append(
                    ProgressView(
                        group=groups[group],
                        topic=topics[queue],
                        queue=view,
                        in_flight=popped.get((groups[group], topics[queue], view.queue_id), 0),
                        committed=None if committed < 0 else committed,
                        owner_pid=pids.get(owner),
                        updated_ms=updated_ms,
                    )
                )
        return sorted(views, key=lambda view: (view.group, view.topic, view.queue.queue_id))

    def clients(self) -> list[ClientView]:
        """Return the attached processes."""
        return [
            ClientView(slot, pid, _ROLES.get(role, "unknown"), received, sent)
            for slot, state, pid, _, role, received, sent, *_ in self.store.clients()
            if state
        ]

    def oldest_ms(self, topic: TopicView) -> int | None:
        """Return when the oldest message still stored was stored, or None when there is none."""
        times = []
        for queue in topic.queues:
            if queue.messages:
                reader = Reader(self.store, spin_us=0)
                try:
                    reader.assign(topic.name, queue.index, queue.queue_id, queue.offset_min)
                    times += [message.store_ms for message in reader.poll(1, 0.0)]
                finally:
                    reader.close()
        return min(times, default=None)

    def place_in(self, topic: TopicView, queue: QueueView, position: Position) -> int:
        """Return the offset a position means in a queue now."""
        return start_offset(self.store, queue.index, position)

    def _view(self, entry: dict[str, Any], index: int) -> TopicView:
        kind = entry["kind"]
        return TopicView(
            index=index,
            name=entry["name"],
            kind=KINDS[kind] if kind < len(KINDS) else f"kind {kind}",
            perm=entry["perm"],
            read_queues=entry["read_queues"],
            write_queues=entry["write_queues"],
            queues=tuple(self._queue(queue) for queue in entry["queues"]),
        )

    def _queue(self, index: int) -> QueueView:
        offset_min, offset_max, _, _, queue_id, size_bytes = self.store.queue(index)
        return QueueView(index, queue_id, offset_min, offset_max, size_bytes)


def topic_not_found(name: str, broker: str, names: list[str]) -> TopicNotFound:
    """Return the error for a topic that does not exist, with what may have been meant."""
    near = nearest(name, names, count_max=1)
    create = f"create it with: shmq topic create {name}"
    return TopicNotFound(
        f'topic "{name}" does not exist on broker "{broker}"',
        hint=f'did you mean "{near[0]}"? {create}' if near else create,
    )


def group_not_found(name: str, broker: str, names: list[str]) -> RemoteError:
    """Return the error for a group that does not exist, with what may have been meant."""
    near = nearest(name, names, count_max=1)
    return RemoteError(
        Response.SUBSCRIPTION_GROUP_NOT_EXIST,
        f'group "{name}" does not exist on broker "{broker}"',
        hint=f'did you mean "{near[0]}"?' if near else "see: shmq group list",
    )


def find_instance(url: str | None) -> tuple[Place, Instance]:
    """Return where the broker is and what it left there about itself; it may be dead.

    Raises:
        BrokerNotRunning: it left nothing.
        PermissionDenied: its runtime directory is closed to us.
    """
    place = place_of(url)
    try:
        instance = read_instance(place.instance_path)
    except PermissionError as error:
        raise PermissionDenied(
            f"{place.instance_path} may not be read by this user", hint="run as the broker's user or join its group"
        ) from error
    except NotADirectoryError:
        instance = None
    if instance is None:
        raise not_running(place)
    return place, instance


def not_running(place: Place) -> BrokerNotRunning:
    """Return the error for a place where no broker runs."""
    name = "" if place.broker_name == "default" else f" --name {place.broker_name}"
    return BrokerNotRunning(
        f'no broker "{place.broker_name}" runs on this host ({place.runtime_dir} has none)',
        hint=f"start it with: shmq serve{name}",
    )


@contextmanager
def open_memory(url: str | None) -> Iterator[Memory]:
    """Map the broker's segments for reading, for the length of a with block; connect to a cluster instead.

    Raises:
        BrokerNotRunning: there is no broker, and nothing left of one.
        PermissionDenied, VersionMismatch, ForeignNamespace: the segments are not for us.
    """
    if is_remote_url(url):
        from shmq.tools.broker.cluster import open_cluster

        with open_cluster(url) as cluster:
            yield cluster
        return
    place, instance = find_instance(url)
    try:
        check_log_is_here(instance)
        store = open_store(instance, writable=False)
    except SegmentError as error:
        if is_alive(instance.processes.get("supervisor")):
            raise
        raise not_running(place) from error
    try:
        yield Memory(place, instance, store)
    finally:
        store.close()
