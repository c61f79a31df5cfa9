"""The command `python -m benchmarks.local`: the table of all figures on one host, and what each has to reach.

Every promise of benchmarks/README.md about speed in shared memory is a number in this file.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from benchmarks.command import run
from benchmarks.peers import java_logs
from benchmarks.peers.peer import Peer, latency, throughput
from benchmarks.peers.table import installed
from benchmarks.workload import Figure, Measure, Workload
from benchmarks.workloads import core, disk, on_disk, ours

TRIPS = 20_000
TRIPS_MIN = 200
PAUSED_TRIPS = 3_000
PAUSE_US = 500  # longer than any adaptive spinning: the receiver sleeps when the ping is sent
LARGE_TRIPS = 200
SMALL_BYTES = 256
LARGE_BYTES = 1 << 20
KILLS = 300
KILLS_MIN = 10
APPENDS = 1_000_000
SUSTAINED_SECONDS = 60
RECORD_BYTES = 360  # of a body of 256 bytes, as benchmarks send it
BLOCKING_RUNS, BLOCKING_RUNS_MIN, BLOCKING_TRIPS = 50, 5, 5_000
SLEEPERS = 500
WAVES, WAVES_MIN = 40, 5
SINGLE = ("pyzmq", "iceoryx2", "faster-fifo", "multiprocessing", "redis streams")
MANY = ("pyzmq", "iceoryx2", "faster-fifo many", "multiprocessing", "redis pipelined")
BLOCKING = ("pyzmq", "iceoryx2 events", "faster-fifo", "multiprocessing", "redis streams")


def _trips(full: int, effort: float) -> int:
    return max(TRIPS_MIN, int(full * effort))


def _seconds(effort: float) -> int:
    return max(5, int(SUSTAINED_SECONDS * effort))


def _rate_of(peer: Peer, producers: int) -> Measure:
    return lambda effort: throughput(peer, producers, effort)


def _half_trip_of(peer: Peer, trips: int, size: int, pause_us: int) -> Measure:
    return lambda effort: latency(peer, _trips(trips, effort), size, pause_us)


def _rates(names: Sequence[str], producers: int) -> dict[str, Measure]:
    peers, _ = installed()
    return {name: _rate_of(peers[name], producers) for name in names if name in peers}


def _half_trips(
    names: Sequence[str], trips: int = TRIPS, size: int = SMALL_BYTES, pause_us: int = 0
) -> dict[str, Measure]:
    peers, _ = installed()
    return {name: _half_trip_of(peers[name], trips, size, pause_us) for name in names if name in peers}


def _throughput() -> list[Workload]:
    return [
        Workload(
            "throughput",
            lambda effort: ours.throughput(effort),
            [Figure("throughput", "rate", "msg/s", is_rate=True, musts={"pyzmq": 1.6})],
            _rates(SINGLE, 1),
        ),
        Workload(
            "throughput_batch",
            lambda effort: ours.throughput(effort, batch=256),
            [Figure("throughput_batch", "rate", "msg/s", is_rate=True, musts={"pyzmq": 4.0})],
            _rates(MANY, 1),
        ),
        Workload(
            "throughput_4_to_1",
            lambda effort: ours.throughput(effort, producers=4),
            [Figure("throughput_4_to_1", "rate", "msg/s", is_rate=True, musts={"pyzmq": 1.2})],
            _rates(SINGLE, 4),
        ),
    ]


def _sustained() -> list[Workload]:
    """A service's day in a minute; the lesser of what warm memory and what the disk allows is the best that can be."""
    allowed = "the lesser of a short warm run and a plain O_DIRECT writer"
    return [
        Workload(
            "sustained",
            lambda effort: ours.sustained(_seconds(effort)),
            [
                Figure("sustained", "rate", "msg/s", is_rate=True, musts={allowed: 0.8, "chronicle queue": 2.0}),
                Figure("sustained_worst", "worst", "msg/s", is_rate=True),
                Figure("sustained_p50", "p50", "us"),
                Figure("sustained_p99.9", "p99.9", "us", limits={"limit": 2.0}),
                Figure("sustained_p99.99", "p99.99", "us", limits={"limit": 100.0}),
            ],
            {
                allowed: lambda effort: {
                    "rate": min(ours.throughput(effort)["rate"], disk.direct_writes(effort) / RECORD_BYTES)
                },
                "chronicle queue": lambda effort: java_logs.sustained("chronicle queue", _seconds(effort)),
            },
        ),
        Workload(
            "throughput_memory",
            lambda effort: ours.throughput(effort),
            [Figure("throughput_memory", "rate", "msg/s", is_rate=True)],
            {"aeron ipc": lambda effort: java_logs.sustained("aeron ipc", 5)},
        ),
    ]


def _verification() -> list[Workload]:
    return [
        Workload(
            "verification",
            ours.verification,
            [
                Figure("verification_with", "with", "ns"),
                Figure("verification_without", "without", "ns"),
                Figure("verification_cost", "cost", "ns", limits={"limit": 30}),
            ],
        ),
    ]


