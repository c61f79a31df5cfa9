"""The broker's decisions: requests in, effects out. No socket, no clock, no thread.

`Broker` makes the parts, sends each request to the part that serves it, and turns answers into effects. It reaches
shared memory only through `Tables` and `Log`.

    connected -> handle* -> disconnected        tick about once a second, whatever happens
                                                arrived, flushed when the log has moved

Invariants:
 1. Every request that is not oneway gets exactly one Reply, before anything else that follows from it; a held one gets
    it later, and none once its connection is gone.
 2. After `disconnected`, or a Close in the effects, nothing of that connection is left.
 3. A request that fails changes nothing but what its answer says.
 4. A part that fails on its own account costs the others no reply: what they answered is sent all the same.
"""

from collections.abc import Iterable, Sequence

from shmq.daemon.broker.administration.clock import ClockRequests
from shmq.daemon.broker.administration.parts import administration
from shmq.daemon.broker.clients.attachment import Attachments
from shmq.daemon.broker.clients.questions import Questions
from shmq.daemon.broker.clients.relays import Relays
from shmq.daemon.broker.clients.roster import RosterKeeper
from shmq.daemon.broker.clients.status import StatusRequests
from shmq.daemon.broker.groups.locks import Locks
from shmq.daemon.broker.groups.membership import Membership
from shmq.daemon.broker.groups.offsets import OffsetRequests
from shmq.daemon.broker.groups.refusals import RefusedSubscriptions
from shmq.daemon.broker.groups.registry import GroupRegistry, Presence
from shmq.daemon.broker.groups.settings import GroupSettings
from shmq.daemon.broker.log import KeyIndex, Log, Storage, Wanted
from shmq.daemon.broker.pop.pops import pop_parts
from shmq.daemon.broker.pulls.pulls import Pulls
from shmq.daemon.broker.pulls.query import QueryRequests
from shmq.daemon.broker.pulls.ranges import RangeRequests
from shmq.daemon.broker.rows.rows import Rows
from shmq.daemon.broker.sends.replies import Replies
from shmq.daemon.broker.sends.retry_moves import RetryMoves
from shmq.daemon.broker.sends.send_back import SendBack
from shmq.daemon.broker.sends.sends import Sends
from shmq.daemon.broker.settings import BrokerSettings
from shmq.daemon.broker.statistics.figures import BrokerFigures, Figures, NoFigures, end_transaction_counted
from shmq.daemon.broker.statistics.queue_index import QueueIndex
from shmq.daemon.broker.statistics.statistics import Statistics
from shmq.daemon.broker.statistics.traffic import Traffic
from shmq.daemon.broker.table_changes import TableChanges, slave_refusals
from shmq.daemon.broker.tables import Tables
from shmq.daemon.broker.timers.delay import DelayService
from shmq.daemon.broker.timers.timers import TimerService
from shmq.daemon.broker.topics import make_system_topics, widen_topic
from shmq.daemon.broker.transactions.check import CheckBack, TransactionRequests
from shmq.daemon.broker.transactions.transactions import Transactions
from shmq.daemon.logic.access.admission import Admission
from shmq.daemon.logic.access.client_ids import ClientIds
from shmq.daemon.logic.access.rights import NOTHING, Rights
from shmq.daemon.logic.dispatch import Dispatch
from shmq.daemon.logic.effects import Close, Effect, Reply, Report
from shmq.daemon.logic.parking import Parking
from shmq.daemon.logic.requests import Answer, Call, Connection, Part, of_all
from shmq.delay_levels import SCHEDULE_TOPIC, DelayLevels
from shmq.protocol.codes import Request
from shmq.protocol.command import Command
from shmq.protocol.roster import NO_SECURITY, Roster, RosterSecurity


