"""A topic that is deleted and made again under its readers: each message of the new one reaches all of them.

The new one gets more messages than the former one had, so offsets that readers have of that lie in the middle of it.
"""

import contextlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

import shmq
from shmq.client.consumers.consumer import Consumer
from shmq.errors import ConnectError, TopicNotFound
from shmq.testing import Broker
from tests.conformance.conftest import Named
from tests.deadline import attempts

OLD = [b"old %d" % number for number in range(6)]
NEW = [b"new %d" % number for number in range(9)]


class Reader:
    """A consumer that settles nothing by itself."""

    def __init__(self, way: str, consumer: Any) -> None:
        self.way = way
        self._consumer = consumer
        self._take = consumer.poll if way.startswith("pull") else consumer.receive

    def look(self) -> None:
        """Do what a member does on a change, and while it waits."""
        with contextlib.suppress(TopicNotFound, ConnectError):
            if isinstance(self._consumer, Consumer):
                self._consumer._rebalance()
        with contextlib.suppress(TopicNotFound, ConnectError):
            self._take(1, 0.01)

    def read(self, bodies: list[bytes]) -> list[shmq.Message]:
        """Receive until these have come."""
        found: list[shmq.Message] = []
        for _ in attempts(20.0, pause=0.0):
            found += self._take(16, 0.2)
            if {message.body for message in found} >= set(bodies):
                return found
        raise AssertionError(f"{self.way}: {[message.body for message in found]} of {bodies}")


@pytest.fixture
def readers(mq: shmq.Connection, named: Named, transport: str) -> Iterator[dict[str, Reader]]:
    topic = named("orders")
    mq.admin.create_topic(topic, queues=1)
    opened: dict[str, Callable[[], Any]] = {
        "group": lambda: mq.subscribe(topic, group=named("group")),
        "broadcast": lambda: mq.subscribe(topic, model="broadcasting", start="first"),
        "broadcast of a group": lambda: mq.subscribe(topic, group=named("all"), model="broadcasting", start="first"),
        "hidden by the process": lambda: mq.simple_consumer(topic, group=named("own"), hidden_by="process"),
        "hidden by the broker": lambda: mq.simple_consumer(topic, group=named("popped")),
        "pull": lambda: mq.pull_consumer(topic),
        "pull too": lambda: mq.pull_consumer(topic),
    }
    if transport == "shm":
        del opened["broadcast"]  # of no group: on this host it looks at the queues every 20 s
    with ExitStack() as stack:
        yield {way: Reader(way, stack.enter_context(consumer())) for way, consumer in opened.items()}


def test_a_broadcasting_member_of_this_host_that_was_away_reads_all_of_the_new_topic(
    broker: Broker, named: Named
) -> None:
    topic, group = named("away"), named("all")
    with shmq.connect(broker.url) as mq:
        mq.admin.create_topic(topic, queues=1)

        def member() -> Any:
            return mq.subscribe(topic, group=group, model="broadcasting", start="first")

        mq.send_batch(topic, OLD)
        for bodies in (OLD, [b"one more"]):
            with member() as consumer:
                found = Reader("away", consumer).read(bodies)
                assert [message.body for message in found] == bodies
                for message in found:
                    message.ack()
            mq.send(topic, b"one more")
        mq.admin.delete_topic(topic)
        mq.admin.create_topic(topic, queues=1)
        mq.send_batch(topic, NEW)
        with member() as consumer:
            assert [message.body for message in Reader("away", consumer).read(NEW)] == NEW


def test_readers_of_a_topic_that_was_deleted_do_not_make_it_again(
    mq: shmq.Connection, named: Named, readers: dict[str, Reader]
) -> None:
    topic = named("orders")
    mq.send(topic, b"old")
    for reader in readers.values():
        reader.read([b"old"])
    mq.admin.delete_topic(topic)
    for reader in readers.values():
        reader.look()
        assert topic not in mq.admin.topics, reader.way


def test_every_reader_gets_all_of_the_new_topic_and_settles_none_of_it_with_the_old(
    mq: shmq.Connection, named: Named, readers: dict[str, Reader]
) -> None:
    topic = named("orders")
    mq.send_batch(topic, OLD)
    old = {way: reader.read(OLD) for way, reader in readers.items()}
    mq.admin.delete_topic(topic)
    mq.admin.create_topic(topic, queues=1)
    mq.send_batch(topic, NEW)
    for way, reader in readers.items():
        new = reader.read(NEW)
        assert [message.body for message in new] == NEW, way
        for message in [] if way.startswith("pull") else old[way]:
            message.ack()
    for name in ("group", "own"):
        offsets = [entry.committed for entry in mq.admin.groups[named(name)].offsets if entry.topic == topic]
        assert offsets in ([], [0], [-1]), name
