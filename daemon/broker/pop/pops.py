"""POP: a client asks for messages of a topic, not of queues; each is invisible to others until it is settled or late.

This part serves POP_MESSAGE (200050), PEEK_MESSAGE (200052), NOTIFICATION (200054) and POLLING_INFO (200055). Messages
are taken in `delivery.py`, settled in `acknowledgements.py`, and come again by `revival.py`.

    a pop finds                                     code
    messages                                           0    pop time, offsets and their records
    nothing, and waits no longer, or did not want to 210
    nothing, and too many wait already               209

State, and why a killed broker forgets none of it: `state.py`. RocketMQ also answers 210 when the client's clock and
ours differ by more than the time it wants to wait; here a pop waits for its time from when it came, by our clock.
"""

import contextlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

from shmq.daemon.broker.groups.registry import GroupRegistry
from shmq.daemon.broker.groups.selection import Selection, select
from shmq.daemon.broker.groups.settings import GroupSettings
from shmq.daemon.broker.log import Storage
from shmq.daemon.broker.pop.acknowledgements import Acknowledgements
from shmq.daemon.broker.pop.assignment import POP, Assignment
from shmq.daemon.broker.pop.delivery import Delivery
from shmq.daemon.broker.pop.header import PopHeader, checked_topic, read_pop_header, read_question
from shmq.daemon.broker.pop.log import PopLog
from shmq.daemon.broker.pop.revival import Revival
from shmq.daemon.broker.pop.state import PopState
from shmq.daemon.broker.pop.waits import HeldPop, PopWaits
from shmq.daemon.broker.settings import BrokerSettings
from shmq.daemon.broker.tables import Topic
from shmq.daemon.logic.alarm import Alarm
from shmq.daemon.logic.effects import Effect
from shmq.daemon.logic.requests import Answer, Call, Connection, Part, WhenDurable, later, serves
from shmq.errors import FilterSyntaxError, RemoteError, ShmqError
from shmq.protocol.codes import Request, Response
from shmq.protocol.system_topics.pop_records import QueueKey

_TICK_MS = 1000  # what is due later than that is seen by the next tick
_TOGETHER_MS = 20  # so many waits cost no more than that many looks at all of them
_NONE = "NO_MESSAGE_IN_QUEUE"


