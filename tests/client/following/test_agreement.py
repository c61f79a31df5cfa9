"""A copy of a queue is a part of the leader's if that has the message at its end, and no other one there."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator

import pytest

import shmq
from shmq.client.following.agreement import is_part
from shmq.protocol.dialect import MessageQueue
from shmq.testing import Broker

_serial = itertools.count()


class Hosts:
    """Two brokers of one name; each may be asked whether the other's queue is a part of its own."""

    def __init__(self, here: Broker, leader: Broker, opened: contextlib.ExitStack) -> None:
        self.here, self.leader = (opened.enter_context(each.connect()) for each in (here, leader))
        remotes = (opened.enter_context(shmq.connect(f"rocketmq://{each.name_server}")) for each in (here, leader))
        self._asked = {mq: remote._remote() for mq, remote in zip((self.here, self.leader), remotes, strict=True)}
        self._queue = MessageQueue(here.name, 0, f"orders-{next(_serial)}")

    def send(self, mq: shmq.Connection, count: int) -> None:
        for number in range(count):
            mq.send(self._queue.topic, b"%d" % number)

    def level(self) -> None:
        """Let both logs end at the same place; all their records have the same size."""

        def end(mq: shmq.Connection) -> int:
            return mq._local().wire.store.log_end

        for short, long in ((self.here, self.leader), (self.leader, self.here)):
            while end(short) < end(long):
                short.send("filler-0", b"0")
        assert end(self.here) == end(self.leader)

    def is_part(self, *, of: shmq.Connection) -> bool:
        store, asked = self.here._local().wire.store, self._asked[of]
        index = store.queue_index(store.topic_find(self._queue.topic), 0)
        return asked.wire.call(is_part(store, asked.members.questions, index, self._queue))


@pytest.fixture(scope="module")
def brokers() -> Iterator[tuple[Broker, Broker]]:
    with Broker(tcp=True, default_queues=1) as here, Broker(tcp=True, default_queues=1, name=here.name) as leader:
        yield here, leader


@pytest.fixture
def hosts(brokers: tuple[Broker, Broker]) -> Iterator[Hosts]:
    with contextlib.ExitStack() as opened:
        yield Hosts(*brokers, opened)


def test_the_same_log_is_a_part_of_itself(hosts: Hosts) -> None:
    hosts.send(hosts.here, 3)
    assert hosts.is_part(of=hosts.here)


def test_a_queue_without_messages_is_a_part_of_any(hosts: Hosts) -> None:
    hosts.here.admin.create_topic(hosts._queue.topic, queues=1)
    assert hosts.is_part(of=hosts.leader)


def test_an_end_that_the_leader_lacks_is_none(hosts: Hosts) -> None:
    hosts.send(hosts.here, 4)
    hosts.send(hosts.leader, 2)
    assert not hosts.is_part(of=hosts.leader)


def test_other_messages_of_the_same_size_in_its_place_are_not_its_end(hosts: Hosts) -> None:
    hosts.level()
    hosts.send(hosts.here, 3)
    hosts.send(hosts.leader, 4)
    assert not hosts.is_part(of=hosts.leader)
