"""Messages a consumer gives back: how often, where they wait, and what their copies say."""

import json
from dataclasses import replace
from typing import Any

import pytest

from shmq.addresses import Address
from shmq.daemon.broker.broker import Broker
from shmq.daemon.broker.log import NewRecord
from shmq.daemon.broker.settings import BrokerSettings
from shmq.daemon.logic.effects import Reply
from shmq.errors import SegmentFull
from shmq.properties import PROPERTIES_BYTES_MAX, parse_properties
from shmq.protocol.codes import Request, Response
from shmq.protocol.command import Command
from shmq.timing import TIMER_TOPIC
from tests.broker.record_log import RecordLog

HOST = bytes((10, 9, 8, 7, 0, 0, 0, 5))


class Consumer:
    """One TCP connection of group g, and a message it received."""

    def __init__(self, tables: Any, settings: BrokerSettings) -> None:
        self.tables = tables
        self.log = RecordLog(tables)
        tables.units = self.log.units
        self.broker = Broker(tables, settings, now_ms=0, log=self.log)
        self.broker.connected(1, None, 0, remote=Address("10.0.0.9", 4), local=Address("127.0.0.1", 10911))
        tables.topic_put("orders", read_queues=1, write_queues=1, perm=6, flags=0, kind=0)

    def receive(self, text: bytes = b"TAGS\x01t\x02KEYS\x01k\x02", topic: str = "orders", **fields: Any) -> int:
        record = NewRecord(b"body", text, flag=7, sys_flag=1, born_ms=55, born_host=HOST, **fields)
        return self.log.append(self.tables.topic(topic), 0, record).log_position

    def send_back(self, position: int, level: int = 0, *, version: int = 409, **ext: str) -> Command:
        fields = {"offset": str(position), "group": "g", "delayLevel": str(level)} | ext
        command = Command(code=Request.CONSUMER_SEND_MSG_BACK, opaque=3, ext=fields, version=version)
        effects = self.broker.handle(1, command, 0)
        (reply,) = [effect for effect in effects if isinstance(effect, Reply)]
        return reply.command

    def configure(self, **settings: Any) -> None:
        text = ",".join(f'"{name}":{value}' for name, value in settings.items())
        self.tables.group_set(self.tables.group_put("g"), f"{{{text}}}".encode())

    def stored(self, topic: str, queue_id: int) -> list[NewRecord]:
        found = self.tables.topic(topic)
        return self.log.stored(found, queue_id) if found else []


@pytest.fixture
def consumer(tables: Any, settings: BrokerSettings) -> Consumer:
    return Consumer(tables, replace(settings, serves_tcp=True))


def test_a_message_given_back_waits_for_its_retry(consumer: Consumer) -> None:
    position = consumer.receive()
    reply = consumer.send_back(position)
    assert (reply.code, reply.remark) == (0, None)
    (copy,) = consumer.stored("SCHEDULE_TOPIC_XXXX", 2)
    assert parse_properties(copy.properties.decode()) == {
        "TAGS": "t",
        "KEYS": "k",
        "RETRY_TOPIC": "orders",
        "WAIT": "false",
        "DELAY": "3",
        "ORIGIN_MESSAGE_ID": f"0A00000100002A9F{position:016X}",
        "REAL_TOPIC": "%RETRY%g",
        "REAL_QID": "0",
    }
    assert (copy.body, copy.flag, copy.sys_flag, copy.born_ms, copy.born_host) == (b"body", 7, 1, 55, HOST)
    assert copy.reconsume_times == 1
    assert consumer.tables.topic("%RETRY%g").write_queues == 1


def test_what_is_given_back_is_counted_by_its_first_topic_and_group(consumer: Consumer) -> None:
    consumer.tables.topic_put("other", read_queues=1, write_queues=1, perm=6, flags=0, kind=0)
    consumer.send_back(consumer.receive())
    consumer.send_back(consumer.receive(b"RETRY_TOPIC\x01orders\x02", "other"), -1)
    assert consumer.send_back(1 << 40).code != 0
    consumer.broker.tick(60_000)
    ext = {"statsName": "SNDBCK_PUT_NUMS", "statsKey": "orders@g"}
    (reply,) = consumer.broker.handle(1, Command(code=Request.VIEW_BROKER_STATS_DATA, opaque=3, ext=ext), 60_000)
    assert isinstance(reply, Reply) and json.loads(reply.command.body)["statsMinute"]["sum"] == 2


