"""SQL92 at the broker: pulls by the request and by heartbeats, held pulls, what a consumer asks before it starts."""

from dataclasses import replace
from typing import Any

import pytest

from shmq.daemon.broker.groups.selection import Selection, select
from shmq.daemon.broker.log import NewRecord
from shmq.daemon.broker.settings import BrokerSettings
from shmq.errors import FilterSyntaxError, RemoteError
from shmq.filter.program import CHARACTERS_MAX
from shmq.protocol.body import (
    ClientConfig,
    ConsumerData,
    HeartbeatData,
    SubscriptionData,
    encode_body,
)
from shmq.protocol.codes import Request
from shmq.protocol.command import FLAG_ONEWAY, Command
from tests.broker.pulls.test_pulls import HELD, SUBSCRIPTION, Consumer, replies
from tests.broker.test_worker import PULL, Pair, changes


@pytest.fixture
def consumer(tables: Any, log: Any, settings: BrokerSettings) -> Consumer:
    return Consumer(tables, log, settings)


def put(consumer: Consumer, *quantities: int) -> None:
    for quantity in quantities:
        record = NewRecord(b"%d" % quantity, b"qty\x01%d\x02" % quantity)
        consumer.log.append(consumer.tables.topic("orders"), 0, record)


def beat(consumer: Consumer, expression: str, version: int = 5) -> None:
    entry = SubscriptionData("orders", expression, version, expressionType="SQL92")
    body = encode_body(HeartbeatData("c", [ConsumerData("g", [entry])]))
    consumer.broker.handle(1, Command(code=Request.HEART_BEAT, body=body), 0)


SQL: dict[str, Any] = {"expressionType": "SQL92"}


def test_a_pull_brings_what_its_expression_selects(consumer: Consumer) -> None:
    put(consumer, 1, 7, 2, 9)
    reply = consumer.pull(subscription="qty > 5", **SQL)
    assert (reply.code, reply.body, reply.ext["nextBeginOffset"]) == (0, b"1|orders|73|orders|9", "4")
    nothing = consumer.pull(subscription="qty > 50", **SQL)
    assert (nothing.code, nothing.remark, nothing.ext["nextBeginOffset"]) == (20, "NO_MATCHED_MESSAGE", "4")


def test_without_an_expression_in_the_request_the_heartbeats_count(consumer: Consumer) -> None:
    put(consumer, 1, 7)
    beat(consumer, "qty < 5")
    assert consumer.pull(flags=0, subscription="qty > 5", **SQL).body == b"0|orders|1"
    beat(consumer, "qty > 5", version=6)
    assert consumer.pull(flags=0).body == b"1|orders|7"


def test_what_does_not_parse_is_refused_with_the_place_of_the_fault(consumer: Consumer) -> None:
    put(consumer, 1)
    asked = consumer.pull(subscription="qty >", **SQL)
    assert asked.code == 23
    assert str(asked.remark).startswith("parse the consumer's subscription failed: ")
    assert "character 6" in str(asked.remark)
    beat(consumer, "qty >")
    beaten = consumer.pull(flags=0)
    assert beaten.code == 27
    assert str(beaten.remark).startswith("The broker's consumer filter data is not exist!")


def test_a_held_pull_waits_for_a_message_it_selects(consumer: Consumer) -> None:
    assert consumer.effects(0, HELD, subscription="qty > 5", **SQL) == []
    put(consumer, 1, 2)
    assert consumer.broker.arrived([consumer.queue], 1) == []
    assert consumer.broker.wanted.queues == {consumer.queue: 2}
    put(consumer, 9)
    assert replies(consumer.broker.arrived([consumer.queue], 2)) == [(1, 0, b"2|orders|9")]