class Pops(Part):
    """Serves pops, holds them, and lets messages come again in time."""

    hears_arrivals = True

    def __init__(self, storage: Storage, groups: GroupSettings, settings: BrokerSettings, state: PopState) -> None:
        self._tables, self._log, _ = storage
        self._groups = groups
        self._settings = settings
        self._state = state
        self._delivery = Delivery(self._tables, self._log, settings, state)
        self._revival = Revival(storage, groups, state)
        self._alarm = Alarm()
        self.waits = PopWaits(
            waiting_max=settings.held_pulls_max, waiting_per_connection_max=settings.held_pulls_per_connection_max
        )

    @property
    def unsettled(self) -> int:
        """How many pops are not settled."""
        return len(self._state.checkpoints)

    def queues_in_flight(self) -> Mapping[QueueKey, int]:
        """Return how many messages are popped and not settled, by queue; not those in order."""
        return self._state.checkpoints.all_in_flight()

    def is_popped(self, group: str, topic: str, now_ms: int) -> bool:
        """Say whether the clients of a group pop a topic, or may do so: not all records are read yet."""
        if not self._state.catch_up(now_ms):
            return True
        mode = self._state.mode(group, topic)
        return mode is not None and mode.mode == POP

    def topics_deleted(self, now_ms: int) -> None:
        """Settle what was popped of topics that are gone; what cannot be written now is settled when it is due."""
        with contextlib.suppress(ShmqError):
            if self._state.catch_up(now_ms):
                self._state.settle_gone(now_ms)

    def in_flight(self) -> dict[tuple[str, str], int]:
        """Return how many messages are popped and not settled, by topic and group."""
        found: Counter[tuple[str, str]] = Counter()
        for queue, count in self._state.checkpoints.all_in_flight().items():
            found[queue.topic, queue.group] += count
        return found

    # -- requests

    @serves(Request.POP_MESSAGE)
    def _pop(self, call: Call) -> Answer | None:
        header = read_pop_header(call.ext, is_local=call.connection.is_local)
        topic = checked_topic(self._tables, self._groups, header)
        answer = self._answer(header, topic, call.now_ms)
        if answer.code == Response.SUCCESS:
            answer.effects = self._wake(call.now_ms)
        return self._hold(call, header, topic) if answer.code == Response.POLLING_TIMEOUT else answer

    def _answer(self, header: PopHeader, topic: Topic, now_ms: int) -> Answer:
        """What a pop is answered with now: messages, or the code for none."""
        wanted = self._wanted(header)
        if not self._state.catch_up(now_ms):
            return _nothing(header, Response.POLLING_TIMEOUT)
        taken = self._delivery.take(header, topic, wanted, now_ms)
        if taken.body:
            return Answer(ext={**taken.fields, "restNum": str(taken.rest)}, body=taken.body, remark="FOUND")
        answer = _nothing(header, Response.POLLING_TIMEOUT)
        if taken.is_cut_short:
            answer.code = Response.PULL_NOT_FOUND  # for a client the same, but it does not wait
        return answer

    def _wanted(self, header: PopHeader) -> Selection:
        if not header.expression:
            return Selection()
        try:
            return select(header.expression, header.expression_type, self._settings)
        except FilterSyntaxError as error:
            remark = f"parse the consumer's subscription failed: {error}"
            raise RemoteError(Response.SUBSCRIPTION_PARSE_FAILED, remark) from error

    @serves(Request.PEEK_MESSAGE)
    def _peek(self, call: Call) -> Answer:
        header = read_question(call.ext)
        topic = checked_topic(self._tables, self._groups, header)
        found: list[bytes] = []
        room, bytes_room, rest = header.count_max, self._settings.pull_bytes_max, 0
        for source, queue_id in self._delivery.queues(header, topic):
            queue, offset = source.queues[queue_id], self._delivery.next_offset(header, source, queue_id)
            high = self._tables.queue_bounds(queue).offset_max
            if room > 0 and bytes_room > 0 and offset < high:
                pulled = self._log.read(queue, offset, count_max=room, bytes_max=bytes_room)
                found.append(self._delivery.peeked(topic, source, queue, pulled.body))
                room, bytes_room, offset = room - pulled.record_count, bytes_room - len(pulled.body), pulled.next_offset
            rest += max(0, high - offset)
        body = b"".join(found)
        code = Response.SUCCESS if body else Response.PULL_NOT_FOUND
        ext = {"restNum": str(rest), "popTime": "0", "invisibleTime": "0", "reviveQid": "0"}
        return Answer(code=code, ext=ext, body=body, remark="FOUND" if body else _NONE)

    @serves(Request.NOTIFICATION)
    def _notify(self, call: Call) -> Answer | None:
        header = read_question(call.ext)
        topic = checked_topic(self._tables, self._groups, header)
        if self._state.catch_up(call.now_ms) and self._has_messages(header, topic, call.now_ms):
            return Answer(ext={"hasMsg": "true", "pollingFull": "false"})
        held = self._hold(call, header, topic)
        if held.held:
            return held
        is_full = held.code == Response.POLLING_FULL
        return Answer(ext={"hasMsg": "false", "pollingFull": str(is_full).lower()})

    def _has_messages(self, header: PopHeader, topic: Topic, now_ms: int) -> bool:
        return any(
            self._tables.queue_bounds(source.queues[queue_id]).offset_max
            > self._delivery.next_offset(header, source, queue_id)
            for source, queue_id in self._delivery.queues(header, topic)
            if self._delivery.is_free(header, source, queue_id, now_ms)
        )

    @serves(Request.POLLING_INFO)
    def _polling_info(self, call: Call) -> Answer:
        header = read_question(call.ext)
        checked_topic(self._tables, self._groups, header)
        count = self.waits.count_of(header.group, header.topic, header.queue_id)
        return Answer(ext={"pollingNum": str(count)})

    # -- waiting

    def _hold(self, call: Call, header: PopHeader, topic: Topic) -> Answer:
        """Let a request wait, or say why it cannot."""
        if header.poll_ms <= 0:
            return _nothing(header, Response.POLLING_TIMEOUT)
        if not self.waits.has_room(call.connection.connection_id):
            return _nothing(header, Response.POLLING_FULL)
        until_ms = call.now_ms + min(header.poll_ms, self._settings.suspend_ms_max)
        kept = replace(call.command, body=b"")
        news = self._news(header, topic, call.now_ms)
        self.waits.add(HeldPop(call._replace(command=kept), header, until_ms, news))
        return Answer(held=True, effects=self._wake_for_waits(call.now_ms, until_ms))

    def _news(self, header: PopHeader, topic: Topic, now_ms: int) -> dict[int, int]:
        """Which offset of which queue would be news to a pop."""
        news: dict[int, int] = {}
        for source, queue_id in self._delivery.queues(header, topic):
            queue = source.queues[queue_id]
            if self._delivery.is_free(header, source, queue_id, now_ms):
                news[queue] = self._delivery.next_offset(header, source, queue_id)
            else:
                news[queue] = self._tables.queue_bounds(queue).offset_max
        return news

    def arrived(self, queues: Sequence[int], now_ms: int) -> Sequence[Effect]:
        """Try again for those who wait on these queues."""
        return [effect for waiting in self.waits.of(queues) for effect in self._resume(waiting, now_ms)]

    def flushed(self, durable_end: int, now_ms: int) -> Sequence[Effect]:
        """Under synchronous flush a message is visible when it is on disk."""
        if not self._settings.wait_durable:
            return ()
        return [effect for waiting in self.waits.all() for effect in self._resume(waiting, now_ms)]

    def disconnected(self, connection: Connection, now_ms: int) -> Sequence[Effect]:
        """Forget what a gone connection waited for; what it has popped comes again in its time."""
        for waiting in self.waits.of_connection(connection.connection_id):
            self.waits.remove(waiting)
        return ()

    def _resume(self, waiting: HeldPop, now_ms: int, *, is_over: bool = False) -> list[Effect]:
        """Try again; go on waiting when there is nothing and the time is not over."""
        header = waiting.header
        try:
            topic = checked_topic(self._tables, self._groups, header)
            if waiting.call.command.code == Request.NOTIFICATION:
                has_messages = self._has_messages(header, topic, now_ms)
                answer = Answer(ext={"hasMsg": str(has_messages).lower(), "pollingFull": "false"})
                is_over |= has_messages
            else:
                answer = self._answer(header, topic, now_ms)
                is_over |= answer.code != Response.POLLING_TIMEOUT
        except ShmqError as error:
            # Answered here: others that wait for the same news must not wait for this one's trouble.
            answer, is_over = Answer(code=error.code, remark=getattr(error, "remark", str(error))), True
        if not is_over:
            self.waits.update(waiting, self._news(header, topic, now_ms))
            return []
        self.waits.remove(waiting)
        return [*later(waiting.call, answer), *self._wake(now_ms)]

    # -- time

    def tick(self, now_ms: int) -> Sequence[Effect]:
        """Let come again what is late, answer whose time is over, and keep the log of checkpoints short."""
        self._alarm.stop()
        if not self._state.catch_up(now_ms):
            return ()
        effects = self._run(now_ms)
        for waiting in self.waits.all():
            if waiting.header.is_ordered:  # the time of what blocks a queue may be over
                effects += self._resume(waiting, now_ms)
        self._state.tidy(now_ms)
        return effects

    def woken(self, now_ms: int) -> Sequence[Effect]:
        """The time that was asked for has come."""
        return self._alarm.ring(now_ms, self._run)

    def _run(self, now_ms: int) -> list[Effect]:
        effects, groups, is_more = self._revival.run(now_ms)
        for waiting in self.waits.all():
            if waiting.header.group in groups:  # the retry topic may be younger than the wait
                effects += self._resume(waiting, now_ms)
        for waiting in self.waits.due(now_ms):
            effects += self._resume(waiting, now_ms, is_over=True)
        if is_more:
            return [*effects, self._alarm.set(now_ms, 1)]
        effects += self._wake(now_ms)
        return [*effects, *self._wake_for_waits(now_ms, self.waits.next_until_ms)]

    def _wake_for_waits(self, now_ms: int, until_ms: int | None) -> Sequence[Effect]:
        """Ask to be woken when a wait is over, together with those that are over a little earlier."""
        if until_ms is None or until_ms - now_ms >= _TICK_MS:
            return ()
        return self._alarm.set_by(now_ms, -(-until_ms // _TOGETHER_MS) * _TOGETHER_MS)

    def _wake(self, now_ms: int) -> Sequence[Effect]:
        """Ask to be woken for what comes again before the next tick."""
        due_ms, retry_ms = self._state.checkpoints.next_due_ms, self._revival.retry_at_ms
        waits_ms = [due_ms - self._tables.steady_ms(now_ms)] if due_ms is not None else []
        if retry_ms is not None:
            waits_ms.append(retry_ms - now_ms)
        wait_ms = min(waits_ms, default=_TICK_MS)
        return self._alarm.set_by(now_ms, now_ms + wait_ms) if wait_ms < _TICK_MS else []

    def due_soon(self, now_ms: int) -> Sequence[Effect]:
        """A message was made visible again: deliver it in time."""
        return self._wake(now_ms)


def _nothing(header: PopHeader, code: int) -> Answer:
    ext = {"popTime": "0", "invisibleTime": str(header.invisible_ms), "reviveQid": "0", "restNum": "0"}
    return Answer(code=code, ext=ext, remark=_NONE)


def pop_parts(
    storage: Storage,
    registry: GroupRegistry,
    groups: GroupSettings,
    settings: BrokerSettings,
    *,
    when_durable: WhenDurable,
) -> tuple[Pops, Acknowledgements, Assignment]:
    """Return the parts of a broker that serve POP, over one state."""
    tables, log, arrived = storage
    state = PopState(tables, PopLog(tables, log, cluster=settings.cluster))
    pops = Pops(storage, groups, settings, state)
    acks = Acknowledgements(tables, state, arrived=arrived, due_soon=pops.due_soon, when_durable=when_durable)
    return pops, acks, Assignment(tables, registry, settings, state)
