"""A soak of the whole broker: kills of its processes, slow syncs and clocks that jump, under every kind of message.

One run is a number of episodes. Each draws how slow the disk is (0 to 3 s a sync), where the wall clock stands (up to a
year ahead or back) and who is killed with SIGKILL (keeper, bridge, supervisor, all), and lasts until more messages were
acknowledged. In the end the disk is well again, and everything is read to the end.

    must hold    every acknowledged message was given to its group: sent, in a batch, in a slot, ordered, committed,
                 timed, given back; none that was rolled back or reported as not stored
                 each receipt's place holds that message; offsets have no gap; nothing is stored twice
"""

from __future__ import annotations

import os
import random
import signal
from dataclasses import dataclass, field
from typing import Any

from shmq.testing import Broker
from tests.crash.disk.disk import FaultyDisk
from tests.crash.disk.power_cuts import FILE_BYTES, PLACED, in_memory
from tests.crash.disk.recovered import RecoveredStore
from tests.crash.history.history import Anomaly, History, delivered_anomalies, stored_anomalies
from tests.crash.history.reading import Reading
from tests.crash.history.workload import TOPIC_OF, Workload

_SLOW_MS = (0, 0, 20, 200, 800, 3000)
_HOUR_MS = 3600_000
_WALLS_MS = (0, 0, _HOUR_MS, -_HOUR_MS, 365 * 24 * _HOUR_MS, -365 * 24 * _HOUR_MS)
_LATEST_MS = max(_WALLS_MS) + _HOUR_MS
_WHO = (("keeper",), ("bridge",), ("keeper", "bridge"), ("supervisor", "keeper", "bridge"))
_DRAIN_SECONDS = 120.0


@dataclass
class SoakCounts:
    """What a run did, and what was wrong."""

    kills: int = 0
    acknowledged: int = 0
    delivered: int = 0
    failures: list[str] = field(default_factory=list)


def soak(*, seed: int, episodes: int, flush: str, clock_jumps: bool = True, **settings: Any) -> SoakCounts:
    """Run so many episodes on one broker."""
    chance = random.Random(seed)
    counts = SoakCounts()
    history = History()
    with in_memory():
        broker = Broker(flush=flush, file_bytes=FILE_BYTES, default_queues=2, retention_hours=24 * 3650, **settings)
        with FaultyDisk(broker.store) as disk:
            try:
                with disk.around():
                    broker.start()
                    with Reading(broker.url, seed=seed) as reading:
                        with Workload(broker.url, history, seed=seed):
                            for _ in range(episodes):
                                _episode(broker, disk, chance, history, counts, clock_jumps=clock_jumps)
                            disk.slow(0, 0)
                            disk.wall(_LATEST_MS)  # whatever was timed by any of the clocks is due
                        _drain(reading, history, counts)
                        counts.failures += [f"a reader ended: {fault!r}" for fault in reading.faults]
                broker.kill_daemon()
                counts.failures += [f"{each.kind}: {each.what}" for each in _stored(broker, history)]
            finally:
                broker.stop()
    counts.acknowledged = len(history.acks)
    return counts


def _episode(
    broker: Broker, disk: FaultyDisk, chance: random.Random, history: History, counts: SoakCounts, *, clock_jumps: bool
) -> None:
    slow_ms = chance.choice(_SLOW_MS)
    disk.slow(0, slow_ms)
    if clock_jumps:
        disk.wall(chance.choice(_WALLS_MS))
    history.wait_acks(chance.randrange(1, 40), 10.0)
    roles = chance.choice(_WHO)
    for role in roles:
        mark = broker.processes.get(role)
        if mark is not None:
            counts.kills += 1
            os.kill(mark.pid, signal.SIGKILL)
    if "supervisor" in roles:
        broker.kill_daemon()
        broker.restart()
    if not history.wait_acks(3, 90.0):
        counts.failures.append(
            f"stuck: no acknowledgement within 90 s of killing {'+'.join(roles)}, {slow_ms} ms a sync"
        )


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
