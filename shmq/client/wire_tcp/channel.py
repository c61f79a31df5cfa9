"""One TCP connection to a name server or broker: frames in both directions, answers to requests.

Invariants:
    (1) every request ends: with its answer, at its deadline, or when its channel ends;
    (2) a peer that breaks the format is disconnected, and nothing of it is believed any more;
    (3) while the peer does not read, requests wait for it, until their deadline;
    (4) a send that was given up is not sent once the channel is closed: it would be stored behind later messages.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from collections.abc import Callable

from shmq.addresses import Address
from shmq.errors import BrokerNotRunning, ProtocolError, RequestTimeout
from shmq.protocol.codes import Request
from shmq.protocol.command import Command
from shmq.protocol.header import CommandDecoder, encode_command

FRAME_BYTES_MAX = 16 << 20
"""RocketMQ's own limit of a frame."""

_OPAQUE_END = 1 << 31
_STORING = frozenset(
    {
        Request.SEND_MESSAGE,
        Request.SEND_MESSAGE_V2,
        Request.SEND_BATCH_MESSAGE,
        Request.CONSUMER_SEND_MSG_BACK,
        Request.END_TRANSACTION,
    }
)
_HOLDING = ("suspendTimeoutMillis", "pollTime")  # fields that say how long a peer may hold a request
_HOLDING_CODES = frozenset({Request.PULL_MESSAGE, Request.LITE_PULL_MESSAGE, Request.POP_MESSAGE, Request.NOTIFICATION})
_RESET = struct.pack("ii", 1, 0)  # struct linger: on, no second


class AnotherLeads(BrokerNotRunning):
    """A request was given up that the peer may hold: another host leads, and can be asked."""


class Channel(asyncio.Protocol):
    """A connected peer; for the I/O thread only."""

    def __init__(
        self,
        address: Address,
        connected: socket.socket,
        on_request: Callable[[Channel, Command], None],
        on_end: Callable[[Channel], None],
    ) -> None:
        self.address = address
        self.socket = connected
        self._on_request = on_request
        self._on_end = on_end
        self._decoder = CommandDecoder(frame_bytes_max=FRAME_BYTES_MAX)
        self._waiting: dict[int, asyncio.Future[Command]] = {}
        self._given_up: set[int] = set()  # without an answer until now
        self._held: set[int] = set()
        self._opaque = 0
        self._transport: asyncio.Transport | None = None
        self._writable = asyncio.Event()
        self._writable.set()
        self._reason = "it was closed at once; a broker with no room for more connections does that"
        self.ended = False
        self.has_heard = False

    @property
    def local_host(self) -> str:
        """Our own address, as the peer sees it."""
        return str(self._transport.get_extra_info("sockname")[0]) if self._transport else "127.0.0.1"

    async def request(self, command: Command, timeout: float) -> Command:
        """Ask, and return the answer, whatever its code is.

        Raises:
            BrokerNotRunning: the connection ended before the answer came.
            RequestTimeout: no answer in time.
        """
        answer: asyncio.Future[Command] = asyncio.get_running_loop().create_future()
        is_written = False
        self._opaque = (self._opaque + 1) % _OPAQUE_END
        opaque = command.opaque = self._opaque
        self._waiting[opaque] = answer
        if command.code in _HOLDING_CODES and any(command.ext.get(field, "0") != "0" for field in _HOLDING):
            self._held.add(opaque)
        try:
            async with asyncio.timeout(timeout):
                await self._write(command)
                is_written = True
                return await answer
        except TimeoutError:
            late = RequestTimeout(
                f"{self.address} did not answer request {command.code} within {timeout:g} s",
                hint="give it more time with timeout=10, or look at the broker: shmq cluster status",
            )
            late.maybe_stored = is_written
            raise late from None
        except BrokerNotRunning as error:
            error.maybe_stored = is_written
            raise
        finally:
            self._waiting.pop(opaque, None)
            self._held.discard(opaque)
            answer.cancel()
            if is_written and answer.cancelled() and command.code in _STORING:
                self._given_up.add(opaque)

    def give_up_held(self) -> None:
        """End the requests that the peer may hold: another one leads, and has what they ask for."""
        for answer in map(self._waiting.get, self._held):
            if answer is not None and not answer.done():
                answer.set_exception(
                    AnotherLeads(
                        f"another host leads, and not {self.address}", hint="see who leads: shmq cluster status"
                    )
                )

    async def notify(self, command: Command, timeout: float) -> None:
        """Send a oneway command."""
        self._opaque = (self._opaque + 1) % _OPAQUE_END
        command.opaque = self._opaque
        try:
            async with asyncio.timeout(timeout):
                await self._write(command)
        except TimeoutError:
            raise RequestTimeout(f"{self.address} does not read its connection", hint="look at the broker") from None

    def answer(self, reply: Command) -> None:
        """Send the answer to a request of the peer's."""
        if self._transport is not None and not self.ended:
            self._transport.write(encode_command(reply))

    def close(self) -> None:
        """End the connection; what was written is still sent, unless a send in it was given up.

        A lossy network would have the kernel send that again for minutes.
        """
        if self._transport is not None and self._given_up:
            self._reset(self._transport)
        elif self._transport is not None:
            self._transport.close()

    def _reset(self, transport: asyncio.Transport) -> None:
        with contextlib.suppress(OSError):  # the peer has ended it
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        transport.abort()

    def drop(self) -> None:
        """In a forked child: give up our copy of the descriptor, and nothing else."""
        descriptor = self.socket.detach()
        if descriptor >= 0:
            socket.close(descriptor)

    async def _write(self, command: Command) -> None:
        data = encode_command(command)
        await self._writable.wait()
        if self.ended or self._transport is None:
            raise self._gone()
        self._transport.write(data)

    def _gone(self) -> BrokerNotRunning:
        return BrokerNotRunning(
            f"the connection to {self.address} is gone: {self._reason}", hint="it is made again by itself"
        )

    # -- what asyncio calls
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._reason = "it was closed"
        self.has_heard = True
        self._decoder.feed(data)
        try:
            while (command := self._decoder.take()) is not None:
                if command.is_reply:
                    self._given_up.discard(command.opaque)
                    waiting = self._waiting.get(command.opaque)
                    if waiting is not None and not waiting.done():
                        waiting.set_result(command)
                else:
                    self._on_request(self, command)
        except ProtocolError as error:
            self._reason = f"it sent what is no RocketMQ: {error}"
            assert self._transport is not None
            self._reset(self._transport)

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()

    def connection_lost(self, exc: Exception | None) -> None:
        self.ended = True
        if exc is not None:
            self._reason = str(exc) or type(exc).__name__
        self._writable.set()
        for waiting in self._waiting.values():
            if not waiting.done():
                waiting.set_exception(self._gone())
        self._on_end(self)
