"""Sends: SEND_MESSAGE (10), SEND_MESSAGE_V2 (310) and SEND_BATCH_MESSAGE (320).

Checks come in RocketMQ's order.

    topic name · forbidden topic · topic exists or is created · queue id · retries used up · log

The first message of a transaction becomes a half (`half.py`); a message that is tried again is none, whatever it says.

Where a topic counts what is on disk, by its own flush or the broker's, the answer is held until the message is there,
unless it says WAIT=false. Every other answer that says "stored" does the same through `when_durable`: tests/broker/
durability/test_answers_wait.py lists them.
"""

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from shmq.addresses import Address
from shmq.daemon.broker.groups.settings import GroupSettings
from shmq.daemon.broker.log import NewRecord, Storage, Stored
from shmq.daemon.broker.records.message_id import UNKNOWN_HOST, host_bytes, offset_message_id
from shmq.daemon.broker.records.property_text import fitting, property_of, with_properties
from shmq.daemon.broker.sends.dead_letters import DeadLetters
from shmq.daemon.broker.sends.flush_waits import FlushWaits
from shmq.daemon.broker.sends.header import ANSWER_EXT, SendHeader, sent_ext
from shmq.daemon.broker.sends.unavailable import in_doubt, unavailable
from shmq.daemon.broker.settings import BrokerSettings
from shmq.daemon.broker.tables import Topic
from shmq.daemon.broker.timers.route import IllegalTimer, delayed_route, recall_handle, waiting_topic
from shmq.daemon.broker.topics import create_by_send, ensure_topic
from shmq.daemon.broker.transactions.half import half_of, is_prepared
from shmq.daemon.logic.alarm import Alarm
from shmq.daemon.logic.effects import Effect
from shmq.daemon.logic.header_fields import ADVICE
from shmq.daemon.logic.requests import Answer, Call, Connection, Part, serves
from shmq.delay_levels import DELAY, DelayLevels
from shmq.errors import (
    BrokerBusy,
    BrokerNotRunning,
    InvalidName,
    MessageTooLarge,
    SegmentFull,
    ShmqError,
    StoreError,
)
from shmq.message import KEPT_TOPICS, RETRY_PREFIX, RETRY_TOPIC, check_group, check_topic, dead_letter_topic, pop_names
from shmq.protocol.codes import Request, Response, TopicFlush
from shmq.protocol.pop import REVIVE_TOPIC_PREFIX
from shmq.protocol.system_topics import transaction


def forbidden_topics(cluster: str) -> frozenset[str]:
    """Return the topics that no client may send to by name: the broker trusts what lies in them."""
    return KEPT_TOPICS | {f"{REVIVE_TOPIC_PREFIX}{cluster}"}


_V3_4_9 = 121  # from here on a client says itself after how many tries a message is dead
_DEAD_LETTER_QUEUES = 1
_LOOK_MS = 10
_WAIT, _CLUSTER, _CRC = "WAIT", "CLUSTER", "__CRC32#"
_REWRITTEN = tuple(f"{key}\x01".encode() for key in (_WAIT, _CLUSTER, _CRC))


class SendRefusal(Exception):
    """A send that is answered with a code, before anything was stored."""

    def __init__(self, code: int, remark: str) -> None:
        self.answer = Answer(code=code, remark=remark, ext=dict(ANSWER_EXT))


@dataclass(slots=True)
class _Target:
    """Where a message goes, and the topic in the client's answer."""

    topic: Topic
    queue_id: int


class _Sent(NamedTuple):
    """What was stored: in which queue (by index), the queue id in the client's answer, and where."""

    queue: int
    queue_id: int
    stored: Sequence[Stored]
    handle: str | None = None

    @property
    def end(self) -> int:
        return self.stored[-1].end if self.stored else 0


