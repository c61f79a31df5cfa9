"""Popped messages through kills of the bridge and of all processes: receipts count, what is late comes again once."""

import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

import shmq
from shmq.client.pop.reader import PopReader
from shmq.message import retry_topic_of
from shmq.testing import Broker
from tests.bridge.live_bridge import DEADLINE, wait_until
from tests.bridge.test_delays_survive import is_served, kill_bridge, kill_everything

Kill = Callable[[Broker], Any]
COUNT = 200
TRANSPORTS = ("shm", "tcp")
HELD = 60.0  # seconds; longer than a test


def url_of(broker: Broker, transport: str) -> str:
    return broker.url if transport == "shm" else f"rocketmq://{broker.name_server}"


def take(consumer: Any, count: int) -> list[Any]:
    found: list[Any] = []
    until = time.monotonic() + DEADLINE
    while len(found) < count and time.monotonic() < until:
        found += consumer.receive(max=count - len(found), wait=1.0)
    assert len(found) == count, f"{len(found)} messages came"
    return found


def stored(broker: Broker, topic: str) -> Counter[bytes]:
    """What is in a topic, and how often; nothing while it does not exist."""
    found: Counter[bytes] = Counter()
    with broker.connect() as mq:
        if topic in mq.admin.topics:
            with mq.pull_consumer(topic) as consumer:
                while messages := consumer.poll(64, 0.2):
                    found.update(bytes(message.body) for message in messages)
    return found


@pytest.mark.slow
@pytest.mark.parametrize("transport", TRANSPORTS)
def test_killed_between_pop_and_ack_the_receipt_still_counts(transport: str) -> None:
    with Broker(tcp=True) as broker, shmq.connect(url_of(broker, transport), timeout=60.0) as mq:
        mq.send_batch("orders", [b"%d" % number for number in range(10)])
        with mq.simple_consumer("orders", group="g", invisible=HELD) as consumer:
            messages = take(consumer, 10)
            kill_bridge(broker)
            wait_until(lambda: is_served(broker), "the bridge is back")
            for message in messages[1:]:
                message.ack()
            # Given back with a receipt from before the kill; were it not known, nothing would come.
            messages[0].nack(after=0)
            (again,) = take(consumer, 1)
            assert (again.body, again.attempt) == (messages[0].body, 2)
            again.ack()
            assert consumer.receive(wait=1.0) == []
        assert stored(broker, retry_topic_of("g", "orders")) == {messages[0].body: 1}


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("kill", [kill_bridge, kill_everything])
def test_killed_after_the_ack_a_message_never_comes_again(kill: Kill, transport: str) -> None:
    with Broker(tcp=True, clock="frozen") as broker:
        with shmq.connect(url_of(broker, transport)) as mq:
            mq.send_batch("orders", [b"%d" % number for number in range(10)])
            consumer = mq.simple_consumer("orders", group="g", invisible=HELD)
            *acknowledged, last = take(consumer, 10)
            for message in acknowledged:
                message.ack()
            assert isinstance(consumer._source, PopReader)
            consumer._source._leases.clear()  # this process has forgotten the last one, as one that was killed
        kill(broker)
        wait_until(lambda: is_served(broker), "the bridge is back")
        broker.advance(HELD + 1)
        with shmq.connect(url_of(broker, transport)) as mq, mq.simple_consumer("orders", group="g") as consumer:
            (again,) = take(consumer, 1)  # they were due together
            assert again.body == last.body
            assert consumer.receive() == []


@pytest.mark.slow
@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("kill", [kill_bridge, kill_everything])
def test_killed_while_messages_come_again_every_one_comes_once(kill: Kill, transport: str) -> None:
    with Broker(tcp=True) as broker:
        with broker.connect() as mq:
            mq.admin.create_topic("orders", queues=4)
            for start in range(0, COUNT, 50):
                mq.send_batch("orders", [b"%d" % number for number in range(start, start + 50)])
        with shmq.connect(url_of(broker, transport), timeout=60.0) as mq:
            consumer = mq.simple_consumer("orders", group="g", invisible=3)
            due = time.monotonic() + 3.0
            take(consumer, COUNT)
            assert isinstance(consumer._source, PopReader)
            consumer._source._leases.clear()  # this process has forgotten them, as one that was killed
        for turn in range(3):
            wait_until(lambda turn=turn: time.monotonic() > due + 0.3 * turn)  # type: ignore[misc]
            kill(broker)
        wait_until(lambda: is_served(broker), "the bridge is back")
        retry = retry_topic_of("g", "orders")
        wait_until(lambda: len(stored(broker, retry)) == COUNT, "all came again")
        assert set(stored(broker, retry).values()) == {1}