class Broker(Dispatch):
    """One broker's logic; single-threaded."""

    def __init__(
        self,
        tables: Tables,
        settings: BrokerSettings,
        *,
        now_ms: int,
        log: Log,
        index: KeyIndex | None = None,
        admission: Admission | None = None,
        figures: Figures | None = None,
    ) -> None:
        super().__init__(admission)
        self._log = log
        self._is_slave = settings.is_slave
        self._registry = GroupRegistry(settings)
        self._groups = GroupSettings(tables)
        self._client_ids = ClientIds()
        self._attachments = Attachments(tables, settings)
        self._questions = Questions()
        self._relays = Relays(self._registry, settings)
        presence = Presence(self._registry, self._connections, now_ms)
        self._figures = BrokerFigures(figures or NoFigures(), presence)
        statistics = Statistics(self._figures.told)
        traffic = Traffic(tables, QueueIndex(tables), statistics, cluster=settings.cluster)
        changed = self._relays.settings_changed
        parking = self._parking = Parking(log.congestion, self._serve)
        self._parts: list[Part] = [
            self._relays,
            *administration(
                tables,
                presence,
                self._groups,
                traffic,
                settings,
                log,
                settings_changed=changed,
                popped=lambda: self._pops.queues_in_flight(),
                topics_deleted=lambda now_ms: self._pops.topics_deleted(now_ms),
            ),
            *self._log_parts(tables, log, settings, traffic),
            parking,
            changes := TableChanges(tables, log, self._groups, settings, self._sends.when_durable),
            *([QueryRequests(tables, log, index)] if index is not None else []),
        ]
        self._arrival_parts = [part for part in self._parts if part.hears_arrivals]
        refused = RefusedSubscriptions()
        self._roster = RosterKeeper(presence, settings, in_flight=self._pops.queues_in_flight, refused=refused.all)
        self._reports = make_system_topics(tables, settings) if settings.serves_tcp else []
        silent: list[Part] = [  # neither time nor the log does anything to these
            self._attachments,
            Membership(tables, self._registry, self._groups, settings, self._client_ids, refused),
            OffsetRequests(tables, self._groups, settings, self._pulls.lives, self._pulls.parted),
            StatusRequests(tables, presence, settings),
        ]
        for part in [*silent, *self._parts]:
            self._handlers |= part.handlers()
        self._handlers |= changes.checked(self._handlers)
        if self._is_slave:
            self._serve_as_slave()
        end_transaction_counted(self._handlers, self._figures)

    def _serve_as_slave(self) -> None:
        """Do nothing that stores a message or changes a topic: the master does it, and its log brings it here."""
        storing = (
            self._transactions,
            self._pops,
            self._delays,
            self._rows,
            self._timers,
            self._retry_moves,
            *self._settlement,
        )
        self._parts = [part for part in self._parts if part not in storing]
        self._arrival_parts = [part for part in self._arrival_parts if part not in storing]
        self._handlers |= slave_refusals()

    def _log_parts(self, tables: Tables, log: Log, settings: BrokerSettings, traffic: Traffic) -> list[Part]:
        """The parts that store and read messages."""
        registry, groups = self._registry, self._groups
        storage = Storage(tables, log, self.arrived)
        levels = DelayLevels(settings.delay_levels)
        widen_topic(tables, SCHEDULE_TOPIC, queues=levels.count)  # there may be more of them than at the last start
        self._sends = Sends(storage, groups, settings)
        self._pulls = Pulls(tables, log, registry, groups, settings, started=traffic.started)
        durable = self._sends.when_durable
        self._timers = TimerService(storage, settings, when_durable=durable)
        self._delays = DelayService(storage, levels)
        self._pops, *self._settlement = pop_parts(storage, registry, groups, settings, when_durable=durable)
        check_back = CheckBack(registry, settings, rights_of=self._rights_of)
        transactions = self._transactions = Transactions(
            storage, settings, levels, ask=check_back.ask, members_of=check_back.members_of, when_durable=durable
        )
        self._rows = Rows(storage, settings, levels)
        self._retry_moves = RetryMoves(storage, registry, groups, changed=self._notices, is_popped=self._pops.is_popped)
        self._count(transactions)
        return [
            ClockRequests(tables, settings, self.tick),
            self._figures,
            TransactionRequests(transactions, check_back, settings),
            transactions,
            self._sends,
            Replies(tables, registry, self._sends),
            self._pulls,
            RangeRequests(tables, log, settings),
            self._pops,
            *self._settlement,
            Locks(tables, self._client_ids),
            self._delays,
            self._rows,
            self._timers,
            SendBack(
                storage,
                groups,
                registry,
                levels,
                traffic.statistics,
                settings,
                when_durable=durable,
                changed=self._notices,
            ),
            self._retry_moves,
        ]

    def _rights_of(self, connection_id: int) -> Rights:
        connection = self._connections.get(connection_id)
        return NOTHING if connection is None else self._admission.rights_of(connection)

    def _count(self, transactions: Transactions) -> None:
        pops, timers, figures = self._pops, self._timers, self._figures
        figures.total("shmq_records_passed_over", lambda: self._log.passed_over)
        figures.state("rocketmq_half_messages", lambda: len(transactions.halves.open))
        figures.state("rocketmq_timing_messages", lambda: timers.pending)
        figures.total("rocketmq_timer_dequeue", lambda: timers.delivered)
        figures.of_groups("rocketmq_consumer_inflight_messages", pops.in_flight)
        figures.state("shmq_popped_checkpoints", lambda: pops.unsettled)
        figures.state("shmq_held_pulls", lambda: len(self._pulls.waits) + len(pops.waits))

    def is_attached(self, connection_id: int) -> bool:
        """Say whether a connection has proven to be one of our own clients or bridges, or to have an account."""
        connection = self._connections.get(connection_id)
        return connection is not None and (connection.is_attached or connection.has_account or connection.is_of_bridge)

    def _replied(self, connection_id: int, command: Command) -> Sequence[Effect]:
        return self._questions.answered(connection_id, command)

    def _effects(self, call: Call, answer: Answer) -> list[Effect]:
        effects: list[Effect] = []
        if not call.command.is_oneway and not answer.held:
            reply = call.command.reply(answer.code, ext=answer.ext, body=answer.body, remark=answer.remark)
            effects.append(Reply(call.connection.connection_id, reply))
        # A member that comes or leaves shares the queues anew by itself; one that changes its topics gets a notice.
        comes = call.command.code in (Request.HEART_BEAT, Request.UNREGISTER_CLIENT)
        effects += self._notices(answer.changed_groups, but=call.connection if comes else None)
        effects += [self._questions.notice(*notice) for notice in answer.notices]
        for close in answer.closes:
            effects += [close, *self.disconnected(close.connection_id, call.now_ms)]
        effects += map(Report, answer.reports)
        effects += [self._questions.ask(ask, call.now_ms) for ask in answer.asks]
        effects += answer.effects
        if self._registry.touched:
            effects += self._relays.changes()
        return effects

    def arrived(self, queues: Sequence[int], now_ms: int) -> list[Effect]:
        return of_all(self._arrival_parts, lambda part: part.arrived(queues, now_ms))

    def woken(self, now_ms: int) -> list[Effect]:
        """Do what some part asked to be woken for."""
        return of_all(self._parts, lambda part: part.woken(now_ms))

    def flushed(self, durable_end: int, now_ms: int) -> list[Effect]:
        return of_all(self._parts, lambda part: part.flushed(durable_end, now_ms))

    @property
    def plans(self) -> Pulls:
        return self._pulls

    @property
    def wanted(self) -> Wanted:
        offsets = self._pulls.waits.watch()
        for queue, offset in self._pops.waits.watch().items():
            offsets[queue] = min(offset, offsets.get(queue, offset))
        if not self._is_slave:
            offsets |= {**self._timers.wanted, **self._delays.wanted}
        return Wanted(offsets, self._sends.wanted_end)

    @property
    def wanted_version(self) -> object:
        held = self._pulls.waits.version, self._pops.waits.version
        return held, self._sends.wanted_end, self._timers.wanted_version, self._delays.wanted_version

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
                ext = {"consumerGroup": group}
                effects.append(self._questions.notice(origin.connection_id, Request.NOTIFY_CONSUMER_IDS_CHANGED, ext))
        return effects

    def disconnected(self, connection_id: int, now_ms: int) -> list[Effect]:
        """Forget a connection: drop its slot and notify its groups. Harmless when it is unknown."""
        connection = self._connections.pop(connection_id, None)
        if connection is None:
            return []
        self._roster.ending(connection, now_ms)
        self._attachments.release(connection)
        change = self._registry.leave(connection_id, now_ms)
        effects: list[Effect] = [*self._notices(change.groups), *map(Report, change.reports)]
        effects += [*self._questions.disconnected(connection_id), *self._relays.changes()]
        return effects + of_all(self._parts, lambda part: part.disconnected(connection, now_ms))

    def roster(self, now_ms: int, security: RosterSecurity = NO_SECURITY) -> Roster | None:
        """Return connections and members of groups, if they have changed since the last call."""
        return self._roster.news(now_ms, security)

    def tick(self, now_ms: int) -> list[Effect]:
        """End what time has ended: silent TCP clients, and connections and slots of dead processes."""
        reports, self._reports = self._reports, []
        effects: list[Effect] = [*map(Report, reports)]
        for connection in self._attachments.collect_dead():
            pid = connection.peer.pid if connection.peer else 0
            effects += self._end(connection.connection_id, f"process {pid} has died", now_ms)
        for connection_id in self._registry.expired_connections(now_ms):
            effects += self._end(connection_id, "no heartbeat in time", now_ms)
        effects += self._questions.tick(now_ms)
        return effects + of_all(self._parts, lambda part: part.tick(now_ms))

    def _end(self, connection_id: int, reason: str, now_ms: int) -> list[Effect]:
        return [Close(connection_id, reason), *self.disconnected(connection_id, now_ms)]
