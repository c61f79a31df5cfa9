"""Iterating, receiving, giving back, rejecting."""

import logging
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import shmq
from shmq.client import options
from shmq.protocol.codes import Request
from shmq.shm.core import KeeperStore, StoreFigures
from shmq.testing import Broker, SharedBroker

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
    mq._timetable.clock_moved()


def test_the_readme_example_works_unchanged(mq: shmq.Connection, topic: str, group: str) -> None:
    receipt = mq.send(topic, b"42 apples", tag="fruit", key="order-42")
    seen = []
    for msg in mq.subscribe(topic, group=group):
        seen.append((msg.key, msg.tag, msg.body, msg.queue_id, msg.offset))
        msg.ack()
        break
    assert seen == [("order-42", "fruit", b"42 apples", receipt.queue_id, receipt.offset)]


def test_a_new_group_may_begin_with_the_next_message(mq: shmq.Connection, topic: str, group: str) -> None:
    mq.send(topic, b"earlier")
    with mq.subscribe(topic, group=group, start="last") as subscription:
        mq.send(topic, b"later")
        assert [message.body for message in subscription.receive(wait=60)] == [b"later"]


def test_start_is_for_new_groups_only(mq: shmq.Connection, topic: str, group: str) -> None:
    with mq.subscribe(topic, group=group, start="last"):
        pass
    mq.send(topic, b"without a member")
    with mq.subscribe(topic, group=group, start="last") as subscription:
        assert len(subscription.receive(wait=60)) == 1


def test_a_group_an_administrator_resets_reads_again_while_it_runs(mq: shmq.Connection, topic: str, group: str) -> None:
    for number in range(10):
        mq.send(topic, b"%d" % number)
    with mq.subscribe(topic, group=group) as subscription:

        def read(count: int) -> list[bytes]:
            bodies: list[bytes] = []
            while len(bodies) < count:
                messages = subscription.receive(wait=60)
                assert messages, f"{len(bodies)} of {count} messages came"
                for message in messages:
                    bodies.append(message.body)
                    message.ack()
            return sorted(bodies)

        first = read(10)
        mq._live().wire.control.request(
            Request.INVOKE_BROKER_TO_RESET_OFFSET,
            {"topic": topic, "group": group, "timestamp": "0", "isForce": "true"},
        )
        assert read(10) == first
        assert mq.admin.groups[group].lag.total == 0


def test_nothing_there_is_an_empty_list(mq: shmq.Connection, topic: str, group: str) -> None:
    with mq.subscribe(topic, group=group) as subscription:
        assert subscription.receive() == []
        assert subscription.receive(wait=0.01) == []
        with pytest.raises(shmq.UsageError):
            subscription.receive(max=0)


def test_a_waiting_receive_returns_as_soon_as_something_comes(mq: shmq.Connection, topic: str, group: str) -> None:
    with mq.subscribe(topic, group=group) as subscription:
        got: list[bytes] = []
        thread = threading.Thread(target=lambda: got.extend(message.body for message in subscription.receive(wait=600)))
        thread.start()
        mq.send(topic, b"x")
        thread.join(60)
        assert got == [b"x"]


def test_what_was_not_acknowledged_is_delivered_again_to_the_next_reader(
    mq: shmq.Connection, topic: str, group: str
) -> None:
    for number in range(4):
        mq.send(topic, b"%d" % number, queue_id=0)
    with mq.subscribe(topic, group=group) as subscription:
        zero, one, two, _ = subscription.receive(wait=60)
        zero.ack()
        two.ack()
        assert one.settled is False
    with mq.subscribe(topic, group=group) as subscription:
        assert [message.body for message in subscription.receive(wait=60)] == [b"1", b"2", b"3"]


def test_leaving_a_message_block_acknowledges_and_an_exception_gives_back(
    mq: shmq.Connection, topic: str, group: str
) -> None:
    mq.send(topic, b"x")
    with mq.subscribe(topic, group=group) as subscription:
        (message,) = subscription.receive(wait=60)
        with pytest.raises(ZeroDivisionError), message:
            raise ZeroDivisionError
        assert message.settled
        (waits,) = mq.browse("SCHEDULE_TOPIC_XXXX", queue_id=2, limit=10_000)[-1:]
        assert waits.properties["REAL_TOPIC"] == f"%RETRY%{group}"
        mq.send(topic, b"y")
        (again,) = subscription.receive(wait=60)
        with again:
            pass
        assert again.settled
        assert subscription.lag() == 0


