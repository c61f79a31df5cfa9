"""Reaching the broker a call is about: its figures and changes on this host or over TCP, and what only a host has."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from typing import TYPE_CHECKING

from shmq.shm.discovery import find_place
from shmq.tools.command import Call, confirmed

if TYPE_CHECKING:
    from shmq.client.wire_shm.control import ControlClient
    from shmq.tools.broker.view import BrokerView


@contextmanager
def open_view(call: Call) -> Iterator[BrokerView]:
    """Look at the broker, or change it, for the length of a with block.

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

        with open_memory(call.url, call.timeout) as memory:
            yield memory


def local_control_of(call: Call, what: str) -> AbstractContextManager[ControlClient]:
    """Connect to the control plane of a broker of this host, which tells what RocketMQ does not.

    Raises:
        UsageError: the broker is reached over TCP.
        BrokerNotRunning: no process listens there.
        PermissionDenied: the socket is not for us.
    """
    from shmq.tools.broker.memory import connect_control

    call.refuse_remote(f"RocketMQ does not tell {what}", hint="on the host of a shmq broker")
    return closing(connect_control(find_place(call.url), call.timeout))


def deleted(call: Call, what: str, delete: Callable[[BrokerView], None], *, dry_run: bool, yes: bool) -> bool:
    """Let the broker delete something if the caller has said yes; tell what is or would be deleted.

    Raises:
        UsageError: neither --yes nor --dry-run was given.
    """
    if dry_run or not yes:
        call.terminal.say(f"would delete {what}")
    if not confirmed(call, yes=yes, dry_run=dry_run):
        return False
    with open_view(call) as view:
        delete(view)
    call.terminal.say(f"deleted {what}")
    return True
