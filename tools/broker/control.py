"""The control plane of the broker a call is about: what only the broker can decide or tell.

Looking is done without a client slot, so it changes nothing in the broker; a session has one, as a member of a group.

The client's half of the control plane is imported when it is first used: it costs as much as everything else that
`shmq topic list` needs, and that needs no broker.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, cast

from shmq.protocol.codes import Role
from shmq.shm.place import place_of
from shmq.tools.command import Call

if TYPE_CHECKING:
    from shmq.client.wire_shm.control import ControlClient
    from shmq.client.wire_shm.session import Session

CONTROL_TIMEOUT = 3.0


@contextmanager
def control_of(call: Call) -> Iterator[ControlClient]:
    """Connect to the broker for the length of a with block.

    Raises:
        BrokerNotRunning: nobody listens there.
        PermissionDenied: the socket is not for us.
    """
    if call.is_remote:
        from shmq.tools.broker.cluster import cluster_control

        with cluster_control(call.url) as cluster:
            yield cast("ControlClient", cluster)  # the methods that commands call have the same names
        return
    from shmq.client.client_id import new_client_id
    from shmq.client.wire_shm.control import ControlClient

    place, timeout = place_of(call.url), _timeout(call)
    client = ControlClient.connect(place, client_id=new_client_id(), role=Role.NONE, timeout=timeout)
    try:
        yield client
    finally:
        client.close()


def session_of(call: Call) -> Session:
    """Attach to the broker, with a client slot that may own queues; the caller closes it.

    Raises:
        BrokerNotRunning: nobody listens there.
        PermissionDenied: the socket or the segments are not for us.
    """
    from shmq.client.client_id import new_client_id
    from shmq.client.wire_shm.session import Session

    return Session(place_of(call.url), client_id=new_client_id(), timeout=_timeout(call))


def _timeout(call: Call) -> float:
    return CONTROL_TIMEOUT if call.timeout is None else call.timeout
