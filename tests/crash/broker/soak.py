"""A soak of the whole broker: kills of its processes, slow syncs and clocks that jump, under every kind of message.

One run is a number of episodes. Each draws how slow the disk is (0 to 3 s a sync), where the wall clock stands (up to a
year ahead or back) and who is killed with SIGKILL (keeper, bridge, supervisor, all, writers), and lasts until more
messages were acknowledged. In the end the disk is well again, and everything is read to the end.

    the clock jumps    before the first start; during each episode; between the end of a broker and its next start

    must hold    every acknowledged message was given to its group: sent, in a batch, in a slot, ordered, committed,
                 timed, given back; none that was rolled back or reported as not stored
                 each receipt's place holds that message; offsets have no gap; nothing is stored twice
"""

from __future__ import annotations

import os
import random
import signal
from collections import Counter
from dataclasses import dataclass, field
from typing import Any, Self

from shmq.testing import Broker
from tests.crash.disk.disk import FaultyDisk
from tests.crash.disk.power_cuts import FILE_BYTES, PLACED, START_SECONDS, deaths_by_signal, in_memory
from tests.crash.disk.recovered import RecoveredStore
from tests.crash.history.history import Anomaly, History, delivered_anomalies, stored_anomalies
from tests.crash.history.reading import Reading
from tests.crash.history.workload import WRITERS, Workload
from tests.crash.history.writers import TOPIC_OF
from tests.deadline import eventually

_SLOW_MS = (0, 0, 20, 200, 800, 3000)
_HOUR_MS = 3600_000
_YEAR_MS = 365 * 24 * _HOUR_MS
_WALLS_MS = (0, 0, _HOUR_MS, -_HOUR_MS, _YEAR_MS, -_YEAR_MS)
_LATEST_MS = _YEAR_MS + _HOUR_MS
_WHO = (("keeper",), ("bridge",), ("keeper", "bridge"), ("supervisor", "keeper", "bridge"), ("writers",))
_DRAIN_SECONDS = 120.0
_PAUSE_SECONDS = 0.002  # every message is read several times in the end


@dataclass
class SoakCounts:
    """What a run did, and what was wrong.

    Attributes:
        jumps: how often the clock jumped, by when that was.
    """

    kills: int = 0
    acknowledged: int = 0
    delivered: int = 0
    jumps: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)


class _Clock:
    """The wall clock of all processes on the disk."""

    def __init__(self, disk: FaultyDisk, chance: random.Random, jumps: Counter[str], *, does_jump: bool) -> None:
        self._disk = disk
        self._chance = chance
        self._jumps = jumps
        self._does_jump = does_jump
        self._ahead_ms = 0

    def jump(self, when: str) -> None:
        """Stand where chance says."""
        ahead_ms = self._chance.choice(_WALLS_MS) if self._does_jump else 0
        if ahead_ms != self._ahead_ms:
            self._jumps[when] += 1
        self._ahead_ms = ahead_ms
        self._disk.wall(ahead_ms)


class _Writers:
    """The process that sends, and after its death the next one."""

    def __init__(self, url: str, history: History, seed: int) -> None:
        self._url, self._history, self._seed = url, history, seed
        self._number = 0

    def __enter__(self) -> Self:
        first = self._number * WRITERS  # names of messages hold it
        seed = self._seed + self._number
        self._workload = Workload(self._url, self._history, seed=seed, first_writer=first, pause_seconds=_PAUSE_SECONDS)
        self._workload.__enter__()
        return self

    def __exit__(self, *exc: object) -> None:
        self._workload.stop()

    def kill(self) -> None:
        """Kill the process and start another one."""
        self._workload.kill()
        self._number += 1
        self.__enter__()


def soak(*, seed: int, episodes: int, flush: str, clock_jumps: bool = True, **settings: Any) -> SoakCounts:
    """Run so many episodes on one broker."""
    chance = random.Random(seed)
    counts = SoakCounts()
    history = History()
    with in_memory():
        broker = Broker(
            timeout=START_SECONDS,
            flush=flush,
            file_bytes=FILE_BYTES,
            default_queues=2,
            retention_hours=24 * 3650,
            **settings,
        )
        with FaultyDisk(broker.store) as disk:
            clock = _Clock(disk, chance, counts.jumps, does_jump=clock_jumps)
            try:
                with disk.around():
                    clock.jump("before")
                    broker.start()
                    with Reading(broker.url, seed=seed) as reading:
                        with _Writers(broker.url, history, seed) as writers:
                            for _ in range(episodes):
                                disk.slow(0, slow_ms := chance.choice(_SLOW_MS))
                                clock.jump("during")
                                wrong = _episode(broker, clock, writers, chance, history, counts)
                                counts.failures += [f"{each}, {slow_ms} ms a sync" for each in wrong]
                            disk.slow(0, 0)
                            disk.wall(_LATEST_MS)  # whatever was timed by any of the clocks is due
                        _drain(reading, history, counts)
                        counts.failures += [f"a reader ended: {fault!r}" for fault in reading.faults]
                counts.failures += deaths_by_signal(broker.log)
                broker.kill_daemon()
                counts.failures += [f"{each.kind}: {each.what}" for each in _stored(broker, history)]
            finally:
                broker.stop()
    counts.acknowledged = len(history.acks)
    return counts


def _episode(
    broker: Broker, clock: _Clock, writers: _Writers, chance: random.Random, history: History, counts: SoakCounts
) -> list[str]:
    """Kill a process once some messages were acknowledged; returns what is wrong."""
    history.wait_acks(chance.randrange(1, 40), 10.0)
    roles = chance.choice(_WHO)
    eventually(lambda: {*roles} <= {*broker.processes, "writers"}, lambda: broker.log[-3000:])  # one may start just now
    if "writers" in roles:
        counts.kills += 1
        writers.kill()
    for role in roles:
        mark = broker.processes.get(role)
        if mark is not None:
            counts.kills += 1
            os.kill(mark.pid, signal.SIGKILL)
    if "supervisor" in roles:
        broker.kill_daemon()
        clock.jump("between")
        broker.restart()
    if not history.wait_acks(3, 90.0):
        return [f"stuck: no acknowledgement within 90 s of killing {'+'.join(roles)}"]
    return []


def _drain(reading: Reading, history: History, counts: SoakCounts) -> None:
    for topic in sorted(set(TOPIC_OF.values())):
        kinds = [kind for kind, where in TOPIC_OF.items() if where == topic and kind != "back"]
        names = set(history.acks_of(*kinds))
        groups = [f"all-{topic}", "pop"] if topic == "plain" else [f"all-{topic}"]
        for group in groups:
            reading.wait_for(group, names, _DRAIN_SECONDS)
            given = list(reading.given.get(group, ()))
            counts.delivered += len(given)
            found = delivered_anomalies(given, names, history)
            counts.failures += [f"{group}: {each.kind}: {each.what}" for each in found]


def _stored(broker: Broker, history: History) -> list[Anomaly]:
    recovered = RecoveredStore(broker.store, file_bytes=FILE_BYTES)
    try:
        stored = recovered.messages()
        acks, bounds = history.acks_of(*PLACED), recovered.bounds()
        return stored_anomalies(stored, bounds, acks, history, damaged=recovered.damaged)
    finally:
        recovered.close()
