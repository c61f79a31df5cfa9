"""Takes an accepted socket to a connection: it needs a place, and may be plain or encrypted.

`Reception` enforces the connection limits, in all and for each address. What it opens is an `Arrival` until then; the
bridge cancels one that takes too long (a TLS handshake that hangs).

    control socket    a place of `connections_max`; TCP never takes one of them
    TCP               a place of `tcp_connections_max`, and one of its own address
    no place          one of `refused_connections_max`; its first request is answered with the reason

Invariant: a place that was taken is left exactly once, whatever becomes of the connection.
"""

import asyncio
import socket
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from shmq.addresses import is_loopback_address
from shmq.daemon.bridge.connection import BridgeConnection
from shmq.daemon.bridge.limits import BridgeLimits
from shmq.daemon.bridge.sockets.tls import ServerTls

_LOCAL = ""


@dataclass(frozen=True, slots=True)
class Door:
    """One listening socket, and the request codes that are unknown behind it; the caller of `listen` closes it."""

    socket: socket.socket
    refused: frozenset[int]

    @property
    def is_local(self) -> bool:
        """Whether processes of this host come in here, over the control socket."""
        return self.socket.family == socket.AF_UNIX


@dataclass(slots=True)
class Arrival:
    """A connection that is accepted and not open yet, and until when it may be so."""

    connection: BridgeConnection
    until: float
    task: asyncio.Task[None] | None = None

    @property
    def host(self) -> str | None:
        """Where it comes from; None of a local process."""
        return self.connection.remote.host if self.connection.remote else None

    def grant(self, until: float) -> None:
        """Let it take until then."""
        self.until = until

    def cancel(self) -> bool:
        """Close it; False when it is open, or has failed, already.

        Of one that is open the task is about to end. Cancelled then, uvloop closes the transport and never tells the
        protocol, which would stay, and whatever writes to it would fail.
        """
        return self.task is not None and not self.connection.is_open and self.task.cancel()


class Reception:
    """The places of one bridge."""

    def __init__(self, limits: BridgeLimits, tls: ServerTls | None) -> None:
        self._limits = limits
        self._tls = tls
        self._hosts: dict[int, str] = {}
        self._taken: Counter[str] = Counter()
        self._refused: set[int] = set()

    def take(self, connection_id: int, host: str | None) -> str:
        """Take a place for a connection, of a local process when `host` is None; return why there is none, or ""."""
        limits = self._limits
        host = _LOCAL if host is None else host
        if host == _LOCAL:
            if self._taken[_LOCAL] >= limits.connections_max:
                return f"{limits.connections_max} connections of local processes are open"
        else:
            if len(self._hosts) - self._taken[_LOCAL] >= limits.tcp_connections_max:
                return f"{limits.tcp_connections_max} TCP connections are open; {limits.more_places} allows more"
            most = limits.loopback_connections_max if is_loopback_address(host) else limits.address_connections_max
            if self._taken[host] >= most:
                return f"{most} connections of {host} are open; {limits.more_of_address} allows more"
        self._hosts[connection_id] = host
        self._taken[host] += 1
        return ""

    def is_crowded(self, host: str) -> bool:
        """Whether an address has no place left of its own; else all places are taken."""
        limits = self._limits
        most = limits.loopback_connections_max if is_loopback_address(host) else limits.address_connections_max
        return self._taken[host] >= most

    def refuse(self, connection_id: int) -> bool:
        """Take a place for a connection that is refused with the reason; False when these are taken, too."""
        if len(self._refused) >= self._limits.refused_connections_max:
            return False
        self._refused.add(connection_id)
        return True

    def leave(self, connection_id: int) -> None:
        """Free the place; harmless when it is free already."""
        self._refused.discard(connection_id)
        host = self._hosts.pop(connection_id, None)
        if host is not None:
            self._taken[host] -= 1
            if not self._taken[host]:
                del self._taken[host]

    async def open(
        self,
        accepted: socket.socket,
        protocol: Callable[[], asyncio.Protocol],
        *,
        is_local: bool,
        speaks: Callable[[], None],
    ) -> None:
        """Put a protocol on an accepted socket, behind TLS if the peer begins so; the socket is closed on failure.

        Args:
            speaks: called when the first byte is there, where it tells TLS from plain.

        Raises:
            OSError: the peer left, or does not speak what is wanted here.
        """
        loop = asyncio.get_running_loop()
        try:
            context = None
            if self._tls is not None and not is_local:
                context = await self._tls.context_for(accepted)
                speaks()
            if context is None:
                await loop.connect_accepted_socket(protocol, accepted)
            else:
                await loop.connect_accepted_socket(protocol, accepted, ssl=context)
        except BaseException:
            accepted.close()
            raise
