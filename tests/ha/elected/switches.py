"""Many switches of the master under load: `python -m tests.ha.elected.switches --switches 200 --brokers 3 --seed 1`.

Each one is chosen by chance: the leader's processes are killed, stopped for a while, or ended in order, its replication
process dies, or another broker is promoted by hand. Everything that was acknowledged is received by each group, logs
are equal byte for byte between the brokers, and the other rules are those of rules.py.

Prints one JSON object: counts, and for how long senders had no receipt, by the kind of switch: each over TCP, and each
local program of a host that lives. `python -m benchmarks.replication --switch` shows the times as a table, those of
RocketMQ's Java clients too if they are named.
"""

from __future__ import annotations

import math
import os
import random
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from shmq.shm.liveness import is_alive, signal_proven
from shmq.store.lineage.epochs import load_epochs
from shmq.testing import Broker
from tests.deadline import eventually
from tests.ha.elected.group import Group, group_of
from tests.ha.elected.load import Load
from tests.ha.elected.rules import Progress, check_all
from tests.ha.elected.runs import check_logs, make_topics, run_as_told, wait_for_rest
from tests.ha.elected.senders import Sender
from tests.ha.test_switch import cluster, layout_of
from tests.nameserver.live_nameserver import name_server

KINDS = ("die", "stop", "end", "ship", "promote")
TCP, LOCAL, JAVA = "tcp", "local", "java"
LOST, ORDERLY = "host lost", "in order"  # what has a promise
OF = {LOST: ("die", "stop", "ship"), ORDERLY: ("end", "promote")}


class Switches:
    """One run.

    Attributes:
        waits: by kind of switch and of sender, for how many seconds each had no receipt.
    """

    def __init__(self, group: Group, load: Load, chance: random.Random) -> None:
        self.group, self.load, self.chance = group, load, chance
        self.waits: dict[tuple[str, str], list[float]] = {}
        self.counts = dict.fromkeys(KINDS, 0)
        self._progress = Progress(group)

    def one(self) -> None:
        leader = self.group.wait_for_set(len(self.group.brokers))
        self._progress.note(leader)
        self._wait_for_senders()
        kind = self.chance.choice(KINDS)
        self.counts[kind] += 1
        began = time.monotonic()
        epoch = load_epochs(layout_of(leader))[-1].number
        repair = getattr(self, f"_{kind}")(leader)
        leader_now = self.group.wait_for_epoch(epoch + 1)
        switched = time.monotonic()
        self._progress.check(leader_now)
        for name, senders in ((TCP, self.load.tcp), (LOCAL, self._living(leader, kind)), (JAVA, self.load.stock)):
            for sender in senders:
                eventually(lambda sender=sender: sender.first_after(switched), self.group.told)
                self.waits.setdefault((kind, name), []).append(sender.longest_gap(began))
        repair()

    def _wait_for_senders(self) -> None:
        """Let those go on whose own broker was away: that is no part of the next switch."""
        now = time.monotonic()
        for sender in (*self.load.tcp, *self.load.local, *self.load.stock):
            eventually(lambda sender=sender: sender.first_after(now), self.group.told)

    def _living(self, leader: Broker, kind: str) -> list[Sender]:
        """Local senders whose broker goes on: those of the other hosts, and the leader's own where it does."""
        goes_on = kind in ("ship", "promote")
        pairs = zip(self.load.local, self.group.brokers, strict=True)
        return [sender for sender, broker in pairs if goes_on or broker is not leader]

    def _die(self, leader: Broker) -> Callable[[], Any]:
        for mark in leader.processes.values():
            os.kill(mark.pid, signal.SIGKILL)  # all at once, as a host dies: without a hand-over
        leader.kill_daemon()
        return leader.restart

    def _stop(self, leader: Broker) -> Callable[[], Any]:
        marks = list(leader.processes.values())
        for mark in marks:
            os.kill(mark.pid, signal.SIGSTOP)

        def repair() -> None:
            for mark in marks:
                os.kill(mark.pid, signal.SIGCONT)

        return repair

    def _end(self, leader: Broker) -> Callable[[], Any]:
        mark = leader.processes["supervisor"]
        signal_proven(mark, signal.SIGTERM)

        def repair() -> None:
            eventually(lambda: not is_alive(mark), self.group.told)
            leader.restart()

        return repair

    def _ship(self, leader: Broker) -> Callable[[], Any]:
        os.kill(leader.processes["replication"].pid, signal.SIGKILL)
        return lambda: None

    def _promote(self, leader: Broker) -> Callable[[], Any]:
        other = self.chance.choice([broker for broker in self.group.brokers if broker is not leader])
        cluster(other, "promote")
        return lambda: None


def run(switches: int, brokers: int, seed: int, folder: Path, *, java: Sequence[str] = ()) -> dict[str, Any]:
    """Switch so often, and look at the rules; returns what is printed. Raises AssertionError.

    Args:
        java: lines of RocketMQ's Java client, "4" and "5", that send and receive as well.
    """
    with name_server() as names, group_of(folder, brokers, sync=True, nameservers=names.address) as (group, _):
        leader = group.wait_for_set(brokers)
        make_topics(leader)
        load = Load(f"rocketmq://{names.address}", group, java=java)
        with load:
            run = Switches(group, load, random.Random(seed))
            for _ in range(switches):
                run.one()
            leader = wait_for_rest(group, load)
        check_logs(group, leader)
        check_all(leader, load, switches)
        return {
            "switches": switches,
            "brokers": brokers,
            "seed": seed,
            **run.counts,
            **load.figures(),
            "waits_s": {**_quantiles(run.waits, {kind: (kind,) for kind in KINDS}), **_quantiles(run.waits, OF)},
        }


def _quantiles(
    waits: dict[tuple[str, str], list[float]], kinds_of: Mapping[str, Sequence[str]]
) -> dict[str, dict[str, float]]:
    found = {}
    for title, kinds in kinds_of.items():
        for name in (TCP, LOCAL, JAVA):
            if every := [wait for kind in kinds for wait in waits.get((kind, name), ())]:
                found[f"{title}, {name}"] = quantiles(every)
    return found


def quantiles(waits: list[float]) -> dict[str, float]:
    """The nearest ranks of waits, and how many there were."""
    ranked = sorted(waits)
    at = lambda share: round(ranked[math.ceil(share * len(ranked)) - 1], 3)  # noqa: E731
    return {"count": len(ranked), "p50": at(0.5), "p99": at(0.99), "max": at(1.0)}


if __name__ == "__main__":
    sys.exit(run_as_told(run, "switches", 20, __doc__))
