"""Faults of network, hosts and etcd under load: `python -m tests.ha.elected.cables --faults 50 --brokers 3 --seed 1`.

Each broker, each of the three members of the etcd, and those who connect over TCP have a network of their own. A fault
is chosen by chance, and lasts until a sender over TCP was answered again, and a little longer. The rules are those of
`switches`, but for the offsets of groups, and for delays while a clock is wrong.

    alone         the leader reaches no host           deaf, dumb    what is for the leader, or from it, is lost
    unelected     the leader does not reach etcd       lossy         30 % of all packets are lost
    split         the leader reaches no other broker   late          every packet takes 50 ms longer
    follower      a follower reaches no host           etcd          the etcd is stopped, no broker is
    member        one member of the etcd is stopped    apart         one member of the etcd reaches no other
    slow          each sync of one host takes 0.3 to 1.5 s
    clock         the wall clock of one host jumps by 20 s or an hour, forth or back, and back to where it was
    stop, die, promote                                 as in switches.py

Prints one JSON object: counts, and for how long senders over TCP had no receipt, by kind of fault.
"""

from __future__ import annotations

import contextlib
import math
import os
import random
import signal
import statistics
import sys
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from shmq import Connection
from shmq.testing import Broker
from tests.crash.disk.disk import FaultyDisk
from tests.deadline import eventually
from tests.ha.elected.group import Group
from tests.ha.elected.load import Load
from tests.ha.elected.rules import check_all
from tests.ha.elected.runs import check_logs, make_topics, run_as_told, wait_for_rest
from tests.ha.etcd.server import EtcdServer
from tests.ha.faults.networks import SUBNET, Cables, Network, cabled
from tests.ha.faults.wire import enter, inside
from tests.ha.test_switch import cluster
from tests.nameserver.live_nameserver import name_server

CUTS = ("alone", "unelected", "split", "follower", "deaf", "dumb", "apart")
KINDS = (*CUTS, "lossy", "late", "etcd", "member", "slow", "clock", "stop", "die", "promote")
SYNC_MS = 300, 1_500  # a slave that is 2 s behind is counted out
LONGER_SECONDS_MAX = 3.0
SETTLED_SECONDS, _LOOK_SECONDS = 4.0, 0.1  # a slave that is silent is counted out after 2 s
LOSS, LATE_SECONDS = 0.3, 0.05
JUMPS_MS = (-3_600_000, -20_000, 20_000, 3_600_000)
MEMBERS = 3  # of the etcd, which goes on with two
BROKER_PORT, HA_PORT = 10911, 10921


class CabledBroker(Broker):
    """A broker whose processes, and whose local programs, are in its network."""

    def __init__(self, network: Network, **settings: Any) -> None:
        address = network.address
        listen, ha_listen = f"{address}:{BROKER_PORT}", f"{address}:{HA_PORT}"
        where = {"tcp": True, "listen": listen, "ha_listen": ha_listen, "nameserver_listen": "127.0.0.1:0"}
        super().__init__(**where, insecure=True, ha_allow=SUBNET, **settings)
        self.network = network
        self.disk: FaultyDisk | None = None  # below its store

    def start(self) -> Broker:
        with inside(self.network.pid), self.disk.around() if self.disk is not None else contextlib.nullcontext():
            return super().start()

    def connect(self, **options: Any) -> Connection:
        if threading.current_thread().name.startswith("local"):  # of the load: it stays there
            enter(self.network.pid)
            return super().connect(**options)
        with inside(self.network.pid):
            return super().connect(**options)


