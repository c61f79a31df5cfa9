"""Take, work, settle, with an invisible time."""

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import shmq
from shmq.client.pop.reader import PopReader
from shmq.testing import Broker, SharedBroker

_serial = itertools.count(1)

Eventually = Callable[..., Any]
Advance = Callable[[float], None]


@pytest.fixture(scope="module")
def frozen() -> Iterator[Broker]:
    """The broker of this file: nothing but `advance` moves its clock."""
    with Broker(clock="frozen") as broker:
        yield broker


@pytest.fixture
def shmq_shared_broker(frozen: Broker) -> SharedBroker:
    return SharedBroker(frozen, f"{next(_serial)}")


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


@pytest.fixture
def advance(shmq_shared_broker: SharedBroker) -> Callable[[float], None]:
    """Move the broker's clock, by which messages are hidden."""
    return shmq_shared_broker.broker.advance


def test_nothing_there_is_an_empty_list(mq: shmq.Connection, topic: str, group: str) -> None:
    with mq.simple_consumer(topic, group=group) as consumer:
        assert consumer.receive() == []
        assert consumer.receive(wait=0.01) == []


def test_an_acknowledged_message_never_comes_again(
    mq: shmq.Connection, topic: str, group: str, advance: Advance
) -> None:
    mq.send(topic, b"x")
    with mq.simple_consumer(topic, group=group, invisible=30) as consumer:
        (message,) = consumer.receive(wait=60)
        message.ack()
        advance(31)
        assert consumer.receive(wait=0.1) == []


def test_a_message_comes_again_when_its_invisible_time_is_over(
    mq: shmq.Connection, topic: str, group: str, advance: Advance
) -> None:
    mq.send(topic, b"x")
    with mq.simple_consumer(topic, group=group, invisible=30) as consumer:
        assert len(consumer.receive(wait=60)) == 1
        advance(29)
        assert consumer.receive(wait=0.05) == []
        advance(1)
        (second,) = consumer.receive(wait=60)
        assert (second.body, second.attempt) == (b"x", 2)
        second.ack()


def test_an_extension_keeps_it_hidden_for_longer(mq: shmq.Connection, topic: str, group: str, advance: Advance) -> None:
    mq.send(topic, b"x")
    with mq.simple_consumer(topic, group=group, invisible=30) as consumer:
        (message,) = consumer.receive(wait=60)
        advance(20)
        message.extend(30)
        advance(29)
        assert consumer.receive(wait=0.05) == []
        advance(1)
        assert len(consumer.receive(wait=60)) == 1


def test_giving_back_decides_when_it_comes_again(mq: shmq.Connection, topic: str, group: str, advance: Advance) -> None:
    mq.send(topic, b"x")
    with mq.simple_consumer(topic, group=group, invisible=30) as consumer:
        (message,) = consumer.receive(wait=60)
        message.nack(after=0.9)
        assert consumer.receive(wait=0.05) == []
        advance(1)
        assert [again.attempt for again in consumer.receive(wait=60)] == [2]


def test_one_receive_may_hide_for_another_time(mq: shmq.Connection, topic: str, group: str, advance: Advance) -> None:
    mq.send(topic, b"x")
    with mq.simple_consumer(topic, group=group, invisible=300) as consumer:
        consumer.receive(wait=60, invisible=5)
        advance(5)
        assert len(consumer.receive(wait=60)) == 1


def test_a_message_that_is_never_settled_is_dead_after_its_last_attempt(
    mq: shmq.Connection, topic: str, group: str, eventually: Eventually, advance: Advance
) -> None:
    mq.send(topic, b"poison")
    with mq.simple_consumer(topic, group=group, invisible=30, attempts_max=3) as consumer:
        for attempt in (1, 2, 3):
            (message,) = consumer.receive(wait=60)
            assert message.attempt == attempt
            advance(30)
        (letter,) = eventually(lambda: consumer.receive(wait=0.1) or mq.admin.dlq(group))
        assert letter.body == b"poison"
        eventually(lambda: mq.admin.groups[group].lag.total == 0)
        assert consumer.receive(wait=0.05) == []


def test_the_other_member_gets_what_a_vanished_one_had_taken(
    shmq_shared_broker: SharedBroker,
    mq: shmq.Connection,
    topic: str,
    group: str,
    eventually: Eventually,
    advance: Advance,
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
        assert consumer.receive(wait=0.2) == []
        advance(300)
        bodies: list[bytes] = []
        eventually(lambda: bodies.extend(message.body for message in consumer.receive(wait=1)) or len(bodies) == 8)
    assert sorted(bodies) == [b"%d" % number for number in range(8)]


def test_acknowledged_messages_are_not_held_for_the_invisible_time(
    mq: shmq.Connection, topic: str, group: str, eventually: Eventually, advance: Advance
) -> None:
    with mq.simple_consumer(topic, group=group, invisible=3600) as consumer:
        for _ in range(5):
            mq.send(topic, b"x")
        received = 0
        while received < 5:
            for message in consumer.receive(wait=60):
                message.ack()
                received += 1
        assert isinstance(consumer._source, PopReader)
        assert not consumer._source._leases


def test_without_the_broker_acknowledged_messages_are_not_held_for_the_invisible_time(
    mq: shmq.Connection, topic: str, group: str, eventually: Eventually, advance: Advance
) -> None:
    with mq.simple_consumer(topic, group=group, invisible=3600, hidden_by="process") as consumer:
        mq.send(topic, b"x")
        (message,) = consumer.receive(wait=60)
        message.ack()
        eventually(lambda: advance(1) or len(consumer._redelivery._schedule) == 0)


def test_without_the_broker_a_message_comes_again_when_its_time_is_over(
    mq: shmq.Connection, topic: str, group: str, advance: Advance
) -> None:
    mq.send(topic, b"x")
    with mq.simple_consumer(topic, group=group, invisible=30, hidden_by="process") as consumer:
        (first,) = consumer.receive(wait=60)
        first.extend(60)
        advance(31)
        assert consumer.receive(wait=0.05) == []
        advance(30)
        (second,) = consumer.receive(wait=60)
        assert (second.body, second.attempt) == (b"x", 2)
        second.ack()


@pytest.mark.parametrize("invisible", [0, -1, 43_201, float("nan")])
def test_an_impossible_invisible_time_is_refused(mq: shmq.Connection, topic: str, group: str, invisible: float) -> None:
    with pytest.raises(shmq.UsageError):
        mq.simple_consumer(topic, group=group, invisible=invisible)
