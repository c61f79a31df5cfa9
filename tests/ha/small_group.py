"""Small brokers that are elected over a real store: a row of records for a log, and calls instead of a link."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Self

from shmq.daemon.ha.election.effects import Message
from shmq.daemon.ha.election.member import Role
from shmq.daemon.ha.election.policy import Identity, Policy
from shmq.daemon.ha.elector import Elector, Positions, now_ms
from shmq.daemon.ha.etcd.client import Etcd, EtcdOptions
from shmq.daemon.ha.in_sync import Verdict
from tests.deadline import eventually
from tests.ha.simulation.log_model import NUMBER_BITS, LogModel


class SmallBroker:
    """One of a group, and its part in the election."""

    def __init__(self, group: SmallGroup, name: str) -> None:
        self.group, self.name = group, name
        self.log = LogModel()
        self.leads = self.confirmed = self.allowed_ms = self.leader_end = 0
        self.follows = ""
        self.acknowledged: list[int] = []
        self.begun: list[int] = []  # the epochs it led
        self.refused = ""
        store = Etcd(EtcdOptions(group.endpoints), "c", "b", watch_seconds=1.0)
        self.elector = Elector(Identity(name, name), group.policy, 0, store, self)

    @property
    def may_append(self) -> bool:
        return bool(self.leads) and now_ms() < self.allowed_ms

    def append(self) -> None:
        """Store a record, if the election lets it; under asynchronous replication that is its receipt."""
        with self.group.lock:
            if self.may_append:
                self.log.records.append(self.leads << NUMBER_BITS | len(self.log.records))
                self.log.durable = self.log.end
                if not self.group.policy.is_sync:
                    self.acknowledged.append(self.log.records[-1])

    # What the elector wants

    def positions(self) -> Positions:
        with self.group.lock:
            return Positions(self.log.end, self.log.durable, self.leader_end)

    def allow(self, until_ms: int, reason: str) -> None:
        with self.group.lock:
            self.allowed_ms, self.refused = until_ms, reason

    def promote(self, epoch: int, why: str) -> None:
        with self.group.lock:
            self.follows = ""
            self.log.begin_epoch(epoch)
            self.leads = epoch
            self.begun.append(epoch)

    def follow(self, uuid: str, address: str, epoch: int) -> bool:
        self.rest("")
        self.follows = address
        return True

    def rest(self, reason: str) -> None:
        with self.group.lock:
            self.leads, self.allowed_ms, self.follows = 0, 0, ""

    def tell(self, peer: str, message: Message) -> None:
        self.group.tell(self.name, peer, message)

    def confirm(self, verdict: Verdict) -> int:
        with self.group.lock:
            end = self.log.durable if verdict.end is None else min(verdict.end, self.log.durable)
            if self.group.policy.is_sync:
                self.acknowledged += self.log.records[self.confirmed : end]
            self.confirmed = max(self.confirmed, end)
            return self.confirmed


class SmallGroup:
    """Brokers of one name, and what passes between them.

    Attributes:
        cut: whom nothing reaches.
    """

    def __init__(self, endpoints: tuple[str, ...], names: str, policy: Policy) -> None:
        self.endpoints, self.policy = endpoints, policy
        self.lock = threading.RLock()
        self.cut: set[str] = set()
        self._cuts: dict[str, tuple[str, int]] = {}
        self._is_over = threading.Event()
        self.brokers = {name: SmallBroker(self, name) for name in names}
        self._threads = ThreadPoolExecutor(len(names) + 1)

    def __enter__(self) -> Self:
        self._runs = [self._threads.submit(broker.elector.run) for broker in self.brokers.values()]
        self._runs.append(self._threads.submit(self._ship))
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        for broker in self.brokers.values():
            broker.elector.end()
        for run in self._runs:
            run.result()
        self._threads.shutdown()

    def tell(self, source: str, target: str, message: Message) -> None:
        if not self.cut & {source, target}:
            self.brokers[target].elector.hears(source, message)

    def kill(self, broker: SmallBroker) -> None:
        """No more is heard of it; what it is asked to do has no effect."""
        self.cut.add(broker.name)
        broker.elector.end()
        for other in self.brokers.values():
            if other is not broker:
                other.elector.gone(broker.name)

    def leader(self) -> SmallBroker | None:
        """The one that may append, if it is the only one."""
        able = [broker for broker in self.brokers.values() if broker.may_append and broker.name not in self.cut]
        return able[0] if len(able) == 1 else None

    def wait_for_leader(self, *, besides: str = "") -> SmallBroker:
        found: SmallBroker = eventually(
            lambda: (leader := self.leader()) is not None and leader.name not in besides and leader, self.told
        )
        return found

    def wait_for_set(self, *names: str) -> None:
        def is_so() -> bool:
            leader = self.leader()
            if leader is None:
                return False
            status = leader.elector.status()
            return status.role is Role.LEADING and status.in_sync == set(names)

        eventually(is_so, self.told)

    def told(self) -> str:
        return "; ".join(
            f"{broker.name} leads {broker.leads}, follows {broker.follows!r}, has {broker.log.end}, {broker.refused}"
            for broker in self.brokers.values()
        )

    def _ship(self) -> None:
        while not self._is_over.wait(0.01):
            for broker in self.brokers.values():
                broker.append()
            for broker in self.brokers.values():
                self._copy(broker)

    def _copy(self, follower: SmallBroker) -> None:
        with self.lock:
            leader = self.brokers.get(follower.follows)
            if leader is None or not leader.leads or self.cut & {leader.name, follower.name}:
                return
            if self._cuts.get(follower.name) != (leader.name, leader.leads):
                end = leader.log.common_end(follower.log.epochs, follower.log.end)
                follower.log.cut(end, leader.log.epochs)
                self._cuts[follower.name] = leader.name, leader.leads
                follower.elector.was_cut(leader.leads)
            follower.log.records += leader.log.records[follower.log.end :]
            follower.log.epochs = list(leader.log.epochs)
            follower.log.durable = follower.leader_end = follower.log.end
        follower.elector.was_flushed()
