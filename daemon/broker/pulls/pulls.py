"""Pulls: PULL_MESSAGE (11) and LITE_PULL_MESSAGE (361).

Checks come in RocketMQ's order. A pull also writes how far its member was handed messages into the group's offset slot,
as local members do for themselves: metrics read it there.

    group · group may consume · topic · topic readable · queue id · subscription · filter · log

    what the queue has                 code   the next offset                   remark
    nothing at all, offset 0             19   0                                 NO_MESSAGE_IN_QUEUE
    nothing at all, another offset       21   0                                 NO_MESSAGE_IN_QUEUE
    offset below the first one           21   the first one                     OFFSET_TOO_SMALL
    offset = the next one                19   unchanged; may be held            OFFSET_OVERFLOW_ONE
    offset beyond it                     21   the next one; a member's: (1)     OFFSET_OVERFLOW_BADLY
    the same, of a slave (2)             19   unchanged; may be held            OFFSET_OVERFLOW_BADLY
    offset of the topic's former life    21   the first one: (1)                OFFSET_OVERFLOW_BADLY
    offset of a master before (3)        21   where the group is, or they part  OFFSET_OVERFLOW_BADLY
    messages, none is selected           20   behind what was looked at         NO_MATCHED_MESSAGE
    messages                              0   behind the last one               FOUND

(1) A topic that was made again counts anew (`groups/lives.py`). There, and beyond the end, a member begins where its
group is in the queue, else at the first message. At RocketMQ it begins at the end, and misses what was sent before.
(2) What lies there at the master is not here yet; sent back, a group would get again all that it has read there.
(3) Which may have had other messages there (`groups/parted.py`).

A pull that may wait is held instead of answered with 19, and read again when its queue has news or is gone.

A pull without an expression gets what its group's heartbeats said. Is its subscription newer than theirs, RocketMQ
refuses it (code 25, SUBSCRIPTION_NOT_LATEST) until the next heartbeat, 30 s later at worst: Java clients count their
subscription up with each change of their queues, and drop the heartbeat about it where another one is on its way. Here
such a pull gets every message where it selects by tags, because each client compares tags itself; brokers compare
hashes. One that selects by SQL is refused.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import NamedTuple, Protocol

import msgspec

from shmq.daemon.broker.groups.consumer_group import ConsumerGroup
from shmq.daemon.broker.groups.lives import Lives, Sure
from shmq.daemon.broker.groups.offsets import commit_of_remote
from shmq.daemon.broker.groups.parted import PartedQueues
from shmq.daemon.broker.groups.selection import TAG, Selection, select
from shmq.daemon.broker.groups.settings import GroupSettings, check_consumes
from shmq.daemon.broker.log import Log, NewRecord
from shmq.daemon.broker.pulls.header import PullHeader, read_pull_header, with_subscription
from shmq.daemon.broker.pulls.slave_reads import MASTER, NextBroker, SlaveReads
from shmq.daemon.broker.pulls.waits import HeldPull, PullWaits
from shmq.daemon.broker.records.message_id import host_bytes
from shmq.daemon.broker.settings import BrokerSettings
from shmq.daemon.broker.tables import GroupProgress, Topic
from shmq.daemon.broker.topics import ensure_topic
from shmq.daemon.logic.deferred_work import DeferredWork
from shmq.daemon.logic.effects import Effect
from shmq.daemon.logic.header_fields import ADVICE
from shmq.daemon.logic.requests import Answer, Call, Connection, Part, later, serves
from shmq.errors import FilterSyntaxError, RemoteError, ShmqError
from shmq.message import PERM_READ, retry_topic_of
from shmq.protocol.codes import Request, Response
from shmq.protocol.command import Command
from shmq.protocol.shared_reply import SharedReply
from shmq.shm.core import Filter

_BROADCASTING = "BROADCASTING"
_MOVED_TOPIC = "OFFSET_MOVED_EVENT"
_TAKES = (Response.SUCCESS, Response.PULL_NOT_FOUND, Response.PULL_RETRY_IMMEDIATELY)
_NOT_FOUND = (Response.PULL_NOT_FOUND, Response.PULL_RETRY_IMMEDIATELY)


class PullPlan(NamedTuple):
    """What pulls get that differ in their offsets only, as long as the tables have this version."""

    table_version: int
    group: int
    queue: int
    count_max: int
    bytes_max: int
    commits: bool  # the offset that comes along counts
    needs_progress: bool  # one of a group without progress in its queue has to be judged
    tags: tuple[int, ...] | None
    where: Filter | None
    far_bytes: int  # what is farther behind the log end is sent elsewhere; 0: nothing is


class Subscriptions(Protocol):
    """What the heartbeats of groups said; `version` grows whenever a subscription, a model or a group changes."""

    version: int
    hears_heartbeats: bool  # else another process does, and may know what is newer

    def consumer_group(self, name: str) -> ConsumerGroup | None:
        """Return a consumer group that has members."""


class Pulls(Part):
    """Serves pulls, and holds them.

    Args:
        started: told the group, queue and offset of pulls that found something for a group without progress there.

    Attributes:
        lives: whose offsets are of which life of a topic; `parted`: which may be of another log.
    """

    hears_arrivals = True

    def __init__(
        self,
        tables: GroupProgress,
        log: Log,
        registry: Subscriptions,
        groups: GroupSettings,
        settings: BrokerSettings,
        *,
        started: Callable[[int, int, int], None] | None = None,
    ) -> None:
        self._tables = tables
        self._started = started
        self._log = log
        self._registry = registry
        self._groups = groups
        self._settings = settings
        self._slave_reads = SlaveReads(log, groups, settings)
        self.lives, self.parted = Lives(), PartedQueues(tables, settings.parting, registry)
        self._table_version = -1
        self.waits = PullWaits(
            held_max=settings.held_pulls_max, held_per_connection_max=settings.held_pulls_per_connection_max
        )
        self._resuming: DeferredWork[HeldPull] = DeferredWork(self._resume)
        self._found: dict[tuple[int, int, int, Selection, NextBroker], tuple[Answer, int, SharedReply]] = {}

    @serves(Request.PULL_MESSAGE, Request.LITE_PULL_MESSAGE)
    def pull(self, call: Call) -> Answer | None:
        """Answer a pull, or hold it."""
        header = read_pull_header(call.ext)
        group, topic = self._checked(call, header)
        wanted = self._wanted(header)  # a member is known before its offset is judged
        queue, name = topic.queues[header.queue_id], header.name
        first = self._first_offset(group, queue)
        sure = partial(self._sure, call, header, group, queue, first)
        begin = self.lives.begin_of(call.connection.connection_id, name, queue, header.queue_offset, first, sure)
        if begin is not None:
            return self._restarted(call, header, queue, begin)
        is_beyond = header.queue_offset > self._tables.queue_bounds(queue).offset_max
        if is_beyond and not self._settings.is_slave and self._is_member(header):
            return self._restarted(call, header, queue, first)
        answer, next_offset = self._read(
            queue, header.queue_offset, header.count_max, wanted, self._slave_reads.of(group)
        )
        if header.commits:
            self._commit(call, header, queue)
        self.lives.handed(call.connection.connection_id, name, next_offset)
        if answer.code in _TAKES:
            self._tell_taken(header, group, queue, next_offset, is_found=answer.code == Response.SUCCESS)
        if answer.code == Response.PULL_NOT_FOUND and header.suspends and header.suspend_ms > 0:
            return self._hold(call, header, queue, next_offset)
        if answer.code == Response.PULL_OFFSET_MOVED:
            answer.effects = self._tell_moved(call, header, next_offset)
        return answer

    def _tell_taken(self, header: PullHeader, group: int, queue: int, taken: int, *, is_found: bool) -> None:
        """Show how far the group was handed messages; who counts what groups read has to know where one begins."""
        slot = self._tables.offset_slot(group, queue)
        if slot is not None:
            self._tables.set_taken(slot, taken)
        if is_found and self._started is not None and (slot is None or self._tables.committed(slot) < 0):
            self._started(group, queue, header.queue_offset)

    def plan(self, connection_id: int, command: Command) -> PullPlan | None:
        version = self._tables.version  # read first: a change in between makes the plan too old, never too new
        header = read_pull_header(command.ext)
        number = self._tables.group(header.group)
        topic = self._tables.topic(header.topic)
        if number is None or topic is None or header.queue_id < 0 or not self._groups.at(number).consumeEnable:
            return None
        if not topic.perm & PERM_READ or header.queue_id >= topic.read_queues:
            return None
        if not self.lives.is_settled(connection_id, header.name, topic.queues[header.queue_id]):
            return None
        try:
            wanted = self._wanted(header)
        except ShmqError:
            return None
        if self._slave_reads.of(number).near != MASTER:
            return None  # what the core writes says the master
        return PullPlan(
            version,
            number,
            topic.queues[header.queue_id],
            self._count(header.count_max),
            self._settings.pull_bytes_max,
            header.commits,
            self._started is not None,
            wanted.tags,
            wanted.where,
            self._settings.slave_reads_bytes,
        )

    @property
    def grounds(self) -> object:
        return self._registry.version, self._settings.property_filter

    # -- checks, in RocketMQ's order

    def _checked(self, call: Call, header: PullHeader) -> tuple[int, Topic]:
        """The number of the group, and the topic."""
        group = check_consumes(self._tables, self._groups, header.group)
        topic = self._tables.topic(header.topic)
        if topic is None:
            raise RemoteError(
                Response.TOPIC_NOT_EXIST, f"topic[{header.topic[:127]}] not exist, apply first please! {ADVICE}"
            )
        if not topic.perm & PERM_READ:
            raise RemoteError(Response.NO_PERMISSION, f"the topic[{topic.name}] pulling message is forbidden")
        if not 0 <= header.queue_id < topic.read_queues:
            raise RemoteError(
                Response.SYSTEM_ERROR,
                f"queueId[{header.queue_id}] is illegal, topic:[{topic.name}] topicConfig.readQueueNums:"
                f"[{topic.read_queues}] consumer:[{call.connection.remote}]",
            )
        return group, topic

    def _wanted(self, header: PullHeader) -> Selection:
        """What is selected: as the request says, or as the group's heartbeats said."""
        expression, kind = header.expression, header.expression_type
        if not header.has_subscription:
            expression, kind = self._subscribed(header)
        try:
            return select(expression, kind, self._settings)
        except FilterSyntaxError as error:
            if header.has_subscription or kind == TAG:
                code, remark = Response.SUBSCRIPTION_PARSE_FAILED, "parse the consumer's subscription failed"
            else:  # RocketMQ's brokers keep no expression of a heartbeat that they could not compile
                code, remark = Response.FILTER_DATA_NOT_EXIST, "The broker's consumer filter data is not exist!"
            raise RemoteError(code, f"{remark}: {error}") from error

    def _subscribed(self, header: PullHeader) -> tuple[str, str]:
        group = self._registry.consumer_group(header.group)
        if group is None:
            raise RemoteError(Response.SUBSCRIPTION_NOT_EXIST, f"the consumer's group info not exist{ADVICE}")
        if group.model == _BROADCASTING and not self._groups.of(header.group).consumeBroadcastEnable:
            remark = f"the consumer group[{header.group}] can not consume by broadcast way"
            raise RemoteError(Response.NO_PERMISSION, remark)
        if header.topic.startswith(retry_topic_of(header.group, "")):
            return "*", TAG  # what comes again was wanted; no heartbeat names this one
        entry = group.table.get(header.topic)
        if entry is None:
            raise RemoteError(Response.SUBSCRIPTION_NOT_EXIST, f"the consumer's subscription not exist{ADVICE}")
        if entry.subVersion < header.subscription_version:
            if header.expression_type == TAG and self._registry.hears_heartbeats:
                return "*", TAG
            raise RemoteError(Response.SUBSCRIPTION_NOT_LATEST, "the consumer's subscription not latest")
        return entry.subString, entry.expressionType or TAG

    # -- offsets that say nothing

    def _sure(self, call: Call, header: PullHeader, group: int, queue: int, first: int) -> Sure | None:
        if call.connection.is_of_bridge:  # which has judged it
            return None
        members = self._registry.consumer_group(header.group)
        is_own = bool(header.reader) or (members is not None and members.model == _BROADCASTING)
        is_new = members is None or self.lives.has_asked(call.connection.connection_id, header.name)
        return self.parted.sure(group, queue, call.now_ms, first=None if is_own else first, is_new=is_new)

    def _is_member(self, header: PullHeader) -> bool:
        return self._registry.consumer_group(header.group) is not None

    def _first_offset(self, group: int, queue: int) -> int:
        """Where a member begins that has no offset of this queue: where the group is, else at the first message."""
        low, high = self._tables.queue_bounds(queue)
        slot = self._tables.offset_slot(group, queue)
        committed = self._tables.committed(slot) if slot is not None else -1
        return committed if low <= committed <= high else low

    def _restarted(self, call: Call, header: PullHeader, queue: int, first: int) -> Answer:
        """Send a client that has no offset of this queue to its first message."""
        low, high = self._tables.queue_bounds(queue)
        self.lives.handed(call.connection.connection_id, header.name, first)
        status = "OFFSET_OVERFLOW_BADLY" if high else "NO_MESSAGE_IN_QUEUE"
        answer = Answer(code=Response.PULL_OFFSET_MOVED, remark=status, ext=_bounds(str(first), str(low), str(high)))
        answer.effects = self._tell_moved(call, header, first)
        return answer

    # -- reading

    def _read(
        self, queue: int, offset: int, count_max: int, wanted: Selection, broker: NextBroker
    ) -> tuple[Answer, int]:
        """The answer for what a queue has at an offset, and where to go on."""
        bounds = self._tables.queue_bounds(queue)
        low, high = bounds
        if offset > high and self._settings.is_slave:
            code, status, following = Response.PULL_NOT_FOUND, "OFFSET_OVERFLOW_BADLY", offset
        elif high == 0:
            code = Response.PULL_OFFSET_MOVED if offset else Response.PULL_NOT_FOUND
            status, following = "NO_MESSAGE_IN_QUEUE", 0
        elif offset < low:
            code, status, following = Response.PULL_OFFSET_MOVED, "OFFSET_TOO_SMALL", low
        elif offset == high:
            code, status, following = Response.PULL_NOT_FOUND, "OFFSET_OVERFLOW_ONE", offset
        elif offset > high:
            code, status, following = Response.PULL_OFFSET_MOVED, "OFFSET_OVERFLOW_BADLY", high
        else:
            limits = self._settings
            pulled = self._log.read(
                queue,
                offset,
                count_max=self._count(count_max),
                bytes_max=limits.pull_bytes_max,
                tags=wanted.tags,
                where=wanted.where,
            )
            following, body = pulled.next_offset, pulled.body
            if pulled.record_count:
                suggested = self._slave_reads.after(queue, following, broker)
                answer = found(str(following), str(low), str(high), suggested)
                answer.body = body
                return answer, following
            if following > offset:
                code, status = Response.PULL_RETRY_IMMEDIATELY, "NO_MATCHED_MESSAGE"
            else:  # stored, but not on disk yet
                code, status = Response.PULL_NOT_FOUND, "OFFSET_FOUND_NULL"
        return Answer(
            code=code, remark=status, ext=_bounds(str(following), str(low), str(high), broker.near)
        ), following

    def _count(self, wanted: int) -> int:
        return max(1, min(wanted, self._settings.pull_count_max))

    @contextmanager
    def _one_turn(self) -> Iterator[None]:
        """Within it equal reads are made once."""
        try:
            yield
        finally:
            self._found.clear()

    def _read_once(
        self, queue: int, offset: int, count_max: int, wanted: Selection, broker: NextBroker
    ) -> tuple[Answer, int]:
        """As `_read`, once a turn: most who wait for a queue want the same of it."""
        key = queue, offset, count_max, wanted, broker
        found = self._found.get(key)
        if found is None:
            found = self._found[key] = *self._read(*key), SharedReply()
        answer, following, shared = found
        if answer.code != Response.SUCCESS:  # the caller may still change it
            return Answer(code=answer.code, remark=answer.remark, ext=answer.ext, body=answer.body), following
        answer.shared = shared
        return answer, following

    def _commit(self, call: Call, header: PullHeader, queue: int) -> None:
        group, offset = self._tables.group(header.group), header.commit_offset
        if not self.lives.counts(call.connection.connection_id, header.name, queue, offset):
            return
        if group is not None and offset >= 0:
            commit_of_remote(self._tables, group, queue, header.commit_offset)

    def _tell_moved(self, call: Call, header: PullHeader, next_offset: int) -> Sequence[Effect]:
        """Leave a message about a consumer that was sent elsewhere, as RocketMQ does for monitoring."""
        event = {
            "consumerGroup": header.group,
            "messageQueue": {
                "brokerName": self._settings.broker_name,
                "queueId": header.queue_id,
                "topic": header.topic,
            },
            "offsetNew": next_offset,
            "offsetRequest": header.queue_offset,
        }
        properties = f"TAGS\x01{header.group}\x02KEYS\x01{header.group}\x02".encode()
        record = NewRecord(msgspec.json.encode(event), properties)
        if call.connection.local is not None:
            record.born_host = host_bytes(call.connection.local)
        try:
            topic = ensure_topic(self._tables, _MOVED_TOPIC, queues=1)
            self._log.append(topic, 0, record)
        except ShmqError:
            return ()  # the consumer's answer matters more than the note about it
        return self.arrived((topic.queues[0],), call.now_ms)  # our own appends do not wake us

    # -- holding

    def _hold(self, call: Call, header: PullHeader, queue: int, next_offset: int) -> Answer | None:
        if not self.waits.has_room(call.connection.connection_id):
            # Not "nothing found", which a client would ask again at once.
            remark = "[OVERLOAD]system busy, start flow control for a while"
            return Answer(code=Response.SYSTEM_BUSY, remark=remark)
        until_ms = call.now_ms + min(header.suspend_ms, self._settings.suspend_ms_max)
        if not header.has_subscription:
            # What the group subscribed to when it asked, as in RocketMQ: the group may be away when the answer is due.
            header = with_subscription(header, *self._subscribed(header))
        kept = replace(call.command, ext={}, body=b"")  # a pull may wait for minutes; its fields are in the header
        self.waits.add(HeldPull(call._replace(command=kept), queue, next_offset, until_ms, header))
        return None

    def arrived(self, queues: Sequence[int], now_ms: int) -> Sequence[Effect]:
        """Answer those for whom there is something in these queues, in turns where they are many."""
        due: list[HeldPull] = []
        for queue in queues:
            if waiting := self.waits.of(queue):
                offset_max = self._tables.queue_bounds(queue).offset_max
                due += [held for held in waiting if offset_max > held.next_offset]
        if not due:
            return ()
        with self._one_turn():
            return self._resuming.begin(due, now_ms)

    def woken(self, now_ms: int) -> Sequence[Effect]:
        """Go on with those for whom there is something."""
        with self._one_turn():
            return self._resuming.go_on(now_ms)

    def flushed(self, durable_end: int, now_ms: int) -> Sequence[Effect]:
        """Under synchronous flush a message is visible when it is on disk."""
        return self.arrived(tuple(self.waits.queues), now_ms) if self._settings.wait_durable else ()

    def tick(self, now_ms: int) -> Sequence[Effect]:
        """Answer those whose time is over."""
        due = [*self.waits.due(now_ms), *self._without_queue()]
        with self._one_turn():
            over = [effect for held in dict.fromkeys(due) for effect in self._resume(held, now_ms, is_over=True)]
            return [*over, *self._resuming.go_on(now_ms)]

    def _without_queue(self) -> Iterator[HeldPull]:
        """Yield the pulls that wait for a queue that is gone, or is another one now."""
        if self._tables.version == self._table_version:
            return
        self._table_version = self._tables.version
        for queue in self.waits.queues:
            for held in self.waits.of(queue):
                topic = self._tables.topic(held.header.topic)
                if topic is None or queue not in topic.queues:
                    yield held

    def disconnected(self, connection: Connection, now_ms: int) -> Sequence[Effect]:
        """Forget a gone connection, and what it waited for."""
        self.lives.forget(connection.connection_id)
        for held in self.waits.of_connection(connection.connection_id):
            self._end(held)
        return ()

    def _end(self, held: HeldPull) -> None:
        self.waits.remove(held)
        self._resuming.drop(held)

    def _resume(self, held: HeldPull, now_ms: int, *, is_over: bool = False) -> list[Effect]:
        """Read again for a held pull; it goes on waiting when there is nothing for it and its time is not over."""
        group, answer, next_offset = self._again(held)
        if answer.code in _NOT_FOUND and not is_over:
            if next_offset != held.next_offset:
                self.waits.move(held, next_offset, now_ms)
            return []
        self._end(held)
        if answer.code in _TAKES and group is not None:
            self.lives.handed(held.call.connection.connection_id, held.header.name, next_offset)
            self._tell_taken(held.header, group, held.queue, next_offset, is_found=answer.code == Response.SUCCESS)
        return later(held.call, answer)

    def _again(self, held: HeldPull) -> tuple[int | None, Answer, int]:
        """The number of the group where there is one, the answer, and where to go on."""
        header, group = held.header, None
        try:
            group, topic = self._checked(held.call, header)
            queue = topic.queues[header.queue_id]
            if queue != held.queue:
                first = self._first_offset(group, queue)
                connection_id = held.call.connection.connection_id
                if self.lives.begin_of(connection_id, header.name, queue, held.next_offset, first) is not None:
                    return group, self._restarted(held.call, header, queue, first), first
                ext = _bounds(str(first), *map(str, self._tables.queue_bounds(queue)))
                return group, Answer(code=Response.PULL_NOT_FOUND, remark="NO_MATCHED_LOGIC_QUEUE", ext=ext), first
            wanted = self._wanted(header)
            broker = self._slave_reads.of(group)
            answer, next_offset = self._read_once(held.queue, held.next_offset, header.count_max, wanted, broker)
        except ShmqError as error:
            # Answered here: others that wait for the same news must not wait for this one's trouble.
            return group, Answer(code=error.code, remark=getattr(error, "remark", str(error))), held.next_offset
        if answer.code == Response.PULL_NOT_FOUND and next_offset > header.queue_offset:
            # Nothing more, but what was looked at meanwhile need not be looked at again.
            answer.code, answer.remark = Response.PULL_RETRY_IMMEDIATELY, "NO_MATCHED_MESSAGE"
        return group, answer, next_offset


def found(following: str, low: str, high: str, suggested: str = MASTER) -> Answer:
    """Return the answer with messages, without them: where to go on, and the bounds of the queue."""
    return Answer(code=Response.SUCCESS, remark="FOUND", ext=_bounds(following, low, high, suggested))


def _bounds(following: str, low: str, high: str, suggested: str = MASTER) -> dict[str, str]:
    return {
        "suggestWhichBrokerId": suggested,
        "nextBeginOffset": following,
        "minOffset": low,
        "maxOffset": high,
    }
