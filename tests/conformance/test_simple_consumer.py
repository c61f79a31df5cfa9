"""Take, work, settle: the same through shared memory and over TCP; on both ways the broker hides messages."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

import shmq
from shmq.client.pop.reader import PopReader
from shmq.errors import LeaseExpired
from shmq.testing import Broker
from tests.deadline import attempts, eventually

Named = Callable[[str], str]


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    """The broker of this file: nothing but `advance` moves the clock by which messages are hidden."""
    with Broker(tcp=True, clock="frozen", timeout=90.0) as broker:
        yield broker


def take(consumer: Any, count: int) -> list[Any]:
    """Receive until so many have come."""
    found: list[Any] = []
    for _ in attempts(pause=0.0):
        found += consumer.receive(max=count - len(found), wait=0.5)
        if len(found) == count:
            return found
    raise AssertionError(f"{len(found)} of {count} messages came")


@pytest.fixture
def topic(mq: shmq.Connection, named: Named) -> str:
    topic = named("orders")
    mq.send_batch(topic, [b"%d" % number for number in range(5)])
    return topic


def test_the_broker_hides_messages_unless_the_process_is_to(mq: shmq.Connection, topic: str, named: Named) -> None:
    with mq.simple_consumer(topic, group=named("group")) as consumer:
        assert isinstance(consumer._source, PopReader)
        assert consumer._reader is None and consumer.queues, "it sees every queue, and reads none itself"
    with mq.simple_consumer(topic, group=named("other"), hidden_by="process", invisible=1) as consumer:
        assert consumer._reader is consumer._source and not isinstance(consumer._source, PopReader)
        assert {message.attempt for message in take(consumer, 5)} == {1}
        again = take(consumer, 5)
        assert {message.attempt for message in again} == {2}
        for message in again:
            message.ack()


def test_an_unknown_hidden_by_is_refused(mq: shmq.Connection, named: Named) -> None:
    with pytest.raises(shmq.UsageError, match="hidden_by='me'"):
        mq.simple_consumer(named("orders"), group=named("group"), hidden_by="me")  # type: ignore[arg-type]


def test_messages_are_taken_and_settled(broker: Broker, mq: shmq.Connection, topic: str, named: Named) -> None:
    group = named("group")
    with mq.simple_consumer(topic, group=group) as consumer:
        messages = take(consumer, 5)
        assert sorted(message.body for message in messages) == [b"0", b"1", b"2", b"3", b"4"]
        assert {message.attempt for message in messages} == {1}
        for message in messages:
            message.ack()
        broker.advance(61)
        assert consumer.receive() == []
    with mq.simple_consumer(topic, group=group) as consumer:
        assert consumer.receive() == []


def test_nothing_is_an_empty_list_at_its_time(mq: shmq.Connection, named: Named) -> None:
    with mq.simple_consumer(named("empty"), group=named("group")) as consumer:
        assert consumer.receive() == []
        assert consumer.receive(wait=0.2) == []


def test_a_wait_ends_with_the_first_message(mq: shmq.Connection, named: Named) -> None:
    topic = named("later")
    mq.send(topic, b"first")
    with mq.simple_consumer(topic, group=named("group")) as consumer:
        take(consumer, 1)[0].ack()
        pending = mq.producer().send_nowait(topic, b"second")
        assert [message.body for message in consumer.receive(wait=60)] == [b"second"]
        pending.result(60)


def test_what_is_not_settled_comes_again_with_an_attempt_more(
    broker: Broker, mq: shmq.Connection, topic: str, named: Named
) -> None:
    with mq.simple_consumer(topic, group=named("group"), invisible=60) as consumer:
        first = take(consumer, 5)
        for message in first[1:]:
            message.ack()
        broker.advance(59)
        assert consumer.receive() == [], "it is early"
        broker.advance(1.001)
        (again,) = take(consumer, 1)
        assert (again.body, again.attempt, again.topic) == (first[0].body, 2, topic)
        again.ack()
        broker.advance(61)
        assert consumer.receive() == []


def test_what_is_given_back_comes_again_after_its_time(
    broker: Broker, mq: shmq.Connection, topic: str, named: Named
) -> None:
    with mq.simple_consumer(topic, group=named("group"), invisible=60) as consumer:
        first = take(consumer, 5)
        for message in first[1:]:
            message.ack()
        first[0].nack(after=30)
        broker.advance(29)
        assert consumer.receive() == [], "it is early"
        broker.advance(1.001)
        (again,) = take(consumer, 1)
        assert (again.body, again.attempt) == (first[0].body, 2)
        again.ack()


def test_what_a_broker_cannot_hide_so_long_is_refused_and_stays_in_hand(mq: shmq.Connection, named: Named) -> None:
    topic = named("orders")
    mq.send(topic, b"x")
    with mq.simple_consumer(topic, group=named("group")) as consumer:
        (message,) = take(consumer, 1)
        with pytest.raises(shmq.UsageError, match="come again in 50000 s"):
            message.nack(after=50_000)
        assert not message.settled
        message.ack()


def test_an_extended_message_is_hidden_as_long_and_still_settled(
    broker: Broker, mq: shmq.Connection, topic: str, named: Named
) -> None:
    with mq.simple_consumer(topic, group=named("group"), invisible=60) as consumer:
        messages = take(consumer, 5)
        for message in messages:
            message.extend(600)
        broker.advance(500)
        assert consumer.receive() == []
        for message in messages:
            message.ack()
        broker.advance(500)
        assert consumer.receive() == []


def test_members_share_messages_and_none_is_seen_twice(
    mq: shmq.Connection, connect: Callable[..., shmq.Connection], topic: str, named: Named
) -> None:
    group = named("group")
    other = connect()
    with mq.simple_consumer(topic, group=group) as one, other.simple_consumer(topic, group=group) as two:
        mq.send_batch(topic, [b"more-%d" % number for number in range(20)])
        found: list[bytes] = []
        for _ in attempts(pause=0.0):
            if len(found) == 25:
                break
            for consumer in (one, two):
                for message in consumer.receive(max=4, wait=0.2):
                    found.append(message.body)
                    message.ack()
        assert len(found) == len(set(found)) == 25


def test_a_closed_consumer_leaves_its_messages_to_others_at_once(mq: shmq.Connection, topic: str, named: Named) -> None:
    group = named("group")
    with mq.simple_consumer(topic, group=group, invisible=60) as consumer:
        assert len(take(consumer, 5)) == 5
    with mq.simple_consumer(topic, group=group, invisible=60) as consumer:
        messages = take(consumer, 5)
        assert len(messages) == 5
        for message in messages:
            message.ack()


def test_what_fails_too_often_is_a_dead_letter(mq: shmq.Connection, topic: str, named: Named) -> None:
    group = named("group")
    with mq.simple_consumer(topic, group=group, attempts_max=2, tags=None) as consumer:
        (first, *rest) = take(consumer, 5)
        for message in rest:
            message.ack()
        first.nack(after=0)
        (again,) = take(consumer, 1)
        again.nack(after=0)
        assert consumer.receive() == []
        letters = eventually(lambda: mq.admin.dlq(group) or consumer.receive(wait=0.05))
        assert [letter.body for letter in letters] == [first.body]


def test_a_new_group_begins_at_its_start_option(mq: shmq.Connection, topic: str, named: Named) -> None:
    with mq.simple_consumer(topic, group=named("group"), start="end") as consumer:
        assert consumer.receive() == []
        mq.send(topic, b"new")
        assert [message.body for message in take(consumer, 1)] == [b"new"]
    with mq.simple_consumer(topic, group=named("hour"), start="-1h") as consumer:
        assert len(take(consumer, 6)) == 6


def test_more_than_one_answer_holds_can_be_received_at_once(mq: shmq.Connection, named: Named) -> None:
    topic = named("many")
    mq.send_batch(topic, [b"x"] * 100)
    with mq.simple_consumer(topic, group=named("group")) as consumer:
        assert len(take(consumer, 100)) == 100


@pytest.mark.parametrize("invisible", [0, -1, 50_000])
def test_an_invisible_time_that_is_not_possible_is_refused(mq: shmq.Connection, named: Named, invisible: float) -> None:
    with pytest.raises(shmq.UsageError, match="invisible time"):
        mq.simple_consumer(named("orders"), group=named("group"), invisible=invisible)


def test_extending_too_late_is_an_error_as_others_may_have_the_message(
    broker: Broker, mq: shmq.Connection, named: Named
) -> None:
    topic = named("orders")
    mq.send_batch(topic, [b"x"] * 2)
    with mq.simple_consumer(topic, group=named("group"), invisible=60) as consumer:
        messages = take(consumer, 2)
        broker.advance(60.001)
        take(consumer, 2)
        with pytest.raises(LeaseExpired, match="is over"):
            messages[0].extend(10)


def test_a_message_that_came_too_often_without_a_receive_is_a_dead_letter(
    broker: Broker, mq: shmq.Connection, named: Named
) -> None:
    topic, group = named("orders"), named("group")
    mq.send(topic, b"poison")
    with mq.simple_consumer(topic, group=group, invisible=60, attempts_max=2) as consumer:
        for attempt in (1, 2):
            assert [message.attempt for message in take(consumer, 1)] == [attempt]
            broker.advance(60.001)
        letters = eventually(lambda: consumer.receive(wait=0.05) or mq.admin.dlq(group))
        assert [letter.body for letter in letters] == [b"poison"]


def test_what_is_received_keeps_its_place_in_the_log(mq: shmq.Connection, named: Named) -> None:
    topic = named("orders")
    receipts = [mq.send(topic, b"%d" % number, tag="t", key=f"k{number}", properties={"a": "b"}) for number in range(3)]
    with mq.simple_consumer(topic, group=named("group"), tags="t") as consumer:
        found = {message.body: message for message in take(consumer, 3)}
    for number, receipt in enumerate(receipts):
        message = found[b"%d" % number]
        assert (message.queue_id, message.offset) == (receipt.queue_id, receipt.offset)
        assert message.log_position == receipt.log_position or mq.is_remote
        assert (message.tag, message.key, message.properties["a"]) == ("t", f"k{number}", "b")
        assert bytes(message.view) == message.body


def test_what_comes_again_lies_in_a_topic_of_group_and_topic_that_is_read_like_others(
    mq: shmq.Connection, topic: str, named: Named
) -> None:
    group = named("group")
    name = f"%RETRY%{group}+{topic}"
    with mq.simple_consumer(topic, group=group) as consumer:
        for message in take(consumer, 5):
            message.nack(after=0)
        again = sorted(message.body for message in take(consumer, 5))
        assert name in mq.admin.topics
        assert sorted(message.body for message in mq.browse(name)) == again
        with mq.pull_consumer(name) as reader:
            found: list[bytes] = []
            for _ in attempts(pause=0.0):
                found += [message.body for message in reader.poll(8, 0.5)]
                if len(found) == 5:
                    break
        assert sorted(found) == again
    mq.admin.delete_topic(topic)
    assert eventually(lambda: name not in mq.admin.topics)
