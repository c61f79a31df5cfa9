"""A topic may say for itself when its messages count: once they are stored, or once they are on disk.

The keeper is stopped where nothing may be flushed behind the test's back.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import shmq
from shmq.testing import Broker
from tests.conformance.conftest import Named
from tests.supervisor.stopped import stopped

Eventually = Callable[..., Any]


@pytest.fixture(params=["shm", "tcp"])
def mq(request: pytest.FixtureRequest, broker: Broker) -> Iterator[shmq.Connection]:
    url = broker.url if request.param == "shm" else f"rocketmq://{broker.name_server}"
    with shmq.connect(url, timeout=60) as connection:
        yield connection


@pytest.fixture(scope="module")
def broker(request: pytest.FixtureRequest) -> Iterator[Broker]:
    # A flush of its own comes once a minute: what is durable sooner, a sender has waited for.
    with Broker(tcp=True, flush=getattr(request, "param", "async"), flush_interval_ms=60_000) as broker:
        yield broker


@pytest.fixture
def ledger(broker: Broker, named: Named) -> str:
    """A topic whose messages count once they are on disk."""
    create(broker, named("ledger"), "sync")
    return named("ledger")


def create(broker: Broker, topic: str, flush: str) -> None:
    with broker.connect() as local:
        local._local().wire.control.create_topic(topic, queues=1, flush=flush)


def durable_end(broker: Broker) -> int:
    with broker.connect() as local:
        return int(local._local().wire.store.durable_end)


def log_end(broker: Broker) -> int:
    with broker.connect() as local:
        return int(local._local().wire.store.log_end)


def test_a_send_to_a_synchronous_topic_returns_when_it_is_on_disk(
    mq: shmq.Connection, broker: Broker, ledger: str
) -> None:
    receipt = mq.send(ledger, b"booked")
    with broker.connect() as local:
        store = local._local().wire.store
        message = next(iter(local.browse(ledger, queue_id=0, offset=receipt.offset)))
        assert message.log_position + message.record_bytes <= store.durable_end


def test_a_batch_too(mq: shmq.Connection, broker: Broker, ledger: str) -> None:
    receipts = mq.send_batch(ledger, [b"a", b"b", b"c"])
    assert len(receipts) == 3 and durable_end(broker) == log_end(broker)


@pytest.mark.parametrize("how", ["delayed", "compressed", "transaction", "reserved"])
def test_every_other_way_to_send_waits_for_the_disk_too(broker: Broker, ledger: str, how: str) -> None:
    with broker.connect() as mq:
        if how == "delayed":
            mq.send(ledger, b"later", delay=600)
        elif how == "compressed":
            with mq.producer(compression="zlib") as producer:
                producer.send(ledger, bytes(100_000))
        elif how == "transaction":
            with mq.producer(group="books") as producer, producer.transaction(ledger, b"booked"):
                pass
        else:
            with mq.producer() as producer, producer.reserve(ledger, 100) as slot:
                slot.view[:] = bytes(100)
        store = mq._local().wire.store
        assert store.durable_end == store.log_end


def test_other_topics_of_an_asynchronous_broker_do_not_wait(
    mq: shmq.Connection, broker: Broker, ledger: str, named: Named
) -> None:
    mq.admin.create_topic(named("clicks"), queues=1)
    mq.send(ledger, b"booked")
    with stopped(broker, "keeper"):
        before = durable_end(broker)
        mq.send(named("clicks"), b"x")
        assert durable_end(broker) == before < log_end(broker)


def test_what_is_not_on_disk_of_a_synchronous_topic_is_invisible(
    broker: Broker, ledger: str, named: Named, eventually: Eventually
) -> None:
    with broker.connect() as mq, shmq.connect(f"rocketmq://{broker.name_server}", timeout=60) as remote:
        mq.send(ledger, b"first")
        with (
            mq.subscribe(ledger, group=named("local"), start="begin") as near,
            remote.subscribe(ledger, group=named("remote"), start="begin") as far,
        ):
            assert [message.body for message in near.receive(wait=60)] == [b"first"]
            assert [message.body for message in far.receive(wait=60)] == [b"first"]
            got: dict[int, list[bytes]] = {0: [], 1: []}

            def read(number: int) -> None:
                got[number] += [message.body for message in (near, far)[number].receive(wait=60)]

            with stopped(broker, "keeper"):
                mq.send_oneway(ledger, b"second")
                assert near.receive() == [] and far.receive() == []
                reading = [threading.Thread(target=read, args=(number,)) for number in got]
                for thread in reading:
                    thread.start()
            for thread in reading:
                thread.join()
            assert got == {0: [b"second"], 1: [b"second"]}


@pytest.mark.parametrize("broker", ["sync"], indirect=True)
def test_an_asynchronous_topic_of_a_synchronous_broker_does_not_wait(broker: Broker) -> None:
    create(broker, "clicks", "async")
    with broker.connect() as mq:
        mq.send("clicks", b"warm")
        with mq.subscribe("clicks", group="near", start="begin") as near:
            assert [message.body for message in near.receive(wait=60)] == [b"warm"]
            with stopped(broker, "keeper"):
                mq.send("clicks", b"x")
                assert [message.body for message in near.receive(wait=60)] == [b"x"]


def test_the_flush_of_a_topic_outlives_the_broker_and_a_change_of_its_queues(broker: Broker, ledger: str) -> None:
    broker.restart()  # in order: the segments are new
    with broker.connect() as mq:
        control, store = mq._local().wire.control, mq._local().wire.store
        control.create_topic(ledger, queues=3)
        assert store.topic(store.topic_find(ledger))["flush"] == 2
        mq.send(ledger, b"booked", queue_id=2)
        assert store.durable_end == store.log_end
        control.create_topic(ledger, queues=3, flush="broker")
        assert store.topic(store.topic_find(ledger))["flush"] == 0
