"""Messages that a consumer sends back: CONSUMER_SEND_MSG_BACK (36).

A consumer that could not process a message (our `nack`) sends it back, and the broker stores the retry copy.

    tries of the message (reconsumeTimes)   delayLevel      stored as
    below the group's maximum               0               %RETRY%group, DELAY 3 + tries: through the schedule topic
    below the group's maximum               n > 0           %RETRY%group, DELAY n; with `delayMs` that long exactly
    the maximum, or more                    any             %DLQ%group, queue 0, DELAY 0
    any                                     below 0         %DLQ%group, queue 0, DELAY 0

The copy keeps body, flag, sysFlag, birth and properties, without the longest where there is no room for what is added;
it has one try more, remembers its first topic (RETRY_TOPIC) and its first id (ORIGIN_MESSAGE_ID), and does not wait for
the disk (WAIT=false). As in RocketMQ 4.9.
The answer does wait, where the message's first topic counts what is on disk only.
What is stored is counted as SNDBCK_PUT_NUMS[first topic@group].

Our own clients say three things more: `attempt`, when they delivered a message several times before they sent it back,
so that its tries go on from there; `delayMs`, when they want it again at a time that is no level, which makes it a
timed message; and `reason`, which a dead letter keeps as SHMQ_REASON. Members of ours may read different topics of a
group: then the retry goes to %RETRY%group+topic, which those read that read the topic (`groups/consumer_group.py`).
"""

import random
from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

from shmq.daemon.broker.groups.registry import GroupRegistry
from shmq.daemon.broker.groups.settings import GroupSettings
from shmq.daemon.broker.log import NewRecord, Storage
from shmq.daemon.broker.records.property_text import fitting, property_of, with_properties
from shmq.daemon.broker.records.stored_record import StoredRecord, copy_of, is_queued, record_at
from shmq.daemon.broker.sends.dead_letters import ORIGIN_MESSAGE_ID, DeadLetters
from shmq.daemon.broker.sends.retry_moves import Changed
from shmq.daemon.broker.settings import BrokerSettings
from shmq.daemon.broker.statistics.statistics import SENT_BACK, Statistics
from shmq.daemon.broker.tables import Topic
from shmq.daemon.broker.timers.route import Route, route_of, timed_route
from shmq.daemon.broker.topics import UNIT_RETRY_FLAG
from shmq.daemon.logic.access.rights import Permission
from shmq.daemon.logic.header_fields import ADVICE, INT32_MAX, flag_of, number_of, text_of
from shmq.daemon.logic.requests import Answer, Call, Part, WhenDurable, serves
from shmq.delay_levels import DELAY, SCHEDULE_TOPIC, DelayLevels
from shmq.errors import InvalidName, ShmqError
from shmq.message import (
    DEAD_LETTER_REASON,
    PERM_READ_WRITE,
    PERM_WRITE,
    POP_RETRY,
    POP_RETRY_OLD,
    RETRY_TOPIC,
    check_group,
    dead_letter_topic,
    popped_topic,
    retry_topic,
)
from shmq.protocol.codes import Request, Response
from shmq.protocol.message_id import message_id_text
from shmq.timing import ASKED_BY, DELAY_MS, OUT_MS
from shmq.words import REASON_CHARACTERS_MAX

_FIRST_RETRY_LEVEL = 3
_DEAD_LETTER_QUEUES = 1
_V3_4_9 = 121  # from here on a client says itself after how many tries a message is dead
_SEPARATORS = str.maketrans({"\x01": " ", "\x02": " "})


class _Again(NamedTuple):
    """A message that was sent back.

    Attributes:
        first_topic, first_id: where its group read it first, and the offset message id it had there.
        tries: how often it was delivered before the last time.
    """

    record: StoredRecord
    first_topic: str
    first_id: str
    tries: int

    def copy(self, delay: Mapping[str, str | None]) -> NewRecord:
        """Return what is stored of it."""
        changes = {RETRY_TOPIC: self.first_topic, "WAIT": "false", **delay, ORIGIN_MESSAGE_ID: self.first_id}
        properties = with_properties(self.record.properties, changes)
        return copy_of(self.record, properties, reconsume_times=self.tries + 1)


