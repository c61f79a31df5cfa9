"""A pair without etcd, under load and faults: `python -m tests.ha.faults.rounds --rounds 200 --seed 1`.

Master, slave, and those who connect over TCP have a network of their own each; producers and members of every kind go
on (elected/load.py). A fault is chosen by chance, lasts a while, and ends; then the slave is counted in again.

    link, deaf, dumb     between master and slave nothing comes through, or nothing of one of the two ways
    lossy, late, thin    30 % of all packets are lost; every packet takes 50 ms longer; 200 KB a second come through
    master, slave        one of them reaches no other host
    kill, end, stop      all processes of one are killed at once, ended in order, or stand still
    process              one process of one of them is killed
    slow, full           each sync of one host's disk takes 0.3 to 1.5 s; that of the slave takes nothing
    empty, old           the slave comes again with nothing, or with the store that it had some rounds ago
    lost                 the master's host is gone for good while all go on, the slave is promoted, and an empty host
                         follows it

At last the master's host is lost once more. The rules of elected/rules.py hold: nothing that was acknowledged is lost,
no offset is set back, and no member on either host had a message that the last master has not. Prints one JSON object.

With `--in-sync-min 0` the pair is asynchronous, and the link is cut a while before a master is lost. What is lost then
is no more than what its log had behind the slave's end, and all that is left reaches each group.
"""

from __future__ import annotations

import contextlib
import errno
import os
import random
import shutil
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from shmq.record import BLANK_MAGIC, LENGTH_AND_MAGIC
from shmq.shm.core import KeeperStore, record_decode
from shmq.shm.instance import read_instance
from shmq.shm.links import ASYNCHRONOUS, IN_SYNC, Links
from shmq.shm.liveness import signal_proven
from shmq.shm.segment import open_store
from shmq.testing import Broker
from tests.crash.disk.disk import FaultyDisk, Kind
from tests.deadline import eventually
from tests.ha.elected.cables import BROKER_PORT, HA_PORT, LATE_SECONDS, LOSS, CabledBroker, slow_disk
from tests.ha.elected.group import Group, links_of
from tests.ha.elected.load import DELAYED, TOPIC, Load
from tests.ha.elected.rules import Progress, check_all, messages_of
from tests.ha.elected.runs import make_topics, run_as_told
from tests.ha.faults.networks import Cables, Network, cabled
from tests.ha.faults.wire import inside
from tests.ha.pair import assert_equal
from tests.ha.test_switch import cluster
from tests.nameserver.live_nameserver import name_server

CUTS = ("link", "deaf", "dumb", "master", "slave")
PROCESSES = ("replication", "keeper", "bridge")
KINDS = (*CUTS, "lossy", "late", "thin", "kill", "end", "stop", "process", "slow", "full", "empty", "old", "lost")
THIN_BYTES_PER_SECOND = 200_000
FILE_BYTES = 1 << 20  # a log file is full after a second or two: a full disk shows then
SECONDS_MAX = 3.0
BEHIND_SECONDS_MAX = 1.0
FRESH_MS = 2_000