def test_a_message_given_back_comes_again_after_its_time_and_counts(
    mq: shmq.Connection, topic: str, group: str
) -> None:
    mq.send(topic, b"x")
    with mq.subscribe(topic, group=group) as subscription:
        (first,) = subscription.receive(wait=60)
        assert first.attempt == 1
        first.nack(after=0.9)
        assert subscription.receive(wait=0.05) == []
        advance(mq, 1)
        (second,) = subscription.receive(wait=60)
        assert (second.body, second.attempt) == (b"x", 2)
        assert mq.admin.groups[group].lag.total == 1
        second.ack()
        assert mq.admin.groups[group].lag.total == 0


def test_an_iteration_gets_what_was_given_back(mq: shmq.Connection, topic: str, group: str) -> None:
    mq.send(topic, b"x")
    attempts = []
    for message in mq.subscribe(topic, group=group):
        attempts.append(message.attempt)
        if message.attempt == 3:
            message.ack()
            break
        message.nack(after=0)
    assert attempts == [1, 2, 3]


def test_a_message_given_back_does_not_hold_up_the_others(mq: shmq.Connection, topic: str, group: str) -> None:
    for number in range(3):
        mq.send(topic, b"%d" % number, queue_id=0)
    with mq.subscribe(topic, group=group) as subscription:
        zero, *others = subscription.receive(wait=60)
        zero.nack(after=3600)
        for message in others:
            message.ack()
        mq.send(topic, b"3", queue_id=0)
        assert [message.body for message in subscription.receive(wait=60)] == [b"3"]
        assert mq.admin.groups[group].lag.total == 1  # nor the group's offset


@pytest.mark.slow
def test_a_message_given_back_while_the_broker_is_away_is_not_lost(
    shmq_broker: Broker, eventually: Callable[..., Any]
) -> None:
    with shmq_broker.connect(timeout=0.5) as mq:
        mq.send("orders", b"x")
        with mq.subscribe("orders", group="billing") as subscription:
            (message,) = subscription.receive(wait=60)
            shmq_broker.kill_daemon()
            message.nack()
            advance(mq, options.RETRY_DELAYS[0])
            (again,) = subscription.receive(wait=60)
            assert again.attempt == 2


def test_a_negative_delay_is_refused(mq: shmq.Connection, topic: str, group: str) -> None:
    mq.send(topic, b"x")
    with mq.subscribe(topic, group=group) as subscription:
        (message,) = subscription.receive(wait=60)
        with pytest.raises(shmq.UsageError):
            message.nack(after=-1)


def test_after_the_last_attempt_the_message_is_dead_and_acknowledged(
    mq: shmq.Connection, topic: str, group: str
) -> None:
    receipt = mq.send(topic, b"poison", tag="fruit", key="o-1", properties={"region": "eu"})
    with mq.subscribe(topic, group=group, attempts_max=3) as subscription:
        for attempt in (1, 2, 3):
            (message,) = subscription.receive(wait=60)
            assert message.attempt == attempt
            message.nack(after=0)
        assert subscription.receive(wait=0.05) == []
        assert mq.admin.groups[group].lag.total == 0
    (letter,) = mq.admin.dlq(group)
    assert (letter.body, letter.origin_topic, letter.origin_message_id) == (b"poison", topic, receipt.message_id)
    assert "3 attempts" in letter.reason
    assert (letter.message.tag, letter.message.key) == ("fruit", "o-1")
    assert letter.message.properties["region"] == "eu"
    assert letter.message.properties["ORIGIN_MESSAGE_ID"] == receipt.message_id
    assert letter.message.queue_id == 0


