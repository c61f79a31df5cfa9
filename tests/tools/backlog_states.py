"""Groups that are behind in every way a group can be, made on a living broker, and what each should show."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import shmq
from shmq.shm.core import KeeperStore
from shmq.testing import Broker
from tests.tools.shell import until

STORED = 100


class State(NamedTuple):
    """What is so about one group; its topic has its name. `lost`: deleted before it was read."""

    group: str
    waiting: int
    popped: int = 0
    lost: int = 0

    @property
    def lag(self) -> int:
        return self.waiting + self.popped

    @property
    def offsets_difference(self) -> int:
        """What RocketMQ's tools make of the offsets."""
        return self.waiting + self.lost


class States:
    """All of them; pops stay in hand until `close`."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._mq = broker.connect()
        makers: tuple[Callable[[], State], ...] = (
            self._plain,
            self._caught_up,
            self._empty,
            self._cleaned,
            self._never_committed,
            self._popped,
            self._popped_and_cleaned,
        )
        self.all = [make() for make in makers]
        popped = {state.group: state.popped for state in self.all}
        until(lambda: all(self._in_flight(group) == count for group, count in popped.items()), "the broker to tell")

    def close(self) -> None:
        """Let go of everything."""
        self._mq.close()

    def _in_flight(self, group: str) -> int:
        return sum(entry.in_flight for entry in self._mq.admin.groups[group].lag.offsets)

    def _topic(self, name: str, count: int, *, queues: int = 1) -> None:
        self._mq.admin.create_topic(name, queues=1)
        self._mq.subscribe(name, group=name).close()  # mqadmin wants the group's retry topic
        if queues > 1:
            self._mq.admin.update_topic(name, queues=queues)
        if count:
            self._mq.send_batch(name, [b"x"] * count, queue_id=0)

    def _commit(self, name: str, offset: int) -> None:
        with self._mq.pull_consumer(name) as consumer:
            consumer.commit(name, offsets={0: offset})

    def _clean(self, topic: str, begin: int) -> None:
        """Play retention for queue 0."""
        store = self._mq._live().wire.store
        KeeperStore(store).set_offset_min(store.topic(store.topic_find(topic))["queues"][0], begin)

    def _pop(self, name: str, count: int, settled: int) -> None:
        consumer = self._mq.simple_consumer(name, group=name, invisible=600)
        held: list[shmq.Message] = []
        while len(held) < count:
            held += consumer.receive(max=count - len(held), wait=5)
        for message in held[:settled]:
            message.ack()

    def _plain(self) -> State:
        self._topic("plain", STORED)
        self._commit("plain", 40)
        return State("plain", 60)

    def _caught_up(self) -> State:
        self._topic("caught-up", STORED)
        self._commit("caught-up", STORED)
        return State("caught-up", 0)

    def _empty(self) -> State:
        self._topic("empty", 0)
        self._commit("empty", 0)
        return State("empty", 0)

    def _cleaned(self) -> State:
        self._topic("cleaned", STORED)
        self._commit("cleaned", 10)
        self._clean("cleaned", 50)
        return State("cleaned", 50, lost=40)

    def _never_committed(self) -> State:
        """Queue 1 has a place for the group's offset, in which nothing was ever written."""
        self._topic("never", 20, queues=2)
        self._mq.send_batch("never", [b"x"] * 7, queue_id=1)
        self._commit("never", 5)
        offsets = {entry.queue_id: entry.committed for entry in self._mq.admin.groups["never"].offsets}
        assert offsets == {0: 5, 1: -1}
        return State("never", 15 + 7)

    def _popped(self) -> State:
        self._topic("popped", STORED)
        self._pop("popped", 8, settled=3)
        return State("popped", STORED - 8, popped=5)

    def _popped_and_cleaned(self) -> State:
        self._topic("popped-cleaned", STORED)
        self._pop("popped-cleaned", 10, settled=7)
        self._clean("popped-cleaned", 50)
        return State("popped-cleaned", 50, popped=3, lost=40)
