"""What no kombu has written is set aside: dead letters of a queue, unread in an exchange's log; the rest goes on."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from typing import Any

import pytest
from kombu import Connection, Consumer, Exchange, Queue

import shmq
import shmq.contrib.kombu
from shmq.contrib.kombu.envelope import Foreign, decoded
from shmq.testing import Broker
from tests.deadline import eventually
from tests.tables.rows import every_row

INFO = {"exchange": "", "routing_key": "work"}
WHOLE: dict[str, Any] = {"body": "x", "headers": {}, "properties": {"delivery_info": INFO, "body_encoding": None}}
FOREIGN = [
    b"",
    b"\xff\xfe",
    b"hello",
    b"[1, 2]",
    b"{}",
    b"{" * 100_000,
    b"[" * 100_000,
    json.dumps({**WHOLE, "properties": None}).encode(),
    json.dumps({**WHOLE, "properties": {"delivery_info": 1}}).encode(),
    json.dumps({**WHOLE, "properties": {"delivery_info": {"routing_key": 7}}}).encode(),
    json.dumps({**WHOLE, "headers": ["task"]}).encode(),
    json.dumps({**WHOLE, "body": {"a": 1}}).encode(),
    json.dumps({**WHOLE, "properties": {"delivery_info": INFO, "body_encoding": "rot13"}}).encode(),
    json.dumps({**WHOLE, "body": "a", "properties": {"delivery_info": INFO, "body_encoding": "base64"}}).encode(),
    json.dumps({**WHOLE, "x": {"__type__": "date", "__value__": "never"}}).encode(),
]


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker() as running:
        yield running


@pytest.fixture
def connection(broker: Broker) -> Iterator[Any]:
    with Connection("shmq://", transport_options={"url": broker.url}) as made:
        yield made


@every_row("body", FOREIGN, ids=range(len(FOREIGN)))
def test_what_is_no_envelope_says_so(body: bytes) -> None:
    with pytest.raises(Foreign):
        decoded(body)


def test_an_envelope_needs_no_more_than_what_kombu_reads() -> None:
    assert decoded(json.dumps(WHOLE).encode())["body"] == "x"


def test_a_foreign_body_in_a_queue_becomes_a_dead_letter_and_the_others_come(
    connection: Any, broker: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    queue = Queue("work", Exchange("work"), "work")
    channel = connection.channel()
    queue(channel).declare()
    with shmq.connect(broker.url) as mq:
        for body in FOREIGN:
            mq.send("kombu-work", body)
        connection.Producer().publish("ours", exchange=queue.exchange, routing_key="work")
        found: list[Any] = []
        Consumer(channel, [queue], on_message=found.append).consume()
        with caplog.at_level(logging.WARNING):
            while not found:
                connection.drain_events(timeout=20)
        assert [message.payload for message in found] == ["ours"]
        assert connection.transport.foreign_count == len(FOREIGN)
        assert "kombu-work" in caplog.text and "shmq dlq list kombu-work" in caplog.text
        eventually(lambda: len(mq.admin.dlq("kombu-work")) == len(FOREIGN), "all are dead letters")


def test_a_foreign_body_is_passed_over_where_a_message_is_asked_for(connection: Any, broker: Broker) -> None:
    queue = connection.SimpleQueue("asked")
    with shmq.connect(broker.url) as mq:
        mq.send("kombu-asked", b"foreign")
    queue.put("ours")
    bound = queue.queue(connection.channel())
    assert bound.get().payload == "ours"
    assert bound.get() is None


def test_a_foreign_body_in_an_exchanges_log_is_passed_over(connection: Any, broker: Broker) -> None:
    news = Exchange("news", "fanout")
    found: list[Any] = []
    queue = Queue("reader", news, auto_delete=True)
    Consumer(connection.channel(), [queue], on_message=lambda m: found.append(m.payload), no_ack=True).consume()
    with shmq.connect(broker.url) as mq:
        for body in FOREIGN:
            mq.send("kombu-x-news", body)
    connection.Producer().publish("ours", exchange=news, declare=[news])
    connection.drain_events(timeout=20)
    assert found == ["ours"]
    assert connection.transport.foreign_count == len(FOREIGN)


def test_a_foreign_body_in_an_exchanges_log_is_passed_over_where_a_message_is_asked_for(
    connection: Any, broker: Broker
) -> None:
    news = Exchange("latest", "fanout")
    queue = Queue("asker", news, auto_delete=True)(connection.channel())
    queue.declare()
    with shmq.connect(broker.url) as mq:
        mq.send("kombu-x-latest", b"foreign")
    connection.Producer().publish("ours", exchange=news, declare=[news])
    assert queue.get().payload == "ours"
    assert queue.get() is None
