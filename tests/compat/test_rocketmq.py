"""What programs of the old packages send through `shmq.compat.rocketmq` is stored as they gave it, over both wires."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest

import shmq
from shmq.compat.rocketmq import Message, MessageModel, Producer, PushConsumer
from shmq.errors import UsageError
from shmq.testing import Broker
from tests.client.lives.thread_limit import REFUSED, no_thread_starts


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker(tcp=True) as running:
        yield running


@pytest.fixture(params=["shm", "tcp"])
def producer(request: pytest.FixtureRequest, broker: Broker) -> Iterator[Producer]:
    with broker.connect() as mq:
        mq.admin.create_topic(f"orders-{request.param}", queues=4)
    producer = Producer(f"orders-{request.param}")
    producer.set_name_server_address(broker.url if request.param == "shm" else broker.name_server)
    with producer:
        yield producer


def made(producer: Producer, body: str, **given: Any) -> Message:
    message = Message(producer.group_id)
    message.set_body(body)
    message.set_tags(given.get("tag", ""))
    message.set_keys(given.get("keys", ""))
    for name, text in given.get("properties", {}).items():
        message.set_property(name, text)
    message.set_delay_time_level(given.get("level", 0))
    return message


def stored(broker: Broker, producer: Producer, count: int) -> list[shmq.Message]:
    """The last messages of its topic, as they were stored."""
    with broker.connect() as mq:
        return mq.browse(producer.group_id)[-count:]


def test_keys_are_separated_by_blanks_and_by_nothing_else(broker: Broker, producer: Producer) -> None:
    producer.send_sync(made(producer, "x", keys="a\u3000b  c\u00a0d"))
    (message,) = stored(broker, producer, 1)
    assert message.keys == ["a\u3000b", "c\u00a0d"]


def test_each_message_of_a_batch_has_its_own_tag_keys_and_properties_in_one_queue(
    broker: Broker, producer: Producer
) -> None:
    first = producer.send_batch(
        [
            made(producer, "1", tag="red", keys="a b", properties={"region": "eu"}),
            made(producer, "2", tag="blue"),
            made(producer, "3", keys="c"),
        ]
    )
    found = stored(broker, producer, 3)
    assert [(each.body, each.tag, each.keys, each.properties.get("region")) for each in found] == [
        (b"1", "red", ["a", "b"], "eu"),
        (b"2", "blue", [], None),
        (b"3", None, ["c"], None),
    ]
    assert len({each.queue_id for each in found}) == 1
    assert first.offset == found[0].offset


def test_keys_of_some_messages_of_a_batch_are_kept(broker: Broker, producer: Producer) -> None:
    producer.send_batch([made(producer, "1", tag="red", keys="a"), made(producer, "2", tag="red")])
    assert [(each.tag, each.keys) for each in stored(broker, producer, 2)] == [("red", ["a"]), ("red", [])]


def test_a_batch_with_a_delay_is_refused_and_stores_nothing(broker: Broker, producer: Producer) -> None:
    before = [each.message_id for each in stored(broker, producer, 100)]
    with pytest.raises(UsageError, match="not delayed") as refused:
        producer.send_batch([made(producer, "1"), made(producer, "2", level=3)])
    assert refused.value.hint
    assert [each.message_id for each in stored(broker, producer, 100)] == before


@pytest.mark.parametrize("model", MessageModel)
def test_where_no_thread_starts_a_consumer_is_refused_and_can_be_started_later(
    broker: Broker, model: MessageModel
) -> None:
    topic, got = f"no-thread-{model.name.lower()}", threading.Event()
    with broker.connect() as mq:
        mq.admin.create_topic(topic)
        consumer = PushConsumer(topic, message_model=model)
        consumer.set_name_server_address(broker.url)
        consumer.subscribe(topic, lambda message: got.set())
        with (
            no_thread_starts("shmq-compat" if model is MessageModel.BROADCASTING else "shmq"),
            pytest.raises(shmq.ConnectError, match=REFUSED),
        ):
            consumer.start()
        with consumer:
            mq.send(topic, b"x")
            assert got.wait(60)
