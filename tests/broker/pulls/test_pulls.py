"""Pulls: RocketMQ's checks and statuses, filters, and waiting for what is not there yet."""

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from shmq.addresses import Address
from shmq.daemon.broker.broker import Broker
from shmq.daemon.broker.log import NewRecord
from shmq.daemon.broker.pulls.waits import NEWS_MS
from shmq.daemon.broker.settings import BrokerSettings
from shmq.daemon.broker.tables import QueueBounds
from shmq.daemon.logic.effects import Effect, Reply, Report, Wake
from shmq.properties import parse_properties
from shmq.protocol.body import ConsumerData, HeartbeatData, SubscriptionData, encode_body
from shmq.protocol.codes import Request, Response
from shmq.protocol.command import FLAG_ONEWAY, Command
from tests.broker.memory_log import MemoryLog

COMMIT, SUSPEND, SUBSCRIPTION = 1, 2, 4
SUSPEND_MS = 15_000


class Consumer:
    """TCP connections that pull one queue, and a log to put messages into."""

    def __init__(self, tables: Any, log: Any, settings: BrokerSettings) -> None:
        self.tables, self.log = tables, log
        tables.topic_put("orders", read_queues=2, write_queues=2, perm=6, flags=0, kind=0)
        self.broker = Broker(tables, settings, now_ms=0, log=log)
        for connection_id in (1, 2):
            self.broker.connected(
                connection_id, None, 0, remote=Address("10.0.0.9", 4), local=Address("127.0.0.1", 10911)
            )
        self.queue = tables.topic("orders").queues[0]

    def put(self, *bodies: bytes, tag: str = "") -> None:
        properties = f"TAGS\x01{tag}\x02".encode() if tag else b""
        for body in bodies:
            self.log.append(self.tables.topic("orders"), 0, NewRecord(body, properties))

    def beat(self, tags: str = "*", *, version: int = 5, model: str = "CLUSTERING", group: str = "g") -> None:
        data = ConsumerData(group, [SubscriptionData("orders", tags, version)], messageModel=model)
        self.broker.handle(1, Command(code=Request.HEART_BEAT, body=encode_body(HeartbeatData("c", [data]))), 0)

    def command(self, offset: int = 0, flags: int = SUBSCRIPTION, **changes: Any) -> Command:
        ext = {
            "consumerGroup": "g",
            "topic": "orders",
            "queueId": "0",
            "queueOffset": str(offset),
            "maxMsgNums": "32",
            "sysFlag": str(flags),
            "commitOffset": "0",
            "suspendTimeoutMillis": str(SUSPEND_MS),
            "subVersion": "5",
            "subscription": "*",
        }
        code, flag = changes.pop("code", 11), changes.pop("flag", 0)
        ext |= {name: str(value) for name, value in changes.items() if value is not None}
        for name in [name for name, value in changes.items() if value is None]:
            del ext[name]
        return Command(code=code, opaque=3, flag=flag, ext=ext)

    def effects(self, offset: int = 0, flags: int = SUBSCRIPTION, *, now_ms: int = 0, **changes: Any) -> list[Effect]:
        connection = changes.pop("connection", 1)
        return self.broker.handle(connection, self.command(offset, flags, **changes), now_ms)

    def pull(self, offset: int = 0, flags: int = SUBSCRIPTION, **changes: Any) -> Command:
        (reply,) = self.effects(offset, flags, **changes)
        assert isinstance(reply, Reply) and reply.command.opaque == 3
        return reply.command

    def committed(self, group: str = "g") -> int:
        slot = self.tables.offset_slot(self.tables.group(group), self.queue)
        return -1 if slot is None else self.tables.committed(slot)


@pytest.fixture
def consumer(tables: Any, log: Any, settings: BrokerSettings) -> Consumer:
    return Consumer(tables, log, settings)


def replies(effects: Sequence[Effect]) -> list[tuple[int, int, bytes]]:
    return [
        (effect.connection_id, effect.command.code, effect.command.body)
        for effect in effects
        if isinstance(effect, Reply)
    ]


@pytest.mark.parametrize("code", [11, 361])
def test_messages_come_as_they_are_in_the_log(consumer: Consumer, code: int) -> None:
    consumer.put(b"a", b"b", b"c")
    reply = consumer.pull(1, code=code)
    assert (reply.code, reply.remark, reply.body) == (0, "FOUND", b"1|orders|b2|orders|c")
    assert reply.ext == {
        "suggestWhichBrokerId": "0",
        "nextBeginOffset": "3",
        "minOffset": "0",
        "maxOffset": "3",
    }