def test_a_rejected_message_is_dead_at_once(mq: shmq.Connection, topic: str, group: str) -> None:
    mq.send(topic, b"unknown")
    with mq.subscribe(topic, group=group) as subscription:
        (message,) = subscription.receive(wait=60)
        subscription.reject(message, "unknown article")
        assert message.settled
        assert subscription.lag() == 0
    (letter,) = mq.admin.dlq(group)
    assert letter.reason == "unknown article"


def test_a_dead_letter_can_be_sent_again(mq: shmq.Connection, topic: str, group: str) -> None:
    mq.send(topic, b"x", tag="fruit", keys=["a", "b"], properties={"region": "eu"}, message_group="m")
    with mq.subscribe(topic, group=group) as subscription:
        (message,) = subscription.receive(wait=60)
        subscription.reject(message)
        (letter,) = mq.admin.dlq(group)
        letter.resend()
        (again,) = subscription.receive(wait=60)
        assert (again.body, again.tag, again.keys, again.message_group) == (b"x", "fruit", ["a", "b"], "m")
        assert again.properties["region"] == "eu"
        assert "ORIGIN_MESSAGE_ID" not in again.properties
        again.ack()


def test_a_message_that_cannot_be_buried_is_not_lost(
    mq: shmq.Connection, topic: str, group: str, caplog: pytest.LogCaptureFixture
) -> None:
    mq.send(topic, b"x")
    with mq.subscribe(topic, group=group) as subscription:
        (message,) = subscription.receive(wait=60)
        KeeperStore(mq._live().wire.store).set_read_only(5)
        try:
            with caplog.at_level(logging.WARNING, "shmq"):
                subscription.reject(message, "why")
        finally:
            KeeperStore(mq._live().wire.store).set_read_only(0)
        assert "delivered again" in caplog.text
        assert mq.admin.groups[group].lag.total == 1
        advance(mq, 10)
        (again,) = subscription.receive(wait=60)
        subscription.reject(again, "why")
    assert [letter.reason for letter in mq.admin.dlq(group)] == ["why"]


def test_only_the_tags_asked_for_come_and_the_others_count_as_read(mq: shmq.Connection, topic: str, group: str) -> None:
    for tag in ("fruit", "meat", "veg", "meat"):
        mq.send(topic, tag.encode(), tag=tag, queue_id=0)
    mq.send(topic, b"none", queue_id=0)
    with mq.subscribe(topic, group=group, tags="fruit || veg") as subscription:
        messages = subscription.receive(wait=60)
        assert [message.body for message in messages] == [b"fruit", b"veg"]
        for message in messages:
            message.ack()
        assert subscription.receive(wait=0.05) == []
        assert mq.admin.groups[group].lag.total == 0


def test_auto_ack_acknowledges_when_the_next_message_is_asked_for(mq: shmq.Connection, topic: str, group: str) -> None:
    for number in range(3):
        mq.send(topic, b"%d" % number, queue_id=0)
    with mq.subscribe(topic, group=group, auto_ack=True) as subscription:
        iterator = iter(subscription)
        next(iterator)
        assert mq.admin.groups[group].lag.total == 3
        next(iterator)
        assert mq.admin.groups[group].lag.total == 2


def test_stop_ends_an_iteration_from_another_thread(mq: shmq.Connection, topic: str, group: str) -> None:
    subscription = mq.subscribe(topic, group=group)
    thread = threading.Thread(target=lambda: list(subscription))
    thread.start()
    subscription.stop()
    thread.join(60)
    assert not thread.is_alive()
    subscription.close()


def test_closing_the_connection_ends_an_iteration(shmq_shared_broker: SharedBroker, topic: str, group: str) -> None:
    mq = shmq_shared_broker.connect()
    subscription = mq.subscribe(topic, group=group)
    thread = threading.Thread(target=lambda: list(subscription))
    thread.start()
    mq.close()
    thread.join(60)
    assert not thread.is_alive()


def test_a_closed_subscription_says_so(mq: shmq.Connection, topic: str, group: str) -> None:
    subscription = mq.subscribe(topic, group=group)
    subscription.close()
    subscription.close()
    assert list(subscription) == []
    with pytest.raises(shmq.UsageError, match="closed"):
        subscription.receive()


