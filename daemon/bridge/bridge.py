"""The bridge between the control socket and the broker's logic, inside one event loop.

Owns accepting, the clock and the carrying out of effects. It does not know what a request means, nor where the socket
and the tables come from.

Invariants:
 1. Whatever one connection does or sends, the others are served; an unexpected error costs its connection only.
 2. Effects of one command are carried out in order, before the next command of any connection is looked at.
 3. Client slots outlive the bridge: closing it drops none, since their processes go on through shared memory.
"""

from __future__ import annotations

import asyncio
import socket
import time
import traceback
from collections.abc import Callable, Iterable

from shmq.daemon.bridge.connection import BridgeConnection, Budget
from shmq.daemon.bridge.limits import BridgeLimits
from shmq.daemon.bridge.peer import peer_of
from shmq.daemon.broker.broker import Broker
from shmq.daemon.broker.effects import Close, Effect, Notify, Reply, Report
from shmq.daemon.broker.settings import BrokerSettings
from shmq.daemon.broker.tables import Tables
from shmq.errors import ShmqError
from shmq.protocol.command import Command
from shmq.protocol.failure import failure_reply

Log = Callable[..., None]


class Bridge:
    """Connections and the one broker behind them; lives inside one event loop."""

    def __init__(self, tables: Tables, settings: BrokerSettings, log: Log, *, limits: BridgeLimits) -> None:
        self.limits = limits
        self.budget = Budget(limits.in_flight_bytes_max)
        self._log = log
        self._log_lines = 0
        self._connections: dict[int, BridgeConnection] = {}
        self._connection_id = 0
        self._broker = Broker(tables, settings, now_ms=self._now_ms())
        self._accepting: set[asyncio.Task[object]] = set()
        self._listener: socket.socket | None = None
        self._is_closed = False

    def now(self) -> float:
        """Seconds on a clock that never goes back."""
        return time.monotonic()

    def _now_ms(self) -> int:
        return time.monotonic_ns() // 1_000_000

    # -- accepting

    def listen(self, listener: socket.socket) -> None:
        """Accept from a listening, non-blocking socket from now on; the caller keeps and closes it."""
        self._listener = listener
        asyncio.get_running_loop().add_reader(listener, self._accept)

    def _accept(self) -> None:
        assert self._listener is not None
        for _ in range(self.limits.accepts_per_turn):
            try:
                accepted, _address = self._listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                # Out of descriptors or memory: the backlog waits until some are free again.
                self.log("accept.failed", reason=str(error))
                self._pause_accepting()
                return
            self._take(accepted)

    def _pause_accepting(self) -> None:
        loop = asyncio.get_running_loop()
        listener = self._listener
        if listener is not None:
            loop.remove_reader(listener)
            loop.call_later(self.limits.tick_interval, self._resume_accepting)

    def _resume_accepting(self) -> None:
        if self._listener is not None:
            self.listen(self._listener)

    def _take(self, accepted: socket.socket) -> None:
        if len(self._connections) + len(self._accepting) >= self.limits.connections_max:
            accepted.close()
            self.log("connection.refused", reason=f"{self.limits.connections_max} connections are open")
            return
        try:
            accepted.setblocking(False)
            peer = peer_of(accepted)
        except OSError as error:
            accepted.close()
            self.log("connection.refused", reason=str(error))
            return
        self._connection_id += 1
        connection = BridgeConnection(self, self._connection_id, peer)
        loop = asyncio.get_running_loop()
        task = loop.create_task(loop.connect_accepted_socket(lambda: connection, accepted))
        self._accepting.add(task)
        task.add_done_callback(self._accepted)

    def _accepted(self, task: asyncio.Task[object]) -> None:
        self._accepting.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self.log("connection.refused", reason=str(error))

    # -- called by connections

    def opened(self, connection: BridgeConnection) -> None:
        """The connection can be written to."""
        self._connections[connection.connection_id] = connection
        self._broker.connected(connection.connection_id, connection.peer, self._now_ms())

    def serve(self, connection: BridgeConnection, command: Command) -> None:
        """Carry out one command of a connection."""
        was_attached = self._broker.is_attached(connection.connection_id)
        try:
            effects = self._broker.handle(connection.connection_id, command, self._now_ms())
        except Exception:
            # The outermost loop of a request: a fault of ours must cost this connection only.
            self._report_fault(f"request {command.code}")
            if not command.is_oneway:
                connection.reply(command, failure_reply(command, ShmqError("internal error; see the broker's log")))
            connection.close("internal error")
            return
        if not was_attached and self._broker.is_attached(connection.connection_id):
            connection.attached()
        self._carry_out(effects, request=command)

    def lost(self, connection: BridgeConnection, reason: str) -> None:
        """The connection is gone: its client has left, unless it is the bridge that leaves."""
        if self._is_closed:
            return
        self._connections.pop(connection.connection_id, None)
        if reason:
            self.log("connection.closed", pid=connection.peer.pid, uid=connection.peer.uid, reason=reason)
        self._forget(connection.connection_id)

    def _forget(self, connection_id: int) -> None:
        try:
            self._carry_out(self._broker.disconnected(connection_id, self._now_ms()))
        except Exception:
            self._report_fault("a connection's end")

    def _carry_out(self, effects: Iterable[Effect], *, request: Command | None = None) -> None:
        for effect in effects:
            if isinstance(effect, Report):
                self.log("broker", text=effect.text)
                continue
            connection = self._connections.get(effect.connection_id)
            if connection is None:
                continue
            if isinstance(effect, Reply):
                assert request is not None
                connection.reply(request, effect.command)
            elif isinstance(effect, Notify):
                connection.notify(effect.command)
            elif isinstance(effect, Close):
                connection.close(effect.reason)

    # -- time

    def tick(self) -> None:
        """Look at the clock for everybody."""
        self._log_lines = 0
        now = self.now()
        for connection in list(self._connections.values()):
            connection.check_time(now)
        try:
            self._carry_out(self._broker.tick(self._now_ms()))
        except ShmqError as error:
            self.log("tick.failed", reason=str(error))

    def close(self) -> None:
        """Stop accepting and cut every connection; client slots stay with their processes."""
        if self._listener is not None:
            asyncio.get_running_loop().remove_reader(self._listener)
            self._listener = None
        self._is_closed = True
        for connection in list(self._connections.values()):
            connection.abort("the bridge stops")

    def log(self, event: str, **values: object) -> None:
        """Write an event unless this second had too many: a hostile peer must not fill the log."""
        self._log_lines += 1
        if self._log_lines <= self.limits.log_lines_per_tick:
            self._log(event, **values)
        elif self._log_lines == self.limits.log_lines_per_tick + 1:
            self._log("log.limited", lines=self.limits.log_lines_per_tick)

    def _report_fault(self, where: str) -> None:
        self.log("internal.error", where=where, trace=traceback.format_exc(limit=-4))