@pytest.mark.parametrize(
    ("low", "high", "offset", "code", "status", "following"),
    [
        (0, 0, 0, 19, "NO_MESSAGE_IN_QUEUE", 0),
        (0, 0, 5, 21, "NO_MESSAGE_IN_QUEUE", 0),
        (2, 4, 1, 21, "OFFSET_TOO_SMALL", 2),
        (2, 4, -1, 21, "OFFSET_TOO_SMALL", 2),
        (2, 4, 4, 19, "OFFSET_OVERFLOW_ONE", 4),
        (0, 4, 99, 21, "OFFSET_OVERFLOW_BADLY", 4),
        (2, 4, 99, 21, "OFFSET_OVERFLOW_BADLY", 4),
        (0, 6, 4, 19, "OFFSET_FOUND_NULL", 4),  # stored, but not on disk yet
    ],
)
def test_an_offset_without_messages_has_rocketmqs_status(
    consumer: Consumer, low: int, high: int, offset: int, code: int, status: str, following: int
) -> None:
    consumer.put(*[b"x"] * 4)
    consumer.tables.bounds[consumer.queue] = QueueBounds(low, high)
    reply = consumer.pull(offset)
    assert (reply.code, reply.remark, reply.ext["nextBeginOffset"]) == (code, status, str(following))
    assert (reply.ext["minOffset"], reply.ext["maxOffset"], reply.ext["suggestWhichBrokerId"]) == (
        str(low),
        str(high),
        "0",
    )


@pytest.mark.parametrize(
    ("config", "far", "near"), [({}, "1", "0"), ({"whichBrokerWhenConsumeSlowly": 2, "brokerId": 3}, "2", "3")]
)
def test_a_reader_that_is_far_behind_is_sent_to_a_slave_until_it_has_caught_up(
    consumer: Consumer, settings: BrokerSettings, config: dict[str, int], far: str, near: str
) -> None:
    group = json.dumps({"groupName": "g", **config}).encode()
    consumer.broker.handle(1, Command(code=Request.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=group), 0)
    consumer.put(*[b"x"] * 10)

    def suggested(offset: int) -> str:
        return consumer.pull(offset, maxMsgNums=2).ext["suggestWhichBrokerId"]

    assert {suggested(offset) for offset in range(11)} == {"0"}  # slaves may not be read
    behind = consumer.log.end - consumer.log.position_of(consumer.queue, 5)
    settings.slave_reads_bytes = behind - 1
    assert [suggested(offset) for offset in (0, 3, 4)] == [far] * 3  # 5 is the last record that is looked at
    assert [suggested(offset) for offset in (5, 8, 10)] == [near] * 3


def test_two_groups_that_wait_for_one_message_are_each_sent_where_their_settings_say(
    consumer: Consumer, settings: BrokerSettings
) -> None:
    settings.slave_reads_bytes = 1
    for group, broker_id in (("g", 1), ("h", 2)):
        config = json.dumps({"groupName": group, "whichBrokerWhenConsumeSlowly": broker_id}).encode()
        consumer.broker.handle(1, Command(code=Request.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=config), 0)
        assert consumer.effects(0, SUBSCRIPTION | SUSPEND, consumerGroup=group) == []
    consumer.put(b"x")
    effects = consumer.broker.arrived((consumer.queue,), 0)
    answers = [effect.command.ext["suggestWhichBrokerId"] for effect in effects if isinstance(effect, Reply)]
    assert answers == ["1", "2"]


def test_a_consumer_that_is_sent_elsewhere_leaves_a_message_about_it(consumer: Consumer) -> None:
    consumer.put(b"a")
    consumer.pull(9)
    queue = consumer.tables.topic("OFFSET_MOVED_EVENT").queues[0]
    ((_, record, _),) = consumer.log.records[queue]
    assert json.loads(record.body) == {
        "consumerGroup": "g",
        "messageQueue": {"brokerName": "default", "queueId": 0, "topic": "orders"},
        "offsetNew": 1,
        "offsetRequest": 9,
    }
    assert parse_properties(record.properties.decode()) == {"TAGS": "g", "KEYS": "g"}
    assert consumer.effects(1, HELD, connection=2, topic="OFFSET_MOVED_EVENT") == []
    assert [(connection, code) for connection, code, _ in replies(consumer.effects(9))] == [(1, 21), (2, 0)]


