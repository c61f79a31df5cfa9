"""Sends that are acknowledged on the disk, beside what the disk itself does with as many writers.

    ours           a private broker with synchronous flush; processes that each wait for their own answer
    bare write     one process: 4 KiB into a preallocated file, fdatasync (disk.c)
    bare waiters   as many processes as ours, which wait for the fdatasyncs of one that does nothing else

Rule: all of them write below the same directory for temporary files.
"""

from __future__ import annotations

from benchmarks.workload import Figure, Workload
from benchmarks.workloads.core import run_program
from shmq.measurement.synchronous import synchronous
from shmq.testing import Broker

SECONDS = 3.0
SECONDS_MIN = 0.5
MANY = 64


def _seconds(effort: float) -> float:
    return max(SECONDS_MIN, SECONDS * effort)


def _ours(processes: int, effort: float) -> dict[str, float]:
    with Broker(small=False, flush="sync") as broker:
        return synchronous(broker.url, processes=processes, seconds=_seconds(effort))


def _bare(effort: float) -> dict[str, float]:
    values = run_program("disk", "one", str(_seconds(effort)))
    return {"rate": values["rate"], "p50": values["p50"] / 1000, "p99": values["p99"] / 1000}


def _waiters(effort: float) -> dict[str, float]:
    return run_program("disk", "many", str(MANY), str(_seconds(effort)))


def workloads() -> list[Workload]:
    """One process, and many."""
    one = Figure("on_disk_1_p50", "p50", "us", musts={"bare write": 1.5})
    many = Figure(f"on_disk_{MANY}", "rate", "msg/s", is_rate=True, musts={"bare waiters": 0.8})
    return [
        Workload(
            "on_disk_1",
            lambda effort: _ours(1, effort),
            [one, Figure("on_disk_1_p99", "p99", "us")],
            {"bare write": _bare},
        ),
        Workload(
            f"on_disk_{MANY}",
            lambda effort: _ours(MANY, effort),
            [many, Figure(f"on_disk_{MANY}_p50", "p50", "us")],
            {"bare waiters": _waiters, "bare write": _bare},
        ),
    ]
