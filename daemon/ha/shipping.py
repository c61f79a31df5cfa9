"""The sockets of a master's replication port: who may connect, and the log's bytes on their way to slaves.

    slave ──report──▶ LeaderLink ──next_shipment──▶ header, and the part of the log file behind it ──▶ slave

What is to be shipped and why a slave is given up is decided in leader.py; when it is looked for, in growth.py. Where
slaves confirm, what they have on their disks goes on to confirming.py.

Rules: (1) a peer that proves no secret may connect only from named addresses (trust.py); (2) until it has, a peer
takes no slave's place; (3) bytes above the log end are never read from a file.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import time
from collections import Counter
from collections.abc import Callable
from typing import Protocol

from shmq.daemon.bridge.sockets.tcp_listener import address_of
from shmq.daemon.event_log import EventLog
from shmq.daemon.ha.growth import Growth
from shmq.daemon.ha.handshake import NONCE_BYTES, Claim, MasterHandshake
from shmq.daemon.ha.leader import UNKNOWN, LeaderLink, LogSpan, Shipment
from shmq.daemon.ha.log_file import COPIED_BYTES_MAX, LogFile
from shmq.daemon.ha.meeting import Side, State
from shmq.daemon.ha.replicas import Replicas
from shmq.daemon.ha.stream import SILENCE_MS_MAX, pack_refusal
from shmq.daemon.ha.trust import Trust
from shmq.errors import ShmqError

SLAVES_MAX = 16
# A slave of ours speaks at once. A stock one may wait 5 s before it does, so where one may come it has longer.
PROVING_MS_MAX = 5_000
STRANGERS_MAX, STRANGERS_OF_ADDRESS_MAX = 64, 8
_TICK_SECONDS = 1.0
_READ_BYTES = 4096


class Counting(Protocol):
    """Counts the slaves that have what is acknowledged; each call comes from the event loop.

    Attributes:
        is_prompt: it waits for what they have on their disks.
        tells_confirmed: they show what is confirmed, and nothing else.
    """

    is_prompt: bool
    tells_confirmed: bool

    async def serve(self) -> None:
        """Do what has to be done now and then, until cancelled."""

    def report(self, link: LeaderLink, address: str, flushed: int) -> None:
        """A slave says what is on its disk."""

    def heard(self, link: LeaderLink, message: bytes) -> None:
        """A slave says something of an election."""

    def gone(self, link: LeaderLink) -> None:
        """A slave's connection has ended."""

    def is_in_sync(self, link: LeaderLink) -> bool:
        """Whether a slave has all that is acknowledged."""


