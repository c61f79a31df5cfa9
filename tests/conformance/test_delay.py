"""Delayed messages: levels, any time, and taking them back; the same on both transports.

The broker's clock is moved, and nothing is judged by how long it took: the store time says when a copy was delivered.
"""

from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

import shmq
from shmq.testing import Broker
from tests.conformance.conftest import QUEUES, Named, url_of

Eventually = Callable[..., Any]
SECONDS = [1, 5, 10, 30, *(60 * minutes for minutes in range(1, 11)), 1200, 1800, 3600, 7200]


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    """A broker whose clock the tests of this file move."""
    with Broker(tcp=True, timeout=90.0) as broker:
        yield broker


def bodies(mq: shmq.Connection, topic: str) -> list[bytes]:
    return [message.body for message in mq.browse(topic)]


def waiting_in(mq: shmq.Connection, topic: str, place: str) -> list[shmq.Message]:
    """What waits, or has waited, in a topic of the broker's for this topic."""
    found = mq.browse(place, limit=10_000)
    return [message for message in found if message.properties.get("REAL_TOPIC") == topic]


@pytest.mark.slow
def test_each_level_waits_its_time_and_keeps_its_order(
    broker: Broker, mq: shmq.Connection, topic: str, eventually: Eventually
) -> None:
    for number in range(2):
        for level in range(1, 19):
            mq.send(topic, b"%d-%d" % (level, number), delay_level=level, tag="t", key="k", properties={"a": "b"})
    passed = 0
    for level in (1, 4, 10, 18):  # what is due at once differs in its store time
        broker.advance(SECONDS[level - 1] - passed)
        passed = SECONDS[level - 1]
        wanted = {b"%d-%d" % (each, number) for each in range(1, level + 1) for number in range(2)}
        eventually(lambda wanted=wanted: wanted <= set(bodies(mq, topic)))
    with broker.connect() as local:
        since = {message.body: message for message in waiting_in(local, topic, "SCHEDULE_TOPIC_XXXX")}
    came = mq.browse(topic)
    assert len(came) == 36, "each once"
    for message in came:
        level, number = map(int, message.body.split(b"-"))
        assert since[message.body].queue_id == level - 1
        assert message.store_ms - since[message.body].store_ms >= SECONDS[level - 1] * 1000, "never early"
        assert (message.tag, message.key, message.properties["a"]) == ("t", "k", "b")
        if number:
            (first,) = (other for other in came if other.body == b"%d-0" % level)
            assert first.store_ms <= message.store_ms


def test_level_0_is_no_delay_and_one_above_the_highest_is_the_highest(
    broker: Broker, mq: shmq.Connection, topic: str, eventually: Eventually
) -> None:
    mq.send(topic, b"at once", delay_level=0)
    mq.send(topic, b"late", delay_level=99)
    assert bodies(mq, topic) == [b"at once"]
    with broker.connect() as local:
        (waits,) = waiting_in(local, topic, "SCHEDULE_TOPIC_XXXX")
    assert waits.queue_id == 17, "two hours"
    broker.advance(SECONDS[-1])
    eventually(lambda: bodies(mq, topic) == [b"at once", b"late"])


@pytest.mark.slow
def test_messages_for_any_time_outlive_a_killed_broker_and_are_not_early(
    transport: str, eventually: Eventually
) -> None:
    hours = 71
    with Broker(tcp=True, timeout=90.0) as own:  # a killed broker forgets how far its clock was moved
        with shmq.connect(url_of(own, transport), timeout=60.0) as mq:
            mq.admin.create_topic("orders", queues=QUEUES)
            moment = datetime.now(UTC) + timedelta(hours=hours)
            mq.send("orders", b"at", queue_id=2, deliver_at=moment)
            mq.send("orders", b"after", queue_id=1, delay=timedelta(hours=hours))
        own.kill_daemon()
        own.start()
        with shmq.connect(url_of(own, transport), timeout=60.0) as mq:
            assert bodies(mq, "orders") == []
            own.advance(hours * 3600)
            found = eventually(lambda: len(found := mq.browse("orders")) == 2 and found)
            assert {(message.body, message.queue_id) for message in found} == {(b"at", 2), (b"after", 1)}
            assert min(message.store_ms for message in found) >= moment.timestamp() * 1000


def test_what_was_taken_back_never_comes_and_what_is_over_cannot_be(
    broker: Broker, mq: shmq.Connection, topic: str, eventually: Eventually
) -> None:
    day = 86_400  # more than the other tests have moved the clock: what is over at the broker cannot be taken back
    never = mq.send(topic, b"never", delay=day)
    keep = mq.send(topic, b"keep", delay=day)
    mq.recall(never)
    mq.send(topic, b"last", delay=day + 2)
    broker.advance(day + 2)
    eventually(lambda: set(bodies(mq, topic)) == {b"keep", b"last"})
    with pytest.raises(shmq.ShmqError):
        mq.recall(keep)


def test_a_delayed_message_reaches_a_group_like_any_other(
    broker: Broker, mq: shmq.Connection, topic: str, named: Named, eventually: Eventually
) -> None:
    with mq.subscribe(topic, group=named("billing")) as subscription:
        eventually(lambda: subscription.queues)
        mq.send(topic, b"x", delay_level=4, message_group="g")
        assert subscription.receive(1, 0.05) == []
        broker.advance(30)
        (message,) = eventually(lambda: subscription.receive(1, 0.5))
        assert (message.body, message.message_group, message.attempt) == (b"x", "g", 1)
        message.ack()