class Stage(Group):
    """The brokers, each in its network, the members of the etcd, the others, and the cables."""

    def __init__(self, networks: list[Network], cables: Cables, folder: Path, names: str) -> None:
        hosts, members, self.outside = networks[: -MEMBERS - 1], networks[-MEMBERS - 1 : -1], networks[-1]
        self.etcd = {
            EtcdServer(folder / f"etcd{number}", name=f"etcd{number}", address=network.address): network
            for number, network in enumerate(members)
        }
        for member in self.etcd:
            member.cluster = ",".join(other.member for other in self.etcd)
        endpoints = ";".join(member.endpoint for member in self.etcd)
        self.brokers = [
            CabledBroker(host, name="elected", etcd=endpoints, role="sync-master", nameservers=names, slave_id=number)
            for number, host in enumerate(hosts, 1)
        ]
        self.hosts = {broker: broker.network for broker in self.brokers if isinstance(broker, CabledBroker)}
        self.cables = cables

    def start_etcd(self, *members: EtcdServer) -> None:
        """Start members of the etcd, each in its network; this thread asks them from its own."""
        for member in members:
            with inside(self.etcd[member].pid):
                member.begin()
        for member in members:
            member.wait()

    def cut(self, kind: str, leader: Broker, follower: Broker, member: EtcdServer) -> None:
        """Cut what a kind of fault cuts."""
        networks = [*self.hosts.values(), *self.etcd.values(), self.outside]
        one = [self.hosts[follower if kind == "follower" else leader] if kind != "apart" else self.etcd[member]]
        others = {
            "unelected": list(self.etcd.values()),
            "split": [each for each in self.hosts.values() if each not in one],
            "apart": [each for each in self.etcd.values() if each not in one],
        }.get(kind, [each for each in networks if each not in one])
        ways = [] if kind == "deaf" else self.cables.between(one, others)
        ways += [] if kind == "dumb" else self.cables.between(others, one)
        for way in ways:
            way.is_cut = True


class Faults:
    """One run.

    Attributes:
        waits: for each kind, the seconds until what was sent over TCP after it began was acknowledged.
    """

    def __init__(self, stage: Stage, load: Load, chance: random.Random) -> None:
        self.stage, self.load, self.chance = stage, load, chance
        self.waits: dict[str, list[float]] = {kind: [] for kind in KINDS}

    def one(self, kind: str) -> None:
        """Have one fault, and wait until all is well again."""
        leader = self._settled_leader()
        follower = self.chance.choice([each for each in self.stage.brokers if each is not leader])
        member = self.chance.choice(list(self.stage.etcd))
        print(f"{kind}: the leader is {self.stage.hosts[leader].address}", file=sys.stderr, flush=True)
        began = time.monotonic()
        repair = self._begin(kind, leader, follower, member)
        if kind != "promote":
            began = time.monotonic()  # what was sent a moment before may have come through
        at: list[float] = eventually(lambda: self._answered(began), self.stage.told)
        self.waits[kind].append(min(at) - began)
        time.sleep(self.chance.uniform(0.0, LONGER_SECONDS_MAX))  # not a wait: how much longer it lasts
        repair()
        self.stage.cables.heal()

    def _settled_leader(self) -> Broker:
        """The leader once every broker has been in sync for a while: one that is counted out cannot be elected."""
        began, leader = 0.0, self.stage.brokers[0]

        def is_settled() -> bool:
            nonlocal began, leader
            now, found = time.monotonic(), self.stage.wait_for_set(len(self.stage.brokers))
            if found is not leader or time.monotonic() - now > _LOOK_SECONDS:
                began, leader = time.monotonic(), found
            return time.monotonic() - began > SETTLED_SECONDS

        eventually(is_settled, self.stage.told)
        return leader

    def _answered(self, began: float) -> list[float]:
        found = [sender.first_after(began) for sender in self.load.tcp]
        return [at for at in found if at is not None]

    def _begin(self, kind: str, leader: Broker, follower: Broker, member: EtcdServer) -> Callable[[], Any]:
        if kind in CUTS:
            self.stage.cut(kind, leader, follower, member)
        for way in self.stage.cables.ways.values():
            way.loss = LOSS if kind == "lossy" else 0.0
            way.delay_seconds = LATE_SECONDS if kind == "late" else 0.0
        if kind in ("etcd", "member"):
            members = [member] if kind == "member" else list(self.stage.etcd)
            for each in members:
                each.stop()
            return partial(self.stage.start_etcd, *members)
        if kind == "slow":
            return slow_disk(self.chance.choice((leader, follower)))
        if kind == "clock":
            return self._wrong_clock(self.chance.choice((leader, follower)), self.chance.choice(JUMPS_MS))
        if kind == "stop":
            marks = list(leader.processes.values())
            _signal(marks, signal.SIGSTOP)
            return lambda: _signal(marks, signal.SIGCONT)
        if kind == "die":
            _signal(list(leader.processes.values()), signal.SIGKILL)
            leader.kill_daemon()
            return leader.restart
        if kind == "promote":
            cluster(follower, "promote")
        return lambda: None

    def _wrong_clock(self, broker: Broker, ahead_ms: int) -> Callable[[], Any]:
        began, disk = time.monotonic(), _disk_of(broker)
        disk.wall(ahead_ms)

        def repair() -> None:
            disk.wall(0)
            self.load.wrong_clocks.append((began, time.monotonic()))

        return repair

    def have_all_due(self) -> None:
        """Put each clock ahead, because what was delayed by a wrong one may be due in an hour."""
        self.load.wrong_clocks.append((time.monotonic(), math.inf))
        for broker in self.stage.brokers:
            _disk_of(broker).wall(max(JUMPS_MS))


