"""Real brokers of one name that elect their master over a real etcd."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import shmq
from shmq.shm.links import LEADS, Links, read_links
from shmq.testing import Broker
from tests.deadline import eventually
from tests.ha.etcd.server import EtcdServer
from tests.ha.test_switch import fixed


class Group:
    """The brokers, by their place in the list; each keeps its store and ports while it is dead."""

    def __init__(self, etcd: EtcdServer, count: int, *, sync: bool, **settings: Any) -> None:
        role = "sync-master" if sync else "master"
        self.brokers = [
            Broker(name="elected", etcd=etcd.endpoint, role=role, slave_id=number, **fixed(), **settings)
            for number in ([1, 1] if count == 2 else range(1, count + 1))
        ]

    def leader(self, *, besides: Broker | None = None) -> Broker:
        """Wait until one of them leads, and says so."""

        def find() -> Broker | None:
            for broker in self.brokers:
                if broker is not besides and leads(broker):
                    return broker
            return None

        found: Broker = eventually(find, self.told)
        return found

    def newest(self) -> Broker | None:
        """The broker that says that it leads in the newest epoch, if any: a dead one goes on saying so."""
        leading = [broker for broker in self.brokers if leads(broker)]
        return max(leading, key=_epoch_of, default=None)

    def wait_for_set(self, count: int) -> Broker:
        """Wait until so many are in sync; return the leader. What a dead process has written is of an older epoch."""

        def find() -> Broker | None:
            rows = {broker: links for broker in self.brokers if (links := links_of(broker)) is not None}
            epoch = max((links.epoch for links in rows.values()), default=0)
            for broker, links in rows.items():
                if links.election is not None and links.election.role == "leading" and links.epoch == epoch:
                    return broker if len(links.election.in_sync.split()) == count else None
            return None

        found: Broker = eventually(find, self.told)
        return found

    def wait_for_epoch(self, epoch: int) -> Broker:
        """Wait until one of them leads in an epoch or a later one; return it."""

        def find() -> Broker | None:
            for broker in self.brokers:
                links = links_of(broker)
                election = links.election if links is not None else None
                if links is not None and election is not None and election.role == "leading" and links.epoch >= epoch:
                    return broker
            return None

        found: Broker = eventually(find, self.told)
        return found

    def other(self, broker: Broker) -> Broker:
        [other] = [each for each in self.brokers if each is not broker]
        return other

    def told(self) -> str:
        return "\n".join(f"{links_of(broker)}\n{broker.log[-3000:]}" for broker in self.brokers)


def links_of(broker: Broker) -> Links | None:
    return read_links(broker.place.links_path)


def _epoch_of(broker: Broker) -> int:
    links = links_of(broker)
    return links.epoch if links is not None else 0


def leads(broker: Broker) -> bool:
    """Whether a broker says that it takes messages."""
    links = links_of(broker)
    return links is not None and links.standing == LEADS and links.role != "slave"


@contextlib.contextmanager
def group_of(folder: Path, count: int, *, sync: bool, **settings: Any) -> Iterator[tuple[Group, EtcdServer]]:
    """Brokers that run, and their etcd."""
    etcd = EtcdServer(folder / "etcd")
    etcd.start()
    try:
        group = Group(etcd, count, sync=sync, **settings)
        with contextlib.ExitStack() as running:
            for broker in group.brokers:
                running.enter_context(broker)
            yield group, etcd
    finally:
        etcd.stop()


def acknowledged(broker: Broker, bodies: range) -> list[int]:
    """Send all of them, each until it is acknowledged; its bridge may start again just now."""
    stored: list[int] = []

    def stores_more() -> bool:
        try:
            with broker.connect() as mq:
                producer = mq.producer()
                for number in bodies[len(stored) :]:
                    producer.send("orders", b"%d" % number)
                    stored.append(number)
        except (shmq.BrokerNotRunning, shmq.NotMaster, shmq.ReadOnlyStore):
            return False
        return True

    eventually(stores_more, lambda: broker.log[-3000:])
    return stored