@pytest.mark.parametrize(
    ("changes", "code", "remark"),
    [
        ({"consumerGroup": "a/b"}, 26, "subscription group [a/b] does not exist"),
        ({"topic": "nothing"}, 17, "topic[nothing] not exist, apply first please!"),
        ({"topic": "closed"}, 16, "the topic[closed] pulling message is forbidden"),
        (
            {"queueId": 2},
            1,
            "queueId[2] is illegal, topic:[orders] topicConfig.readQueueNums:[2] consumer:[10.0.0.9:4]",
        ),
        ({"queueId": -1}, 1, "queueId[-1] is illegal"),
        ({"subscription": "||"}, 23, "parse the consumer's subscription failed"),
        (
            {"expressionType": "GROOVY", "subscription": "a > 1"},
            1,
            "The broker does not support consumer to filter message by GROOVY",
        ),
        ({"sysFlag": 0}, 24, "the consumer's group info not exist"),
        ({"queueOffset": None}, 1, "queueOffset"),
        ({"maxMsgNums": "many"}, 1, "maxMsgNums"),
    ],
)
def test_what_rocketmq_refuses_is_refused_in_its_words(
    consumer: Consumer, changes: dict[str, Any], code: int, remark: str
) -> None:
    consumer.put(b"a")
    consumer.tables.topic_put("closed", read_queues=1, write_queues=1, perm=2, flags=0, kind=0)
    reply = consumer.pull(**changes)
    assert reply.code == code and remark in str(reply.remark)


def test_an_unknown_group_comes_into_being(consumer: Consumer) -> None:
    assert consumer.tables.group("g") is None
    consumer.pull()
    assert consumer.tables.group("g") is not None


@pytest.mark.parametrize(
    ("config", "code", "remark"),
    [
        ({"consumeEnable": False}, 16, "subscription group no permission, g"),
        ({"consumeBroadcastEnable": False}, 16, "the consumer group[g] can not consume by broadcast way"),
    ],
)
def test_a_group_that_may_not_consume_gets_the_reason(
    consumer: Consumer, config: dict[str, bool], code: int, remark: str
) -> None:
    body = json.dumps({"groupName": "g", **config}).encode()
    consumer.broker.handle(2, Command(code=Request.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=body), 0)
    consumer.beat(model="BROADCASTING")
    reply = consumer.pull(flags=0)
    assert (reply.code, reply.remark) == (code, remark)


def test_without_a_subscription_in_the_request_the_heartbeats_count(consumer: Consumer) -> None:
    consumer.put(b"a", tag="A")
    consumer.put(b"b", tag="B")
    consumer.beat("A || C", version=5)
    assert consumer.pull(flags=0, subscription="B").body == b"0|orders|a"
    assert consumer.pull(flags=SUBSCRIPTION, subscription="B").body == b"1|orders|b"
    consumer.tables.topic_put("other", read_queues=1, write_queues=1, perm=6, flags=0, kind=0)
    missing = consumer.pull(flags=0, topic="other")
    assert missing.code == 24 and str(missing.remark).startswith("the consumer's subscription not exist")


def test_a_pull_that_is_newer_than_the_heartbeats_gets_every_message_until_the_next_one(consumer: Consumer) -> None:
    consumer.beat("A", version=5)
    assert consumer.effects(0, SUSPEND, subVersion=6) == []  # held
    consumer.put(b"b", tag="B")
    assert replies(consumer.broker.arrived([consumer.queue], 0)) == [(1, 0, b"0|orders|b")]
    assert consumer.pull(flags=0, subVersion=6).body == b"0|orders|b"
    assert consumer.broker.plans.plan(1, consumer.command(0, 0, subVersion=6)) is not None
    grounds = consumer.broker.plans.grounds
    consumer.beat("A", version=6)
    assert consumer.broker.plans.grounds != grounds
    assert consumer.pull(flags=0, subVersion=6).code == 20


def test_a_pull_by_sql_that_is_newer_than_the_heartbeats_is_refused(consumer: Consumer) -> None:
    consumer.put(b"a")
    consumer.beat("*", version=5)
    stale = consumer.pull(flags=0, subVersion=6, expressionType="SQL92")
    assert (stale.code, stale.remark) == (25, "the consumer's subscription not latest")