@pytest.mark.parametrize(
    ("tries", "level", "queue_id"), [(0, 0, 2), (3, 0, 5), (15, 0, 17), (2, 7, 6), (0, 99, 17), (-1, 0, 1)]
)
def test_each_try_waits_longer_unless_the_consumer_says_how_long(
    consumer: Consumer, tries: int, level: int, queue_id: int
) -> None:
    assert consumer.send_back(consumer.receive(reconsume_times=tries), level).code == 0
    (copy,) = consumer.stored("SCHEDULE_TOPIC_XXXX", queue_id)
    assert copy.reconsume_times == tries + 1


@pytest.mark.parametrize("delay_ms", [1_700, 9_999, 10_001, 7_200_001])
def test_a_message_comes_again_when_its_consumer_says_though_no_level_is_that_long(
    consumer: Consumer, delay_ms: int
) -> None:
    position = consumer.receive(b"KEYS\x01k\x02DELAY\x012\x02TIMER_DELIVER_MS\x015\x02TIMER_OUT_MS\x014\x02")
    assert consumer.send_back(position, 3, delayMs=str(delay_ms)).code == 0
    (copy,) = consumer.stored(TIMER_TOPIC, 0)
    properties = parse_properties(copy.properties.decode())
    assert copy.tag_code == consumer.tables.clock + delay_ms + 1, "the millisecond that has begun does not count"
    assert (properties["REAL_TOPIC"], properties["KEYS"], copy.reconsume_times) == ("%RETRY%g", "k", 1)
    assert {"DELAY", "TIMER_DELIVER_MS"}.isdisjoint(properties), "what it was delayed by before is over"
    consumer.tables.clock += delay_ms
    consumer.broker.tick(1)
    assert consumer.stored("%RETRY%g", 0) == []
    consumer.tables.clock += 1
    consumer.broker.tick(2000)
    assert [record.reconsume_times for record in consumer.stored("%RETRY%g", 0)] == [1]


def test_a_time_that_is_a_level_is_that_level(consumer: Consumer) -> None:
    assert consumer.send_back(consumer.receive(), 3, delayMs="10000").code == 0
    assert len(consumer.stored("SCHEDULE_TOPIC_XXXX", 2)) == 1


def test_a_time_farther_away_than_the_broker_allows_is_refused_and_stores_nothing(consumer: Consumer) -> None:
    reply = consumer.send_back(consumer.receive(), 18, delayMs=str(4 * 86_400_000))
    assert reply.code == Response.MESSAGE_ILLEGAL
    assert consumer.stored(TIMER_TOPIC, 0) == consumer.stored("SCHEDULE_TOPIC_XXXX", 17) == []


@pytest.mark.parametrize(
    ("tries", "most", "version", "level", "is_dead"),
    [
        (15, None, 409, 0, False),
        (16, None, 409, 0, True),
        (3, "3", 409, 0, True),
        (2, "3", 409, 0, False),
        (3, "3", 100, 0, False),  # before V3_4_9 it is the group's to say
        (16, "20", 409, 0, False),
        (0, None, 409, -1, True),
        (0, "-1", 409, 0, True),
    ],
)
def test_a_message_goes_to_the_dead_letters_after_the_last_try_or_when_told(
    consumer: Consumer, tries: int, most: str | None, version: int, level: int, is_dead: bool
) -> None:
    ext = {"maxReconsumeTimes": most} if most else {}
    position = consumer.receive(reconsume_times=tries)
    assert consumer.send_back(position, level, version=version, **ext).code == 0
    dead = consumer.stored("%DLQ%g", 0)
    assert len(dead) == is_dead
    if is_dead:
        assert parse_properties(dead[0].properties.decode())["DELAY"] == "0"
        assert dead[0].reconsume_times == tries + 1
        topic = consumer.tables.topic("%DLQ%g")
        assert (topic.read_queues, topic.write_queues, topic.perm) == (1, 1, 6)


