"""Accepts connections for a bridge: the sockets it listens at, and connections until they are open.

    listening ──accept──▶ a place (`Reception`) ──▶ arriving: TLS or plain ──▶ open: the bridge's connection
                            │ none                     │ takes too long, or leaves
                            │ a silent one makes room  ▼
                            ▼                         closed, its place is free
                          refused, or closed

A listener that runs out of descriptors or memory pauses for a tick; the kernel's backlog waits meanwhile.

Invariants:
 1. An accepted connection has a place, or one of the few where it is refused with the reason.
 2. Only a TCP connection that has shown no account, or, where none is needed, is a member of no group, makes room for
    another; the one that has been silent for longest, and before it one that has never spoken.
"""

import asyncio
import socket
from collections.abc import Callable, Iterable, Mapping

from shmq.addresses import is_loopback_address
from shmq.daemon.bridge.connection import BridgeConnection
from shmq.daemon.bridge.limits import BridgeLimits
from shmq.daemon.bridge.sockets.peer import peer_of
from shmq.daemon.bridge.sockets.reception import Arrival, Door, Reception
from shmq.daemon.bridge.sockets.security import Security
from shmq.daemon.bridge.sockets.tcp_listener import address_of, prepare_accepted

Log = Callable[..., None]


class Acceptor:
    """Accepts for one bridge, inside one event loop.

    Args:
        connect: makes a connection of the bridge; it takes what `BridgeConnection` takes behind its host.
        connections: those of the bridge that are open, by their ids; only read.
        now: seconds on a clock that never goes back.
    """

    def __init__(
        self,
        limits: BridgeLimits,
        security: Security,
        log: Log,
        now: Callable[[], float],
        connect: Callable[..., BridgeConnection],
        connections: Mapping[int, BridgeConnection],
    ) -> None:
        self._limits = limits
        self._security = security
        self._log = log
        self._now = now
        self._connect = connect
        self._connections = connections
        self._reception = Reception(limits, security.tls)
        self._connection_id = 0
        self._arrivals: dict[int, Arrival] = {}
        self._doors: list[Door] = []

    def listen(self, listener: socket.socket, refused: Iterable[int]) -> None:
        """Accept from a listening, non-blocking socket; its connections do not have the `refused` request codes."""
        door = Door(listener, frozenset(refused))
        self._doors.append(door)
        asyncio.get_running_loop().add_reader(listener, self._accept, door)

    def listen_instead(self, before: socket.socket, listener: socket.socket) -> None:
        """Accept from another socket in place of one; who has connected to that comes in first."""
        for door in [door for door in self._doors if door.socket is before]:
            self._accept(door)
            self._doors.remove(door)
            asyncio.get_running_loop().remove_reader(before)
            self.listen(listener, door.refused)

    def left(self, connection_id: int) -> None:
        """The connection is gone: its place is free."""
        self._reception.leave(connection_id)

    def check_time(self, now: float) -> None:
        """End what takes too long to arrive."""
        for connection_id, arrival in self._arrivals.items():
            if now > arrival.until and arrival.cancel():
                self._reception.leave(connection_id)
                self._turned_away(arrival.host, "it took too long to say whether it speaks TLS, or to agree on it")

    def close(self) -> None:
        """Stop accepting; what has not arrived is closed."""
        for door in self._doors:
            asyncio.get_running_loop().remove_reader(door.socket)
        self._doors.clear()
        for arrival in self._arrivals.values():
            arrival.cancel()

    # -- inside

    def _accept(self, door: Door) -> None:
        for _ in range(self._limits.accepts_per_turn):
            try:
                accepted, address = door.socket.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                # Out of descriptors or memory: the backlog waits until some are free again.
                self._log("accept.failed", reason=str(error))
                self._pause(door)
                return
            self._take(door, accepted, address)

    def _pause(self, door: Door) -> None:
        loop = asyncio.get_running_loop()
        loop.remove_reader(door.socket)
        loop.call_later(self._limits.tick_interval, self._resume, door)

    def _resume(self, door: Door) -> None:
        if door in self._doors:
            asyncio.get_running_loop().add_reader(door.socket, self._accept, door)

    def _take(self, door: Door, accepted: socket.socket, address: object) -> None:
        self._connection_id += 1
        host = None if door.is_local else address_of(address).host
        reason = self._reception.take(self._connection_id, host)
        if reason and host is not None and self._make_room(host):
            reason = self._reception.take(self._connection_id, host)
        if reason:
            self._turned_away(host, reason)
            if not self._reception.refuse(self._connection_id):
                accepted.close()
                return
        try:
            accepted.setblocking(False)
            connection = self._connection_of(door, accepted, address, reason)
        except OSError as error:
            accepted.close()
            self._reception.leave(self._connection_id)
            self._turned_away(host, str(error))
            return
        self._open(door, accepted, connection)

    def _open(self, door: Door, accepted: socket.socket, connection: BridgeConnection) -> None:
        limits = self._limits
        silence = limits.first_frame_timeout
        if connection.remote is not None and self._may_be_silent(connection.remote.host):
            silence = limits.tcp_idle_timeout
        arrival = Arrival(connection, until=self._now() + silence)
        self._arrivals[connection.connection_id] = arrival
        speaks = lambda: arrival.grant(self._now() + limits.first_frame_timeout)  # noqa: E731
        opening = self._reception.open(accepted, lambda: connection, is_local=door.is_local, speaks=speaks)
        arrival.task = task = asyncio.get_running_loop().create_task(opening)
        task.add_done_callback(lambda _: self._arrived(task, connection))

    def _connection_of(self, door: Door, accepted: socket.socket, address: object, refusal: str) -> BridgeConnection:
        if door.is_local:
            return self._connect(self._connection_id, peer_of(accepted), refused=door.refused, refusal=refusal)
        prepare_accepted(accepted)
        remote = address_of(address)
        return self._connect(
            self._connection_id,
            None,
            remote=remote,
            local=address_of(accepted.getsockname()),
            refused=door.refused,
            is_proven=self._security.admission.rules is None,
            may_be_silent=self._may_be_silent(remote.host),
            refusal=refusal,
        )

    def _may_be_silent(self, host: str) -> bool:
        """Whether a peer may open a connection long before it needs it, as some of RocketMQ's clients do."""
        return self._security.admission.rules is None or is_loopback_address(host)

    def _arrived(self, task: asyncio.Task[None], connection: BridgeConnection) -> None:
        self._arrivals.pop(connection.connection_id, None)
        if task.cancelled() or (error := task.exception()) is None:
            return
        self._reception.leave(connection.connection_id)
        if str(error):
            self._turned_away(connection.remote.host if connection.remote else None, str(error))

    def _make_room(self, host: str) -> bool:
        """Close a TCP connection that has shown nothing (invariant 2); False when there is none."""
        is_crowded, latest = self._reception.is_crowded(host), self._now() - self._limits.idle_kept
        arriving = [arrival.connection for arrival in self._arrivals.values()]
        silent = [
            connection
            for connection in [*arriving, *self._connections.values()]
            if connection.remote is not None
            if connection.idle_since < latest and not self._is_known(connection)
            if not is_crowded or connection.remote.host == host
        ]
        if not silent:
            return False
        oldest = min(silent, key=lambda connection: (connection.has_spoken, connection.idle_since))
        self._reception.leave(oldest.connection_id)
        arrival = self._arrivals.get(oldest.connection_id)
        if arrival is not None and arrival.cancel():  # its first byte would say whether it speaks TLS
            return True
        oldest.abort(f"silent for {self._now() - oldest.idle_since:.0f} s, and its place was needed")
        return True

    def _is_known(self, connection: BridgeConnection) -> bool:
        """Whether a peer has shown an account or, where none is needed, is a member of some group."""
        if connection.refusal:
            return True  # it has no place that could be given away
        return connection.is_member if self._security.admission.rules is None else connection.is_proven

    def _turned_away(self, host: str | None, reason: str) -> None:
        self._log("connection.refused", about=host or "", remote=host or "local", reason=reason)