def test_messages_with_other_tags_are_passed_over_at_once(consumer: Consumer) -> None:
    consumer.put(b"a", b"b", tag="A")
    reply = consumer.pull(flags=SUBSCRIPTION | SUSPEND, subscription="B")
    assert (reply.code, reply.remark, reply.ext["nextBeginOffset"]) == (20, "NO_MATCHED_MESSAGE", "2")


def test_one_pull_is_bounded_in_number_and_bytes_but_brings_one_message(
    tables: Any, log: Any, settings: BrokerSettings
) -> None:
    consumer = Consumer(tables, log, replace(settings, pull_count_max=3, pull_bytes_max=25))
    consumer.put(*[b"x"] * 9)
    assert consumer.pull().ext["nextBeginOffset"] == "2"
    assert consumer.pull(maxMsgNums=1).ext["nextBeginOffset"] == "1"
    assert consumer.pull(maxMsgNums=0).ext["nextBeginOffset"] == "1"
    consumer.put(b"long" * 100)
    assert consumer.pull(9).ext["nextBeginOffset"] == "10"


def test_a_pull_commits_when_it_is_asked_to_and_once(consumer: Consumer) -> None:
    consumer.put(b"a", b"b")
    consumer.pull(0, SUBSCRIPTION, commitOffset=1)
    assert consumer.committed() == -1
    assert consumer.effects(2, SUBSCRIPTION | COMMIT | SUSPEND, commitOffset=2) == []
    assert consumer.committed() == 2
    consumer.tables.set_committed(consumer.tables.offset_slot(consumer.tables.group("g"), consumer.queue), 1)
    consumer.put(b"c")
    assert replies(consumer.broker.arrived([consumer.queue], 1)) == [(1, 0, b"2|orders|c")]
    assert consumer.committed() == 1
    consumer.pull(0, SUBSCRIPTION | COMMIT, commitOffset=-1)
    assert consumer.committed() == 1
    consumer.tables.owned.add(consumer.tables.offset_slot(consumer.tables.group("g"), consumer.queue))
    consumer.pull(0, SUBSCRIPTION | COMMIT, commitOffset=9)
    assert consumer.committed() == 1  # a local member owns the queue


HELD = SUBSCRIPTION | SUSPEND


def test_a_pull_waits_for_a_message_of_its_queue(consumer: Consumer) -> None:
    assert consumer.effects(0, HELD) == [] and consumer.effects(0, HELD, connection=2) == []
    assert consumer.broker.wanted.queues == {consumer.queue: 0}
    assert consumer.broker.arrived([consumer.queue], 1) == []
    consumer.put(b"a")
    assert consumer.broker.arrived([consumer.queue + 1], 1) == []
    assert replies(consumer.broker.arrived([consumer.queue], 1)) == [(1, 0, b"0|orders|a"), (2, 0, b"0|orders|a")]
    assert consumer.broker.wanted.is_nothing
    assert consumer.broker.arrived([consumer.queue], 2) == []


def test_a_send_over_tcp_wakes_the_pulls_after_its_own_reply(consumer: Consumer) -> None:
    assert consumer.effects(0, HELD, connection=2) == []
    ext = dict(zip("abcdefghi", ("p", "orders", "TBW102", "4", "0", "0", "0", "0", ""), strict=True))
    effects = consumer.broker.handle(1, Command(code=310, ext=ext, body=b"x"), 5)
    assert [connection for connection, *_ in replies(effects)] == [1, 2]


def test_many_pulls_are_answered_in_turns_and_the_sender_before_all_of_them(consumer: Consumer) -> None:
    for connection in range(10, 60):
        consumer.broker.connected(connection, None, 0, remote=Address("10.0.0.9", 4), local=Address("127.0.0.1", 10911))
        assert consumer.effects(0, HELD, connection=connection) == []
    ext = dict(zip("abcdefghi", ("p", "orders", "TBW102", "4", "0", "0", "0", "0", ""), strict=True))
    effects: Sequence[Effect] = consumer.broker.handle(1, Command(code=310, ext=ext, body=b"x"), 5)
    assert [connection for connection, *_ in replies(effects)] == [1]
    consumer.broker.disconnected(20, 5)
    turns = []
    while Wake(0) in effects:
        effects = consumer.broker.woken(5)
        turns.append([connection for connection, *_ in replies(effects)])
    assert [connection for turn in turns for connection in turn] == [each for each in range(10, 60) if each != 20]
    assert len(turns) > 2
    assert consumer.broker.wanted.is_nothing