class _Refusal(Exception):
    """A request that is answered with a code."""

    def __init__(self, code: int, remark: str) -> None:
        self.answer = Answer(code=code, remark=remark)


class SendBack(Part):
    """Serves CONSUMER_SEND_MSG_BACK."""

    def __init__(
        self,
        storage: Storage,
        groups: GroupSettings,
        registry: GroupRegistry,
        levels: DelayLevels,
        statistics: Statistics,
        settings: BrokerSettings,
        *,
        when_durable: WhenDurable,
        changed: Changed,
    ) -> None:
        """`changed` tells the members of groups, the sender among them, to share their queues anew."""
        self._changed = changed
        self._tables, self._log, self._arrived = storage
        self._groups = groups
        self._registry = registry
        self._dead_letters = DeadLetters(self._tables, self._log)
        self._levels = levels
        self._statistics = statistics
        self._settings = settings
        self._when_durable = when_durable
        self._random = random.Random()
        self._untold: set[str] = set()  # groups with a new retry topic, whose queues their members share, too

    @serves(Request.CONSUMER_SEND_MSG_BACK)
    def _serve(self, call: Call) -> Answer:
        try:
            return self._send_back(call)
        except _Refusal as refusal:
            return refusal.answer

    def _send_back(self, call: Call) -> Answer:
        ext = call.ext
        group = self._group(text_of(ext, "group"))
        position = number_of(ext, "offset", least=-1)
        delay_level = number_of(ext, "delayLevel", least=-INT32_MAX, most=INT32_MAX)
        settings = self._groups.of(group)
        if settings.retryQueueNums <= 0:
            return Answer()  # the group wants no retries
        record = self._record(call, group, position)
        first_topic, first_id = _first(group, record, is_ours="attempt" in ext)
        members = self._registry.consumer_group(group)
        name = members.retry_home(first_topic) if members is not None else retry_topic(group)
        if self._tables.topic(name) is None:
            self._untold.add(group)
        topic = self._topic(name, settings.retryQueueNums, UNIT_RETRY_FLAG if flag_of(ext, "unitMode") else 0)
        tries = record.reconsume_times
        if "attempt" in ext:
            tries = max(tries, number_of(ext, "attempt", most=INT32_MAX) - 1)
        most = settings.retryMaxTimes
        if call.command.version >= _V3_4_9:
            most = number_of(ext, "maxReconsumeTimes", least=-INT32_MAX, most=INT32_MAX, default=most)
        again = _Again(record, first_topic, first_id, tries)
        if tries >= most or delay_level < 0:
            answer, end = self._dead_letter(call, group, again)
        else:
            queue_id = self._random.randrange(min(settings.retryQueueNums, len(topic.queues)))
            answer, end = self._store(call, self._route(call, again, delay_level, topic, queue_id))
        if group in self._untold:
            self._untold.discard(group)
            answer.effects = [*answer.effects, *self._changed([group])]
        self._statistics.add(SENT_BACK, f"{first_topic}@{group}", 1, call.now_ms)
        return self._when_durable(call, answer, end, first_topic)

    def _group(self, name: str) -> str:
        try:
            self._tables.group_put(check_group(name))  # as RocketMQ, which creates groups on first use
        except InvalidName as error:
            remark = f"subscription group not exist, {name[:255]} {ADVICE}"
            raise _Refusal(Response.SUBSCRIPTION_GROUP_NOT_EXIST, remark) from error
        return name

    def _topic(self, name: str, queues: int, flags: int) -> Topic:
        topic = self._tables.topic(name)
        if topic is None:
            try:
                self._tables.topic_put(
                    name, read_queues=queues, write_queues=queues, perm=PERM_READ_WRITE, flags=flags, kind=0
                )
            except ShmqError as error:
                raise _Refusal(Response.SYSTEM_ERROR, f"topic[{name}] not exist: {error}") from error
            topic = self._tables.topic(name)
        if topic is None:
            raise _Refusal(Response.SYSTEM_ERROR, f"topic[{name}] not exist")
        if not topic.perm & PERM_WRITE:
            raise _Refusal(Response.NO_PERMISSION, f"the topic[{name}] sending message is forbidden")
        return topic

    def _record(self, call: Call, group: str, position: int) -> StoredRecord:
        """Return the message of a log position, if the sender may consume it in this group."""
        record = record_at(self._log, position)
        if record is not None and record.log_position == position and is_queued(self._tables, record):
            call.rights.check(_consumed_resource(record, group), Permission.SUB)
        else:
            raise _Refusal(Response.SYSTEM_ERROR, f"look message by offset failed, {position}")
        return record

    def _dead_letter(self, call: Call, group: str, again: _Again) -> tuple[Answer, int]:
        topic = self._topic(dead_letter_topic(group), _DEAD_LETTER_QUEUES, 0)
        copy = again.copy({DELAY: "0"})
        if "reason" in call.ext:
            reason = call.ext["reason"].translate(_SEPARATORS)[:REASON_CHARACTERS_MAX]
            reason = reason or f"not consumed in {again.tries + 1} attempts"
            copy.properties = with_properties(copy.properties, {DEAD_LETTER_REASON: reason})
        try:
            stored = self._dead_letters.store(topic, copy)
        except ShmqError as error:
            raise _Refusal(Response.SYSTEM_ERROR, str(error)) from error
        return Answer(effects=self._arrived((topic.queues[0],), call.now_ms)), stored.end

    def _route(self, call: Call, again: _Again, delay_level: int, topic: Topic, queue_id: int) -> Route:
        level = delay_level or _FIRST_RETRY_LEVEL + again.tries
        delay_ms = number_of(call.ext, "delayMs", least=1, default=0)
        if not delay_ms or delay_ms == self._levels.delay_ms(self._levels.level_of(level)):
            return route_of(again.copy({DELAY: str(level)}), topic.name, queue_id, self._levels)
        copy = again.copy({DELAY: None, **dict.fromkeys((*ASKED_BY, OUT_MS)), DELAY_MS: str(delay_ms)})
        max_delay_ms = self._settings.timer_max_delay_ms
        return timed_route(copy, topic.name, queue_id, now_ms=self._tables.clock_ms, max_delay_ms=max_delay_ms)

    def _store(self, call: Call, route: Route) -> tuple[Answer, int]:
        queues = self._levels.count if route.topic == SCHEDULE_TOPIC else 1
        topic = self._topic(route.topic, queues, 0)
        try:
            record = replace(route.record, properties=fitting(route.record.properties))
            stored = self._log.append(topic, route.queue_id, record)
        except ShmqError as error:
            raise _Refusal(Response.SYSTEM_ERROR, str(error)) from error
        return Answer(effects=self._arrived((topic.queues[route.queue_id],), call.now_ms)), stored.end