def _disk_of(broker: Broker) -> FaultyDisk:
    assert isinstance(broker, CabledBroker) and broker.disk is not None
    return broker.disk


def slow_disk(broker: Broker) -> Callable[[], Any]:
    """Let each sync of a broker take long; returns what ends that."""
    disk = _disk_of(broker)
    disk.slow(*SYNC_MS)
    return partial(disk.slow, 0, 0)


def _signal(marks: list[Any], number: int) -> None:
    for mark in marks:
        with contextlib.suppress(ProcessLookupError):
            os.kill(mark.pid, number)


@contextlib.contextmanager
def staged(folder: Path, brokers: int, seed: int) -> Iterator[Stage]:
    """A group that runs, and this thread in the network of those outside."""
    addresses = [f"10.77.0.{number + 1}" for number in range(brokers + MEMBERS + 1)]
    with cabled(addresses, seed) as (networks, cables), contextlib.ExitStack() as running:
        outside = networks[-1]
        running.enter_context(inside(outside.pid))
        names = running.enter_context(name_server("--insecure", listen=f"{outside.address}:9876"))
        stage = Stage(networks, cables, folder, names.address)
        for member in stage.etcd:
            running.callback(member.stop)
        stage.start_etcd(*stage.etcd)
        for broker in stage.hosts:
            broker.disk = running.enter_context(FaultyDisk(broker.store))
            running.enter_context(broker)
        running.callback(cables.heal)
        yield stage


def run(faults: int, brokers: int, seed: int, folder: Path) -> dict[str, Any]:
    """Have so many faults, and look at the rules; returns what is printed. Raises AssertionError."""
    chance = random.Random(seed)
    kinds = [kind for _ in range(faults // len(KINDS) + 1) for kind in chance.sample(KINDS, len(KINDS))][:faults]
    with staged(folder, brokers, seed) as stage:
        leader = stage.wait_for_set(brokers)
        make_topics(leader)
        load = Load(f"rocketmq://{stage.outside.address}:9876", stage)
        with load:
            run = Faults(stage, load, chance)
            for kind in kinds:
                run.one(kind)
            run.have_all_due()
            leader = wait_for_rest(stage, load)
        check_logs(stage, leader)
        check_all(leader, load, faults)
    every = sorted(wait for waits in run.waits.values() for wait in waits)
    return {
        "faults": faults,
        "brokers": brokers,
        "seed": seed,
        **load.figures(),
        "tcp_wait_p50_s": round(statistics.median(every), 3),
        "tcp_wait_p99_s": round(every[min(len(every) - 1, int(len(every) * 0.99))], 3),
        "tcp_wait_max_s": {kind: round(max(waits), 3) for kind, waits in run.waits.items() if waits},
    }


if __name__ == "__main__":
    sys.exit(run_as_told(run, "faults", len(KINDS), __doc__))