@pytest.mark.parametrize("stored", [0, 2])
def test_a_slave_sends_no_member_back_from_messages_that_it_has_not_yet(
    tables: Any, log: Any, settings: BrokerSettings, stored: int
) -> None:
    consumer = Consumer(tables, log, replace(settings, is_slave=True))
    consumer.beat()  # members would be sent to where their group is, which is behind the message here
    consumer.put(*[b"x"] * stored)
    reply = consumer.pull(3)
    assert (reply.code, reply.ext["nextBeginOffset"], reply.ext["maxOffset"]) == (19, "3", str(stored))
    assert replies(consumer.effects(3, HELD)) == []
    consumer.put(*[b"x"] * (3 - stored))
    assert replies(consumer.broker.arrived([consumer.queue], 1)) == []
    consumer.put(b"new")
    [(_, code, body)] = replies(consumer.broker.arrived([consumer.queue], 2))
    assert code == 0 and body.endswith(b"new")


def test_a_pull_that_does_not_want_to_wait_does_not(consumer: Consumer) -> None:
    assert consumer.pull(0, SUBSCRIPTION).code == 19
    assert consumer.pull(0, HELD, suspendTimeoutMillis=0).code == 19


def test_when_its_time_is_over_a_pull_is_answered_that_there_is_nothing(consumer: Consumer) -> None:
    consumer.effects(0, HELD, now_ms=100)
    assert replies(consumer.broker.tick(99 + SUSPEND_MS)) == []
    (reply,) = consumer.broker.tick(100 + SUSPEND_MS)
    assert isinstance(reply, Reply)
    assert (reply.command.code, reply.command.remark) == (19, "NO_MESSAGE_IN_QUEUE")
    assert reply.command.ext["nextBeginOffset"] == "0"
    assert consumer.broker.wanted.is_nothing


def test_messages_it_does_not_want_wake_no_pull_and_are_not_looked_at_twice(consumer: Consumer) -> None:
    consumer.effects(0, HELD, subscription="B", now_ms=0)
    consumer.put(b"a", b"b", tag="A")
    assert consumer.broker.arrived([consumer.queue], 1) == []
    assert consumer.broker.wanted.queues == {consumer.queue: 2}
    (reply,) = consumer.broker.tick(SUSPEND_MS)
    assert isinstance(reply, Reply)
    assert (reply.command.code, reply.command.ext["nextBeginOffset"]) == (20, "2")
    consumer.effects(2, HELD, subscription="B")
    consumer.put(b"c", tag="B")
    assert replies(consumer.broker.arrived([consumer.queue], 1)) == [(1, 0, b"2|orders|c")]


def test_under_synchronous_flush_a_pull_is_woken_by_the_disk(tables: Any, log: Any, settings: BrokerSettings) -> None:
    consumer = Consumer(tables, log, replace(settings, wait_durable=True))
    consumer.effects(0, HELD)
    consumer.tables.bounds[consumer.queue] = QueueBounds(0, 1)  # stored, and the log does not show it
    assert consumer.broker.arrived([consumer.queue], 1) == []
    consumer.put(b"a")
    assert replies(consumer.broker.flushed(log.end, 1)) == [(1, 0, b"0|orders|a")]


def test_a_topic_that_goes_away_ends_the_wait_at_the_next_tick(consumer: Consumer) -> None:
    consumer.effects(0, HELD)
    assert replies(consumer.broker.tick(1000)) == []
    consumer.tables.topic_delete("orders")
    assert [code for _, code, _ in replies(consumer.broker.tick(2000))] == [17]
    consumer.tables.topic_put("orders", read_queues=1, write_queues=1, perm=6, flags=0, kind=0)
    consumer.queue = consumer.tables.topic("orders").queues[0]
    consumer.effects(0, HELD)
    consumer.tables.topic_delete("orders")
    consumer.tables.topic_put("orders", read_queues=1, write_queues=1, perm=6, flags=0, kind=0)
    assert [code for _, code, _ in replies(consumer.broker.tick(3000))] == [19]


