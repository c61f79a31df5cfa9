"""Takes a command to its handler and its answer into a reply, for the logics of brokers and name servers.

    no such code, or not offered to this connection     REQUEST_CODE_NOT_SUPPORTED
    the admission or the handler refuses                the error as a reply
    the handler answers                                 reply, then what else follows (`_effects`)
    the handler returns None                            nothing now: the reply is an effect of a later call
    the log was busy or full, and nothing was stored    parked, and handled again (`parking.py`)

Invariants:
 1. Every request that is not oneway gets exactly one reply, before anything else that follows from it.
 2. A oneway request gets none, whatever becomes of it.
"""

from collections.abc import Sequence

from shmq.addresses import Address
from shmq.daemon.logic.access.admission import Admission
from shmq.daemon.logic.effects import Effect, Reply
from shmq.daemon.logic.parking import Parking
from shmq.daemon.logic.requests import Answer, Call, Connection, Handler, Peer, later
from shmq.errors import ShmqError
from shmq.protocol.codes import Response
from shmq.protocol.command import Command
from shmq.protocol.failure import failure_reply


class Dispatch:
    """The connections of one logic and the handlers of their requests; single-threaded."""

    def __init__(self, admission: Admission | None = None) -> None:
        self._connections: dict[int, Connection] = {}
        self._handlers: dict[int, Handler] = {}
        self._admission = admission or Admission()

    @property
    def served_codes(self) -> frozenset[int]:
        """The request codes that have a handler."""
        return frozenset(self._handlers)

    def connected(
        self,
        connection_id: int,
        peer: Peer | None,
        now_ms: int,
        *,
        remote: Address | None = None,
        local: Address | None = None,
    ) -> None:
        assert connection_id not in self._connections
        self._connections[connection_id] = Connection(connection_id, peer, now_ms, remote, local)

    def is_attached(self, connection_id: int) -> bool:
        """Say whether a connection has shown an account."""
        connection = self._connections.get(connection_id)
        return connection is not None and connection.has_account

    def handle(self, connection_id: int, command: Command, now_ms: int) -> Sequence[Effect]:
        connection = self._connections.get(connection_id)
        if connection is None:
            return []
        if command.is_reply:
            return self._replied(connection_id, command)
        handler = self._handlers.get(command.code, self._otherwise)
        if handler is None or not self._admission.is_offered(connection, command.code):
            remark = f" request type {command.code} not supported"
            unknown = command.reply(Response.REQUEST_CODE_NOT_SUPPORTED, remark=remark)
            return [] if command.is_oneway else [Reply(connection_id, unknown)]
        call = Call(connection, command, now_ms)
        try:
            rights = self._admission.check(connection, command)
            if not rights.is_everything:
                call = call._replace(rights=rights)
        except ShmqError as error:
            return self._refused(call, error)
        if self._parking is None:
            return self._serve(call, handler, True) or ()
        served = None if self._parking.has_to_wait(call) else self._serve(call, handler, False)
        return served if served is not None else self._parking.park(call, handler)

    _parking: Parking | None = None
    """Keeps requests that the log had no room for; without it they are refused."""

    def _serve(self, call: Call, handler: Handler, is_last: bool) -> Sequence[Effect] | None:
        """Let a request be handled; None when it is to be handled again, unless this is the last time."""
        parking = None if is_last else self._parking
        mark = parking.mark() if parking is not None else (0, 0)
        try:
            answer = handler(call)
        except ShmqError as error:
            if parking is not None and parking.was_refused(call, mark):
                return None
            return self._refused(call, error)
        if answer is None:
            return []
        if parking is not None and parking.was_refused(call, mark):
            return None
        return self._effects(call, answer)

    @property
    def holds_sends(self) -> bool:
        return self._parking is not None and self._parking.has_sends

    _otherwise: Handler | None = None
    """Serves codes without a handler."""

    def _replied(self, connection_id: int, command: Command) -> Sequence[Effect]:
        """Drop an answer: this logic asks clients nothing."""
        return []

    def _refused(self, call: Call, error: ShmqError) -> Sequence[Effect]:
        if call.command.is_oneway:
            return []
        return [Reply(call.connection.connection_id, failure_reply(call.command, error))]

    def _effects(self, call: Call, answer: Answer) -> Sequence[Effect]:
        return [*answer.effects] if answer.held else later(call, answer)

    def arrived(self, queues: Sequence[int], now_ms: int) -> Sequence[Effect]:
        return ()

    def woken(self, now_ms: int) -> Sequence[Effect]:
        """Do what some part asked to be woken for."""
        return ()

    def flushed(self, durable_end: int, now_ms: int) -> Sequence[Effect]:
        return ()