def test_a_groups_own_settings_hold(consumer: Consumer) -> None:
    consumer.configure(retryMaxTimes=2, retryQueueNums=3)
    consumer.send_back(consumer.receive(reconsume_times=2))
    assert len(consumer.stored("%DLQ%g", 0)) == 1
    assert consumer.tables.topic("%RETRY%g").write_queues == 3


def test_a_group_without_retry_queues_wants_none(consumer: Consumer) -> None:
    consumer.configure(retryQueueNums=0)
    before = consumer.receive()
    end = consumer.log.end
    assert consumer.send_back(before).code == 0
    assert consumer.log.end == end
    assert consumer.tables.topic("%RETRY%g") is None


def test_the_first_topic_and_the_first_id_are_kept_over_many_tries(consumer: Consumer) -> None:
    consumer.send_back(consumer.receive(b"RETRY_TOPIC\x01first\x02ORIGIN_MESSAGE_ID\x01ABC\x02DELAY\x013\x02"))
    (copy,) = consumer.stored("SCHEDULE_TOPIC_XXXX", 2)
    properties = parse_properties(copy.properties.decode())
    assert (properties["RETRY_TOPIC"], properties["ORIGIN_MESSAGE_ID"]) == ("first", "ABC")


@pytest.mark.parametrize("level", [0, 3, 18, -1])
@pytest.mark.parametrize("delay_ms", ["", "1700"])
@pytest.mark.parametrize("room", [0, 40, 80, 300])
def test_properties_that_leave_no_room_lose_the_longest_and_no_message_its_retry(
    consumer: Consumer, room: int, delay_ms: str, level: int
) -> None:
    least = b"TAGS\x01t\x02region\x01eu\x02long\x01"
    text = least + b"v" * (PROPERTIES_BYTES_MAX - 21 - room - len(least) - 1) + b"\x02"
    ext = {"delayMs": delay_ms} if delay_ms else {}
    assert consumer.send_back(consumer.receive(text), level, **ext).code == 0
    waiting = [(TIMER_TOPIC, 0), ("%DLQ%g", 0), *(("SCHEDULE_TOPIC_XXXX", queue_id) for queue_id in range(18))]
    (copy,) = (record for topic, queue_id in waiting for record in consumer.stored(topic, queue_id))
    assert len(copy.properties) <= PROPERTIES_BYTES_MAX - 21
    properties = parse_properties(copy.properties.decode())
    assert (properties["RETRY_TOPIC"], properties["TAGS"], properties["region"]) == ("orders", "t", "eu")
    assert ("long" in properties) == (room == 300)


def test_the_long_header_of_java_is_taken(consumer: Consumer) -> None:
    position = consumer.receive()
    more = {"originMsgId": "x", "originTopic": "orders", "unitMode": "true", "maxReconsumeTimes": "16"}
    assert consumer.send_back(position, **more).code == 0
    assert consumer.tables.topic("%RETRY%g").flags == 2


def test_what_cannot_be_is_refused_as_by_rocketmq(consumer: Consumer) -> None:
    position = consumer.receive()
    for offset in (position + 1, -1, 1 << 40):
        reply = consumer.send_back(offset)
        assert (reply.code, reply.remark) == (1, f"look message by offset failed, {offset}")
    reply = consumer.send_back(position, group="a/b")
    assert reply.code == 26
    assert str(reply.remark).startswith("subscription group not exist, a/b \nSee http")
    consumer.tables.topic_put("%RETRY%g", read_queues=1, write_queues=1, perm=4, flags=0, kind=0)
    reply = consumer.send_back(position)
    assert (reply.code, reply.remark) == (16, "the topic[%RETRY%g] sending message is forbidden")


def test_a_log_that_refuses_is_reported_so_that_the_consumer_tries_elsewhere(consumer: Consumer) -> None:
    position = consumer.receive()
    consumer.log.error = SegmentFull("the log is full")
    assert consumer.send_back(position).code == 1
    consumer.log.error = None
    assert consumer.send_back(position).code == 0
