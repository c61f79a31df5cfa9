"""The sockets of a master's replication port: who may connect, and the log's bytes on their way to slaves.

    slave ──report──▶ LeaderLink ──next_shipment──▶ header, and the part of the log file behind it ──▶ slave

What is to be shipped and why a slave is given up is decided in leader.py. The log end is looked at every few
milliseconds while a slave is connected, and not at all while none is: an append does not know that there are slaves.

Rules: (1) nobody on this port proves who he is, so only addresses that are named may connect, and loopback; (2) bytes
above the log end are never read from a file.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import os
import socket
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from shmq.daemon.bridge.sockets.tcp_listener import address_of
from shmq.daemon.event_log import EventLog
from shmq.daemon.ha.leader import LeaderLink, LogSpan, Shipment

SLAVES_MAX = 16
_LOOK_SECONDS = 0.005  # how old a record may become before it is shipped
_TICK_SECONDS = 1.0
_READ_BYTES = 4096

Network = ipaddress.IPv4Network | ipaddress.IPv6Network


def is_allowed(host: str, networks: Sequence[Network]) -> bool:
    """Return whether a slave at this address may have the log: loopback, and whoever is named."""
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return False
    return address.is_loopback or any(address in network for network in networks)


class LogFile:
    """Parts of the log, read from its files; one of them is open at a time."""

    def __init__(self, store_path: Path, file_bytes: int) -> None:
        self._folder = store_path / "commitlog"
        self._file_bytes = file_bytes
        self._base = -1
        self._descriptor = -1

    def read(self, position: int, size_bytes: int) -> bytes:
        """Return bytes of one file. Raises OSError."""
        base = position - position % self._file_bytes
        if base != self._base:
            self.close()
            self._descriptor = os.open(self._folder / f"{base:020d}", os.O_RDONLY | os.O_CLOEXEC)
            self._base = base
        data = os.pread(self._descriptor, size_bytes, position - base)
        if len(data) != size_bytes:
            raise OSError(f"the log file at {base} ends after {position - base + len(data)} bytes")
        return data

    def close(self) -> None:
        """Close the file."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = self._base = -1


class Shipping:
    """Serves slaves; lives inside one event loop.

    Args:
        span: what there is of the log now.
    """

    def __init__(
        self, span: Callable[[], LogSpan], store_path: Path, networks: Sequence[Network], log: EventLog
    ) -> None:
        self._span = span
        self._store_path = store_path
        self._networks = networks
        self._log = log
        self._links: dict[LeaderLink, str] = {}

    async def serve(self, listener: socket.socket) -> None:
        """Accept slaves until cancelled."""
        loop = asyncio.get_running_loop()
        async with asyncio.TaskGroup() as slaves:
            while True:
                accepted, name = await loop.sock_accept(listener)
                host, port = address_of(name)
                if len(self._links) >= SLAVES_MAX or not is_allowed(host, self._networks):
                    why = "there are too many" if len(self._links) >= SLAVES_MAX else "it is not named by --ha-allow"
                    self._log("ha.slave_refused", address=f"{host}:{port}", reason=why)
                    accepted.close()
                    continue
                slaves.create_task(self._ship(accepted, f"{host}:{port}"))

    async def _ship(self, accepted: socket.socket, address: str) -> None:
        accepted.setblocking(False)
        accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        link, file = LeaderLink(_now_ms()), LogFile(self._store_path, self._span().file_bytes)
        self._links[link] = address
        self._log("ha.slave_connected", address=address)
        listening = asyncio.create_task(self._listen(accepted, link))
        reason = ""
        try:
            reason = await self._send(accepted, link, file)
        except OSError as error:
            reason = str(error)
        finally:
            listening.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await listening
            file.close()
            accepted.close()
            del self._links[link]
            self._log("ha.slave_gone", address=address, reason=reason or link.closed, log_position=link.shipped or 0)

    async def _send(self, accepted: socket.socket, link: LeaderLink, file: LogFile) -> str:
        loop = asyncio.get_running_loop()
        while not link.closed:
            link.tick(_now_ms())
            shipment = link.next_shipment(self._span(), _now_ms())
            if shipment is None:
                await asyncio.sleep(_LOOK_SECONDS)
                continue
            # A slave that takes nothing is silent, too: it is given up when its time is over.
            sending = asyncio.ensure_future(loop.sock_sendall(accepted, _bytes_of(shipment, file)))
            while not (await asyncio.wait({sending}, timeout=_TICK_SECONDS))[0]:
                link.tick(_now_ms())
                if link.closed:
                    sending.cancel()
                    break
            else:
                await sending
        return link.closed

    async def _listen(self, accepted: socket.socket, link: LeaderLink) -> None:
        loop = asyncio.get_running_loop()
        while not link.closed:
            try:
                data = await loop.sock_recv(accepted, _READ_BYTES)
            except OSError as error:
                link.closed = str(error)
                return
            if data:
                link.feed(data, self._span(), _now_ms())
            else:
                link.closed = "it closed the connection"


def _bytes_of(shipment: Shipment, file: LogFile) -> bytes:
    if not shipment.size_bytes:
        return shipment.header
    return shipment.header + file.read(shipment.log_position, shipment.size_bytes)


def _now_ms() -> int:
    return time.monotonic_ns() // 1_000_000
