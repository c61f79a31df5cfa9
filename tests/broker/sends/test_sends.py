"""Sends: RocketMQ's checks in RocketMQ's order, what is stored, and what is answered when."""

import struct
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from shmq.addresses import Address
from shmq.daemon.broker.broker import Broker
from shmq.daemon.broker.settings import BrokerSettings
from shmq.daemon.logic.effects import Effect, Reply
from shmq.errors import BrokerBusy, MessageTooLarge, ReadOnlyStore, SegmentFull, ShmqError
from shmq.properties import PROPERTIES_BYTES_MAX, encode_properties, parse_properties
from shmq.protocol.codes import Request, Response
from shmq.protocol.command import FLAG_ONEWAY, Command
from shmq.protocol.request_reply import REPLY_QUEUES

LOCAL, REMOTE = Address("127.0.0.1", 10911), Address("10.0.0.9", 40000)
LONG = {
    "producerGroup": "p",
    "topic": "orders",
    "defaultTopic": "TBW102",
    "defaultTopicQueueNums": "4",
    "queueId": "1",
    "sysFlag": "0",
    "bornTimestamp": "77",
    "flag": "5",
    "properties": "TAGS\x01a\x02",
    "reconsumeTimes": "0",
    "unitMode": "false",
    "batch": "false",
}
SHORT = dict(zip("abcdefghijkm", LONG.values(), strict=True))


class Producer:
    """One TCP connection that sends."""

    def __init__(self, tables: Any, log: Any, settings: BrokerSettings) -> None:
        self.tables, self.log = tables, log
        self.broker = Broker(tables, settings, now_ms=0, log=log)
        self.broker.connected(1, None, 0, remote=REMOTE, local=LOCAL)

    def effects(
        self, changes: dict[str, str] | None = None, *, body: bytes = b"hi", code: int = 310, **more: Any
    ) -> list[Effect]:
        ext = (LONG if code == Request.SEND_MESSAGE else SHORT) | (changes or {})
        now_ms = more.pop("now_ms", 0)
        return self.broker.handle(1, Command(code=code, opaque=7, ext=ext, body=body, **more), now_ms)

    def send(self, changes: dict[str, str] | None = None, **more: Any) -> Command:
        (reply,) = self.effects(changes, **more)
        assert isinstance(reply, Reply) and reply.command.opaque == 7
        # RocketMQ's clients read both without looking whether they are there.
        assert (reply.command.ext["MSG_REGION"], reply.command.ext["TRACE_ON"]) == ("DefaultRegion", "true")
        return reply.command

    def stored(self, topic: str, queue_id: int) -> list[Any]:
        queue = self.tables.topic(topic).queues[queue_id]
        return [record for _, record, _ in self.log.records.get(queue, ())]


@pytest.fixture
def producer(tables: Any, log: Any, settings: BrokerSettings) -> Producer:
    return Producer(tables, log, replace(settings, serves_tcp=True))


@pytest.mark.parametrize("code", [10, 310])
def test_a_message_is_stored_as_it_came_with_who_sent_it_and_the_cluster(producer: Producer, code: int) -> None:
    reply = producer.send(code=code, body=b"payload")
    assert (reply.code, reply.remark) == (Response.SUCCESS, None)
    assert reply.ext["queueId"] == "1" and reply.ext["queueOffset"] == "0"
    assert reply.ext["msgId"] == "7F000001" + "00002A9F" + "0" * 16
    (record,) = producer.stored("orders", 1)
    assert (record.body, record.flag, record.born_ms, record.reconsume_times) == (b"payload", 5, 77, 0)
    assert record.born_host == bytes((10, 0, 0, 9)) + struct.pack(">i", 40000)
    assert parse_properties(record.properties.decode()) == {"TAGS": "a", "CLUSTER": "DefaultCluster"}


def test_an_advertised_address_is_in_the_message_id(tables: Any, log: Any, settings: BrokerSettings) -> None:
    advertised = Address("2001:db8::1", 5)
    producer = Producer(tables, log, replace(settings, serves_tcp=True, advertised=advertised))
    assert producer.send().ext["msgId"] == "20010DB8" + "0" * 23 + "1" + "00000005" + "0" * 16


def test_a_topic_is_made_from_the_default_topic_with_the_fewer_queues(producer: Producer) -> None:
    producer.send()
    topic = producer.tables.topic("orders")
    assert (topic.read_queues, topic.write_queues, topic.perm, topic.flags) == (4, 4, 6, 0)
    producer.send({"b": "wide", "d": "100", "k": "true"})
    wide = producer.tables.topic("wide")
    assert (wide.write_queues, wide.flags) == (8, 1)


