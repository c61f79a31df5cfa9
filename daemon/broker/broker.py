"""The broker's decisions: requests in, effects out. No socket, no clock, no thread.

Owns which request goes where, how its outcome becomes effects, and the life of connections. It does not know how bytes
arrive, and reaches shared memory only through `Tables`.

    connected -> handle* -> disconnected        tick about once a second, whatever happens
                                                arrived, flushed when the log has moved

Invariants:
 1. Every request that is not oneway gets exactly one Reply, before anything else that follows from it; a held one gets
    it later, and none once its connection is gone.
 2. After `disconnected`, or a Close in the effects, nothing of that connection is left.
 3. A request that fails changes nothing that its sender was not told about.
 4. A part that fails on its own account costs the others no reply: what they answered is sent all the same.
"""

from collections.abc import Iterable, Mapping, Sequence

from shmq.daemon.broker.access.admission import Admission
from shmq.daemon.broker.administration.clock import ClockRequests
from shmq.daemon.broker.administration.parts import administration
from shmq.daemon.broker.clients.attachment import AttachmentDesk
from shmq.daemon.broker.clients.questions import Asking
from shmq.daemon.broker.clients.relays import Relays
from shmq.daemon.broker.clients.roster import RosterKeeper
from shmq.daemon.broker.clients.status import StatusRequests
from shmq.daemon.broker.effects import Close, Effect, Reply, Report
from shmq.daemon.broker.groups.locks import Locks
from shmq.daemon.broker.groups.membership import Membership
from shmq.daemon.broker.groups.offsets import OffsetRequests
from shmq.daemon.broker.groups.registry import GroupRegistry
from shmq.daemon.broker.groups.settings import GroupSettings
from shmq.daemon.broker.log import KeyIndex, Log, Wanted
from shmq.daemon.broker.pop.pops import Popping, pop_parts
from shmq.daemon.broker.pop.records import QueueKey
from shmq.daemon.broker.pulls.pulls import Pulling
from shmq.daemon.broker.pulls.query import QueryRequests
from shmq.daemon.broker.pulls.ranges import RangeRequests
from shmq.daemon.broker.requests import Address, Answer, Call, Connection, Handler, Part, Peer, of_all
from shmq.daemon.broker.rows.rows import Staging
from shmq.daemon.broker.sends.replies import Replies
from shmq.daemon.broker.sends.send_back import SendBack
from shmq.daemon.broker.sends.sends import Sending
from shmq.daemon.broker.settings import BrokerSettings
from shmq.daemon.broker.statistics.figures import BrokerFigures, Figures, NoFigures, end_transaction_counted
from shmq.daemon.broker.statistics.queue_index import QueueIndex
from shmq.daemon.broker.statistics.statistics import Statistics
from shmq.daemon.broker.statistics.traffic import Traffic
from shmq.daemon.broker.tables import Tables
from shmq.daemon.broker.timers.delay import DelayService
from shmq.daemon.broker.timers.timers import TimerService
from shmq.daemon.broker.topic_creation import make_system_topics, widen_topic
from shmq.daemon.broker.transactions.check import transaction_parts
from shmq.daemon.broker.transactions.transactions import Transactions
from shmq.delay_levels import SCHEDULE_TOPIC, DelayLevels
from shmq.errors import ShmqError
from shmq.protocol.codes import Request, Response
from shmq.protocol.command import Command
from shmq.protocol.failure import failure_reply
from shmq.protocol.roster import Roster


