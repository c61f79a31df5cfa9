"""One connection of the bridge: bytes in, events out, replies back.

The connection enforces the limits of one peer: how much it may leave unfinished or unread. Bytes become frames
in the decoder, which does no I/O. Complete frames are taken one at a time, and each is an event that is carried out at
once, because what a command does decides how the next bytes are read: ATTACH allows longer frames, and a close or
unread replies end the turn. What is plain becomes no frame: the plain path says in one result what came of it.

    silent     accepted, no byte received; allowed for this peer
    reading    while the peer reads its replies and its earlier requests are served
    paused     its replies pile up, here or before the disk, or others have their turn; the kernel holds what it sends
    closing    what is written still goes out, for at most `close_timeout`
    closed     the broker has forgotten it

Invariants:
 1. At most `commands_per_turn` commands of one connection are served before the loop turns, and as many plain pulls.
 2. Unfinished frames plus unread replies are bounded for each connection and, in `Budget`, for all together.
 3. Notices that a peer is too slow to read are folded: one for each group is enough.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import math
import socket
import sys
from collections.abc import Callable
from dataclasses import dataclass
from struct import Struct
from typing import NamedTuple, cast

from shmq.addresses import Address
from shmq.daemon.bridge.busy_poll import BusyPoll
from shmq.daemon.bridge.limits import BridgeLimits
from shmq.daemon.bridge.plain_path import Fed, PlainPath
from shmq.daemon.bridge.send_path import Origin
from shmq.daemon.bridge.send_wait import ReadTimes
from shmq.daemon.logic.requests import Peer
from shmq.errors import ProtocolError, ShmqError
from shmq.protocol.codes import Request
from shmq.protocol.command import Command
from shmq.protocol.failure import failure_reply
from shmq.protocol.frame import Frame, FrameDecoder
from shmq.protocol.header import encode_command
from shmq.protocol.shared_reply import SharedReply

_LINGER = Struct("ii")  # struct linger: on, seconds
_SIOCOUTQNSD = 0x894B  # linux/sockios.h
_FOLDED = frozenset({Request.NOTIFY_CONSUMER_IDS_CHANGED, Request.GROUP_CHANGED})


@dataclass(slots=True)
class Budget:
    """Bytes that all connections together hold."""

    bytes_max: int
    held_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Shared:
    """What all connections of one bridge have in common."""

    limits: BridgeLimits
    now: Callable[[], float]  # seconds on a clock that never goes back
    budget: Budget
    unproven: Budget
    busy_poll: BusyPoll
    plain: PlainPath | None
    spares_members: bool  # the clock is a test's, and members beat by their own; their groups notice silence


class Opened(NamedTuple):
    """The connection can be written to."""


class Received(NamedTuple):
    """A complete frame, which has waited for its turn."""

    frame: Frame
    waited_seconds: float


class Lost(NamedTuple):
    """The connection is gone; `reason` is empty when the peer closed it."""

    reason: str


Event = Opened | Received | Lost


class BridgeConnection(asyncio.Protocol):
    """The face of one peer: a process of this host (`peer`), or the far end of a TCP connection (`remote`).

    A stock client never attaches and may begin with its longest message, so a TCP connection has the limits of a client
    from its first byte; where accounts are needed, those that have shown none share a budget of their own.

    Attributes:
        is_proven: whether the peer has said who it is.
        refused: request codes that are not served where this connection was accepted.
        refusal: why nothing is served here; "" where requests are.
        has_spoken: whether any byte has come.
        is_member: whether a heartbeat has come, so it is a member of a group.
        origin: what its plain sends have in common; None where there are none.
    """

    def __init__(
        self,
        shared: Shared,
        on_event: Callable[[BridgeConnection, Event], None],
        connection_id: int,
        peer: Peer | None,
        *,
        remote: Address | None = None,
        local: Address | None = None,
        refused: frozenset[int] = frozenset(),
        is_proven: bool = False,
        may_be_silent: bool = False,
        refusal: str = "",
    ) -> None:
        """
        Args:
            on_event: carries an event out; raises ProtocolError when the header of a frame breaks the format.
        """
        self.connection_id = connection_id
        self.refusal = refusal
        self.is_member = False
        self.peer = peer
        self.remote = remote
        self.local = local
        self.refused = refused
        self.is_proven = is_proven
        self._shared = shared
        self._on_event = on_event
        limits = shared.limits
        self._decoder = FrameDecoder(
            frame_bytes_max=limits.frame_bytes_max_unattached if peer is not None else limits.frame_bytes_max,
            skipped_bytes_max=0 if peer is not None else limits.skipped_bytes_max,
            header_bytes_max=limits.frame_bytes_max,
        )
        self._idle_timeout = limits.unattached_idle_timeout if peer is not None else limits.tcp_idle_timeout
        self._replies: list[bytes] | None = None  # what one turn has to say, written at its end
        self._replies_bytes = 0
        self._transport: asyncio.Transport | None = None
        self._reason = ""  # stays empty when the peer itself closes
        self._charged_bytes = 0
        self.has_spoken = False
        self._frame_since: float | None = None if may_be_silent else shared.now()  # since when a frame is owed
        self._idle_since = shared.now()
        self._is_writing_paused = False
        self._is_pump_due = False
        self._is_reading_paused = False
        self._closing_since: float | None = None
        self._held_notices: dict[tuple[int, str | int], Command] = {}
        self._read_times = ReadTimes()
        self._held_bytes = 0  # of answers that wait for the disk
        self.origin: Origin | None = None

    @property
    def is_open(self) -> bool:
        """Whether it can be written to: the loop has made it, and has not lost it."""
        return self._transport is not None

    @property
    def idle_since(self) -> float:
        """When it last received or sent something."""
        return self._idle_since

    @property
    def has_turn_due(self) -> bool:
        """Whether requests of it wait for a later turn."""
        return self._is_pump_due

    # -- called by the event loop

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=self._shared.limits.write_bytes_high)
        self._on_event(self, Opened())
        if self._shared.plain is not None:
            self.origin = self._shared.plain.origin_of(self)

    def data_received(self, data: bytes) -> None:
        if self._closing_since is not None:
            return
        self.has_spoken = True
        if self._shared.plain is not None and self.origin is not None:
            data = self._serve_plain(data, self._shared.plain)
            if not data:
                return
        if self.peer is None:
            self._shared.busy_poll.arrived()
        now = self._shared.now()
        if self._frame_since is None:
            self._frame_since = now
        self._feed(data, now)
        self._pump()

    def pause_writing(self) -> None:
        self._is_writing_paused = True

    def resume_writing(self) -> None:
        self._is_writing_paused = False
        self._read_times.restart(self._shared.now())
        notices, self._held_notices = self._held_notices, {}
        for notice in notices.values():
            self.notify(notice)
        self._pump()

    def connection_lost(self, error: Exception | None) -> None:
        if error is not None and self._closing_since is None:
            self._reason = str(error)
        self._transport = None
        for budget in self._budgets():
            budget.held_bytes -= self._charged_bytes
        self._charged_bytes = 0
        self._on_event(self, Lost(self._reason))

    # -- called by the bridge

    def attached(self) -> None:
        """The peer has said who it is: it may send what clients may send; a local one may be silent for ever."""
        self.is_proven = True
        self._decoder.frame_bytes_max = self._shared.limits.frame_bytes_max
        if self.peer is not None:
            self._idle_timeout = math.inf
        else:
            self._shared.unproven.held_bytes -= self._charged_bytes

    def reply(self, command: Command, shared: SharedReply | None = None) -> None:
        """Send an answer, of now or of a request that was held; one that cannot be encoded says so."""
        try:
            data = encode_command(command) if shared is None else shared.frame(command)
        except ShmqError as error:
            data = encode_command(failure_reply(command, error))
        self.write(data)

    def notify(self, command: Command) -> None:
        """Send a notice, later and folded if the peer does not keep up; one that cannot be encoded is left out."""
        if self._is_writing_paused:
            # Two of these about one group say the same. Questions are answered one by one, resets differ by topic.
            about = command.ext.get("consumerGroup", "") if command.code in _FOLDED else command.opaque
            key = command.code, about
            if key in self._held_notices or len(self._held_notices) < self._shared.limits.held_notices_max:
                self._held_notices[key] = command
            return
        with contextlib.suppress(ShmqError):  # the part that asked the peer sees that no answer comes
            self.write(encode_command(command))

    def write(self, data: bytes) -> None:
        """Send bytes; what one turn says goes out together."""
        if self._transport is None or self._closing_since is not None:
            return
        if self._replies is None:
            self._idle_since = self._shared.now()
            self._transport.write(data)
            self._charge()
            return
        self._replies.append(data)
        self._replies_bytes += len(data)
        if self._replies_bytes > self._shared.limits.write_bytes_high:
            self._write_replies()

    def released(self, answers: bytes, held_bytes: int) -> None:
        """Send answers that were held; so many bytes are held no more."""
        self._held_bytes -= held_bytes
        if answers:
            self.write(answers)
        if self._is_reading_paused:
            self._set_reading()

    def close(self, reason: str) -> None:
        """Send what is written, then close."""
        if self._closing_since is None and self._transport is not None:
            self._write_replies()
            self._reason = reason
            self._closing_since = self._shared.now()
            self._transport.close()

    def abort(self, reason: str) -> None:
        """Close at once."""
        if self._transport is not None:
            self._reason = reason if self._closing_since is None else self._reason
            self._closing_since = self._shared.now()
            if self._transport.get_write_buffer_size() or _unsent_bytes(self._transport):
                # The peer does not read: without a reset the kernel would keep what it was sent for minutes.
                _reset_on_close(self._transport)
            self._transport.abort()

    def check_time(self, now: float) -> None:
        """End the connection if the peer has taken too long for something."""
        limits = self._shared.limits
        self._charge()
        if self._closing_since is not None:
            if now - self._closing_since > limits.close_timeout:
                self.abort(self._reason)
        elif self._frame_is_owed and now - (self._frame_since or now) > self._frame_timeout:
            self.abort(f"no complete frame within {self._frame_timeout:.3g} s")
        elif now - self._idle_since > self._idle_timeout and not (self.is_member and self._shared.spares_members):
            self.abort(f"idle for {self._idle_timeout:g} s")

    @property
    def _frame_is_owed(self) -> bool:
        # A peer that does not read its replies is not read either; an unfinished frame is then our doing.
        return self._frame_since is not None and not self._is_writing_paused

    @property
    def _frame_timeout(self) -> float:
        # What has come pays for more time: a long message over a slow line is no attack.
        limits = self._shared.limits
        return limits.first_frame_timeout + self._decoder.unfinished_bytes / limits.frame_bytes_per_second_min

    # -- inside

    def _serve_plain(self, data: bytes, plain: PlainPath) -> bytes:
        """Serve the plain sends and pulls in front; return the bytes that are left for the ordinary way."""
        if 0 < (missing := self._decoder.missing_bytes) < len(data):
            # A frame that came in two pieces; what follows it may be plain again.
            self._feed(data[:missing], self._shared.now())
            self._pump()
            data = data[missing:]
        if self._is_open_for_plain:
            data = self._served(data, plain.serve_sends(self, data))
        if data and self._is_open_for_plain:
            data = self._served(data, plain.serve_pulls(self, data))
        return data

    @property
    def _is_open_for_plain(self) -> bool:
        return self._decoder.is_between_frames and not self._is_writing_paused and self._closing_since is None

    def _served(self, data: bytes, fed: Fed) -> bytes:
        if not fed.end:
            return data
        self._idle_since = self._shared.now()
        self._frame_since = None
        for answer in fed.answers:
            self.write(answer)
        if fed.held_bytes:
            self._held_bytes += fed.held_bytes
            self._set_reading()
        return data[fed.end :]

    def _pump(self, *, is_late: bool = False) -> None:
        """Serve what is complete, a turn at most, and send what it says; `is_late` in turns that were waited for."""
        self._replies = []
        try:
            self._serve_turn(is_late=is_late)
        except ProtocolError as error:
            self._write_replies()
            self.abort(f"protocol error: {error}")
        finally:
            self._write_replies()
            self._replies = None
        self._charge()
        self._set_reading()

    def _feed(self, data: bytes, now: float) -> None:
        self._decoder.feed(data)
        self._read_times.read(len(data), now)

    def _serve_turn(self, *, is_late: bool) -> None:
        for _ in range(self._shared.limits.commands_per_turn):
            if self._is_writing_paused or self._closing_since is not None:
                return
            frame = self._decoder.take()
            if frame is None:
                self._frame_since = None if self._decoder.is_between_frames else self._frame_since
                return
            self._idle_since = self._shared.now()
            self._frame_since = None if self._decoder.is_between_frames else self._idle_since
            waited = self._idle_since - self._read_times.taken(self._decoder.buffered_bytes) if is_late else 0.0
            self._on_event(self, Received(frame, waited))
        if self._decoder.buffered_bytes and not self._is_pump_due:
            self._is_pump_due = True
            asyncio.get_running_loop().call_soon(self._pump_again)

    def _write_replies(self) -> None:
        replies = self._replies
        if replies and self._transport is not None and self._closing_since is None:
            self._replies, self._replies_bytes = [], 0
            self._transport.write(replies[0] if len(replies) == 1 else b"".join(replies))

    def _pump_again(self) -> None:
        self._is_pump_due = False
        if self._transport is not None:
            self._pump(is_late=True)

    def _set_reading(self) -> None:
        too_much = self._held_bytes > self._shared.limits.write_bytes_high  # the disk is slow: its sender waits, too
        wanted = self._is_writing_paused or self._is_pump_due or too_much
        if self._transport is None or self._closing_since is not None or wanted == self._is_reading_paused:
            return
        self._is_reading_paused = wanted
        if wanted:
            self._transport.pause_reading()
        else:
            self._transport.resume_reading()

    def _charge(self) -> None:
        """Bring the budget up to date; close a connection that exceeds it."""
        if self._transport is None:
            return
        limits = self._shared.limits
        unread_bytes = self._transport.get_write_buffer_size()
        held_bytes = self._decoder.buffered_bytes + unread_bytes
        grown_bytes = held_bytes - self._charged_bytes
        self._charged_bytes = held_bytes
        full: Budget | None = None
        for budget in self._budgets():
            budget.held_bytes += grown_bytes
            if grown_bytes > 0 and budget.held_bytes > budget.bytes_max:
                full = budget
        if unread_bytes > limits.write_bytes_max:
            self.abort(f"{unread_bytes} bytes of replies unread; {limits.write_bytes_max} are allowed")
        elif full is not None:
            self.abort(f"connections hold {full.held_bytes} bytes; {full.bytes_max} are allowed")

    def _budgets(self) -> tuple[Budget, ...]:
        """The budgets that count what this connection holds."""
        if self.is_proven or self.peer is not None:
            return (self._shared.budget,)
        return self._shared.budget, self._shared.unproven


def _unsent_bytes(transport: asyncio.Transport) -> int:
    """Return the bytes that the kernel cannot send, as the peer's side is full; sent ones do not count."""
    with contextlib.suppress(OSError):  # a Unix socket's peer has everything at once
        found = fcntl.ioctl(transport.get_extra_info("socket").fileno(), _SIOCOUTQNSD, bytes(4))
        return int.from_bytes(found, sys.byteorder)
    return 0


def _reset_on_close(transport: asyncio.Transport) -> None:
    accepted = transport.get_extra_info("socket")
    with contextlib.suppress(OSError):
        accepted.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _LINGER.pack(1, 0))
