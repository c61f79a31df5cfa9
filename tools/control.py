"""The control plane of the broker a call is about: what only the broker can decide or tell.

It attaches without a client slot, so looking at a broker changes nothing in it.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager

from shmq.client.control import ControlClient
from shmq.shm.place import place_of
from shmq.tools.command import Call

from shmq.protocol.codes import Role

CONTROL_TIMEOUT = 3.0


@contextmanager
def control_of(call: Call) -> Iterator[ControlClient]:
    """Connect to the broker for the length of a with block.

    Raises:
        BrokerNotRunning: nobody listens there.
        PermissionDenied: the socket is not for us.
    """
    client = ControlClient.connect(
        place_of(call.url),
        client_id=f"shmq-cli@{socket.gethostname()}@{os.getpid()}",
        role=Role.NONE,
        timeout=CONTROL_TIMEOUT if call.timeout is None else call.timeout,
    )
    try:
        yield client
    finally:
        client.close()