def test_without_auto_creation_a_topic_has_to_be_there(tables: Any, log: Any, settings: BrokerSettings) -> None:
    tables.topic_put("TBW102", read_queues=8, write_queues=8, perm=7, flags=0, kind=0)  # left by an earlier start
    producer = Producer(tables, log, replace(settings, serves_tcp=True, auto_create=False))
    reply = producer.send()
    assert reply.code == Response.TOPIC_NOT_EXIST
    assert str(reply.remark).startswith("topic[orders] not exist, apply first please!\nSee http")
    assert producer.send({"b": "%RETRY%g", "e": "0"}).code == Response.SUCCESS


def test_the_topics_a_rocketmq_broker_has_are_there_from_its_start(producer: Producer) -> None:
    found = {name: (topic.write_queues, topic.perm) for name, topic in producer.tables.all_topics.items()}
    assert found == {
        "SELF_TEST_TOPIC": (1, 6),
        "TBW102": (8, 7),
        "BenchmarkTest": (1024, 6),
        "DefaultCluster": (16, 7),
        "default": (1, 7),
        "OFFSET_MOVED_EVENT": (1, 6),
        "SCHEDULE_TOPIC_XXXX": (18, 6),
        "RMQ_SYS_TRANS_HALF_TOPIC": (1, 6),
        "DefaultCluster_REPLY_TOPIC": (REPLY_QUEUES, 6),
    }


def test_a_local_broker_has_none_of_them(tables: Any, log: Any, settings: BrokerSettings) -> None:
    Broker(tables, settings, now_ms=0, log=log)
    assert tables.all_topics == {}


@pytest.mark.parametrize(
    ("changes", "code", "remark"),
    [
        ({"b": ""}, 1, "The specified topic is blank."),
        ({"b": " "}, 1, "The specified topic is blank."),
        ({"b": "a/b"}, 1, "The specified topic contains illegal characters, allowing only ^[%|a-zA-Z0-9_-]+$"),
        ({"b": "a" * 128}, 1, "The specified topic is longer than topic max length."),
        ({"b": "SELF_TEST_TOPIC"}, 16, "Sends message to topic[SELF_TEST_TOPIC] is forbidden."),
        ({"b": "SCHEDULE_TOPIC_XXXX"}, 16, "Sends message to topic[SCHEDULE_TOPIC_XXXX] is forbidden."),
        ({"b": "OFFSET_MOVED_EVENT"}, 16, "Sends message to topic[OFFSET_MOVED_EVENT] is forbidden."),
        ({"b": "%RETRY%g+orders"}, 16, "Sends message to topic[%RETRY%g+orders] is forbidden."),
        ({"b": "orders+"}, 1, "The specified topic contains illegal characters, allowing only ^[%|a-zA-Z0-9_-]+$"),
        (
            {"e": "77"},
            1,
            "request queueId[77] is illegal, TopicConfig [topicName=orders, readQueueNums=4, writeQueueNums=4, "
            "perm=RW-, topicFilterType=SINGLE_TAG, topicSysFlag=0, order=false] Producer: 10.0.0.9:40000",
        ),
        ({"c": "nothing"}, 17, "topic[orders] not exist, apply first please!"),
        ({"e": "x"}, 1, "the field e is 'x'; a number is needed"),
        ({"f": str(1 << 31)}, 1, "the field f is '2147483648'; a number is needed"),
        ({"i": "a\x01" + "b" * 40000 + "\x02"}, 13, "the message is illegal, maybe msg body or properties length"),
        ({"i": "DELAY\x01soon\x02"}, 1, "DELAY"),
    ],
)
def test_what_rocketmq_refuses_is_refused_in_its_words(
    producer: Producer, changes: dict[str, str], code: int, remark: str
) -> None:
    reply = producer.send(changes)
    assert reply.code == code
    assert remark in str(reply.remark)
    assert not producer.log.records


def test_a_header_with_next_to_nothing_in_it_lacks_the_topic_first(producer: Producer) -> None:
    (reply,) = producer.broker.handle(1, Command(code=310, ext={"a": "p"}), 0)
    assert isinstance(reply, Reply) and reply.command.remark == "The specified topic is blank."
    (reply,) = producer.broker.handle(1, Command(code=310, ext={"a": "p", "b": "orders", "c": "TBW102"}), 0)
    assert isinstance(reply, Reply) and (reply.command.code, "missing" in str(reply.command.remark)) == (1, True)