def test_settling_after_the_end_is_harmless(mq: shmq.Connection, topic: str, group: str) -> None:
    mq.send(topic, b"x")
    with mq.subscribe(topic, group=group) as subscription:
        (message,) = subscription.receive(wait=60)
    message.ack()
    assert mq.admin.groups[group].lag.total == 1


def test_a_group_is_needed_and_the_error_says_what_else_there_is(mq: shmq.Connection, topic: str) -> None:
    with pytest.raises(shmq.UsageError) as caught:
        mq.subscribe(topic)
    assert "broadcasting" in caught.value.hint
    with pytest.raises(shmq.UsageError):
        mq.subscribe(topic, group="g", model="multicast")  # type: ignore[arg-type]


def test_one_connection_is_one_member_of_a_group(mq: shmq.Connection, topic: str, group: str) -> None:
    with mq.subscribe(topic, group=group), pytest.raises(shmq.UsageError, match="already"):
        mq.subscribe(topic, group=group)
    with mq.subscribe(topic, group=group):
        pass


def test_a_member_with_other_tags_is_refused(
    shmq_shared_broker: SharedBroker, mq: shmq.Connection, topic: str, group: str
) -> None:
    with mq.subscribe(topic, group=group, tags="fruit"), shmq_shared_broker.connect() as other:
        with pytest.raises(shmq.SubscriptionConflict):
            other.subscribe(topic, group=group, tags="meat")
        assert other.admin.groups[group].members == [mq.client_id]


def test_views_of_a_message_live_longer_than_its_subscription(shmq_broker: Broker) -> None:
    mq = shmq_broker.connect()
    mq.send("orders", b"42 apples")
    with mq.subscribe("orders", group="billing") as subscription:
        (message,) = subscription.receive(wait=60)
        view = message.view
    del message
    mq.close()
    shmq_broker.stop()
    assert bytes(view) == b"42 apples"


def test_numpy_sees_the_body_without_a_copy(mq: shmq.Connection, topic: str, group: str) -> None:
    numpy = pytest.importorskip("numpy")
    with mq.reserve(topic, 8 * 1000) as slot:
        numpy.frombuffer(slot.view, numpy.int64)[:] = numpy.arange(1000)
    with mq.subscribe(topic, group=group) as subscription:
        (message,) = subscription.receive(wait=60)
        with message:
            array = numpy.frombuffer(message.view, numpy.int64)
            assert not array.flags.owndata
            assert not array.flags.writeable
            assert int(array.sum()) == 499_500
    del message
    assert int(array[999]) == 999


def test_a_consumer_without_a_queue_says_why_once(
    shmq_shared_broker: SharedBroker,
    mq: shmq.Connection,
    group: str,
    caplog: pytest.LogCaptureFixture,
    eventually: Eventually,
) -> None:
    topic = shmq_shared_broker.named("narrow")
    mq.admin.create_topic(topic, queues=1)
    with shmq_shared_broker.connect() as other, mq.subscribe(topic, group=group) as one:
        two = other.subscribe(topic, group=group)
        loser = eventually(lambda: (other if one.queues else mq) if bool(one.queues) != bool(two.queues) else None)
        with caplog.at_level(logging.WARNING, "shmq"):
            advance(loser, options.ASSIGNMENT_WARNING_AFTER)
            eventually(lambda: "2 members for 1 queues" in caplog.text)
            advance(loser, options.ASSIGNMENT_WARNING_AFTER + options.REBALANCE_INTERVAL)
        assert topic in caplog.text
        assert caplog.text.count("has no queue") == 1


def test_a_thread_that_waits_in_receive_is_let_go_when_the_subscription_is_closed(
    mq: shmq.Connection, topic: str, group: str, eventually: Eventually
) -> None:
    subscription = mq.subscribe(topic, group=group)
    answers: list[Any] = []
    thread = threading.Thread(target=lambda: answers.append(subscription.receive(wait=600)))
    thread.start()
    store = mq._live().wire.store
    clients = StoreFigures(store).clients
    eventually(lambda: any(slot == store.client_slot and state == 2 for slot, state, *_ in clients()))  # asleep
    subscription.close()
    thread.join(60)
    assert answers == [[]]
