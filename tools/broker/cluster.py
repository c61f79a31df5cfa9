"""A cluster that is reached over TCP, seen and changed through its brokers.

`Cluster` is a `BrokerView`: each figure is asked of the brokers when it is needed, through the public connection and
its administration. `ClusterControl` has the methods of the control plane that commands call.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from shmq.client.administration.remote import DEFAULT_QUEUES, RemoteGroup
from shmq.client.administration.service import AdminService
from shmq.client.position import Position
from shmq.client.wire import QueueSlot
from shmq.client.wire_tcp.session import RemoteSession
from shmq.errors import RemoteError
from shmq.protocol.codes import Request
from shmq.shm.core import records_read
from shmq.tools.broker.view import ProgressView, QueueView, TopicView, being_read, by_group, topic_not_found

if TYPE_CHECKING:
    import shmq
    from shmq.client.administration.admin import TopicInfo
    from shmq.protocol.message_id import MessagePlace
    from shmq.shm.core import Message


def session_of_cluster(connection: shmq.Connection) -> RemoteSession:
    """Return the session of a remote connection."""
    session = connection._live()
    assert isinstance(session, RemoteSession), "a cluster is reached by a remote connection"
    return session


class Cluster:
    """A cluster as a `BrokerView`."""

    def __init__(self, connection: shmq.Connection) -> None:
        self._connection = connection
        self._session = session_of_cluster(connection)

    @property
    def broker_name(self) -> str:
        return self._connection.broker_name

    def topics(self) -> list[TopicView]:
        return [_topic_view(info) for _, info in sorted(self._connection.admin.topics.items())]

    def topic(self, name: str) -> TopicView:
        for view in self.topics():
            if view.name == name:
                return view
        raise topic_not_found(name, self.broker_name, self.topic_names())

    def topic_names(self) -> list[str]:
        return topic_names(self._connection)

    def group_names(self) -> list[str]:
        return list(self._connection.admin.groups)

    def progress(self) -> list[ProgressView]:
        views = []
        for name in self.group_names():
            for lag in RemoteGroup(self._connection, name).offsets:
                queue = QueueView(lag.queue_id, lag.queue_id, lag.offset_min, lag.offset_max, 0)
                views.append(ProgressView(name, lag.topic, queue, lag.committed, None, lag.updated_ms, lag.in_flight))
        return sorted(views, key=by_group)

    def members(self, group: str) -> list[dict[str, Any]]:
        """Return the members of a group, as `shmq group show` lists them."""
        found: list[dict[str, Any]] = self._session.call(AdminService(self._session).connections(group))
        return found

    def oldest_ms(self, topic: TopicView) -> int | None:
        numbers = self._session.numbers
        firsts = {numbers.queue(topic.name, queue.index): queue.offset_min for queue in topic.queues if queue.messages}
        return min(self._session.call(AdminService(self._session).stored_ms(firsts)), default=None)

    def place_in(self, topic: TopicView, queue: QueueView, position: Position) -> int:
        return self._session.place_in(topic.name, QueueSlot(queue.queue_id, queue.index), position)


def _topic_view(info: TopicInfo) -> TopicView:
    queues = tuple(
        QueueView(queue.queue_id, queue.queue_id, queue.offset_min, queue.offset_max, 0) for queue in info.queues
    )
    return TopicView(info.name, info.kind, info.perm, info.read_queues, info.write_queues, queues)


class ClusterControl:
    """What commands change, asked of the brokers."""

    attachment = SimpleNamespace(default_queues=DEFAULT_QUEUES)

    def __init__(self, connection: shmq.Connection) -> None:
        self._session = session_of_cluster(connection)
        self._service = AdminService(self._session)

    def create_topic(self, name: str, *, queues: int, perm: int = 6, kind: str = "normal") -> None:
        """Create or change a topic on every broker."""
        self._session.call(self._service.put_topic(name, queues=queues, kind=kind, perm=perm))

    def delete_topic(self, name: str) -> None:
        """Delete a topic everywhere."""
        self._session.call(self._service.delete_topic(name))

    def create_group(self, name: str) -> None:
        """Create a group on every broker."""
        self._session.call(self._service.put_group(name))

    def delete_group(self, name: str) -> None:
        """Delete a group on every broker."""
        self._session.call(self._service.delete_group(name))


def message_at(mq: shmq.Connection, place: MessagePlace) -> Message | None:
    """Return the message at a place of a broker's log; None when no broker of the cluster has it.

    The broker the place names is asked; behind a translated address, every one.
    """
    session = session_of_cluster(mq)
    service = AdminService(session)
    masters = session.call(service.masters())
    named = {name: address for name, address in masters.items() if address == (place.host, place.port)}
    for address in (named or masters).values():
        try:
            ext = {"offset": str(place.log_position)}
            reply = session.call(service.ask(address, Request.VIEW_MESSAGE_BY_ID, ext))
        except RemoteError:  # RocketMQ answers a position without a record with its general error
            continue
        for message in records_read(reply.body):
            return message
    return None


def topic_names(mq: shmq.Connection) -> list[str]:
    """Return the names of all topics of a cluster."""
    session = session_of_cluster(mq)
    return sorted(session.call(AdminService(session).topic_configs()))


def commit_offsets(session: RemoteSession, group: str, moves: Sequence[tuple[str, int, int]]) -> None:
    """Write (topic, queue, offset) down for a group that has no members.

    Raises:
        ConsumeError: it has; their next commit would undo it.
    """
    members = session.call(AdminService(session).members(group))
    if members:
        raise being_read(group, ", ".join(members[:5]))
    for topic in dict.fromkeys(move[0] for move in moves):
        session.commit(group, topic, {queue: offset for name, queue, offset in moves if name == topic})