class Broker:
    """One broker's logic; single-threaded."""

    def __init__(
        self,
        tables: Tables,
        settings: BrokerSettings,
        *,
        now_ms: int,
        log: Log | None = None,
        index: KeyIndex | None = None,
        admission: Admission | None = None,
        figures: Figures | None = None,
    ) -> None:
        self._tables = tables
        self._connections: dict[int, Connection] = {}
        self._registry = GroupRegistry(settings)
        self._desk = AttachmentDesk(tables, settings)
        self._roster = RosterKeeper(self._registry, self._connections, settings, in_flight=self._in_flight)
        self._admission = admission or Admission()
        self._asking = Asking()
        self._groups = groups = GroupSettings(tables)
        self._relays = Relays(self._registry, settings)
        self._figures = BrokerFigures(figures or NoFigures(), self._registry, self._connections)
        statistics = Statistics(self._figures.told)
        self._traffic = Traffic(tables, QueueIndex(tables), statistics, cluster=settings.cluster)
        self._parts: list[Part] = [
            self._relays,
            *administration(
                tables,
                self._registry,
                groups,
                self._connections,
                settings,
                statistics,
                self._traffic,
                settings_changed=self._relays.settings_changed,
                log=log,
                now_ms=now_ms,
            ),
        ]
        self._parts += [ClockRequests(tables, settings, self._clock_moved), self._figures]
        self._sending: Sending | None = None
        self._pulling: Pulling | None = None
        self._popping: Popping | None = None
        self._timers: TimerService | None = None
        if log is not None:
            self._parts += self._log_parts(log, groups, settings, statistics)
            if index is not None:
                self._parts.append(QueryRequests(log, index))
        self._reports = make_system_topics(tables, settings) if settings.serves_tcp else []
        status = StatusRequests(tables, self._registry, self._connections, settings, since_ms=now_ms)
        self._handlers: dict[int, Handler] = {
            **self._desk.handlers(),
            **Membership(tables, self._registry, groups, settings).handlers(),
            **OffsetRequests(tables, groups, settings).handlers(),
            **status.handlers(),
        }
        for part in self._parts:
            self._handlers |= part.handlers()
        end_transaction_counted(self._handlers, self._figures)
        self._arrival_parts = [part for part in self._parts if type(part).arrived is not Part.arrived]

    def _log_parts(
        self, log: Log, groups: GroupSettings, settings: BrokerSettings, statistics: Statistics
    ) -> list[Part]:
        """The parts that store and read messages."""
        tables, registry = self._tables, self._registry
        levels = DelayLevels(settings.delay_levels)
        widen_topic(tables, SCHEDULE_TOPIC, queues=levels.count)  # there may be more of them than at the last start
        self._sending = Sending(tables, log, groups, settings, arrived=self.arrived)
        self._pulling = Pulling(tables, log, registry, groups, settings, started=self._traffic.started)
        self._timers = TimerService(tables, log, settings, arrived=self.arrived)
        self._popping, *settling = pop_parts(tables, log, registry, groups, settings, arrived=self.arrived)
        transactions = transaction_parts(tables, log, registry, settings, levels, arrived=self.arrived)
        self._count_log_parts(self._pulling, self._popping, self._timers, transactions)
        return [
            *transactions,
            self._sending,
            Replies(tables, registry, self._sending),
            self._pulling,
            RangeRequests(tables, log, settings),
            self._popping,
            *settling,
            Locks(tables),
            DelayService(tables, log, levels, arrived=self.arrived),
            Staging(tables, log, settings, levels, arrived=self.arrived),
            self._timers,
            SendBack(tables, log, groups, registry, levels, statistics, settings, arrived=self.arrived),
        ]

    def _clock_moved(self, milliseconds: int, now_ms: int) -> Sequence[Effect]:
        return self._popping.clock_moved(milliseconds, now_ms) if self._popping is not None else ()

    def _in_flight(self) -> Mapping[QueueKey, int]:
        return self._popping.queues_in_flight() if self._popping is not None else {}

    def _count_log_parts(
        self, pulling: Pulling, popping: Popping, timers: TimerService, transactions: Sequence[Part]
    ) -> None:
        halves = [part.halves for part in transactions if isinstance(part, Transactions)]
        self._figures.state("rocketmq_half_messages", lambda: sum(len(each.open) for each in halves))
        self._figures.state("rocketmq_timing_messages", lambda: timers.pending)
        self._figures.total("rocketmq_timer_dequeue", lambda: timers.delivered)
        self._figures.of_groups("rocketmq_consumer_inflight_messages", popping.in_flight)
        self._figures.state("shmq_popped_checkpoints", lambda: popping.unsettled)
        self._figures.state("shmq_held_pulls", lambda: len(pulling.holding) + len(popping.waiting))

    def connected(
        self,
        connection_id: int,
        peer: Peer | None,
        now_ms: int,
        *,
        remote: Address | None = None,
        local: Address | None = None,
    ) -> None:
        """Take note of a new connection; `peer` is None for TCP, `remote` and `local` are its ends then."""
        assert connection_id not in self._connections
        self._connections[connection_id] = Connection(connection_id, peer, now_ms, remote, local)

    @property
    def served_codes(self) -> frozenset[int]:
        """The request codes that have a handler."""
        return frozenset(self._handlers)

    def is_attached(self, connection_id: int) -> bool:
        """Say whether a connection has proven to be one of our own clients or bridges, or to have an account."""
        connection = self._connections.get(connection_id)
        return connection is not None and (connection.is_attached or connection.has_account or connection.is_of_bridge)

    def handle(self, connection_id: int, command: Command, now_ms: int) -> list[Effect]:
        """Serve one command of a connection."""
        connection = self._connections.get(connection_id)
        if connection is None:
            return []
        if command.is_reply:
            return self._asking.answered(connection_id, command)
        handler = self._handlers.get(command.code)
        if handler is None or not self._admission.is_offered(connection, command.code):
            remark = f" request type {command.code} not supported"
            unknown = command.reply(Response.REQUEST_CODE_NOT_SUPPORTED, remark=remark)
            return [] if command.is_oneway else [Reply(connection_id, unknown)]
        try:
            self._admission.check(connection, command)
            answer = handler(Call(connection, command, now_ms))
        except ShmqError as error:
            return [] if command.is_oneway else [Reply(connection_id, failure_reply(command, error))]
        return self._effects(connection, command, answer, now_ms) if answer is not None else []

    def _effects(self, connection: Connection, command: Command, answer: Answer, now_ms: int) -> list[Effect]:
        effects: list[Effect] = []
        if not command.is_oneway and not answer.held:
            reply = command.reply(answer.code, ext=answer.ext, body=answer.body, remark=answer.remark)
            effects.append(Reply(connection.connection_id, reply))
        effects += self._notices(answer.changed_groups, but=connection)
        effects += [self._asking.notice(*notice) for notice in answer.notices]
        for close in answer.closes:
            effects += [close, *self.disconnected(close.connection_id, now_ms)]
        effects += map(Report, answer.reports)
        effects += [self._asking.ask(ask, now_ms) for ask in answer.asks]
        effects += answer.effects
        if self._registry.touched:
            effects += self._relays.changes()
        return effects

    def arrived(self, queues: Sequence[int], now_ms: int) -> list[Effect]:
        """Serve who waited for messages in these queues (by index)."""
        return of_all(self._arrival_parts, lambda part: part.arrived(queues, now_ms))

    def woken(self, now_ms: int) -> list[Effect]:
        """Do what some part asked to be woken for."""
        return of_all(self._parts, lambda part: part.woken(now_ms))

    def flushed(self, durable_end: int, now_ms: int) -> list[Effect]:
        """Serve who waited for the log to be on disk up to a position."""
        return of_all(self._parts, lambda part: part.flushed(durable_end, now_ms))

    @property
    def wanted(self) -> Wanted:
        """What has to happen to the log for somebody here; whoever asks watches it from now on."""
        if self._sending is None or self._pulling is None or self._popping is None or self._timers is None:
            return Wanted()
        offsets = self._pulling.holding.watch()
        for queue, offset in self._popping.waiting.watch().items():
            offsets[queue] = min(offset, offsets.get(queue, offset))
        return Wanted({**offsets, **self._timers.wanted}, self._sending.wanted_end)

    @property
    def wanted_version(self) -> object:
        """What differs when `wanted` does; it costs less."""
        if self._sending is None or self._pulling is None or self._popping is None or self._timers is None:
            return None
        held = self._pulling.holding.version, self._popping.waiting.version
        return held, self._sending.wanted_end, self._timers.wanted_version

    def _notices(self, groups: Iterable[str], *, but: Connection | None = None) -> list[Effect]:
        """Tell the members of groups to share their queues anew.

        A local sender has its own answer and is left out; a RocketMQ client expects the notice even then.
        """
        effects: list[Effect] = []
        for group in dict.fromkeys(groups):
            tells_all = self._groups.of(group).notifyConsumerIdsChangedEnable
            for origin in self._registry.origins(group):
                if not origin.is_local and not tells_all:
                    continue  # RocketMQ's clients look every 20 s by themselves
                if but is not None and but.is_local and origin.connection_id == but.connection_id:
                    continue
                effects.append(
                    self._asking.notice(
                        origin.connection_id, Request.NOTIFY_CONSUMER_IDS_CHANGED, {"consumerGroup": group}
                    )
                )
        return effects

    def disconnected(self, connection_id: int, now_ms: int) -> list[Effect]:
        """Forget a connection: its slot is dropped and its groups are told. Harmless when it is unknown."""
        connection = self._connections.pop(connection_id, None)
        if connection is None:
            return []
        self._roster.ending(connection, now_ms)
        self._desk.release(connection)
        change = self._registry.leave(connection_id, now_ms)
        effects: list[Effect] = [*self._notices(change.groups), *map(Report, change.reports)]
        effects += [*self._asking.disconnected(connection_id), *self._relays.changes()]
        return effects + of_all(self._parts, lambda part: part.disconnected(connection, now_ms))

    def roster(self, now_ms: int) -> Roster | None:
        """Return who is connected and who belongs to which group, if that has changed since it was asked for last."""
        return self._roster.news(now_ms)

    def tick(self, now_ms: int) -> list[Effect]:
        """End what time has ended: silent TCP clients, and connections and slots of dead processes."""
        reports, self._reports = self._reports, []
        effects: list[Effect] = [*map(Report, reports)]
        for connection in self._desk.collect_dead():
            pid = connection.peer.pid if connection.peer else 0
            effects += self._end(connection.connection_id, f"process {pid} has died", now_ms)
        for connection_id in self._registry.expired_connections(now_ms):
            effects += self._end(connection_id, "no heartbeat in time", now_ms)
        effects += self._asking.tick(now_ms)
        return effects + of_all(self._parts, lambda part: part.tick(now_ms))

    def _end(self, connection_id: int, reason: str, now_ms: int) -> list[Effect]:
        return [Close(connection_id, reason), *self.disconnected(connection_id, now_ms)]
