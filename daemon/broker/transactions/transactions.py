"""Transactions: END_TRANSACTION (37), the check-back of open ones, and RESUME_CHECK_HALF_MESSAGE (323).

A producer stores the half by itself or with a send; what is stored at each step is in `half.py`, and which halves are
open in `halves.py`.

The real message and the op record that settles its half lie back to back under one intent, so a kill leaves both or
neither; RocketMQ writes one after the other. Who may end the transaction of a local producer is decided by a fence, a
log position in the control segment: a producer's append for a half below it is refused under the lock. The broker
raises the fence over old halves, reads the op records once more, and is alone with what is left. A table of open
transactions in shared memory would have needed an owner, a size and a repair of its own.

    half older than transactionTimeOut (or its own immunity)    asked: a copy takes its place, its producers get a 39
    asked transactionCheckInterval ago                          asked again, at most transactionCheckMax times
    asked that often                                            rolled back; a copy goes to TRANS_CHECK_MAX_TIME_TOPIC
    the broker has just begun, and no producer has come back    looked at again each second, for 10 s
    37 that says commit                                         real message + op record, one append
    37 that says rollback                                       op record

Invariants:
 1. What settles a half and its op record are one append: a kill leaves both or neither.
 2. A half is settled once. Only this part settles, but for a local producer with a half of its own at or above the
    fence. Before this part touches such a half it raises the fence over it and reads the ops once more.
 3. A copy is the same transaction: a request that names the half it replaces means it.
 4. A half counts from when it is stored, durable or not: what follows from it lies behind it in the log, so it is never
    durable, or visible, without it. Only a half that is damaged or deleted is rolled back unread.
 5. A request names its half by place and by id. RocketMQ's producers roll a half back that no slave has confirmed;
    where another broker leads by then, another half may lie at its place.
 6. After a power cut that kept a committed message and not its op record, the message counts: it is looked for behind
    the open halves before anything is settled.
"""

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from shmq.daemon.broker.log import Entry, NewRecord, Storage, Stored, retry_ms
from shmq.daemon.broker.records.property_text import fits, property_of
from shmq.daemon.broker.records.stored_record import StoredRecord, is_queued, kept_record_at
from shmq.daemon.broker.settings import BrokerSettings
from shmq.daemon.broker.timers.route import delayed_route, waiting_topic
from shmq.daemon.broker.topics import ensure_topic
from shmq.daemon.broker.transactions.half import (
    checked_of,
    expired_of,
    is_of_local_producer,
    number_in,
    op_of,
    real_of,
    resumed_of,
)
from shmq.daemon.broker.transactions.halves import Halves
from shmq.daemon.broker.transactions.recovery import Recovery
from shmq.daemon.broker.transactions.resumptions import Resumptions
from shmq.daemon.logic.access.rights import Permission
from shmq.daemon.logic.alarm import Alarm
from shmq.daemon.logic.effects import Effect, Report
from shmq.daemon.logic.header_fields import INT32_MAX, flag_of, number_of, text_of
from shmq.daemon.logic.requests import Answer, Call, Part, WhenDurable, serves
from shmq.delay_levels import DelayLevels
from shmq.errors import RemoteError, ShmqError, TopicNotFound
from shmq.protocol.codes import Request, Response
from shmq.protocol.message_id import position_in
from shmq.protocol.system_topics import transaction

_UNREAD = -1  # checks of a half that could not be read
GATHERING_MS = 10_000  # after a start nothing is asked in vain for so long
_AGAIN_MS = 1_000
_ACTS_PER_RUN = 500  # the event loop serves others in between
_NOT_FOUND = "Find prepared transaction message failed"
_NOT_RESUMED = "Exception was thrown when putting message back to RMQ_SYS_TRANS_HALF_TOPIC."


@dataclass(slots=True)
class OpenHalf:
    """What is known of an open half.

    Attributes:
        names: queue offsets of the halves it has replaced, the one its producer knows first.
        due_ms: when it is asked about, or expires.
    """

    offset: int
    names: tuple[int, ...]
    checks: int
    due_ms: int
    log_position: int

    @property
    def first(self) -> int:
        """The queue offset its producer knows."""
        return self.names[0] if self.names else self.offset


