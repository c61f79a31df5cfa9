"""Attaches local processes to the segments: checks them, and gives each its client slot.

They are served by ATTACH, the first request of every local client.

    role NONE         no slot, no segments: asks and administers only
    other roles       version, PID namespace and client id are judged, then a slot is handed out; the slot's process may
                      map the segments and sleep on the slot's semaphore
    clientSlot given  the bridge was restarted, or the connection broke: the same process keeps the slot it had, if
                      slotGeneration says that it was not taken back since

Invariants:
 1. A slot belongs to at most one connection, and is taken back only when its connection ends or its process is dead:
    memory a live process may still write into is never given to another one.
 2. A client id belongs to at most one connection at a time.
 3. Nothing is handed out before every check has passed.
"""

from collections.abc import Mapping

import msgspec

from shmq.daemon.broker.settings import BrokerSettings
from shmq.daemon.broker.tables import ClientSlots
from shmq.daemon.logic.effects import Close
from shmq.daemon.logic.header_fields import INT32_MAX, number_of, text_of
from shmq.daemon.logic.requests import Answer, Call, Connection, Part, Peer, serves
from shmq.errors import ConnectError, ForeignNamespace, ProtocolError, UsageError, VersionMismatch
from shmq.protocol.codes import Request, Role

_NO_SLOT = -1


class Attachments(Part):
    """Hands client slots to connections."""

    def __init__(self, tables: ClientSlots, settings: BrokerSettings) -> None:
        self._tables = tables
        self._settings = settings
        self._by_slot: dict[int, Connection] = {}
        self._by_client: dict[str, Connection] = {}

    @serves(Request.ATTACH)
    def _attach(self, call: Call) -> Answer:
        connection, ext = call.connection, call.ext
        assert connection.peer is not None  # the admission offers our own codes on the local socket only
        peer = _as_it_says(connection.peer, ext)
        if connection.is_attached:
            raise ProtocolError(f"this connection is attached already, as {connection.client_id}")
        client_id = self._checked_client_id(text_of(ext, "clientId"))
        role = number_of(ext, "role", most=Role.BOTH)
        version = ext.get("version", "?")[:64]
        slot = _NO_SLOT
        rival = self._by_client.get(client_id)
        if role != Role.NONE:
            self._check_layout(number_of(ext, "abi", most=INT32_MAX), version)
            self._check_namespace(peer)
            slot = self._kept_slot(call, peer)
        closes = self._resolve_rival(rival, slot, client_id)
        if role != Role.NONE and slot == _NO_SLOT:
            slot = self._tables.client_put(peer.pid, peer.start, role)
        connection.client_id, connection.role, connection.client_slot = client_id, role, slot
        connection.version = version
        self._by_client[client_id] = connection
        if slot != _NO_SLOT:
            self._by_slot[slot] = connection
        return Answer(body=self._body(slot), closes=closes)

    def _body(self, slot: int) -> bytes:
        settings = self._settings
        return msgspec.json.encode(
            {
                "instance": settings.instance,
                "clientSlot": slot,
                "slotGeneration": self._tables.client_generation(slot) if slot != _NO_SLOT else 0,
                "autoCreate": settings.auto_create,
                "defaultQueues": settings.default_queues,
                "waitDurable": settings.wait_durable,
                "cluster": settings.cluster,
                "messageDelayLevel": settings.delay_levels,
                "timerMaxDelaySec": settings.timer_max_delay_seconds,
            }
        )

    def _checked_client_id(self, client_id: str) -> str:
        most = self._settings.client_id_characters_max
        if len(client_id) > most or not client_id.isascii() or not client_id.isprintable():
            raise UsageError(
                f"the client id {client_id[:32]!a} has {len(client_id)} characters",
                hint=f"use 1 to {most} printable ASCII characters",
            )
        return client_id

    def _check_layout(self, abi: int, version: str) -> None:
        ours = self._settings
        if abi != ours.abi:
            raise VersionMismatch(
                f"the broker is shmq {ours.version} with segment layout {ours.abi}, "
                f"this client is shmq {version} with layout {abi}",
                hint=f"pip install shmq=={ours.version}, or restart the broker with the client's version",
            )

    def _check_namespace(self, peer: Peer) -> None:
        if peer.pid_namespace != self._settings.pid_namespace or peer.pid <= 0:
            raise ForeignNamespace(
                f"the broker lives in PID namespace {self._settings.pid_namespace}, "
                f"this client in {peer.pid_namespace} (its pid here is {peer.pid}); "
                "the append lock cannot be repaired across PID namespaces",
                hint="share the namespace (docker: --pid=container:<broker>), or connect over TCP",
            )
        if peer.start == 0:
            raise ConnectError(f"process {peer.pid} ended while it was attaching")

    def _kept_slot(self, call: Call, peer: Peer) -> int:
        """The slot the client names, if it is really its own."""
        slot = number_of(call.ext, "clientSlot", least=_NO_SLOT, most=INT32_MAX, default=_NO_SLOT)
        if slot == _NO_SLOT or call.ext.get("generation") != f"{self._settings.generation:016x}":
            return _NO_SLOT
        if not self._tables.client_is(slot, peer.pid, peer.start):
            return _NO_SLOT
        if number_of(call.ext, "slotGeneration", default=-1) != self._tables.client_generation(slot):
            return _NO_SLOT  # it was taken back, and is another connection's of the same process
        holder = self._by_slot.get(slot)
        if holder is not None and holder.client_id != call.ext.get("clientId"):
            return _NO_SLOT  # another connection of the same process has it
        return slot

    def _resolve_rival(self, rival: Connection | None, slot: int, client_id: str) -> list[Close]:
        """Two connections with one client id: the same client come back, or a mistake."""
        if rival is None:
            return []
        if slot != _NO_SLOT and rival.client_slot == slot:
            rival.client_slot = _NO_SLOT  # it is the newcomer's from here on
            return [Close(rival.connection_id, f"{client_id} has connected again")]
        pid = rival.peer.pid if rival.peer else 0
        raise ConnectError(
            f"the client id {client_id} is in use by process {pid}",
            hint="choose another client id, or end that process",
        )

    def release(self, connection: Connection) -> None:
        """Take back what an ending connection held."""
        if self._by_client.get(connection.client_id) is connection:
            del self._by_client[connection.client_id]
        if self._by_slot.get(connection.client_slot) is connection:
            del self._by_slot[connection.client_slot]
            self._tables.client_drop(connection.client_slot)

    def collect_dead(self) -> list[Connection]:
        """Drop slots whose process died without a connection here; return connections whose process died.

        A connection may outlive its process in a forked child that inherited the socket.
        """
        outlived: list[Connection] = []
        for slot in self._tables.dead_clients():
            holder = self._by_slot.get(slot)
            if holder is None:
                self._tables.client_drop(slot)
            else:
                outlived.append(holder)
        return outlived


def _as_it_says(peer: Peer, ext: Mapping[str, str]) -> Peer:
    """The kernel's word counts; the client's own is asked only where /proc does not let us look."""
    return peer._replace(
        start=peer.start or number_of(ext, "processStart", default=0),
        pid_namespace=peer.pid_namespace or number_of(ext, "pidNamespace", default=0),
    )
