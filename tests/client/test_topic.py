"""Values instead of bytes."""

from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import pytest

import shmq
from shmq.testing import SharedBroker

Eventually = Callable[..., Any]


class Order(msgspec.Struct):
    id: str
    quantity: int


@pytest.fixture
def mq(shmq_shared_broker: SharedBroker) -> Iterator[shmq.Connection]:
    with shmq_shared_broker.connect() as connection:
        yield connection


@pytest.fixture
def name(shmq_shared_broker: SharedBroker) -> str:
    return shmq_shared_broker.named("orders")


@pytest.fixture
def group(shmq_shared_broker: SharedBroker) -> str:
    return shmq_shared_broker.named("billing")


@pytest.mark.parametrize("codec", ["json", "msgpack"])
def test_what_was_sent_comes_out_as_a_value_of_its_type(mq: shmq.Connection, name: str, group: str, codec: str) -> None:
    orders = mq.topic(name, Order, codec=codec)
    orders.send(Order("o-42", 3), tag="fruit", key="o-42")
    with orders.subscribe(group=group) as subscription:
        (message,) = subscription.receive(wait=60)
        assert message.value == Order("o-42", 3)
        assert message.value is message.value
        assert (message.tag, message.key) == ("fruit", "o-42")
        message.ack()


def test_json_bodies_are_json(mq: shmq.Connection, name: str) -> None:
    mq.topic(name, Order).send(Order("o-42", 3))
    with mq.pull_consumer(name) as consumer:
        assert consumer.poll(wait=60)[0].body == b'{"id":"o-42","quantity":3}'


def test_a_batch_of_values_is_in_order(mq: shmq.Connection, name: str) -> None:
    orders = mq.topic(name, Order)
    orders.send_batch([Order("a", 1), Order("b", 2)])
    with orders.pull_consumer() as consumer:
        assert [message.value.id for message in consumer.poll(10, wait=60)] == ["a", "b"]


def test_a_body_of_another_type_raises_where_it_is_read_and_the_message_can_be_rejected(
    mq: shmq.Connection, name: str, group: str
) -> None:
    mq.send(name, b"not an order")
    with mq.topic(name, Order).subscribe(group=group) as subscription:
        for message in subscription:
            with pytest.raises(msgspec.DecodeError):
                _ = message.value
            assert message.body == b"not an order"
            message.ack()
            break


def test_a_typed_listener_and_a_simple_consumer_get_values(
    mq: shmq.Connection, name: str, group: str, eventually: Eventually
) -> None:
    orders = mq.topic(name, Order)
    seen: list[Order] = []

    @orders.listener(group=group)
    def on_order(message: shmq.TypedMessage[Order]) -> None:
        seen.append(message.value)

    mq.start()
    orders.send(Order("o-42", 3))
    eventually(lambda: seen == [Order("o-42", 3)])
    with orders.simple_consumer(group=f"{group}-simple") as consumer:
        assert consumer.receive(wait=60)[0].value == Order("o-42", 3)


def test_a_codec_of_ones_own_is_used(mq: shmq.Connection, name: str, group: str) -> None:
    class Shout:
        def encode(self, value: str, /) -> bytes:
            return value.upper().encode()

        def decode(self, body: bytes, /) -> str:
            return body.decode()

    shouts = mq.topic(name, str, codec=Shout())
    shouts.send("hello")
    with shouts.subscribe(group=group) as subscription:
        assert subscription.receive(wait=60)[0].value == "HELLO"


def test_a_message_read_without_a_codec_has_no_value(mq: shmq.Connection, name: str) -> None:
    mq.send(name, b"x")
    with mq.pull_consumer(name) as consumer, pytest.raises(AttributeError, match="codec"):
        _ = consumer.poll(wait=60)[0].value


def test_a_name_that_no_topic_can_have_is_refused_at_once(mq: shmq.Connection) -> None:
    with pytest.raises(shmq.InvalidName):
        mq.topic("no blanks", Order)
