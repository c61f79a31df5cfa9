"""The logic of a bridge beside the primary one: what needs only the shared log and tables is served here.

Owns the choice. It does not know how a command gets to the primary bridge.

    sends, pulls, offsets, ranges            served here
    a pull whose subscription is not known   forwarded: the primary knows what the heartbeats said first
    everything else                          forwarded: groups, locks, administration have one owner
"""

from collections.abc import Sequence

from shmq.daemon.broker.access.admission import Admission
from shmq.daemon.broker.clients.relays import RelayedGroups
from shmq.daemon.broker.effects import Effect, Forward, Reply
from shmq.daemon.broker.groups.offsets import OffsetRequests
from shmq.daemon.broker.groups.settings import GroupSettings
from shmq.daemon.broker.log import Log, Wanted
from shmq.daemon.broker.pulls.pulls import Pulling
from shmq.daemon.broker.pulls.ranges import RangeRequests
from shmq.daemon.broker.requests import Address, Call, Connection, Handler, Part, Peer, of_all
from shmq.daemon.broker.sends.sends import Sending
from shmq.daemon.broker.settings import BrokerSettings
from shmq.daemon.broker.tables import Tables
from shmq.errors import RemoteError, ShmqError
from shmq.protocol.codes import Response
from shmq.protocol.command import Command
from shmq.protocol.failure import failure_reply

_SUBSCRIPTION_UNKNOWN = (Response.SUBSCRIPTION_NOT_EXIST, Response.SUBSCRIPTION_NOT_LATEST)


class WorkerLogic:
    """One bridge's logic; single-threaded."""

    def __init__(
        self,
        tables: Tables,
        log: Log,
        settings: BrokerSettings,
        groups: RelayedGroups,
        *,
        admission: Admission | None = None,
    ) -> None:
        self._connections: dict[int, Connection] = {}
        self._admission = admission or Admission()
        group_settings = GroupSettings(tables)
        self._pulling = Pulling(tables, log, groups, group_settings, settings)
        self._sending = Sending(tables, log, group_settings, settings, arrived=self._pulling.arrived)
        self._parts: list[Part] = [self._sending, self._pulling]
        self._handlers: dict[int, Handler] = {
            **self._sending.handlers(),
            **self._pulling.handlers(),
            **OffsetRequests(tables, group_settings, settings).handlers(),
            **RangeRequests(tables, log, settings).handlers(),
        }

    @property
    def wanted(self) -> Wanted:
        """What has to happen to the log for somebody here; whoever asks watches it from now on."""
        return Wanted(self._pulling.holding.watch(), self._sending.wanted_end)

    @property
    def wanted_version(self) -> object:
        """What differs when `wanted` does; it costs less."""
        return self._pulling.holding.version, self._sending.wanted_end

    def connected(
        self,
        connection_id: int,
        peer: Peer | None,
        now_ms: int,
        *,
        remote: Address | None = None,
        local: Address | None = None,
    ) -> None:
        """Take note of a new connection."""
        self._connections[connection_id] = Connection(connection_id, peer, now_ms, remote, local)

    def is_attached(self, connection_id: int) -> bool:
        """Say whether a connection has shown an account."""
        connection = self._connections.get(connection_id)
        return connection is not None and connection.has_account

    def handle(self, connection_id: int, command: Command, now_ms: int) -> Sequence[Effect]:
        """Serve one command of a connection, or say that the primary bridge has to."""
        connection = self._connections.get(connection_id)
        if connection is None:
            return []
        if command.is_reply:
            return [Forward(connection_id, command)]
        if not self._admission.is_offered(connection, command.code):
            remark = f" request type {command.code} not supported"
            unknown = command.reply(Response.REQUEST_CODE_NOT_SUPPORTED, remark=remark)
            return [] if command.is_oneway else [Reply(connection_id, unknown)]
        try:
            self._admission.check(connection, command)
            handler = self._handlers.get(command.code)
            if handler is None:
                return [Forward(connection_id, command)]
            answer = handler(Call(connection, command, now_ms))
        except ShmqError as error:
            if isinstance(error, RemoteError) and error.code in _SUBSCRIPTION_UNKNOWN:
                return [Forward(connection_id, command)]
            return [] if command.is_oneway else [Reply(connection_id, failure_reply(command, error))]
        if answer is None:
            return []
        reply = command.reply(answer.code, ext=answer.ext, body=answer.body, remark=answer.remark)
        return [*([] if command.is_oneway else [Reply(connection_id, reply)]), *answer.effects]

    def arrived(self, queues: Sequence[int], now_ms: int) -> Sequence[Effect]:
        """Serve who waited for messages in these queues (by index)."""
        return self._pulling.arrived(queues, now_ms)

    def woken(self, now_ms: int) -> Sequence[Effect]:
        """Nobody here asks for it."""
        return ()

    def flushed(self, durable_end: int, now_ms: int) -> Sequence[Effect]:
        """Serve who waited for the log to be on disk up to a position."""
        return of_all(self._parts, lambda part: part.flushed(durable_end, now_ms))

    def disconnected(self, connection_id: int, now_ms: int) -> Sequence[Effect]:
        """Forget a connection."""
        connection = self._connections.pop(connection_id, None)
        if connection is None:
            return []
        return of_all(self._parts, lambda part: part.disconnected(connection, now_ms))

    def tick(self, now_ms: int) -> Sequence[Effect]:
        """End what time has ended."""
        return of_all(self._parts, lambda part: part.tick(now_ms))
