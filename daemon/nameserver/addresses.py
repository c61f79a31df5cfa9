"""Chooses the address of a broker that a client is given, and finds where a request comes from.

A route hands out the host that the client reached: the broker cannot know which of its addresses a client can use, and
the client has just shown one. So the embedded broker registers an address without a host. `--advertise` is for what
stands in between.
"""

from shmq.addresses import Address, is_loopback_address
from shmq.daemon.logic.requests import Connection
from shmq.daemon.nameserver.registry import Member

_HERE = "127.0.0.1"


def reached_address(member: Member, connection: Connection) -> str:
    """Return host:port of a member for this client."""
    return _reached(member.address, connection)


def reached_ha_address(member: Member, connection: Connection) -> str:
    """Return host:port where a slave gets a member's log; empty where there is none."""
    return _reached(member.ha_address, connection)


def _reached(address: str, connection: Connection) -> str:
    """Our own broker that advertises no host is where the client has reached us."""
    if not address.startswith(":"):
        return address
    host = connection.local.host if connection.local and connection.local.host else _HERE
    return str(Address(host, int(address[1:])))


def peer_host(connection: Connection) -> str:
    """Return the host a request comes from; empty for a process on the control socket."""
    return connection.remote.host if connection.remote else ""


def is_this_host(host: str) -> bool:
    """Say whether a peer is a process of this host."""
    return not host or is_loopback_address(host)