class Shipping:
    """Serves slaves; lives inside one event loop.

    Args:
        span: what there is of the log now.
        open_log: how each connection reads it.
        counting: where senders wait for slaves, or one of them is elected.
        me: who this broker is, now.
        replaced: called when a slave proves to know a newer epoch.
    """

    def __init__(
        self,
        span: Callable[[], LogSpan],
        growth: Growth,
        open_log: Callable[[], LogFile],
        trust: Trust,
        log: EventLog,
        *,
        counting: Counting | None = None,
        me: Callable[[], Side] = lambda: UNKNOWN,
        replaced: Callable[[int], None] = lambda _: None,
    ) -> None:
        self._span = span
        self._me = me
        self._replaced = replaced
        self._growth = growth
        self._counting = counting
        self._open_log = open_log
        self._trust = trust
        self._strangers: Counter[str] = Counter()  # connections that have not proven yet who they are, by address
        self._log = log
        self._links: list[LeaderLink] = []
        self.replicas = Replicas(counting.is_in_sync if counting is not None else None)

    def end_links(self, reason: str, cure: str) -> None:
        """Let every slave connect again: this broker is another one to them now."""
        for link in self._links:
            link.closed, link.cure = link.closed or reason, link.cure or cure
        self._growth.ring()

    def say(self, store: str, message: bytes) -> None:
        """Tell the slave of a store something of an election, if it is connected."""
        for link in self._links:
            if link.slave is not None and link.slave.store == store:
                link.say(message)
        self._growth.ring()

    async def serve(self, listener: socket.socket) -> None:
        """Accept slaves until cancelled."""
        loop = asyncio.get_running_loop()
        async with asyncio.TaskGroup() as slaves:
            if self._counting is not None:
                slaves.create_task(self._counting.serve())
            while True:
                accepted, name = await loop.sock_accept(listener)
                host, port = address_of(name)
                if refusal := self._refusal(host):
                    self._refuse(accepted, f"{host}:{port}", *refusal)
                    continue
                slaves.create_task(self._receive(accepted, host, f"{host}:{port}"))

    def _refusal(self, host: str) -> tuple[str, str] | None:
        """Why an address may not have the log, and what to do about it; None if it may."""
        if len(self.replicas) >= SLAVES_MAX:
            return f"{SLAVES_MAX} slaves are connected, and no more are served", "stop one of them"
        if self._strangers.total() >= STRANGERS_MAX or self._strangers[host] >= STRANGERS_OF_ADDRESS_MAX:
            return "too many connections have not proven who they are", "see who connects to the replication port"
        return self._trust.refuses(host)

    def _refuse(self, accepted: socket.socket, address: str, reason: str, cure: str) -> None:
        self._log("ha.slave_refused", address=address, reason=reason)
        self.replicas.refused(address, reason, cure, _now_ms())
        accepted.setblocking(False)
        _say_why(accepted, reason, cure)
        accepted.close()

    async def _receive(self, accepted: socket.socket, host: str, address: str) -> None:
        """Serve a slave, once it has proven who it is where it has to."""
        accepted.setblocking(False)
        accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if not self._trust.secret:
            await self._ship(accepted, address, None, b"")
            return
        me = self._me_for(accepted, address)
        if me is None:
            return
        refuses_plain = self._trust.refuses_plain(host)
        until_ms = _now_ms() + (PROVING_MS_MAX if refuses_plain is not None else SILENCE_MS_MAX)
        shake = MasterHandshake(self._trust.secret, me, os.urandom(NONCE_BYTES), until_ms, refuses_plain)
        self._strangers[host] += 1
        try:
            await _prove(accepted, shake)
        except OSError as error:
            shake.end(str(error))
        except asyncio.CancelledError:
            accepted.close()
            raise
        finally:
            self._strangers[host] -= 1
            self._strangers += Counter()  # without those that have none left
        reason, cure = shake.closed, shake.cure
        if not reason and len(self.replicas) >= SLAVES_MAX:
            reason, cure = f"{SLAVES_MAX} slaves are connected, and no more are served", "stop one of them"
        if reason:
            self._refuse(accepted, address, reason, cure)
            return
        await self._ship(accepted, address, shake.proven, shake.rest)

    def _me_for(self, accepted: socket.socket, address: str) -> Side | None:
        """Who this broker is; None: the disk does not say it just now, and the slave comes again."""
        try:
            return self._me()
        except (OSError, ShmqError) as error:
            self._refuse(
                accepted, address, f"the master cannot read who it is: {error}", "on the master's host: shmq health"
            )
            return None

    async def _ship(self, accepted: socket.socket, address: str, proven: Claim | None, first: bytes) -> None:
        counting, me = self._counting, self._me_for(accepted, address)
        if me is None:
            return
        link = LeaderLink(
            _now_ms(),
            is_prompt=counting is not None and counting.is_prompt,
            me=me,
            tells_confirmed=counting is not None and counting.tells_confirmed,
            proven=proven,
        )
        if first:
            link.feed(first, self._span(), _now_ms())
        self._links.append(link)
        file = self._open_log()
        self.replicas.connected(link, address, _now_ms())
        self._log("ha.slave_connected", address=address)
        loop = asyncio.get_running_loop()
        loop.add_reader(accepted.fileno(), self._hear, accepted, link, address)
        reason = ""
        try:
            reason = await self._send(accepted, link, file)
            if not link.is_stock:
                _say_why(accepted, link.closed, link.cure)
        except OSError as error:
            reason = str(error)
        finally:
            loop.remove_reader(accepted.fileno())
            file.close()
            accepted.close()
            self._links.remove(link)
            self.replicas.gone(link, reason or link.closed, link.cure, _now_ms())
            if counting is not None:
                counting.gone(link)
            self._log("ha.slave_gone", address=address, reason=reason or link.closed, log_position=link.shipped or 0)

    async def _send(self, accepted: socket.socket, link: LeaderLink, file: LogFile) -> str:
        while not link.closed:
            link.tick(_now_ms())
            span = self._span()
            self.replicas.grown(span.end, _now_ms())
            shipment = link.next_shipment(span, _now_ms())
            if shipment is None:
                await self._growth.wait(span.end)
                continue
            if await self._put(accepted, link, file, shipment):
                await asyncio.sleep(0)  # the others have their turn
        return link.closed

    async def _put(self, accepted: socket.socket, link: LeaderLink, file: LogFile, shipment: Shipment) -> bool:
        """Send a shipment whole; return whether the socket took it at once, as it mostly does."""
        header, at, end = shipment.header, shipment.log_position, shipment.log_position + shipment.size_bytes
        is_at_once = True
        if 0 < shipment.size_bytes <= COPIED_BYTES_MAX:
            header, at = header + file.read(at, shipment.size_bytes), end
        while header or at < end:
            try:
                if header:
                    header = header[accepted.send(header, socket.MSG_MORE if at < end else 0) :]
                else:
                    at += file.send(accepted, at, end - at)
            except BlockingIOError:
                is_at_once = False
                await _wait_until_writable(accepted, link)
        return is_at_once

    def _hear(self, accepted: socket.socket, link: LeaderLink, address: str) -> None:
        """Take what a slave says; its socket has something, or the connection has ended."""
        try:
            data = accepted.recv(_READ_BYTES)
        except BlockingIOError:
            return
        except OSError as error:
            data, link.closed = b"", link.closed or str(error)
        if not data:
            link.closed = link.closed or "it closed the connection"
        was_begun = link.shipped is not None
        link.feed(data, self._span(), _now_ms())
        if link.state is State.OLDER_MASTER and link.slave is not None:
            self._replaced(link.slave.epoch)
        if link.closed:
            asyncio.get_running_loop().remove_reader(accepted.fileno())
        if not was_begun or link.closed:
            self._growth.ring()
        if self._counting is not None and not link.closed:
            if link.flushed is not None:
                self._counting.report(link, address, link.flushed)
            for message in link.take_messages():
                self._counting.heard(link, message)