def test_where_property_filters_are_off_they_are_refused_in_rocketmqs_words(
    tables: Any, log: Any, settings: BrokerSettings
) -> None:
    consumer = Consumer(tables, log, replace(settings, property_filter=False))
    put(consumer, 1)
    words = "The broker does not support consumer to filter message by SQL92"
    reply = consumer.pull(subscription="qty > 0", **SQL)
    assert (reply.code, reply.remark) == (1, words)
    asked = check(consumer, "qty > 0")
    assert (asked.code, asked.remark) == (1, words)
    assert consumer.pull(subscription="*").code == 0


def check(consumer: Consumer, expression: str, kind: str | None = "SQL92") -> Command:
    entry = SubscriptionData("orders", expression, 1, expressionType=kind)
    body = encode_body(ClientConfig("c", "g", entry))
    (reply,) = consumer.broker.handle(1, Command(code=Request.CHECK_CLIENT_CONFIG, body=body), 0)
    command: Command = reply.command  # type: ignore[union-attr]
    return command


@pytest.mark.parametrize("kind", [None, "", "TAG", "SQL92"])
def test_a_consumer_that_asks_first_hears_that_its_expression_is_one(consumer: Consumer, kind: str | None) -> None:
    assert check(consumer, "TAGS = 'fruit'", kind).code == 0


def test_a_consumer_that_asks_first_hears_where_the_fault_is(consumer: Consumer) -> None:
    reply = check(consumer, "qty BETWEEN 9 AND 1")
    assert reply.code == 23 and "BETWEEN 9 AND 1 selects nothing (character 13)" in str(reply.remark)
    assert check(consumer, "x", "GROOVY").code == 1


def test_an_expression_is_bounded(settings: BrokerSettings) -> None:
    with pytest.raises(FilterSyntaxError, match=f"{CHARACTERS_MAX} at most"):
        select("a = 1 OR " * 1000, "SQL92", settings)
    with pytest.raises(RemoteError):
        select("a = 1", "GROOVY", settings)
    assert select("*", "TAG", settings) == Selection()


def test_the_switch_is_a_setting(consumer: Consumer) -> None:
    consumer.broker.connected(9, None, 0)
    update = Command(code=Request.UPDATE_BROKER_CONFIG, body=b"enablePropertyFilter=false\n")
    consumer.broker.handle(9, update, 0)
    assert check(consumer, "qty > 0").code in (0, 1)  # who may change it is another test's; the name exists
    (reply,) = consumer.broker.handle(9, Command(code=Request.GET_BROKER_CONFIG), 0)
    assert b"enablePropertyFilter=" in reply.command.body  # type: ignore[union-attr]


def test_tags_in_the_request_stay_tags(consumer: Consumer) -> None:
    consumer.put(b"a", tag="A")
    assert consumer.pull(flags=SUBSCRIPTION, subscription="A || B").body == b"0|orders|a"


def test_every_bridge_knows_the_expression_of_a_heartbeat(tables: Any, log: Any, settings: BrokerSettings) -> None:
    pair = Pair(tables, log, settings)
    for quantity in (1, 9):
        pair.log.append(tables.topic("orders"), 0, NewRecord(b"%d" % quantity, b"qty\x01%d\x02" % quantity))
    pair.process(7)
    (reply, *_) = pair.ask(pair.primary, 7, Request.WATCH_GROUPS)
    pair.groups.replace(reply.command.body)
    pair.process(8)
    pair.ask(pair.primary, 8, Request.RELAY, {"remote": "10.0.0.9:5", "local": "127.0.0.1:10911"}, flag=FLAG_ONEWAY)
    entry = SubscriptionData("orders", "qty > 5", 5, expressionType="SQL92")
    body = encode_body(HeartbeatData("c8", [ConsumerData("g", [entry])]))
    ((_, notice),) = changes(pair.ask(pair.primary, 8, Request.HEART_BEAT, body=body))
    pair.groups.update(notice.body)
    (answer,) = pair.ask(pair.worker, 1, Request.PULL_MESSAGE, PULL)
    assert answer.command.body == b"1|orders|9"
