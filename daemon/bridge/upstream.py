"""Carries a client's commands from the bridge that accepted it to the primary one.

Beside the primary bridge every connection has a twin: one connection to the control socket for each client that needs
one, made with its first command. What the primary sends over it goes to the client frame by frame, as it is. So the
primary needs no second notion of a client, notices and questions find their way by themselves, and when either end
dies, both know. Many clients over one link were rejected: that would rebuild connections, limits and order inside the
link.

When a primary is started again, it knows no client. Each bridge keeps the last heartbeat of a client, and what it left
since, and sends it again first on a new connection; a stock client would come back with its next heartbeat only, up to
30 s later.

    client ──TCP──▶ this bridge ──control socket, RELAY first──▶ primary bridge
           ◀───────             ◀── answers, notices, questions ──

Invariants:
 1. When the client goes, its connection to the primary goes: the primary forgets it at once.
 2. When the primary goes, a client that waits for an answer of it is cut off, so that it asks again; the others stay.
 3. A new primary first gets what a client last said of its groups: the heartbeat, and what it left since. That goes out
    when the primary answers again, or before the client's next command.
"""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple, cast

from shmq.daemon.bridge.connection import BridgeConnection
from shmq.errors import ProtocolError, ShmqError
from shmq.protocol.codes import Request
from shmq.protocol.command import FLAG_ONEWAY, Command, oneway
from shmq.protocol.failure import failure_reply
from shmq.protocol.frame import FrameDecoder, encode_frame
from shmq.protocol.header import decode_header, encode_command

_CONNECT_SECONDS = 5.0  # the primary bridge is started again within one
_PAUSE_SECONDS = 0.05
_TOLD_BYTES_MAX = 256 << 10  # of one client's heartbeat; a longer one is not said again
_WAITING_BYTES_MAX = 8 << 20  # of one client, while the primary bridge is not there or does not read


class _Upstream(asyncio.Protocol):
    """One client's connection to the primary bridge."""

    def __init__(self, owner: Upstreams, client: BridgeConnection, told: bytes) -> None:
        self._owner = owner
        self._client = client
        self._told = told
        self._decoder = FrameDecoder()
        self._transport: asyncio.Transport | None = None
        self._waiting: list[bytes] = []
        self._waiting_bytes = 0
        self._unanswered = 0
        self.is_closed = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        if self.is_closed:
            self._transport.abort()
            return
        ext = {"remote": str(self._client.remote), "local": str(self._client.local)}
        self._transport.write(encode_command(oneway(Request.RELAY, ext)))
        self._transport.write(self._told + b"".join(self._waiting))
        self._told = b""
        self._waiting.clear()

    def data_received(self, data: bytes) -> None:
        self._decoder.feed(data)
        try:
            while (frame := self._decoder.take()) is not None:
                if decode_header(frame).is_reply:
                    self._unanswered -= 1
                self._client.write(encode_frame(frame.codec, frame.header, frame.body))
        except ShmqError as error:
            self.close()
            self._client.close(f"the primary bridge: {error}")

    def connection_lost(self, error: Exception | None) -> None:
        if not self.is_closed:
            self.give_up("the primary bridge is gone")

    def send(self, command: Command) -> None:
        data = encode_command(command)
        if not (command.is_oneway or command.is_reply):
            self._unanswered += 1
        if self._transport is not None:
            self._transport.write(data)
            if self._transport.get_write_buffer_size() > _WAITING_BYTES_MAX:
                self._transport.abort()
                self.give_up("too much for the primary bridge, which does not read")
            return
        self._waiting.append(data)
        self._waiting_bytes += len(data)
        if self._waiting_bytes > _WAITING_BYTES_MAX:
            self.give_up("too much for the primary bridge, which is not there")

    def give_up(self, reason: str) -> None:
        """End; a client that waits for an answer has to know."""
        self.close()
        self._owner.ended(self._client.connection_id, self)
        if self._unanswered > 0 or self._waiting:
            self._client.close(reason)

    def close(self) -> None:
        self.is_closed = True
        if self._transport is not None:
            self._transport.close()


class _Told(NamedTuple):
    """What a client said of its groups, as frames that ask for no answer."""

    client: BridgeConnection
    data: bytes


class Upstreams:
    """The upstream connections of one bridge; inside the event loop."""

    def __init__(self, control_socket: Path) -> None:
        self._path = control_socket
        self._by_client: dict[int, _Upstream] = {}
        self._told: dict[int, _Told] = {}
        self._connecting: set[asyncio.Task[None]] = set()

    def forward(self, client: BridgeConnection, command: Command) -> None:
        """Send a command of a client on."""
        upstream = self._by_client.get(client.connection_id) or self._open(client)
        try:
            upstream.send(command)
            self._remember(client, command)
        except ShmqError as error:
            if not command.is_oneway:
                client.reply(failure_reply(command, error))

    def tell_again(self) -> None:
        """The primary bridge answers again: let it know the clients that it does not know."""
        for connection_id, told in self._told.items():
            if connection_id not in self._by_client:
                self._open(told.client)

    def _open(self, client: BridgeConnection) -> _Upstream:
        told = self._told.get(client.connection_id)
        upstream = _Upstream(self, client, told.data if told is not None else b"")
        self._by_client[client.connection_id] = upstream
        task = asyncio.get_running_loop().create_task(self._connect(upstream))
        self._connecting.add(task)
        task.add_done_callback(self._connecting.discard)
        return upstream

    def _remember(self, client: BridgeConnection, command: Command) -> None:
        if command.is_reply or command.code not in (Request.HEART_BEAT, Request.UNREGISTER_CLIENT):
            return
        told = self._told.pop(client.connection_id, None)
        before = told.data if told is not None and command.code == Request.UNREGISTER_CLIENT else b""
        if command.code == Request.UNREGISTER_CLIENT and not before:
            return
        # Oneway, because the client already has its answer.
        data = before + encode_command(replace(command, flag=command.flag | FLAG_ONEWAY))
        if len(data) <= _TOLD_BYTES_MAX:
            self._told[client.connection_id] = _Told(client, data)

    def closed(self, client: BridgeConnection) -> None:
        """The client is gone."""
        self._told.pop(client.connection_id, None)
        upstream = self._by_client.pop(client.connection_id, None)
        if upstream is not None:
            upstream.close()

    def ended(self, connection_id: int, upstream: _Upstream) -> None:
        """This connection is over; the client's next command makes another."""
        if self._by_client.get(connection_id) is upstream:
            del self._by_client[connection_id]

    def close(self) -> None:
        """End them all."""
        for task in self._connecting:
            task.cancel()
        for upstream in list(self._by_client.values()):
            upstream.close()
        self._by_client.clear()
        self._told.clear()

    async def _connect(self, upstream: _Upstream) -> None:
        """Connect, again and again while the primary bridge is being started."""
        loop = asyncio.get_running_loop()
        until = loop.time() + _CONNECT_SECONDS
        while not upstream.is_closed:
            with contextlib.suppress(OSError, ProtocolError):
                await loop.create_unix_connection(lambda: upstream, str(self._path))
                return
            if loop.time() > until:
                upstream.give_up("the primary bridge does not answer")
                return
            await asyncio.sleep(_PAUSE_SECONDS)