def test_what_a_gone_connection_waited_for_is_forgotten(consumer: Consumer) -> None:
    consumer.effects(0, HELD)
    consumer.effects(0, HELD, connection=2)
    consumer.broker.disconnected(1, 0)
    consumer.put(b"a")
    assert replies(consumer.broker.arrived([consumer.queue], 1)) == [(2, 0, b"0|orders|a")]


def test_a_oneway_pull_is_never_answered(consumer: Consumer) -> None:
    assert consumer.effects(0, HELD, flag=FLAG_ONEWAY) == []
    consumer.put(b"a")
    assert consumer.broker.arrived([consumer.queue], 1) == []


def test_no_more_pulls_are_held_than_there_is_room_for(tables: Any, log: Any, settings: BrokerSettings) -> None:
    consumer = Consumer(tables, log, replace(settings, held_pulls_max=3, held_pulls_per_connection_max=2))
    assert consumer.effects(0, HELD) == consumer.effects(0, HELD) == []
    reply = consumer.pull(0, HELD)
    assert (reply.code, str(reply.remark).startswith("[OVERLOAD]")) == (2, True)
    assert consumer.effects(0, HELD, connection=2) == []
    assert consumer.pull(0, HELD, connection=2).code == 2
    consumer.broker.disconnected(1, 0)
    assert consumer.effects(0, HELD, connection=2) == []


