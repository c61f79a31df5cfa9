"""Members of one group that read different topics, in different ways, over both transports.

Rule: a retry goes to who reads its topic, wherever that is, and waits for no other member.
"""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

import shmq
from shmq.errors import SubscriptionConflict, UsageError
from shmq.testing import Broker
from tests.conformance.conftest import url_of

Connect = Callable[..., shmq.Connection]
Eventually = Callable[..., Any]
Named = Callable[[str], str]


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    """A broker whose clock is moved."""
    with Broker(tcp=True, clock="frozen", timeout=90.0) as broker:
        yield broker


@pytest.fixture(params=["the same transport", "the other one"])
def beside(request: pytest.FixtureRequest, broker: Broker, transport: str) -> Iterator[shmq.Connection]:
    """A second connection, over each transport."""
    other = {"shm": "tcp", "tcp": "shm"}[transport]
    with shmq.connect(
        url_of(broker, transport if request.param == "the same transport" else other), timeout=60.0
    ) as connection:
        yield connection


@pytest.fixture
def group(named: Named) -> str:
    return named("billing")


@pytest.fixture
def payments(mq: shmq.Connection, named: Named) -> str:
    """Another topic."""
    name = named("payments")
    mq.admin.create_topic(name, queues=2)
    return name


def take(subscription: Any, eventually: Eventually) -> shmq.Message:
    (message,) = eventually(lambda: subscription.receive(1, 0.2))
    return message


def come_again(broker: Broker, subscription: Any, body: bytes, eventually: Eventually) -> None:
    """A message of that body comes to this consumer, as its second delivery."""

    def again() -> list[shmq.Message]:
        broker.advance(2)
        return list(subscription.receive(1, 0.2))

    (message,) = eventually(again)
    assert (message.body, message.topic) == (body, subscription.topic)
    # What was popped for a wait that ended just then comes once more.
    assert message.attempt == 2 or (message.attempt > 2 and isinstance(subscription, shmq.SimpleConsumer))
    message.ack()


def test_a_retry_does_not_wait_for_a_member_that_reads_something_else(
    broker: Broker,
    mq: shmq.Connection,
    beside: shmq.Connection,
    topic: str,
    payments: str,
    group: str,
    eventually: Eventually,
) -> None:
    with beside.subscribe(payments, group=group), mq.subscribe(topic, group=group) as orders:
        mq.send(topic, b"x")
        take(orders, eventually).nack(after=1)
        come_again(broker, orders, b"x", eventually)
        eventually(lambda: orders.lag() == 0)


def test_a_retry_of_before_is_handed_on_by_who_took_the_retry_queue_meanwhile(
    broker: Broker,
    mq: shmq.Connection,
    connect: Connect,
    topic: str,
    payments: str,
    group: str,
    eventually: Eventually,
) -> None:
    mq.send(topic, b"x")
    with mq.subscribe(topic, group=group) as orders:
        take(orders, eventually).nack(after=1)
        eventually(lambda: orders.lag() == 0)  # the broker has it
    beside = connect()
    with beside.subscribe(payments, group=group) as others:
        beside.send(payments, b"y")
        broker.advance(2)
        assert take(others, eventually).body == b"y"
        assert not others.receive(1, 0.3), "it reads another topic"
        with mq.subscribe(topic, group=group) as orders:
            come_again(broker, orders, b"x", eventually)
            eventually(lambda: orders.lag() == 0)


def test_one_connection_is_a_member_of_a_group_in_one_model(
    mq: shmq.Connection, topic: str, payments: str, group: str
) -> None:
    for first, second in (("broadcasting", "clustering"), ("clustering", "broadcasting")):
        with (
            mq.subscribe(topic, group=group, model=first),
            pytest.raises(UsageError, match=f'for group "{group}" as {first} member already') as refused,
        ):
            mq.subscribe(payments, group=group, model=second)
        assert refused.value.hint


def test_one_group_is_consumed_in_one_model(
    mq: shmq.Connection, beside: shmq.Connection, topic: str, group: str
) -> None:
    for first, second in (("broadcasting", "clustering"), ("clustering", "broadcasting")):
        with (
            beside.subscribe(topic, group=group, model=first),
            pytest.raises(SubscriptionConflict, match=f"consumes {first.upper()}, this member {second.upper()}"),
        ):
            mq.subscribe(topic, group=group, model=second)


def test_members_that_read_queues_and_simple_consumers_do_not_share_a_topic_of_a_group(
    broker: Broker,
    mq: shmq.Connection,
    beside: shmq.Connection,
    topic: str,
    payments: str,
    group: str,
    eventually: Eventually,
) -> None:
    with (
        beside.subscribe(topic, group=group),
        pytest.raises(SubscriptionConflict, match=f'reads the queues of topic "{topic}", this member takes'),
    ):
        mq.simple_consumer(topic, group=group)
    with (
        beside.simple_consumer(topic, group=group),
        pytest.raises(SubscriptionConflict, match=f'as a simple consumer of topic "{topic}", this member reads'),
    ):
        mq.subscribe(topic, group=group)
    # Another topic is another matter.
    with beside.simple_consumer(topic, group=group) as simple, mq.subscribe(payments, group=group) as shared:
        mq.send(topic, b"x")
        mq.send(payments, b"y")
        popped, read = take(simple, eventually), take(shared, eventually)
        assert (popped.body, read.body) == (b"x", b"y")
        popped.ack()
        read.nack(after=1)
        come_again(broker, shared, b"y", eventually)


@pytest.mark.parametrize("before", ["subscription", "simple consumer"])
def test_a_group_that_changes_its_way_gets_its_retries_in_the_new_one(
    broker: Broker, mq: shmq.Connection, topic: str, group: str, before: str, eventually: Eventually
) -> None:
    ways: dict[str, Callable[[], Any]] = {
        "subscription": lambda: mq.subscribe(topic, group=group),
        "simple consumer": lambda: mq.simple_consumer(topic, group=group),
    }
    mq.send(topic, b"x")
    with ways.pop(before)() as first:
        take(first, eventually).nack(after=1)
        if before == "subscription":
            eventually(lambda: first.lag() == 0)  # the broker has it
    (now,) = ways.values()
    with now() as second:
        come_again(broker, second, b"x", eventually)


def test_the_retry_topic_of_another_group_is_a_topic_like_others(
    broker: Broker, mq: shmq.Connection, topic: str, group: str, eventually: Eventually
) -> None:
    mq.send(topic, b"x")
    with mq.subscribe(topic, group=group) as orders:
        take(orders, eventually).nack(after=1)
        eventually(lambda: orders.lag() == 0)

    broker.advance(2)
    eventually(lambda: mq.admin.topics[f"%RETRY%{group}"].messages == 1)
    with mq.subscribe(f"%RETRY%{group}", group=f"{group}-late", start="end") as late:
        assert late.receive(1, 0.5) == []
    with mq.subscribe(f"%RETRY%{group}", group=f"{group}-watch") as watch:
        found = take(watch, eventually)
        assert (found.body, found.queue_id, found.topic) == (b"x", 0, f"%RETRY%{group}")
        for after in (0, 1):
            attempt = found.attempt
            found.nack(after)
            if after:
                eventually(lambda: watch.lag() == 0)
                broker.advance(2)
            found = take(watch, eventually)
            assert (found.body, found.attempt, found.topic) == (b"x", attempt + 1, f"%RETRY%{group}")
        found.ack()
        eventually(lambda: watch.lag() == 0)
