"""A synchronous pair on two hosts whose cable is cut, slow or bad, and whose processes stand still: nothing that was
acknowledged is lost.

After each fault the slave is counted again; at the end the master's host dies, the slave is promoted, and everything
that was acknowledged is there. SHMQ_CRASH_LONG=1 has ROUNDS_LONG rounds of every fault, of up to 20 s each;
SHMQ_TEST_SEED=n repeats a run's choices.
"""

from __future__ import annotations

import os
import random
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from shmq.shm.instance import read_instance
from shmq.shm.links import IN_SYNC, Links, read_links
from tests.deadline import eventually
from tests.ha.faults.wire import Wire, wired_hosts
from tests.ha.hosts import Host, needs_hosts
from tests.seed import SEED

LONG = os.environ.get("SHMQ_CRASH_LONG", "") not in ("", "0")
ROUNDS_LONG, SECONDS_MAX = 3, 20.0 if LONG else 2.0
PROGRAM = Path(__file__).with_name("producing.py")
WAITED_SECONDS = 120.0
FRESH_MS = 2_000
SERVE = "shmq serve --name pair --insecure --file-size 4M --role"
A, B = "10.0.0.4", "10.0.0.5"

needs_tun = pytest.mark.skipif(not os.path.exists("/dev/net/tun"), reason="no /dev/net/tun here")


class Stage:
    """The two hosts, the cable, and what the producer on the first host has said."""

    def __init__(self, hosts: tuple[Host, Host], wire: Wire, in_sync_min: int) -> None:
        self.first, self.second = hosts
        self.wire = wire
        self.stopped: list[tuple[Host, int]] = []
        waits = f"--in-sync-min {in_sync_min}"
        self._serve(self.first, f"sync-master {waits} --ha-allow {B}/32 --ha-listen {A}:10912 --listen {A}:10911")
        self._serve(self.second, f"slave --ha-listen {B}:10912 --listen {B}:10911 --master {A}:10911")
        eventually(self.in_sync, self.told, WAITED_SECONDS)
        self._said = self.first.start(f"{sys.executable} -P {PROGRAM} send")
        self.goes_on()

    def _serve(self, host: Host, words: str) -> None:
        log = host.start(f"{SERVE} {words}")
        eventually(lambda: "ready" in log.read_text(), log.read_text, WAITED_SECONDS)

    def links(self) -> Links | None:
        """What the master's replication process has told just now."""
        links = read_links(runtime_of(self.first) / "links.json")
        now_ms = time.monotonic_ns() // 1_000_000
        return links if links is not None and now_ms - links.at_ms < FRESH_MS else None

    def in_sync(self) -> bool:
        links = self.links()
        return links is not None and any(each.state == IN_SYNC for each in links.replicas)

    def counted_out(self) -> bool:
        links = self.links()
        return links is not None and not any(each.state == IN_SYNC for each in links.replicas)

    def acknowledged(self) -> set[int]:
        lines = self._said.read_text().splitlines()
        return {int(line.split()[1]) for line in lines if line.startswith("ok ")}

    def goes_on(self) -> None:
        """Wait until more is acknowledged."""
        wanted = len(self.acknowledged()) + 20
        eventually(lambda: len(self.acknowledged()) >= wanted, self.told, WAITED_SECONDS)

    def told(self) -> str:
        programs = [path.read_text()[-2000:] for host in (self.first, self.second) for path in logs_of(host)]
        ways = (self.wire.there, self.wire.back)
        return f"{self.links()} carried {[(way.carried, way.lost) for way in ways]}\n" + "\n".join(programs)

    def stop(self, host: Host, role: str) -> None:
        """Have a process of a broker stand still."""
        instance = read_instance(runtime_of(host) / "instance.json")
        assert instance is not None
        pid = instance.processes[role].pid
        host.run(f"kill -STOP {pid}")
        self.stopped.append((host, pid))

    def heal(self) -> None:
        """All that stands goes on, and the cable is good."""
        self.wire.heal()
        while self.stopped:
            host, pid = self.stopped.pop()
            host.run(f"kill -CONT {pid}")


def runtime_of(host: Host) -> Path:
    return Path(f"/proc/{host.first_pid}/root/run/shmq/pair")


def logs_of(host: Host) -> list[Path]:
    return sorted(host.directory.glob("program-*"))


def cut(stage: Stage) -> None:
    stage.wire.there.is_cut = stage.wire.back.is_cut = True


def cut_there(stage: Stage) -> None:
    stage.wire.there.is_cut = True


def cut_back(stage: Stage) -> None:
    stage.wire.back.is_cut = True


def lose(stage: Stage) -> None:
    stage.wire.there.loss = stage.wire.back.loss = 0.3


def delay(stage: Stage) -> None:
    stage.wire.there.delay_seconds = stage.wire.back.delay_seconds = 0.1


def slow(stage: Stage) -> None:
    stage.wire.there.bytes_per_second = 100_000


def stop_slave(stage: Stage) -> None:
    stage.stop(stage.second, "replication")


def stop_keeper(stage: Stage) -> None:
    stage.stop(stage.second, "keeper")


def stop_master(stage: Stage) -> None:
    stage.stop(stage.first, "replication")


COUNTED_OUT = (cut, cut_there, cut_back, stop_slave, stop_keeper)
OTHERS = (lose, delay, slow, stop_master)


def do_harm(stage: Stage, fault: Callable[[Stage], None], seconds: float, in_sync_min: int) -> None:
    """Have a fault for a while; a slave that it cuts off is counted out, and the master goes on by its rules."""
    fault(stage)
    if fault in COUNTED_OUT:
        eventually(stage.counted_out, stage.told, WAITED_SECONDS)
        if in_sync_min == 1:
            stage.goes_on()
    time.sleep(seconds)  # not a wait: how long the fault lasts
    if fault in COUNTED_OUT:
        assert not stage.in_sync()
    stage.heal()
    eventually(stage.in_sync, stage.told, WAITED_SECONDS)
    stage.goes_on()


@needs_hosts
@needs_tun
@pytest.mark.timeout(3600 if LONG else 600)
@pytest.mark.parametrize("in_sync_min", [1, 2])
def test_nothing_acknowledged_is_lost_on_a_bad_network(tmp_path: Path, in_sync_min: int) -> None:
    choice = random.Random(SEED + in_sync_min)
    faults = [*COUNTED_OUT, *OTHERS] * ROUNDS_LONG if LONG else [*choice.sample(COUNTED_OUT, 2), choice.choice(OTHERS)]
    choice.shuffle(faults)
    with wired_hosts(tmp_path, A, B, SEED) as (first, second, wire):
        stage = Stage((first, second), wire, in_sync_min)
        for fault in faults:
            do_harm(stage, fault, choice.uniform(0.0, SECONDS_MAX), in_sync_min)
        if in_sync_min == 1:  # what it acknowledged while it was alone is on the slave, too, once that is in sync
            eventually(lambda: stage.in_sync(), stage.told)
        first.die()
        second.run("shmq cluster promote pair")
        read = Counter(second.run(f"{sys.executable} -P {PROGRAM} read").splitlines())
        lost = {number for number in stage.acknowledged() if not read[f"read {number}"]}
        names = [fault.__name__ for fault in faults]
        print(
            f"SHMQ_TEST_SEED={SEED} {in_sync_min}: {len(stage.acknowledged())} acknowledged, {len(lost)} lost; {names}"
        )
        assert not lost, stage.told()
