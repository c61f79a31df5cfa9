"""Reaching the broker a call is about: to look at it, to ask or change it, or to act as one of its members.

    open_view    its figures: this host's memory, or a cluster over TCP
    control_of   what changes it: its control plane, or the brokers of a cluster. Takes no client slot, so that looking
                 changes nothing in the broker
    session_of   a client slot of its own, which may own queues as a member of a group does

The client's half of the control plane is imported when it is first used: it costs as much as everything else that
`shmq topic list` needs, and that needs no broker.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING

from shmq.errors import UsageError
from shmq.protocol.codes import Role
from shmq.shm.discovery import find_place
from shmq.tools.command import Call, confirmed

if TYPE_CHECKING:
    from shmq.client.administration.queue_change import TopicSettings
    from shmq.client.administration.remote_figures import RemoteFigures
    from shmq.client.local_session import LocalSession
    from shmq.client.wire_shm.control import ControlClient
    from shmq.tools.broker.view import BrokerView

    Control = ControlClient | RemoteFigures


@contextmanager
def open_view(call: Call) -> Iterator[BrokerView]:
    """Look at the broker for the length of a with block.

    Raises:
        BrokerNotRunning: there is no broker, and nothing left of one; or none answers over TCP.
        PermissionDenied, VersionMismatch, ForeignNamespace: its segments are not for us.
    """
    if call.is_remote:
        from shmq.tools.broker.cluster import Cluster

        with call.connect() as connection:
            yield Cluster(connection)
    else:
        from shmq.tools.broker.memory import open_memory

        with open_memory(call.url) as memory:
            yield memory


@contextmanager
def control_of(call: Call) -> Iterator[Control]:
    """Connect to what changes topics and groups, for the length of a with block.

    Raises:
        BrokerNotRunning: no process listens there.
        PermissionDenied: the socket is not for us.
    """
    if call.is_remote:
        from shmq.tools.broker.cluster import figures_of_cluster

        with call.connect() as connection:
            yield figures_of_cluster(connection)
    else:
        with _control_plane(call) as client:
            yield client


@contextmanager
def _control_plane(call: Call) -> Iterator[ControlClient]:
    from shmq.client.client_id import new_client_id
    from shmq.client.wire_shm.control import ControlClient

    place, timeout = find_place(call.url), _timeout(call)
    client = ControlClient.connect(place, client_id=new_client_id(), role=Role.NONE, timeout=timeout)
    try:
        yield client
    finally:
        client.close()


def put_topic(control: Control, name: str, settings: TopicSettings) -> None:
    """Let the broker, or every broker of a cluster, create or change a topic."""
    from shmq.client.wire_shm.control import ControlClient

    if isinstance(control, ControlClient):
        change, perm, kind, flush = settings.queues, settings.perm, settings.kind, settings.flush
        control.create_topic(
            name, queues=change.write_queues, read_queues=change.read_queues, perm=perm, kind=kind, flush=flush
        )
    else:
        control.create_topic(name, settings)


def is_on_every_broker(control: Control, topic: str) -> bool:
    """Whether none of the brokers lacks a topic that exists; a broker of this host is alone."""
    from shmq.client.wire_shm.control import ControlClient

    return isinstance(control, ControlClient) or control.is_on_every_broker(topic)


def local_control_of(call: Call, what: str) -> AbstractContextManager[ControlClient]:
    """Connect to the control plane of a broker of this host, which tells what RocketMQ does not. Raises as above."""
    if call.is_remote:
        raise UsageError(f"RocketMQ does not tell {what}", hint="on the host of a shmq broker")
    return _control_plane(call)


def deleted(call: Call, what: str, delete: Callable[[Control], None], *, dry_run: bool, yes: bool) -> bool:
    """Let the broker delete something if the caller has said yes; tell what is or would be deleted.

    Raises:
        UsageError: neither --yes nor --dry-run was given.
    """
    if dry_run or not yes:
        call.terminal.say(f"would delete {what}")
    if not confirmed(call, yes=yes, dry_run=dry_run):
        return False
    with control_of(call) as control:
        delete(control)
    call.terminal.say(f"deleted {what}")
    return True


def member_names(call: Call, group: str) -> list[str]:
    """Return the client ids of a group, as the broker or the brokers of a cluster know them. Raises as `control_of`."""
    with control_of(call) as control:
        return control.members(group)


def session_of(call: Call) -> LocalSession:
    """Attach to the broker, with a client slot that may own queues; the caller closes it.

    Raises:
        BrokerNotRunning: no process listens there.
        PermissionDenied: the socket or the segments are not for us.
    """
    from shmq.client.client_id import new_client_id
    from shmq.client.local_session import LocalSession

    return LocalSession(find_place(call.url), client_id=new_client_id(), timeout=_timeout(call))


def _timeout(call: Call) -> float:
    from shmq.client import options

    return options.CONNECT_TIMEOUT if call.timeout is None else call.timeout
