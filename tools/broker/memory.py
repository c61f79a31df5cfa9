"""A broker of this host as its shared memory shows it: topics, queues, groups, progress.

It needs no daemon, socket or lock, so it works while the broker is busy, stopped in a debugger or dead. The segments
are mapped read-only, and `shmq.figures.mapped` reads them.

For a change, and for the names of members, the control plane is connected to, which takes no client slot: looking
changes nothing in the broker. Its code is imported then, as it costs as much as everything else that `shmq topic list`
needs. Only offsets are moved with a slot, as they are what members own.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from typing import TYPE_CHECKING, Any

from shmq.client.administration.local_figures import HostFigures, leader_figures, write_offsets
from shmq.client.position import Position, start_offset
from shmq.client.wire import poll_whole
from shmq.errors import PermissionDenied, SegmentError
from shmq.figures.model import QueueInfo, TopicInfo
from shmq.protocol.codes import Role
from shmq.protocol.roster import popped_messages
from shmq.shm.core import Reader, Store
from shmq.shm.discovery import find_place, none_runs
from shmq.shm.instance import Instance, read_instance
from shmq.shm.liveness import is_alive
from shmq.shm.log_reach import hold_log
from shmq.shm.place import Place
from shmq.shm.segment import open_store
from shmq.tools.broker.view import BrokerView, being_read, topic_not_found

if TYPE_CHECKING:
    from shmq.client.wire_shm.control import ControlClient


class Memory(HostFigures, BrokerView):
    """The segments of one broker, mapped for reading, as a `BrokerView`. Made by `open_memory`."""

    def __init__(self, place: Place, instance: Instance, store: Store, timeout: float | None, stack: ExitStack) -> None:
        super().__init__(
            lambda: store, lambda: popped_messages(place.roster_path, instance.generation), self._control_plane
        )
        self.place = place
        self.instance = instance
        self.store = store
        self._timeout = timeout
        self._stack = stack
        self._connected: ControlClient | None = None

    @property
    def broker_name(self) -> str:
        return self.instance.broker_name

    def _control_plane(self) -> ControlClient:
        if self._connected is None:
            self._connected = self._stack.enter_context(closing(connect_control(self.place, self._timeout)))
        return self._connected

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

    def subscribers(self, group: str) -> tuple[list[dict[str, Any]], Mapping[str, Any] | None]:
        status = self._control_plane().status()
        pids = {entry["clientId"]: entry["pid"] for entry in status["connections"]}
        told = status["consumerGroups"].get(group)
        members = [
            {
                "client": client_id,
                "language": member["language"].lower(),
                "transport": member["transport"],
                "pid": pids.get(client_id) or None,
                "version": str(member["version"]),
                "subscription": member["subscription"],
            }
            for client_id, member in sorted(told["members"].items() if told else ())
        ]
        return members, told

    def readers(self, group: str, queues: Collection[tuple[str, int]]) -> str:
        rows = (row for row in self.progress(group).get(group, ()) if (row.topic, row.queue_id) in queues)
        pids = sorted({row.owner_pid for row in rows if row.owner_pid is not None})
        return f"pid {', '.join(map(str, pids))}" if pids else ""

    def commit(self, group: str, moves: Sequence[tuple[str, int, int]]) -> None:
        from shmq.client.client_id import new_client_id
        from shmq.client.local_session import LocalSession

        timeout = connect_timeout(self._timeout)
        with closing(LocalSession(self.place, client_id=new_client_id(), timeout=timeout)) as session:
            topics = dict.fromkeys(topic for topic, _, _ in moves)
            if (there := leader_figures(session.leader)) is not None:
                if members := there.members(group):
                    raise being_read(group, ", ".join(members[:5]))
                for name in topics:
                    there.queues.commit(group, name, {queue: offset for topic, queue, offset in moves if topic == name})
                return
            slots = {topic: session.queues.offset_slots(group, topic) for topic in topics}
            wanted = [(slots[topic][queue_id], offset) for topic, queue_id, offset in moves]
            write_offsets(session.wire.store, wanted, lambda owner: being_read(group, f"client slot {owner}"))


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


def connect_control(place: Place, timeout: float | None) -> ControlClient:
    """Connect to the control plane of a broker; the caller closes it.

    Raises:
        BrokerNotRunning: no process listens there.
        PermissionDenied: the socket is not for us.
    """
    from shmq.client.client_id import new_client_id
    from shmq.client.wire_shm.control import ControlClient

    seconds = connect_timeout(timeout)
    return ControlClient.connect(place, client_id=new_client_id(), role=Role.NONE, timeout=seconds)


def connect_timeout(timeout: float | None) -> float:
    """Return how long to wait for a broker, in seconds; None is as long as a connection does."""
    from shmq.client import options

    return options.CONNECT_TIMEOUT if timeout is None else timeout


@contextmanager
def open_memory(url: str | None, timeout: float | None = None) -> Iterator[Memory]:
    """Map the broker's segments for reading, for the length of a with block.

    Args:
        timeout: how long a request to its control plane may take, in seconds.

    Raises:
        BrokerNotRunning: there is no broker, and nothing left of one.
        PermissionDenied, VersionMismatch, ForeignNamespace: the segments are not for us.
    """
    place, instance = find_instance(url)
    try:
        store = open_store(instance, writable=False)
    except SegmentError as error:
        if is_alive(instance.processes.get("supervisor")):
            raise
        raise none_runs(place) from error
    with closing(store), ExitStack() as stack:
        hold_log(instance, store)
        yield Memory(place, instance, store, timeout, stack)