class Pair(Group):
    """Master and slave, each in its network, and the cables.

    Attributes:
        moved: bodies of which lost masters had a record, and their slaves had not.
        lost: those of which the slaves had no record at all.
    """

    def __init__(self, networks: list[Network], cables: Cables, names: str, in_sync_min: int) -> None:
        first, second, self.outside = networks
        there = {"master": f"{first.address}:{BROKER_PORT}", "master_ha": f"{first.address}:{HA_PORT}"}
        both = {"name": "pair", "nameservers": names, "file_bytes": FILE_BYTES}
        self.is_synchronous = in_sync_min > 0
        roles = {"role": "sync-master", "in_sync_min": in_sync_min} if self.is_synchronous else {"role": "master"}
        self.lost, self.moved = set[bytes](), set[bytes]()
        self.master = CabledBroker(first, **roles, **both)
        self.slave = CabledBroker(second, role="slave", **there, **both)
        self.brokers = [self.master, self.slave]
        self.cables = cables

    def in_sync(self) -> bool:
        """Whether the one that leads says, and just now, that the other has what is acknowledged."""
        links = links_of(self.newest() or self.master)
        is_fresh = links is not None and time.monotonic_ns() // 1_000_000 - links.at_ms < FRESH_MS
        return links is not None and is_fresh and self._has_slave(links)

    def _has_slave(self, links: Links) -> bool:
        caught_up = IN_SYNC if self.is_synchronous else ASYNCHRONOUS
        return any(each.state == caught_up for each in links.replicas)

    def lose_the_master(self, behind_seconds: float) -> bool:
        """Let the master's host be gone for good, and promote the slave; False: that was counted out just then.

        Args:
            behind_seconds: how long an asynchronous slave gets nothing before.

        Raises AssertionError.
        """
        progress = Progress(self)
        progress.note(self.master)
        eventually(self.in_sync, self.told)
        if not self.is_synchronous:
            self.cut("link")
            time.sleep(behind_seconds)  # not a wait: what is acknowledged meanwhile is lost
        self.cut("master")
        kill_host(self.master)
        if not self.is_synchronous:
            end_appends(self.master)
        last = links_of(self.master)
        if self.is_synchronous and (last is None or not self._has_slave(last)):
            return False  # it was alone with what it acknowledged
        begin = cluster(self.slave, "promote")["log_end"]
        if self.is_synchronous:
            progress.check(self.slave)
        else:
            self._note_tail(begin)
        shutil.rmtree(self.master.store)
        self.cables.heal()
        return True

    def _note_tail(self, begin: int) -> None:
        tail = bodies_of(self.master, lambda position: position >= begin)
        self.moved |= tail
        self.lost |= tail - bodies_of(self.master, lambda position: position < begin)

    def replace_the_master(self) -> None:
        """Have an empty host in the place of the one that is gone, as a slave of the other."""
        address = self.slave.network.address
        there = {"master": f"{address}:{BROKER_PORT}", "master_ha": f"{address}:{HA_PORT}"}
        self.master._settings |= {"role": "slave", **there}
        self.master._settings.pop("in_sync_min", None)
        self.master, self.slave = self.slave, self.master
        self.slave.restart()

    def cut(self, kind: str) -> None:
        """Let nothing come through where a kind of fault says so."""
        one, other = self.master.network, self.slave.network
        if kind == "slave":
            one, other = other, one
        others = [other, self.outside] if kind in ("master", "slave") else [other]
        ways = [] if kind == "deaf" else self.cables.between([one], others)
        ways += [] if kind == "dumb" else self.cables.between(others, [one])
        for way in ways:
            way.is_cut = True


class Rounds:
    """One run."""

    def __init__(self, pair: Pair, load: Load, chance: random.Random, aside: Path) -> None:
        self.pair, self.load, self.chance, self.aside = pair, load, chance, aside
        self.counts: Counter[str] = Counter()
        self.kept: dict[str, Path] = {}  # a former store of each host that was a slave

    def one(self, kind: str) -> None:
        """Have one fault, and wait until the slave is in sync again and senders over TCP are answered."""
        broker = self.chance.choice(self.pair.brokers)
        name = "master" if broker is self.pair.master else "slave"
        print(f"{kind} {name}", file=sys.stderr, flush=True)
        repair = self._begin(kind, broker)
        time.sleep(self.chance.uniform(0.0, SECONDS_MAX))  # not a wait: how long it lasts
        repair()
        self.pair.cables.heal()
        self.counts[kind] += 1
        healed = time.monotonic()
        eventually(self.pair.in_sync, self.pair.told)
        eventually(lambda: any(each.first_after(healed) for each in self.load.tcp), self.pair.told)

    def _begin(self, kind: str, broker: Broker) -> Callable[[], Any]:
        if kind in CUTS:
            self.pair.cut(kind)
        for way in self.pair.cables.ways.values():
            way.loss = LOSS if kind == "lossy" else 0.0
            way.delay_seconds = LATE_SECONDS if kind == "late" else 0.0
            way.bytes_per_second = THIN_BYTES_PER_SECOND if kind == "thin" else 0
        if kind == "kill":
            kill_host(broker)
            return broker.restart
        if kind == "end":
            signal_proven(broker.processes["supervisor"], signal.SIGTERM)
            return broker.restart
        if kind == "stop":
            marks = list(broker.processes.values())
            for mark in marks:
                signal_proven(mark, signal.SIGSTOP)
            return lambda: [signal_proven(mark, signal.SIGCONT) for mark in marks]
        if kind == "process":
            signal_proven(broker.processes[self.chance.choice(PROCESSES)], signal.SIGKILL)
        if kind == "slow":
            return slow_disk(broker)
        if kind == "full":
            return full_disk(self.pair.slave)
        if kind == "lost":
            is_lost = self.pair.lose_the_master(self.chance.uniform(0.0, BEHIND_SECONDS_MAX))
            return self.pair.replace_the_master if is_lost else self.pair.master.restart
        if kind in ("empty", "old"):
            kill_host(self.pair.slave)
            return self._with_nothing if kind == "empty" else self._with_what_it_had
        return lambda: None

    def _with_nothing(self) -> None:
        shutil.rmtree(self.pair.slave.store)
        self.pair.slave.restart()

    def _with_what_it_had(self) -> None:
        """Put back the store that this host had the last time, and keep the one of now for the next."""
        store, host = self.pair.slave.store, self.pair.slave.network.address
        before, kept = self.kept.get(host), self.aside / f"{host}-{self.counts['old']}"
        self.kept[host] = Path(shutil.copytree(store, kept))
        if before is not None:
            shutil.rmtree(store)
            before.rename(store)
        self.pair.slave.restart()


