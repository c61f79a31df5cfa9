"""Accepts connections, feeds their commands to one logic, and carries out what it decides, inside one event loop.

A `Bridge` accepts connections, hands their commands to the logic with the time, and carries out the effects that come
back. It does this for the broker of the primary bridge, for the logic of the other bridges and for a name server.

    Unix listener    the peer is a process that the kernel vouches for; private requests are served
    TCP listener     the peer is an address; what one listener refuses (the VIP port does) is not served there

Invariants:
 1. Whatever one connection does or sends, the others are served; an unexpected error costs its connection only.
 2. Effects of one command are carried out in order, before the next command of any connection is looked at.
 3. Client slots outlive the bridge: closing it drops none, since their processes go on through shared memory.
"""

import asyncio
import socket
import time
from collections.abc import Callable, Iterable, Sequence

from shmq.daemon.bridge.busy_poll import BusyPoll
from shmq.daemon.bridge.connection import BridgeConnection, Budget
from shmq.daemon.bridge.figures import BridgeFigures, code_of
from shmq.daemon.bridge.held_answers import Entry, HeldAnswers, send
from shmq.daemon.bridge.limited_log import LimitedLog
from shmq.daemon.bridge.limits import BridgeLimits
from shmq.daemon.bridge.logic import Logic
from shmq.daemon.bridge.next_turn import NextTurn, Settling
from shmq.daemon.bridge.pull_path import PULLS, Pulled, PullPath
from shmq.daemon.bridge.refusals import refuse_code, refuse_connection, refuse_header
from shmq.daemon.bridge.route_waits import Registration, RouteWaits
from shmq.daemon.bridge.send_path import Held, Origin, SendPath, Served
from shmq.daemon.bridge.send_wait import SENDS, too_late
from shmq.daemon.bridge.sockets.peer import peer_of
from shmq.daemon.bridge.sockets.reception import Arrival, Door, Reception, is_loopback_address
from shmq.daemon.bridge.sockets.security import Security
from shmq.daemon.bridge.sockets.tcp_listener import address_of, prepare_accepted
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
        self.limits = limits
        self.budget = Budget(limits.in_flight_bytes_max)
        self.unproven = Budget(limits.unproven_bytes_max)
        self.security = security or Security()
        self._reception = Reception(limits, self.security.tls)
        self._logic = logic
        self._sends = sends
        self._pulls = pulls
        self._upstreams = upstreams
        self._held = HeldAnswers(sends.flush_timeout if sends is not None else 0.0)
        self._want: Callable[[int], None] | None = None
        self._outcome: Callable[[int], Response] = lambda end: Response.SUCCESS
        self._figures = figures or BridgeFigures(LooseCounters())
        self.log = LimitedLog(log, lines_max=limits.log_lines_per_tick)
        self._connections: dict[int, BridgeConnection] = {}
        self._connection_id = 0
        self._arrivals: dict[int, Arrival] = {}
        self._doors: list[Door] = []
        self._is_closed = False
        self.busy_poll = BusyPoll()
        self._wake_up = WakeUp(self._woken)
        self._waking = NextTurn(lambda _: self._woken())
        self._storing = NextTurn(self.arrived)
        self._settling = Settling()
        self._route_waits: RouteWaits | None = None
        self.now = standing_clock or time.monotonic
        self.spares_members = standing_clock is not None

    def _now_ms(self) -> int:
        return time.monotonic_ns() // 1_000_000

    # -- accepting

    def listen(self, listener: socket.socket, *, refused: Iterable[int] = ()) -> None:
        """Accept from a listening, non-blocking socket from now on; the caller keeps and closes it.

        Args:
            refused: request codes that are answered as unknown to connections of this socket.
        """
        door = Door(listener, frozenset(refused))
        self._doors.append(door)
        asyncio.get_running_loop().add_reader(listener, self._accept, door)

    def _accept(self, door: Door) -> None:
        for _ in range(self.limits.accepts_per_turn):
            try:
                accepted, address = door.socket.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                # Out of descriptors or memory: the backlog waits until some are free again.
                self.log("accept.failed", reason=str(error))
                self._pause_accepting(door)
                return
            self._take(door, accepted, address)

    def _pause_accepting(self, door: Door) -> None:
        loop = asyncio.get_running_loop()
        loop.remove_reader(door.socket)
        loop.call_later(self.limits.tick_interval, self._resume_accepting, door)

    def _resume_accepting(self, door: Door) -> None:
        if not self._is_closed:
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
        limits = self.limits
        silence = limits.first_frame_timeout
        if not door.is_local and self._may_be_silent(address_of(address).host):
            silence = limits.tcp_idle_timeout
        arrival = Arrival(connection, until=self.now() + silence)
        self._arrivals[connection.connection_id] = arrival
        speaks = lambda: arrival.grant(self.now() + limits.first_frame_timeout)  # noqa: E731
        opening = self._reception.open(accepted, lambda: connection, is_local=door.is_local, speaks=speaks)
        arrival.task = task = asyncio.get_running_loop().create_task(opening)
        task.add_done_callback(lambda _: self._arrived(task, connection))

    def _make_room(self, host: str) -> bool:
        """Close a TCP connection that nobody knows; False when there is none.

        The one that is silent for longest, and before it one that has never spoken.
        """
        is_crowded, latest = self._reception.is_crowded(host), self.now() - self.limits.idle_kept
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
        if oldest.connection_id in self._arrivals:
            self._arrivals[oldest.connection_id].cancel()  # its first byte would say whether it speaks TLS
            return True
        oldest.abort(f"silent for {self.now() - oldest.idle_since:.0f} s, and its place was needed")
        return True

    def _is_known(self, connection: BridgeConnection) -> bool:
        """Whether a peer has shown an account or, where none is needed, is a member of some group."""
        if connection.refusal:
            return True  # it has no place that could be given away
        return connection.is_member if self.security.admission.rules is None else connection.is_proven

    def _turned_away(self, host: str | None, reason: str) -> None:
        self.log("connection.refused", about=host or "", remote=host or "local", reason=reason)

    def _connection_of(self, door: Door, accepted: socket.socket, address: object, refusal: str) -> BridgeConnection:
        if door.is_local:
            return BridgeConnection(self, self._connection_id, peer_of(accepted), refused=door.refused, refusal=refusal)
        prepare_accepted(accepted)
        local = address_of(accepted.getsockname())
        return BridgeConnection(
            self,
            self._connection_id,
            None,
            remote=address_of(address),
            local=local,
            refused=door.refused,
            is_proven=self.security.admission.rules is None,
            may_be_silent=self._may_be_silent(address_of(address).host),
            refusal=refusal,
        )

    def _may_be_silent(self, host: str) -> bool:
        """Whether a peer may open a connection long before it needs it, as some of RocketMQ's clients do."""
        return self.security.admission.rules is None or is_loopback_address(host)

    def _arrived(self, task: asyncio.Task[None], connection: BridgeConnection) -> None:
        self._arrivals.pop(connection.connection_id, None)
        if task.cancelled() or (error := task.exception()) is None:
            return
        self._reception.leave(connection.connection_id)
        if str(error):
            self._turned_away(connection.remote.host if connection.remote else None, str(error))

    # -- called by connections

    def opened(self, connection: BridgeConnection) -> None:
        """The connection can be written to."""
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

    def serve(self, connection: BridgeConnection, frame: Frame, waited_seconds: float) -> None:
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
            refusal = refuse_long_send(command, frame.skipped_bytes, self.limits.frame_bytes_max)
            if not command.is_oneway:
                connection.reply(refusal)
            return
        if command.code in connection.refused and not command.is_reply:
            refuse_code(connection, command)
            return
        if waited_seconds > self.limits.send_wait_max and command.code in SENDS and not command.is_reply:
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
        if self._pulls is not None and connection.remote is not None and command.code in PULLS:
            self._pulls.see(frame, command, effects)
        is_local = connection.peer is not None
        self._figures.served(connection.connection_id, command, effects, began_ns, is_local=is_local)

    def origin_of(self, connection: BridgeConnection) -> Origin | None:
        """What plain sends of a connection take along; None where they go the way of everything else."""
        if self._sends is None or connection.remote is None or connection.local is None or connection.refusal:
            return None
        return self._sends.origin(connection.remote, connection.local)

    def serve_sends(self, connection: BridgeConnection, data: bytes, origin: Origin) -> Served | None:
        """Store the plain sends at the front of what a connection sent; the answers are the caller's to write."""
        if self._sends is None or self._logic.holds_sends or self.security.admission.rules is not None:
            return None
        began_ns = time.monotonic_ns()
        try:
            served = self._sends.serve(data, origin, frame_bytes_max=self.limits.frame_bytes_max)
        except ShmqError as error:
            self.log("sends.failed", reason=str(error))
            return None
        count = served.frame_count - (served.held.frame_count if served.held is not None else 0)
        if count:
            self._figures.plain(code_of(data), count, began_ns)
        return served

    def serve_pulls(self, connection: BridgeConnection, data: bytes) -> Pulled | None:
        """Answer the plain pulls at the front of what a connection sent; the answers are the caller's to write."""
        if self._pulls is None or connection.refused or not self._pulls.is_open:
            return None
        began_ns = time.monotonic_ns()
        try:
            pulled = self._pulls.serve(connection.connection_id, data, self.limits)
        except ShmqError as error:
            self.log("pulls.failed", reason=str(error))
            return None
        if pulled.answers:
            self._figures.plain(pulled.code, len(pulled.answers), began_ns)
        return pulled

    def hold(self, connection: BridgeConnection, held: Held, data: bytes) -> None:
        """Keep answers until the disk has what they acknowledge."""
        is_first = self._held.wanted_end is None
        self._held.hold(connection, held, time.monotonic(), code=code_of(data), began_ns=time.monotonic_ns())
        if is_first and self._want is not None:
            self._want(held.end)

    def _refuse_late(self, connection: BridgeConnection, command: Command, waited_seconds: float) -> None:
        waiting_count = sum(1 for each in self._connections.values() if each.has_turn_due)
        answer = too_late(command, waited_seconds, max(1, waiting_count))
        self.log("send.late", about="send", reason=answer.remark)
        if not command.is_oneway:
            connection.reply(answer)

    def lost(self, connection: BridgeConnection, reason: str) -> None:
        """The connection is gone: its client has left, unless it is the bridge that leaves."""
        if self._is_closed:
            return
        self._connections.pop(connection.connection_id, None)
        self._figures.lost(connection.connection_id)
        if self._upstreams is not None:
            self._upstreams.closed(connection)
        self._reception.leave(connection.connection_id)
        if reason and connection.peer is not None:
            self.log("connection.closed", pid=connection.peer.pid, uid=connection.peer.uid, reason=reason)
        elif reason:
            host = connection.remote.host if connection.remote else ""
            self.log("connection.closed", about=host, remote=connection.remote, reason=reason)
        self._guarded("a connection's end", lambda: self._logic.disconnected(connection.connection_id, self._now_ms()))

    def stored(self, queues: Sequence[int]) -> None:
        """Queues (by index) have new messages; who waits for them is served after what is written now has gone out."""
        self._storing.ask(queues)

    # -- called by whoever watches the log

    def arrived(self, queues: Sequence[int]) -> None:
        """Queues (by index) may have new visible messages."""
        self._guarded("an arrival", lambda: self._logic.arrived(queues, self._now_ms()))

    def call_to_want(self, want: Callable[[int], None], outcome: Callable[[int], Response]) -> None:
        """Have `want` called with a log position that answers wait for; `flushed` is expected when that is safe.

        `outcome` says by which code; it is asked again when one has waited too long.
        """
        self._want, self._outcome = want, outcome

    def flushed(self, durable_end: int) -> None:
        """Everything below this log position is on disk."""
        if self._held.wanted_end is not None:
            self._release(self._held.take_durable(durable_end), self._outcome(durable_end))
        self._guarded("a flush", lambda: self._logic.flushed(durable_end, self._now_ms()))

    def flush_failed(self) -> None:
        """What is not on disk by now never will be."""
        self._release(self._held.take_all(), Response.FLUSH_DISK_TIMEOUT)

    def _release(self, entries: Sequence[Entry], code: Response) -> None:
        self._guarded("answers that were held", lambda: send(entries, code))
        for entry in entries:
            self._figures.plain(entry.code, entry.held.frame_count, entry.began_ns, answer=code)
        if code in (Response.SUCCESS, Response.SLAVE_NOT_AVAILABLE) and entries:
            self.arrived(tuple({queue: None for entry in entries for queue in entry.held.queues}))
        end = self._held.wanted_end
        if end is not None and self._want is not None:
            self._want(end)

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
            self._failed(where, error)

    def _failed(self, where: str, error: Exception) -> None:
        if isinstance(error, ShmqError):
            self.log("work.failed", where=where, reason=str(error))
        else:
            self.log(INTERNAL_ERROR, where=where, trace=format_trace(error))

    def _carry_out(self, effects: Iterable[Effect]) -> None:
        """Carry out each of them, also when one before it failed: they may concern other connections."""
        for effect in effects:
            try:
                self._carry(effect)
            except Exception as error:
                self._failed(f"effect {type(effect).__name__}", error)
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
        """Look at the clock for everybody."""
        self.log.tick()
        self._figures.beat()
        self.security.tick(self.log)
        now = self.now()
        for connection in list(self._connections.values()):
            connection.check_time(now)
        for connection_id, arrival in self._arrivals.items():
            if now > arrival.until and arrival.cancel():
                self._reception.leave(connection_id)
                self._turned_away(arrival.host, "it took too long to say whether it speaks TLS, or to agree on it")
        if self._route_waits is not None:
            self._route_waits.look()
        if late := self._held.take_late(time.monotonic()):
            self._release(late, self._outcome(late[-1].held.end))
        self._guarded("a tick", lambda: self._logic.tick(self._now_ms()))

    def _woken(self) -> None:
        if not self._is_closed:
            self._guarded("a wake-up", lambda: self._logic.woken(self._now_ms()))

    def close(self) -> None:
        """Stop accepting and cut every connection; client slots stay with their processes."""
        for door in self._doors:
            asyncio.get_running_loop().remove_reader(door.socket)
        self._doors.clear()
        self._is_closed = True
        for turn in (self._waking, self._storing, self._settling):
            turn.close()
        for arrival in self._arrivals.values():
            arrival.cancel()
        self._wake_up.close()
        for connection in list(self._connections.values()):
            connection.abort("the bridge stops")
        self.log.sum_up()
