"""Take, work, settle, with an invisible time."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

import shmq
from shmq.testing import SharedBroker

Eventually = Callable[..., Any]


@pytest.fixture
def mq(shmq_shared_broker: SharedBroker) -> Iterator[shmq.Connection]:
    with shmq_shared_broker.connect() as connection:
        yield connection


@pytest.fixture
def topic(shmq_shared_broker: SharedBroker) -> str:
    return shmq_shared_broker.named("orders")


@pytest.fixture
def group(shmq_shared_broker: SharedBroker) -> str:
    return shmq_shared_broker.named("billing")


def advance(mq: shmq.Connection, seconds: float) -> None:
    mq._clock.advance(seconds)
    mq._coordinator.clock_moved()


def test_nothing_there_is_an_empty_list(mq: shmq.Connection, topic: str, group: str) -> None:
    with mq.simple_consumer(topic, group=group) as consumer:
        assert consumer.receive() == []
        assert consumer.receive(wait=0.01) == []


def test_an_acknowledged_message_never_comes_again(mq: shmq.Connection, topic: str, group: str) -> None:
    mq.send(topic, b"x")
    with mq.simple_consumer(topic, group=group, invisible=30) as consumer:
        (message,) = consumer.receive(wait=10)
        message.ack()
        advance(mq, 31)
        assert consumer.receive(wait=0.1) == []


def test_a_message_comes_again_when_its_invisible_time_is_over(mq: shmq.Connection, topic: str, group: str) -> None:
    mq.send(topic, b"x")
    with mq.simple_consumer(topic, group=group, invisible=30) as consumer:
        assert len(consumer.receive(wait=10)) == 1
        advance(mq, 29)
        assert consumer.receive(wait=0.05) == []
        advance(mq, 1)
        (second,) = consumer.receive(wait=10)
        assert (second.body, second.attempt) == (b"x", 2)
        second.ack()


def test_an_extension_keeps_it_hidden_for_longer(mq: shmq.Connection, topic: str, group: str) -> None:
    mq.send(topic, b"x")
    with mq.simple_consumer(topic, group=group, invisible=30) as consumer:
        (message,) = consumer.receive(wait=10)
        advance(mq, 20)
        message.extend(30)
        advance(mq, 29)
        assert consumer.receive(wait=0.05) == []
        advance(mq, 1)
        assert len(consumer.receive(wait=10)) == 1


def test_giving_back_decides_when_it_comes_again(mq: shmq.Connection, topic: str, group: str) -> None:
    mq.send(topic, b"x")
    with mq.simple_consumer(topic, group=group, invisible=30) as consumer:
        (message,) = consumer.receive(wait=10)
        message.nack(after=0.9)
        assert consumer.receive(wait=0.05) == []
        advance(mq, 1)
        assert [again.attempt for again in consumer.receive(wait=10)] == [2]


def test_one_receive_may_hide_for_another_time(mq: shmq.Connection, topic: str, group: str) -> None:
    mq.send(topic, b"x")
    with mq.simple_consumer(topic, group=group, invisible=300) as consumer:
        consumer.receive(wait=10, invisible=5)
        advance(mq, 5)
        assert len(consumer.receive(wait=10)) == 1


def test_a_message_nobody_settles_is_dead_after_its_last_attempt(
    mq: shmq.Connection, topic: str, group: str, eventually: Eventually
) -> None:
    mq.send(topic, b"poison")
    with mq.simple_consumer(topic, group=group, invisible=30, attempts_max=3) as consumer:
        for attempt in (1, 2, 3):
            (message,) = consumer.receive(wait=10)
            assert message.attempt == attempt
            advance(mq, 30)
        (letter,) = eventually(lambda: mq.admin.dlq(group))
        assert letter.body == b"poison"
        eventually(lambda: mq.admin.groups[group].lag.total == 0)
        assert consumer.receive(wait=0.05) == []


def test_the_other_member_gets_what_a_vanished_one_had_taken(
    shmq_shared_broker: SharedBroker, mq: shmq.Connection, topic: str, group: str, eventually: Eventually
) -> None:
    victim = shmq_shared_broker.connect()
    taker = victim.simple_consumer(topic, group=group, invisible=300)
    for number in range(8):
        mq.send(topic, b"%d" % number)
    taken: list[Any] = []
    eventually(lambda: taken.extend(taker.receive(wait=1)) or len(taken) == 8)
    assert shmq_shared_broker.broker.kill_consumer(group) == [victim.client_id]
    assert victim.closed
    with mq.simple_consumer(topic, group=group) as consumer:
        bodies: list[bytes] = []
        eventually(lambda: bodies.extend(message.body for message in consumer.receive(wait=1)) or len(bodies) == 8)
    assert sorted(bodies) == [b"%d" % number for number in range(8)]


def test_acknowledged_messages_are_not_held_for_the_invisible_time(
    mq: shmq.Connection, topic: str, group: str, eventually: Eventually
) -> None:
    with mq.simple_consumer(topic, group=group, invisible=3600) as consumer:
        for _ in range(5):
            mq.send(topic, b"x")
        received = 0
        while received < 5:
            for message in consumer.receive(wait=10):
                message.ack()
                received += 1
        eventually(lambda: advance(mq, 1) or len(consumer._returns._redelivery) == 0)


@pytest.mark.parametrize("invisible", [0, -1, 43_201, float("nan")])
def test_an_impossible_invisible_time_is_refused(mq: shmq.Connection, topic: str, group: str, invisible: float) -> None:
    with pytest.raises(shmq.UsageError):
        mq.simple_consumer(topic, group=group, invisible=invisible)