def _first(group: str, record: StoredRecord, *, is_ours: bool) -> tuple[str, str]:
    """Return the topic that a group read a message in first, and its id there.

    Clients of RocketMQ go by what the message says, wherever it lies. Ours read topic by topic, so that counts in retry
    topics of the group alone: a dead letter says it too, and what was sent with the properties of another message.
    """
    own = record.topic, message_id_text(record.store_host, record.log_position)
    if is_ours and record.topic != retry_topic(group) and not _is_popped_again(record, group):
        return own
    said = (property_of(record.properties, name) for name in (RETRY_TOPIC, ORIGIN_MESSAGE_ID))
    topic, message_id = (text or default for text, default in zip(said, own, strict=True))
    return topic, message_id


def _is_popped_again(record: StoredRecord, group: str) -> bool:
    """Whether a record lies in a retry topic of a group and the first topic that it says."""
    said = property_of(record.properties, RETRY_TOPIC) or ""
    return record.topic in (popped_topic(group, said, flag) for flag in (POP_RETRY, POP_RETRY_OLD))


def _consumed_resource(record: StoredRecord, group: str) -> str:
    """Return what a member of a group needs SUB on for a record that it says it was given.

    What comes again to a group that pops lies in a retry topic of group and topic; the right on the topic counts.
    """
    is_again = _is_popped_again(record, group)
    return (property_of(record.properties, RETRY_TOPIC) or "") if is_again else record.topic