def test_who_waits_for_the_same_is_answered_from_one_look_a_turn(
    consumer: Consumer, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads: list[int] = []
    read = consumer.log.read

    def counted(queue: int, offset: int, **wanted: Any) -> Any:
        reads.append(wanted["count_max"])
        return read(queue, offset, **wanted)

    monkeypatch.setattr(consumer.log, "read", counted)
    for number in range(40):
        consumer.effects(0, HELD, connection=1 + number % 2, maxMsgNums=1 + number % 2)
    consumer.put(b"a")
    effects, answered = consumer.broker.arrived([consumer.queue], 1), []
    while Wake(0) in effects:
        reads.clear()
        effects = consumer.broker.woken(1)
        answered.append(replies(effects))
        assert sorted(reads) == [1, 2]
        consumer.put(b"b")  # who is served in the next turn is handed it too, if it takes two
    assert [len(turn) for turn in answered] == [16, 16, 8]
    assert answered[0] == [(1, 0, b"0|orders|a"), (2, 0, b"0|orders|a")] * 8
    assert answered[1] == [(1, 0, b"0|orders|a"), (2, 0, b"0|orders|a" + b"1|orders|b")] * 8
    pulling: Any = consumer.broker._pulls
    assert pulling._found == {}  # it would keep bodies


def test_a_queue_that_cannot_be_read_costs_the_other_waiting_pulls_nothing(consumer: Consumer) -> None:
    consumer.effects(0, HELD, connection=2, queueId=1)
    consumer.effects(0, HELD)
    other = consumer.tables.topic("orders").queues[1]
    consumer.log.unreadable.add(other)
    consumer.put(b"a")
    consumer.log.append(consumer.tables.topic("orders"), 1, NewRecord(b"b"))
    effects = replies(consumer.broker.arrived([other, consumer.queue], 1))
    assert [(connection, code) for connection, code, _ in effects] == [(2, 14), (1, 0)]
    assert consumer.broker.wanted.is_nothing


def test_a_waiting_pull_ends_in_time_although_another_part_of_the_broker_fails(
    new_tables: Any, settings: BrokerSettings
) -> None:
    tables = new_tables(group_max=1)  # none is left for the delivery of delayed messages
    consumer = Consumer(tables, MemoryLog(tables), settings)
    consumer.effects(0, HELD)
    tables.topic_put("SCHEDULE_TOPIC_XXXX", read_queues=18, write_queues=18, perm=6, flags=0, kind=0)
    consumer.log.append(tables.topic("SCHEDULE_TOPIC_XXXX"), 0, NewRecord(b"later"))
    effects = consumer.broker.tick(SUSPEND_MS)
    assert [code for _, code, _ in replies(effects)] == [19]
    assert any(isinstance(effect, Report) and "DelayService failed" in effect.text for effect in effects)


def test_a_waiting_pull_keeps_only_what_it_is_answered_from(consumer: Consumer) -> None:
    ext = {"junk": "x" * 1000, "topic": "orders", "queueId": "0", "queueOffset": "0", "maxMsgNums": "1"}
    ext |= {"consumerGroup": "g", "sysFlag": str(HELD), "commitOffset": "0", "suspendTimeoutMillis": "9"}
    ext |= {"subVersion": "1"}
    assert consumer.broker.handle(1, Command(code=11, ext=ext, body=b"x" * 4096), 0) == []
    pulling: Any = consumer.broker._pulls
    (held,) = pulling.waits.of(consumer.queue)
    assert held.call.command.body == b"" and "junk" not in held.call.ext
    consumer.put(b"a")
    assert replies(consumer.broker.arrived([consumer.queue], 1)) == [(1, 0, b"0|orders|a")]


def test_an_expression_longer_than_a_heartbeat_may_hold_is_refused(consumer: Consumer) -> None:
    consumer.put(b"a")
    assert consumer.pull(subscription="a||" * 11_000).code == 23


def test_what_a_new_group_reads_before_its_first_commit_is_counted(consumer: Consumer) -> None:
    consumer.put(b"a", b"b", b"c", b"d")
    consumer.broker.tick(0)
    assert consumer.pull(1).code == 0
    ext = {"consumerGroup": "g", "topic": "orders", "queueId": "0", "commitOffset": "4"}
    consumer.broker.handle(1, Command(code=15, ext=ext), 0)
    consumer.broker.tick(1000)
    asked = Command(code=Request.VIEW_BROKER_STATS_DATA, ext={"statsName": "GROUP_GET_NUMS", "statsKey": "orders@g"})
    consumer.broker.tick(60_000)
    (reply,) = consumer.broker.handle(1, asked, 60_000)
    assert isinstance(reply, Reply) and b'"sum":3' in reply.command.body


def test_how_far_a_group_was_handed_messages_is_shown_at_once_and_when_a_held_pull_ends(consumer: Consumer) -> None:
    consumer.beat()
    consumer.put(b"a", b"b", b"c")
    consumer.pull(0)
    assert consumer.tables.taken == {}, "the group has no place yet"
    consumer.pull(0, COMMIT | SUBSCRIPTION, maxMsgNums=2)
    slot = consumer.tables.offset_slot(consumer.tables.group("g"), consumer.queue)
    assert consumer.tables.taken == {slot: 2}
    consumer.pull(2)
    assert consumer.tables.taken == {slot: 3}
    assert consumer.effects(3, SUSPEND | SUBSCRIPTION) == []
    consumer.put(b"d", b"e")
    assert [body for _, _, body in replies(consumer.broker.arrived((consumer.queue,), 5))] == [b"3|orders|d4|orders|e"]
    assert consumer.tables.taken == {slot: 5}
    consumer.pull(1, maxMsgNums=1)  # it goes back, or another one does
    assert consumer.tables.taken == {slot: 2}
    assert consumer.pull(9).code == Response.PULL_OFFSET_MOVED and consumer.tables.taken == {slot: 2}


def test_a_pull_that_others_messages_have_passed_by_is_answered_soon(consumer: Consumer) -> None:
    """Else its group would have a lag for as long as the client waits, and for ever when it leaves."""
    consumer.beat("red")
    assert consumer.effects(0, COMMIT | SUSPEND, subscription=None) == []
    consumer.put(b"a", b"b", tag="blue")
    assert consumer.broker.arrived([consumer.queue], 1000) == []
    consumer.put(b"c", tag="blue")
    assert consumer.broker.arrived([consumer.queue], 1000 + NEWS_MS // 2) == []
    assert replies(consumer.broker.tick(1000 + NEWS_MS - 1)) == []
    (reply,) = [effect for effect in consumer.broker.tick(1000 + NEWS_MS) if isinstance(effect, Reply)]
    assert (reply.command.code, reply.command.ext["nextBeginOffset"]) == (Response.PULL_RETRY_IMMEDIATELY, "3")
    assert consumer.effects(3, COMMIT | SUSPEND, subscription=None, commitOffset=3, now_ms=4000) == []
    assert consumer.committed() == 3
    assert replies(consumer.broker.tick(4000 + SUSPEND_MS - 1)) == [], "without news it waits for its whole time"


@pytest.mark.parametrize("characters", [10_240, 32_767])
def test_a_subscription_to_a_long_tag_is_served(consumer: Consumer, characters: int) -> None:
    tag = "x" * characters
    consumer.beat(tag)
    consumer.put(b"a", tag=tag)
    assert consumer.pull(subscription=None, flags=0).body == f"0|orders|{'a'}".encode()
