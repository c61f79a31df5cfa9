"""The connections over which a broker registers with name servers elsewhere.

They have the sockets and the clock; `Registrar` decides what is sent, and when.

Invariant: nothing here waits: host names are resolved and connections opened beside everything else the loop does.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import time
from collections.abc import Callable, Iterable
from typing import cast

from shmq.addresses import parse_address
from shmq.daemon.bridge.sockets.tcp_listener import address_of
from shmq.daemon.logic.effects import Report
from shmq.daemon.nameserver.embedded_broker import Topics, TopicSource
from shmq.daemon.nameserver.registrar import Connect, Cut, Registrar, RegistrarEffect, Send
from shmq.daemon.nameserver.registration import GONE, Version
from shmq.errors import ProtocolError, ShmqError
from shmq.protocol.command import Command
from shmq.protocol.header import CommandDecoder, encode_command

_REPLY_BYTES_MAX = 4 << 20  # the order configuration of all topics

Log = Callable[..., None]


class RegistrarLinks:
    """Carries out what a registrar wants; lives inside one event loop.

    Args:
        tls: how connections are encrypted, and whom to trust; None for plain ones.
    """

    def __init__(
        self, registrar: Registrar, source: TopicSource, log: Log, *, tls: ssl.SSLContext | None = None
    ) -> None:
        self._tls = tls
        self._registrar = registrar
        self._source = source
        self._log = log
        self._version: int | None = None
        self._topics: Topics = {}
        self._gone: dict[str, int] = {}  # deleted topics -> the edition that says so first
        self._told: Callable[[], None] = _nothing
        self._news = asyncio.Event()
        self._links: dict[str, _Link] = {}
        self._opening: dict[str, asyncio.Task[None]] = {}
        self._is_closed = False

    def tick(self) -> None:
        """Look at the topics and at the clock; call it about once a second."""
        if self.version == self._version:
            self._carry_out(self._registrar.tick(_now_ms()))
        else:
            self.announce()
        self._tell()

    def ships_at(self, ha_port: int) -> None:
        """Take the port where slaves get the log, 0 for nowhere."""
        self._carry_out(self._registrar.ships_at(ha_port, _now_ms()))

    def fence(self, *, is_fenced: bool) -> None:
        """Take leave of the name servers while this broker is fenced, and come back afterwards."""
        self._carry_out(self._registrar.fence(is_fenced, _now_ms()))

    @property
    def version(self) -> int:
        return self._source.version

    @property
    def registered(self) -> dict[str, str]:
        """The name servers that know the broker now, each with the address that is registered there."""
        return self._registrar.registered

    def announce(self) -> int:
        version = self.version
        topics = self._source.topics() if version != self._version else self._topics
        is_new = self._version is None or topics != self._topics  # groups count in the version, too
        self._version = version
        if is_new:
            # A broker counts from the start with every generation of segments; the time tells the counts apart.
            mark = Version(state=self._source.epoch, timestamp=time.time_ns() // 1_000_000, counter=version)
            told = topics | dict.fromkeys(self._deleted(topics), GONE)
            self._carry_out(self._registrar.announce(told, mark, _now_ms()))
            self._topics = topics
        return self._registrar.edition

    def _deleted(self, topics: Topics) -> Iterable[str]:
        """The topics that were deleted, until every name server knows it; later it is the administrator's affair."""
        edition = self._registrar.edition
        self._gone = {
            name: since for name, since in self._gone.items() if name not in topics and not self.is_registered(since)
        }
        self._gone |= dict.fromkeys(self._topics.keys() - topics.keys(), edition + 1)
        return self._gone

    def is_registered(self, edition: int) -> bool:
        return self._registrar.is_registered(edition)

    def call_when_registered(self, action: Callable[[], None]) -> None:
        self._told = action

    def close(self) -> None:
        """Take leave and close every connection."""
        self._carry_out(self._registrar.stop())
        self._is_closed = True

    async def wait_until_registered(self, seconds: float, others_seconds: float) -> None:
        """Wait until every name server that can be reached knows of the broker: no longer than the first time, and no
        longer than the second once one of them knows it."""
        edition, is_known = self.announce(), False
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds) as limit:
                while not self.is_registered(edition):
                    if self.registered and not is_known:
                        is_known = True
                        limit.reschedule(min(limit.when() or 0.0, asyncio.get_running_loop().time() + others_seconds))
                    self._news.clear()
                    await self._news.wait()

    def _tell(self) -> None:
        self._news.set()
        self._told()

    # -- called by links

    def received(self, server: str, command: Command) -> None:
        """A command came."""
        if not self._is_closed:
            self._carry_out(self._registrar.answered(server, command, _now_ms()))
            self._tell()

    def lost(self, link: _Link, reason: str) -> None:
        """A connection is gone."""
        if self._links.get(link.server) is link:
            del self._links[link.server]
            self._lost(link.server, reason)

    # -- inside

    def _lost(self, server: str, reason: str) -> None:
        if not self._is_closed:
            self._carry_out(self._registrar.lost(server, reason, _now_ms()))
            self._tell()

    def _carry_out(self, effects: Iterable[RegistrarEffect]) -> None:
        for effect in effects:
            if isinstance(effect, Report):
                self._log("nameserver", text=effect.text)
            elif isinstance(effect, Connect):
                task = asyncio.get_running_loop().create_task(self._open(effect.server))
                self._opening[effect.server] = task
            elif isinstance(effect, Cut):
                self._cut(effect.server)
            elif isinstance(effect, Send) and (link := self._links.get(effect.server)) is not None:
                self._send(link, effect.command)

    def _send(self, link: _Link, command: Command) -> None:
        try:
            link.send(encode_command(command))
        except ShmqError as error:
            self._log("nameserver", text=f"a registration cannot be sent: {error}")

    async def _open(self, server: str) -> None:
        host, port = parse_address(server, name="nameserver")
        link = _Link(self, server)
        try:
            await asyncio.get_running_loop().create_connection(lambda: link, host, port, ssl=self._tls)
        except (OSError, UnicodeError) as error:
            del self._opening[server]
            self._lost(server, getattr(error, "strerror", None) or str(error))
            return
        except asyncio.CancelledError:
            link.close()  # it may have been opened in the same turn
            raise
        del self._opening[server]
        if not link.is_open:
            self._lost(server, "")
            return
        self._links[server] = link
        self._carry_out(self._registrar.connected(server, link.local_host, _now_ms()))

    def _cut(self, server: str) -> None:
        if (task := self._opening.pop(server, None)) is not None:
            task.cancel()
        if (link := self._links.pop(server, None)) is not None:
            link.close()