class Transactions(Part):
    """Settles halves.

    Args:
        members_of: whom that could tell now.
        ask: tells a member of a producer group to say how its transaction ended: (half, nth check) -> effects.
        when_durable: answers a call when the log is on disk up to a position, where a topic asks for that.
    """

    def __init__(
        self,
        storage: Storage,
        settings: BrokerSettings,
        levels: DelayLevels,
        *,
        ask: Callable[[StoredRecord, int], Sequence[Effect]],
        members_of: Callable[[StoredRecord], Sequence[object]],
        when_durable: WhenDurable,
    ) -> None:
        self._tables, self._log, self._arrived = storage
        self._settings = settings
        self._levels = levels
        self._ask = ask
        self._members_of = members_of
        self._began_ms: int | None = None  # the first tick
        self._when_durable = when_durable
        self.halves = Halves(self._tables, self._log)
        self._resumptions = Resumptions(self._tables, self._log)
        self._known: dict[int, OpenHalf] = {}
        self._now_at: dict[int, int] = {}  # queue offset of a replaced half -> of the copy in its place
        self._due: list[tuple[int, int]] = []  # heap of (due_ms, offset)
        self._fence = 0
        self._recovery: Recovery | None = Recovery(
            self._tables, self._log, self.halves, learn=self._position_of, settle=self._settle_committed
        )
        self._alarm = Alarm()
        self._retry_at_ms = 0

    # -- time

    def tick(self, now_ms: int) -> Sequence[Effect]:
        """Ask about what is due."""
        self._alarm.stop()
        return self._run(now_ms)

    def woken(self, now_ms: int) -> Sequence[Effect]:
        """Go on with what was too much for one run."""
        return self._alarm.ring(now_ms, self.tick)

    def _run(self, now_ms: int) -> list[Effect]:
        if self._began_ms is None:
            self._began_ms = now_ms
        if not self.halves.locate():
            return []
        if not self.ready(now_ms):
            return [self._alarm.set(now_ms, 1)]
        old_end = self.halves.old_end(self._tables.steady_ms(now_ms), self._settings.transaction_timeout_ms)
        for offset in [offset for offset in self.halves.open if offset < old_end and offset not in self._known]:
            self.learn(offset, now_ms)
        effects = self._act(now_ms)
        self._forget()
        self.halves.save()
        return effects

    def ready(self, now_ms: int) -> bool:
        """Read what is new; False while there is too much of it to settle anything."""
        if not self.halves.locate():
            self._recovery = None  # no queues: nothing was open
            return False
        if not self.halves.refresh():
            return False
        if self._recovery is not None and self._recovery.step(now_ms):
            self._recovery = None
        return self._recovery is None

    def learn(self, offset: int, now_ms: int) -> OpenHalf | None:
        """Look at an open half: when it is due, and which one its producer knows."""
        record = self.halves.record(offset)
        if record is None:
            return self._learn_unread(offset, now_ms)
        checks = number_in(record, transaction.CHECK_TIMES, 0)
        settings = self._settings
        wait_ms = settings.transaction_interval_ms
        if checks == 0:
            seconds = number_in(record, transaction.IMMUNITY_SECONDS, -1)
            wait_ms = seconds * 1000 if seconds >= 0 else settings.transaction_timeout_ms
        left_ms = max(0, min(wait_ms, record.store_ms + wait_ms - self._tables.clock_ms))
        first = number_in(record, transaction.FIRST_HALF, offset)
        names = (first,) if first != offset else ()
        half = OpenHalf(offset, names, checks, self._tables.steady_ms(now_ms) + left_ms, record.log_position)
        self._remember(half)
        return half

    def _learn_unread(self, offset: int, now_ms: int) -> OpenHalf | None:
        """Remember a half that cannot be read; until its time has come its unit may be mended."""
        position = self.halves.position(offset)
        if position is None:
            return None
        position = min(position, self._tables.facts().log_end)  # it is fenced, and the unit may say anything
        due_ms = self._tables.steady_ms(now_ms) + self._settings.transaction_timeout_ms
        half = OpenHalf(offset, (), _UNREAD, due_ms, position)
        self._remember(half)
        return half

    def _remember(self, half: OpenHalf) -> None:
        self._known[half.offset] = half
        self._now_at.update((name, half.offset) for name in half.names)
        heapq.heappush(self._due, (half.due_ms, half.offset))

    def _forget(self) -> None:
        """Drop what is known of halves that others have settled."""
        still_open = self.halves.open
        for offset in [offset for offset in self._known if offset not in still_open]:
            for name in self._known.pop(offset).names:
                self._now_at.pop(name, None)

    def _due_now(self, now_ms: int) -> list[OpenHalf]:
        due: list[OpenHalf] = []
        while self._is_due(now_ms) and len(due) < _ACTS_PER_RUN:
            due_ms, offset = heapq.heappop(self._due)
            half = self._known.get(offset)
            if half is not None and half.due_ms == due_ms and offset in self.halves.open:
                due.append(half)
        return due

    def _is_due(self, now_ms: int) -> bool:
        return now_ms >= self._retry_at_ms and bool(self._due) and self._due[0][0] <= self._tables.steady_ms(now_ms)

    def _act(self, now_ms: int) -> list[Effect]:
        due = self._due_now(now_ms)
        effects: list[Effect] = []
        try:
            if due and not self.take_over(max(half.log_position for half in due)):
                raise RemoteError(Response.SYSTEM_BUSY, "there are more op records than could be read")
            while due:
                half = due[-1]
                if self._is_too_early_for(half, now_ms):
                    half.due_ms = self._tables.steady_ms(now_ms) + _AGAIN_MS
                    heapq.heappush(self._due, (half.due_ms, half.offset))
                elif half.offset in self.halves.open:
                    effects += self.act(half, now_ms)
                due.pop()
        except ShmqError as error:
            effects.append(Report(f"{len(due)} open transactions are looked at again later: {error}"))
            for half in due:
                heapq.heappush(self._due, (half.due_ms, half.offset))
            self._retry_at_ms = now_ms + retry_ms(error)  # in real time, whatever the broker's clock does
        if self._is_due(now_ms):
            effects.append(self._alarm.set(now_ms, 1))
        return effects

    def _is_too_early_for(self, half: OpenHalf, now_ms: int) -> bool:
        """Whether a check would be lost: the members that could be asked come back to a broker that has just begun."""
        if now_ms - (self._began_ms or 0) >= GATHERING_MS or half.checks >= self._settings.transaction_checks_max:
            return False
        record = self.halves.record(half.offset)
        return record is not None and not self._members_of(record)

    def take_over(self, log_position: int) -> bool:
        """Let no producer settle a half up to a log position by itself any more; False: that could not be completed."""
        if log_position >= self._fence:
            self._log.raise_fence(log_position + 1)
            self._fence = log_position + 1
        return self.halves.refresh()

    def act(self, half: OpenHalf, now_ms: int) -> Sequence[Effect]:
        """Ask about an open half that is ours, or let it expire."""
        record = self.halves.record(half.offset)
        if record is None:
            self._append((), half)
            return [
                Report(
                    f"a half message cannot be read, at offset {half.offset} of {transaction.HALF_TOPIC}: its "
                    "transaction, whose topic and group are lost, is rolled back"
                )
            ]
        if half.checks == _UNREAD:
            self.learn(half.offset, now_ms)
            return ()
        if half.checks >= self._settings.transaction_checks_max:
            return self._give_up(half, record)
        checks = half.checks + 1
        copy = checked_of(record, checks=checks, first=half.first)
        if not fits(copy.properties):
            return self._give_up(half, record)  # another broker stored it; none can note that it was asked about
        stored = self._replace(half, copy, checks, now_ms)
        asked = record._replace(
            properties=copy.properties,
            queue_offset=stored.queue_offset,
            log_position=stored.log_position,
            store_ms=stored.store_ms,
        )
        return self._ask(asked, checks)

    def _give_up(self, half: OpenHalf, record: StoredRecord) -> Sequence[Effect]:
        topic = ensure_topic(self._tables, transaction.GIVEN_UP_TOPIC, queues=transaction.QUEUES)
        self._append([Entry(topic, 0, expired_of(record))], half)
        return [Report(f"{_shown(record, half)} was not settled: it is rolled back")]

    def _replace(self, half: OpenHalf, copy: NewRecord, checks: int, now_ms: int) -> Stored:
        """Store a half that takes the place of another."""
        assert self.halves.half_topic is not None
        stored = self._append([Entry(self.halves.half_topic, transaction.QUEUE_ID, copy)], half)[0]
        self.halves.opened(stored.queue_offset)
        due_ms = self._tables.steady_ms(now_ms) + self._settings.transaction_interval_ms
        names = (*half.names, half.offset)
        self._remember(OpenHalf(stored.queue_offset, names, checks, due_ms, stored.log_position))
        return stored

    def _append(self, entries: Sequence[Entry], half: OpenHalf) -> list[Stored]:
        """Store what settles a half, and that it is settled."""
        assert self.halves.op_topic is not None
        op = Entry(self.halves.op_topic, transaction.QUEUE_ID, op_of(half.offset))
        stored = self._log.append_together([*entries, op])
        self.settled(half.offset)
        return stored

    def settled(self, offset: int) -> None:
        """A half has its op record."""
        self.halves.settle([offset])
        half = self._known.pop(offset, None)
        for name in half.names if half is not None else ():
            self._now_at.pop(name, None)

    # -- who says how a transaction ended

    @serves(Request.END_TRANSACTION)
    def _end(self, call: Call) -> Answer:
        group, state = text_of(call.ext, "producerGroup"), number_of(call.ext, "commitOrRollback", least=-INT32_MAX)
        offset = number_of(call.ext, "tranStateTableOffset", least=-1)
        position = number_of(call.ext, "commitLogOffset", least=-1)
        if state not in (transaction.COMMIT, transaction.ROLLBACK):
            return Answer()  # not known yet: it will be asked about
        record = kept_record_at(self._log, position)
        if record is None or record.topic != transaction.HALF_TOPIC or not is_queued(self._tables, record):
            raise RemoteError(Response.SYSTEM_ERROR, _NOT_FOUND)
        topic = property_of(record.properties, transaction.REAL_TOPIC) or ""
        call.rights.check(topic, Permission.PUB)
        if property_of(record.properties, transaction.PRODUCER_GROUP) != group:
            raise RemoteError(Response.SYSTEM_ERROR, "The producer group wrong")
        if record.queue_offset != offset:
            raise RemoteError(Response.SYSTEM_ERROR, "The transaction state table offset wrong")
        self._check_id(record, call.ext.get("msgId", ""))
        half = self.open_half(record, call.now_ms)
        if state == transaction.ROLLBACK:
            return self._when_durable(call, Answer(), self._append((), half)[-1].end, topic)
        return self._commit(call, half, topic)

    @staticmethod
    def _check_id(half: StoredRecord, named: str) -> None:
        """Look whether a request means this half: its own may have been cut off where another broker began to lead."""
        key = property_of(half.properties, transaction.UNIQUE_KEY)
        if key and named and named != key and position_in(named) != half.log_position:
            raise RemoteError(Response.SYSTEM_ERROR, f"{_NOT_FOUND}: message {key} is where {named[:64]} was")

    def open_half(self, named: StoredRecord, now_ms: int) -> OpenHalf:
        """Return the open half that a request names, ours to settle.

        Raises:
            RemoteError: it is settled, or the broker has just begun to read.
        """
        if not self.ready(now_ms) or (is_of_local_producer(named) and not self.take_over(named.log_position)):
            raise RemoteError(Response.SYSTEM_BUSY, "open transactions are still being read", hint="try again")
        offset = self._now_at.get(named.queue_offset, named.queue_offset)
        half = self._known.get(offset) or (self.learn(offset, now_ms) if offset in self.halves.open else None)
        if half is None or offset not in self.halves.open:
            raise RemoteError(
                Response.SYSTEM_ERROR, f"{_NOT_FOUND}: it was settled before, queue offset {named.queue_offset}"
            )
        return half

    def _commit(self, call: Call, half: OpenHalf, topic: str) -> Answer:
        record = self.halves.record(half.offset)
        if record is None:
            raise RemoteError(Response.SYSTEM_ERROR, _NOT_FOUND)
        entry = self._entry_of(record)
        stored = self._append([entry], half)
        answer = Answer(effects=self._arrived((entry.topic.queues[entry.queue_id],), call.now_ms))
        if call.connection.is_local or flag_of(call.ext, transaction.TELLS_PLACE):
            answer.ext = {
                "queueId": str(entry.queue_id),
                "queueOffset": str(stored[0].queue_offset),
                "logPosition": str(stored[0].log_position),
                "storeTimestamp": str(stored[0].store_ms),
                "logEnd": str(stored[-1].end),
            }
        return self._when_durable(call, answer, stored[-1].end, topic)

    def _entry_of(self, half: StoredRecord) -> Entry:
        """What is stored when a half is committed."""
        real: NewRecord = real_of(half)
        name = property_of(half.properties, transaction.REAL_TOPIC) or ""
        queue_id = number_in(half, transaction.REAL_QUEUE_ID, 0)
        now_ms, max_delay_ms = self._tables.clock_ms, self._settings.timer_max_delay_ms
        route = delayed_route(real, name, queue_id, self._levels, now_ms=now_ms, max_delay_ms=max_delay_ms)
        topic = waiting_topic(route, self._tables, self._levels)
        if topic is None or not topic.queues or name in (transaction.HALF_TOPIC, transaction.OP_TOPIC):
            raise TopicNotFound(f"the topic {name[:127]!r} of a transaction does not exist")
        return Entry(topic, route.queue_id % len(topic.queues), route.record)

    @serves(Request.RESUME_CHECK_HALF_MESSAGE)
    def _resume(self, call: Call) -> Answer:
        """Begin the checks of a transaction anew, also of one that has expired."""
        position = position_in(call.ext.get("msgId", ""))
        record = kept_record_at(self._log, position) if position is not None else None
        topics = transaction.HALF_TOPIC, transaction.GIVEN_UP_TOPIC
        if record is None or record.topic not in topics or not is_queued(self._tables, record):
            raise RemoteError(Response.SYSTEM_ERROR, _NOT_RESUMED)
        if record.topic == transaction.HALF_TOPIC:
            half = self.open_half(record, call.now_ms)
            end = self._replace(half, checked_of(record, checks=0, first=half.first), 0, call.now_ms).end
        else:
            self.halves.make()
            assert self.halves.half_topic is not None
            entry = Entry(self.halves.half_topic, transaction.QUEUE_ID, resumed_of(record))
            end = self._resumptions.resume(record, entry)
        return self._when_durable(call, Answer(), end, property_of(record.properties, transaction.REAL_TOPIC) or "")

    # -- recovery, before anything is settled

    def _position_of(self, offset: int, now_ms: int) -> int | None:
        half = self.learn(offset, now_ms)
        return half.log_position if half is not None else None

    def _settle_committed(self, offset: int) -> None:
        """Store the op record of a half whose message is in the log already."""
        if offset in self.halves.open and self.halves.op_topic is not None:
            self._log.append(self.halves.op_topic, transaction.QUEUE_ID, op_of(offset))
            self.settled(offset)

    # -- for administrators

    def listed(self, count_max: int) -> list[StoredRecord]:
        """Return the oldest open halves."""
        found = map(self.halves.record, heapq.nsmallest(count_max, self.halves.open))
        return [record for record in found if record is not None]

    def checks_of(self, offset: int) -> int:
        """Return how often an open half was asked about."""
        half = self._known.get(offset)
        return half.checks if half is not None else 0

    def check_now(self, offset: int, now_ms: int) -> Sequence[Effect]:
        """Ask about an open half although it is not due.

        Raises:
            RemoteError: it is not open.
        """
        record = self.halves.record(offset) if self.halves.locate() else None
        if record is None:
            raise RemoteError(Response.SYSTEM_ERROR, f"there is no open transaction at offset {offset}")
        return self.act(self.open_half(record, now_ms), now_ms)


def _shown(record: StoredRecord, half: OpenHalf) -> str:
    """A transaction as people know it."""
    topic, group = (
        property_of(record.properties, name) for name in (transaction.REAL_TOPIC, transaction.PRODUCER_GROUP)
    )
    return f'the transaction of group "{group}" for topic "{topic}", queue offset {half.first}'
