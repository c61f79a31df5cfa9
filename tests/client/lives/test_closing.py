"""What a connection leaves in its process when it is closed, or goes on with the next segments: nothing.

The collector of cycles stands still: programs switch it off, and what waits for it has no bound.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

import shmq
from shmq.errors import UsageError
from shmq.testing import Broker, SharedBroker
from tests.deadline import eventually


@pytest.fixture(autouse=True)
def no_collection() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def held(store: Path) -> list[str]:
    """What this process has of segments of any broker, and of a store's log: descriptors and mappings."""
    targets = [
        os.readlink(path).removesuffix(" (deleted)") for path in Path("/proc/self/fd").iterdir() if path.is_symlink()
    ]
    mapped = [line.split()[5] for line in Path("/proc/self/maps").read_text().splitlines() if "/" in line]
    return sorted(name for name in targets + mapped if name.startswith(("/dev/shm/shmq.", str(store))))


def used(broker: Broker | SharedBroker, topic: str) -> shmq.Connection:
    """A connection that has done of everything."""
    mq = broker.connect()
    mq.send(topic, b"x")
    mq.producer(group="writers").send(topic, b"y")
    subscription = mq.subscribe(topic, group=f"{topic}-readers", start="first")
    next(iter(subscription)).ack()
    mq.pull_consumer(topic).poll(10, wait=1.0)
    mq.browse(topic)
    with mq.reserve(topic, 3) as slot:
        slot.view[:] = b"abc"
    assert topic in mq.admin.topics
    return mq


def test_a_closed_connection_holds_nothing_of_the_broker(shmq_shared_broker: SharedBroker) -> None:
    topic, store = shmq_shared_broker.named("orders"), shmq_shared_broker.broker.store
    before, closed = held(store), []
    for _ in range(3):
        mq = used(shmq_shared_broker, topic)
        assert len(held(store)) > len(before)
        mq.close()
        closed.append(mq)
        assert held(store) == before


def test_a_connection_holds_the_segments_of_now_and_of_before_and_none_of_earlier_brokers() -> None:
    with Broker() as broker:
        with used(broker, "orders") as mq:
            lives = [mq._local().wire.instance]
            for _ in range(3):
                broker.restart()
                eventually(lambda: mq._local().wire.instance.generation != lives[-1].generation)
                lives.append(mq._local().wire.instance)
            earlier = {f"/dev/shm{name}" for life in lives[:-2] for name in life.segments}
            eventually(lambda: not earlier & set(held(broker.store)), lambda: f"{held(broker.store)} of {lives}")
        names = {f"/dev/shm{name}" for life in lives for name in life.segments}
        left = [name for name in held(broker.store) if name in names or name.startswith(str(broker.store))]
        assert left == []


def test_a_send_that_was_kept_says_that_its_connection_is_closed(shmq_shared_broker: SharedBroker) -> None:
    mq, topic = shmq_shared_broker.connect(), shmq_shared_broker.named("orders")
    send, reserve = mq.send, mq.reserve
    send(topic, b"x")
    slot = reserve(topic, 3)
    slot.view[:] = b"abc"
    mq.close()
    for call in (lambda: send(topic, b"x"), lambda: reserve(topic, 3), slot.commit):
        with pytest.raises(UsageError, match="the connection to the store is closed\nhint: connect again"):
            call()
    slot.abort()
    with shmq_shared_broker.connect() as other:
        assert [message.body for message in other.browse(topic)] == [b"x"]