class Sends(Part):
    """Serves sends."""

    def __init__(self, storage: Storage, groups: GroupSettings, settings: BrokerSettings) -> None:
        self._tables, self._log, self._arrived = storage
        self._groups = groups
        self._settings = settings
        self._dead_letters = DeadLetters(self._tables, self._log)
        self._levels = DelayLevels(settings.delay_levels)
        self._cluster = cluster_text(settings.cluster)
        self._flush_waits = FlushWaits(self._log, timeout_ms=settings.flush_timeout_ms)
        self._random = random.Random()
        self._alarm = Alarm()
        self._forbidden = forbidden_topics(settings.cluster)

    @property
    def wanted_end(self) -> int | None:
        """The log position that held answers wait for to be durable."""
        return self._flush_waits.wanted_end

    def flushed(self, durable_end: int, now_ms: int) -> Sequence[Effect]:
        """Answer those whose messages are on disk."""
        return self._flush_waits.flushed(durable_end)

    def tick(self, now_ms: int) -> Sequence[Effect]:
        """Answer those who waited too long for the disk."""
        return self._flush_waits.tick(now_ms)

    def disconnected(self, connection: Connection, now_ms: int) -> Sequence[Effect]:
        """Drop the answers that wait for a connection that is gone."""
        return self._flush_waits.forget(connection.connection_id)

    def when_durable(self, call: Call, answer: Answer, end: int, *topics: str) -> Answer:
        """Return an answer to what was stored below a log position, held until that is on disk where one of the topics
        asks for it; what else follows from the request follows now. Once the lease is over it says "in doubt"."""
        if call.command.is_oneway or end <= self._log.durable_end or not any(map(self._is_counted_on_disk, topics)):
            # A request that was made before stores nothing, so no append has looked whether the lease is over.
            return in_doubt(answer) if self._log.in_doubt(end) else answer
        self._flush_waits.hold(call, replace(answer, effects=()), end, is_send=False)
        # A bridge without TCP does not watch the log for it.
        look = [self._alarm.set(call.now_ms, _LOOK_MS)] if call.connection.is_local else []
        return replace(answer, held=True, effects=[*answer.effects, *look])

    def _is_counted_on_disk(self, name: str) -> bool:
        topic = self._tables.topic(name)
        return self._settings.wait_durable if topic is None else self._counts_on_disk(topic)

    def woken(self, now_ms: int) -> Sequence[Effect]:
        """Look whether what local processes wait for is on disk."""
        return self._alarm.ring(now_ms, self._look)

    def _look(self, now_ms: int) -> Sequence[Effect]:
        effects = self._flush_waits.flushed(self._log.durable_end)
        return effects if self.wanted_end is None else [*effects, self._alarm.set(now_ms, _LOOK_MS)]

    @serves(Request.SEND_MESSAGE, Request.SEND_MESSAGE_V2, Request.SEND_BATCH_MESSAGE)
    def send(self, call: Call) -> Answer | None:
        """Store the message, or the batch, of a request."""
        header = SendHeader(call.command.code, call.ext)
        try:
            target = self._target(call, header)
            return self._send_batch(call, header, target) if header.is_batch else self._send_one(call, header, target)
        except SendRefusal as refusal:
            return refusal.answer
        except ShmqError as error:
            return self.failed(error)

    def store_reply(self, call: Call, header: SendHeader, queue_id: int | None) -> tuple[Answer, int]:
        """Store a reply in `queue_id`, or in the queue it names, without waiting.

        Returns the answer of a send, and the log position behind the reply where that answer waits for the disk: only
        the reply topic itself can say so, because a requester does not outlive a crash of the host.

        Raises:
            SendRefusal: a check of a send says no.
        """
        target = self._target(call, header)
        if queue_id is not None:
            if queue_id >= target.topic.read_queues:
                raise SendRefusal(
                    Response.SYSTEM_ERROR,
                    f"the reply is for queue {queue_id}, {_shown(target.topic)} has no such queue",
                )
            target.queue_id = queue_id
        try:
            sent = self._append(call, header, target)
        except ShmqError as error:
            return self.failed(error), 0
        return self._answered(call, sent), sent.end if target.topic.flush == TopicFlush.SYNC else 0

    # -- checks, in RocketMQ's order

    def _target(self, call: Call, header: SendHeader) -> _Target:
        topic = self._tables.topic(header.topic)
        if topic is None or topic.name in self._forbidden:
            topic = self._checked_topic(call, header)
        queue_id, queues = header.queue_id, max(topic.read_queues, topic.write_queues)
        if queue_id >= queues:
            raise SendRefusal(
                Response.SYSTEM_ERROR,
                f"request queueId[{queue_id}] is illegal, {_shown(topic)} Producer: {call.connection.remote}",
            )
        if queue_id < 0:
            queue_id = self._random.randrange(max(1, topic.write_queues))
        return _Target(topic, queue_id)

    def _checked_topic(self, call: Call, header: SendHeader) -> Topic:
        """The slow way of topics that do not exist, or may not be sent to."""
        name = header.topic
        if not name.strip():
            raise SendRefusal(Response.SYSTEM_ERROR, "The specified topic is blank.")
        try:
            check_topic(name)
        except InvalidName as error:
            what = (
                "is longer than topic max length."
                if "characters, " in str(error)
                else "contains illegal characters, allowing only ^[%|a-zA-Z0-9_-]+$"
            )
            raise SendRefusal(Response.SYSTEM_ERROR, f"The specified topic {what}") from error
        if name in self._forbidden or any(pop_names(name)):
            raise SendRefusal(Response.NO_PERMISSION, f"Sends message to topic[{name}] is forbidden.")
        topic = create_by_send(
            self._tables, name, header.default_topic, header.default_queues, is_unit_mode=header.is_unit_mode
        )
        if topic is None:
            raise SendRefusal(Response.TOPIC_NOT_EXIST, f"topic[{name}] not exist, apply first please!{ADVICE}")
        return topic

    def _is_dead(self, call: Call, header: SendHeader, target: _Target) -> bool:
        """Whether a message for a retry topic has used its tries up; it goes to the dead letters then."""
        if not target.topic.name.startswith(RETRY_PREFIX):
            return False
        group = target.topic.name[len(RETRY_PREFIX) :]
        try:
            self._tables.group_put(check_group(group))
        except InvalidName as error:
            remark = f"subscription group not exist, {group} {ADVICE}"
            raise SendRefusal(Response.SUBSCRIPTION_GROUP_NOT_EXIST, remark) from error
        most = header.max_reconsume_times if call.command.version >= _V3_4_9 else None
        if header.reconsume_times < (self._groups.of(group).retryMaxTimes if most is None else most):
            return False
        target.topic = ensure_topic(self._tables, dead_letter_topic(group), queues=_DEAD_LETTER_QUEUES)
        target.queue_id = 0
        return True

    def _refuse_transaction(self, call: Call, properties: bytes) -> None:
        if is_prepared(properties):
            host = self.address(call).host
            remark = f"the broker[{host}] sending transaction message is forbidden: a batch is no part of one"
            raise SendRefusal(Response.NO_PERMISSION, remark)

    # -- storing

    def _send_one(self, call: Call, header: SendHeader, target: _Target) -> Answer | None:
        waits = self._waits(target.topic, header.properties)
        return self._stored(call, self._append(call, header, target), waits=waits)

    def _append(self, call: Call, header: SendHeader, target: _Target) -> _Sent:
        properties = header.properties
        record = NewRecord(
            call.command.body,
            self._stored_properties(properties),
            header.flag,
            header.sys_flag,
            header.born_ms,
            host_bytes(call.connection.remote or UNKNOWN_HOST),
            header.reconsume_times,
        )
        asked = target.queue_id
        is_dead = self._is_dead(call, header, target)
        if is_dead:
            record.properties = with_properties(record.properties, {DELAY: "0"})
            asked = target.queue_id
        self._check_size(len(record.body), len(properties))
        topic, queue_id = target.topic, target.queue_id
        handle: str | None = None
        if is_prepared(properties) and not header.reconsume_times:
            ensure_topic(self._tables, transaction.OP_TOPIC, queues=transaction.QUEUES)
            record = half_of(record, topic.name, queue_id)
            topic = ensure_topic(self._tables, transaction.HALF_TOPIC, queues=transaction.QUEUES)
            queue_id = transaction.QUEUE_ID
        elif b"DEL" in record.properties:  # DELAY, TIMER_DELAY_MS, TIMER_DELIVER_MS
            now_ms, max_delay_ms = self._tables.clock_ms, self._settings.timer_max_delay_ms
            route = delayed_route(record, topic.name, queue_id, self._levels, now_ms=now_ms, max_delay_ms=max_delay_ms)
            handle = recall_handle(route, topic.name, self._settings.broker_name)
            topic = waiting_topic(route, self._tables, self._levels) or topic
            queue_id, record = route.queue_id, route.record
        if target.topic.name.startswith(RETRY_PREFIX):  # the sender's properties keep no message from its retry
            record = replace(record, properties=fitting(record.properties))
        stored = self._dead_letters.store(topic, record) if is_dead else self._log.append(topic, queue_id, record)
        return _Sent(topic.queues[queue_id], asked, [stored], handle)

    def _send_batch(self, call: Call, header: SendHeader, target: _Target) -> Answer | None:
        properties = header.properties
        if target.topic.name.startswith(RETRY_PREFIX) or (property_of(properties, DELAY) or "0") != "0":
            raise self._illegal()
        self._refuse_transaction(call, properties)
        self._check_size(len(call.command.body), len(properties))
        stored = self._log.append_encoded_batch(
            target.topic,
            target.queue_id,
            call.command.body,
            properties=self._stored_properties(properties),
            sys_flag=header.sys_flag,
            born_ms=header.born_ms,
            born_host=host_bytes(call.connection.remote or UNKNOWN_HOST),
            reconsume_times=header.reconsume_times,
        )
        sent = _Sent(target.topic.queues[target.queue_id], target.queue_id, stored)
        return self._stored(call, sent, waits=self._waits(target.topic, properties))

    def _waits(self, topic: Topic, properties: bytes) -> bool:
        """Whether the answer to a send waits for the disk; a message that is tried again is one of its first topic."""
        first = property_of(properties, RETRY_TOPIC) if topic.name.startswith(RETRY_PREFIX) else None
        is_counted = self._counts_on_disk(topic) if first is None else self._is_counted_on_disk(first)
        return is_counted and property_of(properties, _WAIT) != "false"

    def _counts_on_disk(self, topic: Topic) -> bool:
        """Whether a message of a topic is acknowledged when it is on disk only."""
        return self._settings.wait_durable if topic.flush == TopicFlush.BROKER else topic.flush == TopicFlush.SYNC

    def _stored_properties(self, properties: bytes) -> bytes:
        """What is stored of them: without WAIT, which is for us, and with the name of the cluster."""
        if any(key in properties for key in _REWRITTEN):
            properties = with_properties(properties, {_WAIT: None, _CLUSTER: None})
        elif properties and not properties.endswith(b"\x02"):
            properties += b"\x02"
        return properties + self._cluster

    def _stored(self, call: Call, sent: _Sent, *, waits: bool) -> Answer | None:
        if waits and sent.end > self._log.durable_end:
            self._flush_waits.hold(call, Answer(ext=self._ext(call, sent)), sent.end, is_send=True)
            return None
        return self._answered(call, sent)

    def _answered(self, call: Call, sent: _Sent) -> Answer:
        return Answer(ext=self._ext(call, sent), effects=self._arrived((sent.queue,), call.now_ms))

    def _ext(self, call: Call, sent: _Sent) -> dict[str, str]:
        address, first = self.address(call), str(sent.stored[0].queue_offset) if sent.stored else "0"
        ids = (offset_message_id(address, each.log_position) for each in sent.stored)
        ext = sent_ext(",".join(ids), str(sent.queue_id), first)
        if sent.handle is not None:
            ext["recallHandle"] = sent.handle
        return ext

    def address(self, call: Call) -> Address:
        """Return where messages of this connection say they are stored."""
        return self._settings.advertised or call.connection.local or UNKNOWN_HOST

    # -- what goes wrong

    def _check_size(self, body_bytes: int, properties_bytes: int) -> None:
        if body_bytes > self._settings.message_bytes_max or properties_bytes > self._settings.properties_bytes_max:
            raise self._illegal()

    def _illegal(self, why: object = "") -> SendRefusal:
        bound = f"msg body length limit {self._settings.message_bytes_max}B, msg properties length limit 32KB."
        text = f"the message is illegal, maybe msg body or properties length not matched. {bound} {why}"
        return SendRefusal(Response.MESSAGE_ILLEGAL, text.rstrip())

    def failed(self, error: ShmqError) -> Answer:
        """Return the answer for what the log, or a field, refused."""
        if isinstance(error, MessageTooLarge):
            return self._illegal(error).answer
        if isinstance(error, BrokerBusy):
            remark = f"[PC_SYNCHRONIZED]broker busy, start flow control for a while. {error}"
            return Answer(code=Response.SYSTEM_ERROR, remark=remark, ext=dict(ANSWER_EXT))
        if (
            isinstance(error, (SegmentFull, StoreError, BrokerNotRunning))
            or error.code == Response.SERVICE_NOT_AVAILABLE
        ):
            return unavailable(error)
        is_said = error.code == Response.TOPIC_NOT_EXIST or isinstance(error, IllegalTimer)
        code = error.code if is_said else Response.SYSTEM_ERROR
        return Answer(code=code, remark=str(error), ext=dict(ANSWER_EXT))


def cluster_text(cluster: str) -> bytes:
    """Return the property every message gets that comes over TCP."""
    return f"{_CLUSTER}\x01{cluster}\x02".encode()


def _shown(topic: Topic) -> str:
    """A topic as RocketMQ prints its configuration."""
    perm = "".join(letter if topic.perm & bit else "-" for bit, letter in ((4, "R"), (2, "W"), (1, "X")))
    fields: Iterable[tuple[str, object]] = (
        ("topicName", topic.name),
        ("readQueueNums", topic.read_queues),
        ("writeQueueNums", topic.write_queues),
        ("perm", perm),
        ("topicFilterType", "SINGLE_TAG"),
        ("topicSysFlag", topic.flags),
        ("order", "false"),
    )
    return f"TopicConfig [{', '.join(f'{name}={value}' for name, value in fields)}]"