def _small_trips() -> list[Workload]:
    blocking = {"iceoryx2 events": 1.0, "pyzmq": 0.7}
    return [
        Workload(
            "spinning",
            lambda effort: ours.latency(_trips(TRIPS, effort), spinning=True),
            [
                Figure("spinning_p50", "p50", "us", musts={"iceoryx2": 1.0}),
                Figure("spinning_p99", "p99", "us"),
            ],
            _half_trips(["iceoryx2"]),
        ),
        Workload(
            "blocking",
            lambda effort: ours.latency(_trips(TRIPS, effort)),
            [
                Figure("blocking_p50", "p50", "us", musts=blocking),
                Figure("blocking_p99", "p99", "us", musts=blocking),
                Figure("blocking_p99.9", "p99.9", "us"),
            ],
            _half_trips(BLOCKING),
        ),
        Workload(
            "blocking_runs",
            lambda effort: ours.blocking_runs(max(BLOCKING_RUNS_MIN, int(BLOCKING_RUNS * effort)), BLOCKING_TRIPS),
            [
                Figure("blocking_runs_median", "median", "us"),
                Figure("blocking_runs_worst", "worst", "us"),
                Figure("blocking_runs_ratio", "ratio", "", limits={"limit": 3.0}),
            ],
        ),
        Workload(
            "asleep",
            lambda effort: ours.latency(_trips(PAUSED_TRIPS, effort), pause_us=PAUSE_US),
            [Figure("asleep_p50", "p50", "us"), Figure("asleep_p99", "p99", "us")],
            _half_trips(BLOCKING, PAUSED_TRIPS, pause_us=PAUSE_US),
        ),
    ]


def _large_trips() -> list[Workload]:
    return [
        Workload(
            "large_copy",
            lambda effort: ours.latency(_trips(LARGE_TRIPS, effort), size=LARGE_BYTES),
            [Figure("large_copy_p50", "p50", "us", musts={"pyzmq": 0.25})],
            _half_trips(["pyzmq", "faster-fifo", "multiprocessing"], LARGE_TRIPS, LARGE_BYTES),
        ),
        Workload(
            "large_view",
            lambda effort: ours.latency(_trips(LARGE_TRIPS, effort), size=LARGE_BYTES, in_place=True, spinning=True),
            [Figure("large_view_p50", "p50", "us", musts={"iceoryx2": 1.0})],
            _half_trips(["iceoryx2"], LARGE_TRIPS, LARGE_BYTES),
        ),
    ]


def _core() -> list[Workload]:
    return [
        Workload(
            "append_call",
            lambda effort: core.append_call(max(10_000, int(APPENDS * effort))),
            [
                Figure("append_call_p50", "p50", "ns", limits={"limit": 100}),
                Figure("append_call_mean", "mean", "ns"),
                Figure("append_call_p99.9", "p99.9", "ns", limits={"limit": 3000}),
            ],
        ),
        Workload(
            "owner_killed",
            lambda effort: core.owner_killed(max(KILLS_MIN, int(KILLS * effort))),
            [
                Figure("owner_killed_p50", "p50", "us"),
                Figure("owner_killed_p99", "p99", "us", limits={"limit": 1000}),
            ],
        ),
    ]


def _waves() -> list[Workload]:
    return [
        Workload(
            "wave",
            lambda effort: core.wave(SLEEPERS, max(WAVES_MIN, int(WAVES * effort))),
            [
                Figure("wave_send_one_asleep", "one_us", "us"),
                Figure("wave_send_500_asleep", "send_us", "us"),
                Figure("wave_send_ratio", "ratio", "", limits={"limit": 3.0}),
                Figure("wave_500_awake", "last_us", "us"),
                Figure("wave_500_awake_to_bare", "to_bare", "", limits={"limit": 1.5}),
            ],
        ),
    ]


def _topics() -> list[Workload]:
    return [
        Workload(
            "topics",
            ours.many_topics,
            [
                Figure("topics_send_one", "one_ns", "ns"),
                Figure("topics_send_many", "many_ns", "ns"),
                Figure("topics_send_ratio", "ratio", "", limits={"limit": 1.2}),
                Figure("topics_bytes_per_used_queue", "bytes_per_queue", "bytes", limits={"limit": 5120}),
            ],
        ),
    ]


def workloads() -> list[Workload]:
    """Every workload, in the order of the table."""
    return [
        *_throughput(),
        *_verification(),
        *_sustained(),
        *_small_trips(),
        *_large_trips(),
        *_core(),
        *_waves(),
        *_topics(),
        *on_disk.workloads(),
    ]


def main(given: Sequence[str] | None = None) -> int:
    """Run what the command line asks for; returns the exit code."""
    return run("python -m benchmarks.local", "shmq against its rivals", workloads(), given, notes=installed()[1])


if __name__ == "__main__":
    sys.exit(main())