def kill_host(broker: Broker) -> None:
    """Kill all processes of a broker at once, as a host dies."""
    for mark in broker.processes.values():
        with contextlib.suppress(ProcessLookupError):
            os.kill(mark.pid, signal.SIGKILL)
    broker.kill_daemon()


def end_appends(broker: Broker) -> None:
    """Let programs of a dead broker's host store nothing more, as they are gone with a host."""
    instance = read_instance(broker.place.instance_path)
    assert instance is not None
    store = open_store(instance, writable=True)
    KeeperStore(store).set_retired()
    store.close()


def bodies_of(broker: Broker, is_meant: Callable[[int], bool]) -> set[bytes]:
    """The bodies of the records of a dead broker's log whose log position is meant."""
    files = sorted(path for path in Path(broker.store, "commitlog").iterdir() if path.name.isdecimal())
    first = int(files[0].name)
    log, found, at = b"".join(path.read_bytes() for path in files), set[bytes](), 0
    while at + LENGTH_AND_MAGIC.size <= len(log):
        size, magic = LENGTH_AND_MAGIC.unpack_from(log, at)
        if size <= 0:
            break
        if magic == BLANK_MAGIC:
            at += FILE_BYTES - at % FILE_BYTES
            continue
        if is_meant(first + at):
            found.add(record_decode(log[at : at + size])["body"])
        at += size
    return found


def full_disk(broker: CabledBroker) -> Callable[[], Any]:
    """Let a broker's disk take nothing; returns what ends that."""
    disk = broker.disk
    assert disk is not None
    disk.fail({Kind.WRITE, Kind.ALLOCATE}, at=1, error=errno.ENOSPC, after=True)
    return partial(disk.fail, set(), at=0, error=0)


def lose_the_last(pair: Pair, load: Load, faults: int) -> None:
    """Lose the master's host once more, and look at everything; raises AssertionError."""
    while not pair.lose_the_master(BEHIND_SECONDS_MAX):
        pair.master.restart()
        pair.cables.heal()
        eventually(pair.in_sync, pair.told)
    pair.replace_the_master()
    eventually(pair.in_sync, pair.told)
    promoted = time.monotonic()
    eventually(lambda: any(each.first_after(promoted) for each in load.tcp), pair.told)
    load.stop_sending()
    again = {body for topic in (TOPIC, DELAYED) for body in messages_of(pair.master, topic).values()}
    pair.lost -= again  # what was sent once more after a time-out
    load.wait_for_receivers(pair.master, pair.lost)
    check_all(pair.master, load, faults, pair.lost, pair.moved)
    assert_equal(pair.master, pair.slave)


@contextlib.contextmanager
def staged(seed: int, in_sync_min: int) -> Iterator[Pair]:
    """A pair that runs, and this thread in the network of those outside."""
    addresses = [f"10.77.0.{number}" for number in (1, 2, 3)]
    with cabled(addresses, seed) as (networks, cables), contextlib.ExitStack() as running:
        outside = networks[-1]
        running.enter_context(inside(outside.pid))
        names = running.enter_context(name_server("--insecure", listen=f"{outside.address}:9876"))
        pair = Pair(networks, cables, names.address, in_sync_min)
        for broker in (pair.master, pair.slave):
            broker.disk = running.enter_context(FaultyDisk(broker.store))
            running.enter_context(broker)
        running.callback(cables.heal)
        yield pair


def run(rounds: int, in_sync_min: int, seed: int, folder: Path) -> dict[str, Any]:
    """Have so many faults, lose the master, and look at the rules; returns what is printed. Raises AssertionError."""
    chance = random.Random(seed)
    kinds = [kind for _ in range(rounds // len(KINDS) + 1) for kind in chance.sample(KINDS, len(KINDS))][:rounds]
    with staged(seed, in_sync_min) as pair:
        eventually(pair.in_sync, pair.told)
        make_topics(pair.master)
        load = Load(f"rocketmq://{pair.outside.address}:9876", pair)
        with load:
            run = Rounds(pair, load, chance, folder)
            for kind in kinds:
                run.one(kind)
            lose_the_last(pair, load, rounds + 1)
    return {
        "rounds": rounds,
        "in_sync_min": in_sync_min,
        "seed": seed,
        **run.counts,
        **load.figures(pair.lost),
    }


if __name__ == "__main__":
    sys.exit(run_as_told(run, "rounds", len(KINDS), __doc__, parts="in-sync-min", choices=(1, 2, 0)))