async def _prove(accepted: socket.socket, shake: MasterHandshake) -> None:
    """Let a peer prove who it is, until that is over."""
    loop = asyncio.get_running_loop()
    while not shake.is_over:
        with contextlib.suppress(TimeoutError):
            data = await asyncio.wait_for(loop.sock_recv(accepted, _READ_BYTES), _TICK_SECONDS)
            shake.feed(data)
            if not data and not shake.is_over:
                shake.end()
        shake.tick(_now_ms())
        if out := shake.take():
            _send_now(accepted, out)  # it fits into the buffer of a socket that was sent nothing yet


def _say_why(accepted: socket.socket, reason: str, cure: str) -> None:
    """Tell a slave of ours why the connection ends, if its socket takes that at once."""
    with contextlib.suppress(OSError):
        accepted.send(pack_refusal(reason, cure))
        accepted.shutdown(socket.SHUT_WR)


def _send_now(accepted: socket.socket, data: bytes) -> int:
    """Send what the socket takes at once, which mostly is all; return how much."""
    try:
        return accepted.send(data)
    except BlockingIOError:
        return 0


async def _wait_until_writable(accepted: socket.socket, link: LeaderLink) -> None:
    """Wait until a socket takes bytes again.

    A slave that takes none is silent, too: it is given up when its time is over. Raises TimeoutError then: in the
    middle of a frame nothing can be said any more.
    """
    loop = asyncio.get_running_loop()
    writable = asyncio.Event()
    loop.add_writer(accepted.fileno(), writable.set)
    try:
        while not writable.is_set():
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(writable.wait(), _TICK_SECONDS)
            link.tick(_now_ms())
            if link.closed:
                raise TimeoutError(link.closed)
    finally:
        loop.remove_writer(accepted.fileno())


def _now_ms() -> int:
    return time.monotonic_ns() // 1_000_000