def test_a_negative_queue_id_is_any_queue(producer: Producer) -> None:
    chosen = {producer.send({"e": "-1"}).ext["queueId"] for _ in range(200)}
    assert chosen == {"0", "1", "2", "3"}


def test_what_a_client_says_for_the_broker_only_is_not_stored(producer: Producer) -> None:
    text = encode_properties({"KEYS": "k"}) + "WAIT\x01true\x02CLUSTER\x01other\x02__CRC32#\x01123\x02"
    producer.send({"i": text})
    producer.send({"i": "TAGS\x01x"})  # some leave the last separator out
    producer.send({"i": ""})
    texts = [record.properties.decode() for record in producer.stored("orders", 1)]
    assert [parse_properties(text) for text in texts] == [
        {"KEYS": "k", "CLUSTER": "DefaultCluster"},
        {"TAGS": "x", "CLUSTER": "DefaultCluster"},
        {"CLUSTER": "DefaultCluster"},
    ]
    assert not any("WAIT" in text or "__CRC32#" in text or "other" in text for text in texts)


def test_a_oneway_send_is_stored_and_not_answered(producer: Producer) -> None:
    assert producer.effects(flag=FLAG_ONEWAY) == []
    assert producer.effects({"b": "a/b"}, flag=FLAG_ONEWAY) == []
    assert len(producer.stored("orders", 1)) == 1


def encoded(*messages: tuple[bytes, bytes]) -> bytes:
    parts = []
    for body, properties in messages:
        parts += [struct.pack(">iiiii", 22 + len(body) + len(properties), 0, 0, 3, len(body)), body]
        parts += [struct.pack(">h", len(properties)), properties]
    return b"".join(parts)


@pytest.mark.parametrize(
    ("code", "changes"), [(320, {"m": "true"}), (320, {}), (10, {"batch": "1"}), (10, {"batch": "true"})]
)
def test_a_batch_is_many_messages_of_one_queue(producer: Producer, code: int, changes: dict[str, str]) -> None:
    body = encoded((b"one", b"TAGS\x01x\x02"), (b"two", b""), (b"three", b"KEYS\x01k"))
    name = "properties" if code == 10 else "i"
    reply = producer.send(changes | {name: "A\x01b\x02"}, code=code, body=body)
    assert reply.code == Response.SUCCESS and reply.ext["queueOffset"] == "0"
    ids = reply.ext["msgId"].split(",")
    assert len(ids) == len(set(ids)) == 3
    records = producer.stored("orders", 1)
    assert [record.body for record in records] == [b"one", b"two", b"three"]
    assert [parse_properties(record.properties.decode()) for record in records] == [
        {"TAGS": "x", "A": "b", "CLUSTER": "DefaultCluster"},
        {"A": "b", "CLUSTER": "DefaultCluster"},
        {"KEYS": "k", "A": "b", "CLUSTER": "DefaultCluster"},
    ]
    assert {record.flag for record in records} == {3}


@pytest.mark.parametrize(
    ("changes", "body", "code"),
    [
        ({"i": "DELAY\x013\x02"}, encoded((b"x", b"")), 13),
        ({"b": "%RETRY%g"}, encoded((b"x", b"")), 13),
        ({}, encoded((b"x", b""))[:-1] + b"\x05", 1),
        ({}, bytes((4 << 20) + 1), 13),
    ],
)
def test_a_batch_that_cannot_be_is_refused_whole(
    producer: Producer, changes: dict[str, str], body: bytes, code: int
) -> None:
    assert producer.send(changes | {"e": "0"}, code=320, body=body).code == code
    assert not producer.log.records


def test_a_delayed_message_waits_in_the_schedule_topic(producer: Producer) -> None:
    reply = producer.send({"i": "DELAY\x013\x02"})
    assert (reply.code, reply.ext["queueId"]) == (0, "1")
    (record,) = producer.stored("SCHEDULE_TOPIC_XXXX", 2)
    assert parse_properties(record.properties.decode()) == {
        "DELAY": "3",
        "CLUSTER": "DefaultCluster",
        "REAL_TOPIC": "orders",
        "REAL_QID": "1",
    }
    assert producer.stored("orders", 1) == []


