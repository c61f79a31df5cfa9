"""The logic of a bridge beside the primary one: it serves what needs only the shared log and tables.

A pull is forwarded when its subscription is not known here yet, so the answer to a heartbeat need not wait until all
bridges have heard of it.

    sends, pulls, offsets, ranges            served here
    a send to a topic that does not exist    forwarded: the primary makes topics, and tells name servers of them
    a pull whose subscription is not known   forwarded: the primary knows what the heartbeats said first
    everything else                          forwarded: groups, locks, administration have one owner
"""

from collections.abc import Sequence

from shmq.daemon.broker.clients.relays import RelayedGroups
from shmq.daemon.broker.groups.offsets import OffsetRequests
from shmq.daemon.broker.groups.settings import GroupSettings
from shmq.daemon.broker.log import Log, Storage, Wanted
from shmq.daemon.broker.pulls.pulls import Pulls
from shmq.daemon.broker.pulls.ranges import RangeRequests
from shmq.daemon.broker.sends.sends import Sends
from shmq.daemon.broker.settings import BrokerSettings
from shmq.daemon.broker.tables import Tables
from shmq.daemon.logic.access.admission import Admission
from shmq.daemon.logic.dispatch import Dispatch
from shmq.daemon.logic.effects import Effect, Forward
from shmq.daemon.logic.parking import SENDS, Parking
from shmq.daemon.logic.requests import Answer, Call, Part, of_all
from shmq.errors import RemoteError, ShmqError
from shmq.protocol.codes import Request, Response
from shmq.protocol.command import Command

_SUBSCRIPTION_UNKNOWN = (Response.SUBSCRIPTION_NOT_EXIST, Response.SUBSCRIPTION_NOT_LATEST)


class WorkerLogic(Dispatch):
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
        super().__init__(admission)
        self._tables = tables
        group_settings = GroupSettings(tables)
        self._pulls = Pulls(tables, log, groups, group_settings, settings)
        self._sends = Sends(Storage(tables, log, self._pulls.arrived), group_settings, settings)
        parking = self._parking = Parking(log.congestion, self._serve)
        self._parts: list[Part] = [
            parking,
            self._sends,
            self._pulls,
            OffsetRequests(tables, group_settings, settings, self._pulls.lives, self._pulls.parted),
            RangeRequests(tables, log, settings),
        ]
        for part in self._parts:
            self._handlers |= part.handlers()
        self._handlers |= {code: self._send for code in SENDS}
        self._otherwise = _forward

    @property
    def plans(self) -> Pulls:
        return self._pulls

    @property
    def wanted(self) -> Wanted:
        return Wanted(self._pulls.waits.watch(), self._sends.wanted_end)

    @property
    def wanted_version(self) -> object:
        return self._pulls.waits.version, self._sends.wanted_end

    def _send(self, call: Call) -> Answer | None:
        name = call.ext.get("topic" if call.command.code == Request.SEND_MESSAGE else "b", "")
        return self._sends.send(call) if self._tables.topic(name) is not None else _forward(call)

    def _replied(self, connection_id: int, command: Command) -> Sequence[Effect]:
        return [Forward(connection_id, command)]

    def _refused(self, call: Call, error: ShmqError) -> Sequence[Effect]:
        if isinstance(error, RemoteError) and error.code in _SUBSCRIPTION_UNKNOWN:
            return _forward(call).effects
        return super()._refused(call, error)

    def arrived(self, queues: Sequence[int], now_ms: int) -> Sequence[Effect]:
        return self._pulls.arrived(queues, now_ms)

    def woken(self, now_ms: int) -> Sequence[Effect]:
        """Do what some part asked to be woken for."""
        return of_all(self._parts, lambda part: part.woken(now_ms))

    def flushed(self, durable_end: int, now_ms: int) -> Sequence[Effect]:
        return of_all(self._parts, lambda part: part.flushed(durable_end, now_ms))

    def disconnected(self, connection_id: int, now_ms: int) -> Sequence[Effect]:
        connection = self._connections.pop(connection_id, None)
        if connection is None:
            return []
        return of_all(self._parts, lambda part: part.disconnected(connection, now_ms))

    def tick(self, now_ms: int) -> Sequence[Effect]:
        """End what time has ended."""
        return of_all(self._parts, lambda part: part.tick(now_ms))


def _forward(call: Call) -> Answer:
    return Answer(held=True, effects=(Forward(call.connection.connection_id, call.command),))