class _Link(asyncio.Protocol):
    """One connection; it calls `lost` once, and not after `close`."""

    def __init__(self, owner: RegistrarLinks, server: str) -> None:
        self.server = server
        self._owner = owner
        self._decoder = CommandDecoder(frame_bytes_max=_REPLY_BYTES_MAX)
        self._transport: asyncio.Transport | None = None
        self._reason = ""

    @property
    def is_open(self) -> bool:
        """Whether anything can be sent."""
        return self._transport is not None

    @property
    def local_host(self) -> str:
        """Our end of the connection."""
        return address_of(self._transport.get_extra_info("sockname")).host if self._transport is not None else ""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self._decoder.feed(data)
        try:
            while (command := self._decoder.take()) is not None:
                self._owner.received(self.server, command)
        except ProtocolError as error:
            self._reason = f"protocol error: {error}"
            if self._transport is not None:
                self._transport.abort()

    def connection_lost(self, error: Exception | None) -> None:
        self._transport = None
        self._owner.lost(self, self._reason or (str(error) if error is not None else ""))

    def send(self, data: bytes) -> None:
        """Send the bytes of a command."""
        if self._transport is not None:
            self._transport.write(data)

    def close(self) -> None:
        """Close once what was sent is out."""
        if self._transport is not None:
            self._transport.close()


def _nothing() -> None:
    """The default of `call_when_registered`."""


def _now_ms() -> int:
    return time.monotonic_ns() // 1_000_000