@pytest.mark.parametrize("tried", ["1", "17"])
def test_properties_that_leave_no_room_keep_no_message_from_the_retry_topic(producer: Producer, tried: str) -> None:
    producer.tables.topic_put("%RETRY%g", read_queues=1, write_queues=1, perm=6, flags=0, kind=0)
    text = "DELAY\x012\x02KEYS\x01k\x02long\x01"
    text += "v" * (PROPERTIES_BYTES_MAX - len(text) - 1) + "\x02"
    assert producer.send({"b": "%RETRY%g", "e": "0", "j": tried, "i": text}).code == Response.SUCCESS
    (copy,) = producer.stored("SCHEDULE_TOPIC_XXXX", 1) if tried == "1" else producer.stored("%DLQ%g", 0)
    assert len(copy.properties) <= PROPERTIES_BYTES_MAX - 21
    assert parse_properties(copy.properties.decode())["KEYS"] == "k"


@pytest.mark.parametrize(
    ("tried", "most", "version", "topic"),
    [
        ("15", None, 409, "%RETRY%g"),
        ("16", None, 409, "%DLQ%g"),
        ("2", "3", 409, "%RETRY%g"),
        ("3", "3", 409, "%DLQ%g"),
        ("3", "3", 100, "%RETRY%g"),  # before V3_4_9 it is the group's to say
        ("-1", None, 409, "%RETRY%g"),
    ],
)
def test_a_message_that_used_its_tries_up_goes_to_the_dead_letters(
    producer: Producer, tried: str, most: str | None, version: int, topic: str
) -> None:
    changes = {"b": "%RETRY%g", "e": "0", "j": tried, "i": "DELAY\x012\x02"} | ({"l": most} if most else {})
    reply = producer.send(changes, version=version)
    assert reply.code == Response.SUCCESS
    assert producer.tables.group("g") is not None
    if topic == "%DLQ%g":
        (record,) = producer.stored(topic, 0)
        assert parse_properties(record.properties.decode())["DELAY"] == "0"
    else:
        (record,) = producer.stored("SCHEDULE_TOPIC_XXXX", 1)
        assert parse_properties(record.properties.decode())["REAL_TOPIC"] == topic


@pytest.mark.parametrize(
    ("error", "code", "remark"),
    [
        (BrokerBusy("busy"), 1, "[PC_SYNCHRONIZED]broker busy, start flow control for a while"),
        (SegmentFull("the log is full"), 14, "service not available now. the log is full"),
        (ReadOnlyStore("a flush failed"), 14, "service not available now. a flush failed"),
        (MessageTooLarge("too long"), 13, "the message is illegal, maybe msg body or properties length not matched"),
    ],
)
def test_an_error_of_the_log_has_rocketmqs_code(producer: Producer, error: ShmqError, code: int, remark: str) -> None:
    producer.log.error = error
    reply = producer.send()
    assert reply.code == code and str(reply.remark).startswith(remark) and str(reply.remark).endswith(str(error))


@pytest.fixture
def durable(tables: Any, log: Any, settings: BrokerSettings) -> Producer:
    log.held_durable_end = 0
    return Producer(tables, log, replace(settings, serves_tcp=True, wait_durable=True))


def codes(effects: Sequence[Effect]) -> list[int]:
    return [effect.command.code for effect in effects if isinstance(effect, Reply)]


def test_under_synchronous_flush_the_answer_waits_for_the_disk(durable: Producer) -> None:
    assert durable.effects(body=b"one") == [] and durable.effects(body=b"two") == []
    first_end = len(b"0|orders|one")
    assert codes(durable.broker.flushed(first_end - 1, 0)) == []
    assert codes(durable.broker.flushed(first_end, 0)) == [0]
    assert codes(durable.broker.flushed(durable.log.end, 0)) == [0]
    assert codes(durable.broker.flushed(durable.log.end, 0)) == []


def test_a_message_that_does_not_want_to_wait_does_not(durable: Producer) -> None:
    assert durable.send({"i": "WAIT\x01false\x02"}).code == Response.SUCCESS


def test_a_disk_that_takes_too_long_is_answered_as_such(durable: Producer) -> None:
    assert durable.effects(now_ms=100) == []
    assert codes(durable.broker.tick(5099)) == []
    (reply,) = durable.broker.tick(5100)
    assert isinstance(reply, Reply) and reply.command.code == Response.FLUSH_DISK_TIMEOUT
    assert reply.command.ext["msgId"] and reply.command.ext["queueOffset"] == "0"
    assert codes(durable.broker.flushed(durable.log.end, 5200)) == []


def test_a_client_that_is_gone_is_not_answered(durable: Producer) -> None:
    durable.effects()
    durable.broker.disconnected(1, 0)
    assert codes(durable.broker.flushed(durable.log.end, 0)) == []
