"""Connections and one logic: feeds it their commands, and carries out what it decides, inside one event loop.

A `Bridge` hands the commands of its connections to the logic with the time, and carries out the effects that come
back. It does this for the broker of the primary bridge, for the logic of the other bridges and for a name server.

    acceptor       listening sockets, places, connections that are not open yet
    plain path     sends and pulls that need no command, and answers that wait for the disk
    bridge         commands in, effects out, time

    Unix listener    the peer is a process that the kernel vouches for; private requests are served
    TCP listener     the peer is an address; what one listener refuses (the VIP port does) is not served there

Invariants:
 1. Whatever one connection does or sends, the others are served; an unexpected error costs its connection only.
 2. Effects of one command are carried out in order, before the next command of any connection is looked at.
 3. Client slots outlive the bridge: closing it drops none, since their processes go on through shared memory.
"""

import socket
import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial

from shmq.daemon.bridge.acceptor import Acceptor
from shmq.daemon.bridge.busy_poll import BusyPoll
from shmq.daemon.bridge.connection import BridgeConnection, Budget, Event, Lost, Received, Shared
from shmq.daemon.bridge.figures import BridgeFigures
from shmq.daemon.bridge.limited_log import LimitedLog
from shmq.daemon.bridge.limits import BridgeLimits
from shmq.daemon.bridge.logic import Logic
from shmq.daemon.bridge.next_turn import NextTurn, Settling
from shmq.daemon.bridge.plain_path import PlainPath
from shmq.daemon.bridge.pull_path import PullPath
from shmq.daemon.bridge.refusals import refuse_code, refuse_connection, refuse_header
from shmq.daemon.bridge.route_waits import Registration, RouteWaits
from shmq.daemon.bridge.send_path import SendPath
from shmq.daemon.bridge.send_wait import SENDS, too_late
from shmq.daemon.bridge.sockets.security import Security
from shmq.daemon.bridge.upstream import Upstreams
from shmq.daemon.bridge.wake_up import WakeUp
from shmq.daemon.broker.sends.header import refuse_long_send
from shmq.daemon.event_log import INTERNAL_ERROR, format_trace
from shmq.daemon.logic.effects import Close, Effect, Forward, Notify, Reply, Report, Wake
from shmq.errors import ShmqError
from shmq.protocol.codes import Request, Response
from shmq.protocol.command import Command
from shmq.protocol.failure import failure_reply
from shmq.protocol.frame import Frame
from shmq.protocol.header import HeaderTooLarge, decode_header
from shmq.shm.counters import LooseCounters

EventLog = Callable[..., None]


class Bridge:
    """Connections and the one logic behind them; lives inside one event loop.

    Args:
        standing_clock: seconds on the broker's clock where that stands, for tests: limits of connections pass by it.
    """

    def __init__(
        self,
        logic: Logic,
        log: EventLog,
        *,
        limits: BridgeLimits,
        security: Security | None = None,
        sends: SendPath | None = None,
        pulls: PullPath | None = None,
        upstreams: Upstreams | None = None,
        figures: BridgeFigures | None = None,
        standing_clock: Callable[[], float] | None = None,
    ) -> None:
        self._limits = limits
        self.budget = Budget(limits.in_flight_bytes_max)
        self.security = security or Security()
        self._logic = logic
        self._upstreams = upstreams
        self._figures = figures or BridgeFigures(LooseCounters())
        self.log = LimitedLog(log, lines_max=limits.log_lines_per_tick)
        self._connections: dict[int, BridgeConnection] = {}
        self._is_closed = False
        self._wake_up = WakeUp(self._woken)
        self._waking = NextTurn(lambda _: self._woken())
        self._storing = NextTurn(self.arrived)
        self._settling = Settling()
        self._route_waits: RouteWaits | None = None
        self.now = standing_clock or time.monotonic
        busy_poll = BusyPoll()
        self._plain: PlainPath | None = None
        if sends is not None and pulls is not None:
            is_open, stored = self._is_open_for_sends, self._storing.ask
            self._plain = PlainPath(sends, pulls, limits, self._figures, self.log, busy_poll, is_open, stored)
        unproven, stands = Budget(limits.unproven_bytes_max), standing_clock is not None
        shared = Shared(limits, self.now, self.budget, unproven, busy_poll, self._plain, stands)
        connect = partial(BridgeConnection, shared, self._take)
        self._acceptor = Acceptor(limits, self.security, self.log, self.now, connect, self._connections)

    def _now_ms(self) -> int:
        return time.monotonic_ns() // 1_000_000

    def _is_open_for_sends(self) -> bool:
        return not self._logic.holds_sends and self.security.admission.rules is None

    # -- accepting

    def listen(self, listener: socket.socket, *, refused: Iterable[int] = ()) -> None:
        """Accept from a listening, non-blocking socket from now on; the caller keeps and closes it.

        Args:
            refused: request codes that are answered as unknown to connections of this socket.
        """
        self._acceptor.listen(listener, refused)

    def listen_instead(self, before: socket.socket, listener: socket.socket) -> None:
        """Accept from another socket in place of one, which the caller closes."""
        self._acceptor.listen_instead(before, listener)

    # -- events of connections

    def _take(self, connection: BridgeConnection, event: Event) -> None:
        if isinstance(event, Received):
            self._serve(connection, event.frame, event.waited_seconds)
        elif isinstance(event, Lost):
            self._lost(connection, event.reason)
        else:
            self._opened(connection)

    def _opened(self, connection: BridgeConnection) -> None:
        self._connections[connection.connection_id] = connection
        if connection.refusal:
            return  # the logic never hears of it
        self._logic.connected(
            connection.connection_id,
            connection.peer,
            self._now_ms(),
            remote=connection.remote,
            local=connection.local,
        )

    def _serve(self, connection: BridgeConnection, frame: Frame, waited_seconds: float) -> None:
        """Carry out the command of one frame; raises ProtocolError when its header breaks the format."""
        try:
            command = decode_header(frame)
        except HeaderTooLarge as error:
            refuse_header(connection, error)
            return
        if connection.refusal:
            refuse_connection(connection, command)
            return
        if frame.skipped_bytes:
            refusal = refuse_long_send(command, frame.skipped_bytes, self._limits.frame_bytes_max)
            if not command.is_oneway:
                connection.reply(refusal)
            return
        if command.code in connection.refused and not command.is_reply:
            refuse_code(connection, command)
            return
        if waited_seconds > self._limits.send_wait_max and command.code in SENDS and not command.is_reply:
            self._refuse_late(connection, command, waited_seconds)
            return
        if command.code == Request.HEART_BEAT:
            connection.is_member = True
        is_unknown = not connection.is_proven
        began_ns = time.monotonic_ns()
        routes, version = self._route_waits, self._route_waits.version if self._route_waits is not None else 0
        try:
            effects = list(self._logic.handle(connection.connection_id, command, self._now_ms()))
        except Exception as error:
            # The outermost loop of a request: a fault of ours must cost this connection only.
            self.log(INTERNAL_ERROR, where=f"request {command.code}", trace=format_trace(error))
            if not command.is_oneway:
                connection.reply(failure_reply(command, ShmqError("internal error; see the broker's log")))
            connection.close("internal error")
            return
        if routes is not None and routes.version != version:
            routes.changed_by(connection.connection_id, command.opaque)
        if is_unknown and self._logic.is_attached(connection.connection_id):
            connection.attached()
        self._carry_out(effects)
        if self._plain is not None:
            self._plain.see(connection, frame, command, effects)
        is_local = connection.peer is not None
        self._figures.served(connection.connection_id, command, effects, began_ns, is_local=is_local)

    def _refuse_late(self, connection: BridgeConnection, command: Command, waited_seconds: float) -> None:
        waiting_count = sum(1 for each in self._connections.values() if each.has_turn_due)
        answer = too_late(command, waited_seconds, max(1, waiting_count))
        self.log("send.late", about="send", reason=answer.remark)
        if not command.is_oneway:
            connection.reply(answer)

    def _lost(self, connection: BridgeConnection, reason: str) -> None:
        """The connection is gone: its client has left, unless it is the bridge that leaves."""
        if self._is_closed:
            return
        self._connections.pop(connection.connection_id, None)
        self._figures.lost(connection.connection_id)
        if self._upstreams is not None:
            self._upstreams.closed(connection)
        self._acceptor.left(connection.connection_id)
        if reason and connection.peer is not None:
            self.log("connection.closed", pid=connection.peer.pid, uid=connection.peer.uid, reason=reason)
        elif reason:
            host = connection.remote.host if connection.remote else ""
            self.log("connection.closed", about=host, remote=connection.remote, reason=reason)
        self._guarded("a connection's end", lambda: self._logic.disconnected(connection.connection_id, self._now_ms()))

    # -- called by the watch of the log

    def arrived(self, queues: Sequence[int]) -> None:
        """Queues (by index) may have new visible messages."""
        self._guarded("an arrival", lambda: self._logic.arrived(queues, self._now_ms()))

    def call_to_want(self, want: Callable[[int], None], outcome: Callable[[int], Response]) -> None:
        """Have `want` called with a log position that answers wait for; `flushed` is expected when that is safe.

        `outcome` says by which code; it is asked again when one has waited too long.
        """
        if self._plain is not None:
            self._plain.call_to_want(want, outcome)

    def flushed(self, durable_end: int) -> None:
        """Everything below this log position is on disk."""
        if self._plain is not None:
            self._became_visible(self._plain.flushed(durable_end))
        self._guarded("a flush", lambda: self._logic.flushed(durable_end, self._now_ms()))

    def flush_failed(self) -> None:
        """Answer what waits for the disk: nothing more reaches it."""
        if self._plain is not None:
            self._plain.flush_failed()

    def _became_visible(self, queues: Sequence[int]) -> None:
        if queues:
            self.arrived(queues)

    def call_when_settled(self, action: Callable[[], None], *, version: Callable[[], object]) -> None:
        """Have `action` called after whatever changed what the logic waits for, as `version` says: once a turn."""
        self._settling.begin(action, version)

    def settle(self) -> None:
        """Call the action now, whatever has changed."""
        self._settling.settle()

    def _guarded(self, where: str, action: Callable[[], Iterable[Effect]]) -> None:
        try:
            self._carry_out(action())
        except Exception as error:  # a process that ended here would take all connections with it
            self.log.failed(where, error)

    def _carry_out(self, effects: Iterable[Effect]) -> None:
        """Carry out each of them, also when one before it failed: they may concern other connections."""
        for effect in effects:
            try:
                self._carry(effect)
            except Exception as error:
                self.log.failed(f"effect {type(effect).__name__}", error)
                if isinstance(effect, Reply | Forward) and effect.connection_id in self._connections:
                    self._connections[effect.connection_id].close("internal error")  # it would wait for an answer
        self._settling.settle_soon()

    def _carry(self, effect: Effect) -> None:
        if isinstance(effect, Report):
            self.log("broker", text=effect.text)
            return
        if isinstance(effect, Wake):
            if effect.after_ms > 0:
                self._wake_up.within(effect.after_ms / 1000)
            else:
                self._waking.ask()
            return
        connection = self._connections.get(effect.connection_id)
        if connection is None:
            return
        if isinstance(effect, Reply):
            if self._route_waits is None or not self._route_waits.keeps(effect):
                self._reply(effect)
        elif isinstance(effect, Notify):
            connection.notify(effect.command)
        elif isinstance(effect, Close):
            connection.close(effect.reason)
        elif isinstance(effect, Forward):
            assert self._upstreams is not None
            self._upstreams.forward(connection, effect.command)

    def _reply(self, effect: Reply) -> None:
        connection = self._connections.get(effect.connection_id)
        if connection is not None:
            connection.reply(effect.command, effect.shared)
            self._figures.answered(effect)

    def wait_for_routes(self, registration: Registration) -> None:
        """Let answers to changes of topics wait from now on until this has told the name servers."""
        self._route_waits = RouteWaits(registration, time.monotonic, self._reply)

    # -- time

    def tick(self) -> None:
        """Do what depends on the clock, for all connections."""
        self.log.tick()
        self._figures.beat()
        self.security.tick(self.log)
        now = self.now()
        for connection in list(self._connections.values()):
            connection.check_time(now)
        self._acceptor.check_time(now)
        if self._route_waits is not None:
            self._route_waits.look()
        if self._plain is not None:
            self._became_visible(self._plain.check_time())
        self._guarded("a tick", lambda: self._logic.tick(self._now_ms()))

    def _woken(self) -> None:
        if not self._is_closed:
            self._guarded("a wake-up", lambda: self._logic.woken(self._now_ms()))

    def close(self) -> None:
        """Stop accepting and cut every connection; client slots stay with their processes."""
        self._acceptor.close()
        self._is_closed = True
        for turn in (self._waking, self._storing, self._settling):
            turn.close()
        self._wake_up.close()
        for connection in list(self._connections.values()):
            connection.abort("the bridge stops")
        self.log.sum_up()
