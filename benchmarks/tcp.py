"""The command `python -m benchmarks.tcp`: shmq and a stock RocketMQ broker over TCP, under the same Java client.

`brokers/rocketmq.py` drives the brokers. The exit code is 1 when a must does not hold.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence

from benchmarks.brokers.contestants import OURS, name_of, on_disk, registered
from benchmarks.brokers.rocketmq import Arena
from benchmarks.command import run
from benchmarks.workload import Figure, Measure, Workload
from tests.interop.peers.cache import PeerMissing

QUICK_EFFORT = 0.1
VERSION = "4"
PEER = name_of(VERSION)
BATCH = 32
SINGLE_MUST = 1.4
MANY_MUST = 2.0
BATCH_MUST = 1.2
CATCH_UP_MUST = 1.2
MEMORY_MUST = 0.3
PROCESSOR_MUST = 0.35
SEEN_P99_MS_MAX = 10.0
ON_DISK_MUST = 1.5
ON_DISK_LOAD_MUST = 3.0
HELD_RATIO_MAX = 2.0
HELD_LAST_MS_MAX = 15.0

Run = Callable[[str, float], dict[str, float]]


def workloads(arena: Arena) -> list[Workload]:
    """Every workload, in the order of the table."""
    made = []
    for threads, must in ((1, SINGLE_MUST), (64, MANY_MUST)):
        for size, text in ((128, "128b"), (1024, "1kib")):
            words = {"-w": threads, "-s": size}
            name = f"sync_{threads}_{text}"
            figures = [_rate(name, must)]
            if threads > 1:
                figures.append(Figure(f"memory_{threads}_{text}", "memory", "MiB", musts={PEER: MEMORY_MUST}))
                processor = f"processor_{threads}_{text}"
                figures.append(Figure(processor, "processor_us", "us/msg", musts={PEER: PROCESSOR_MUST}))
            made.append(_workload(name, figures, lambda who, effort, words=words: arena.sending(who, words, effort)))
    batch = {"-b": BATCH, "-w": 64, "-s": 128}
    send_batches: Run = lambda who, effort: arena.sending(who, batch, effort, "BatchProducer")  # noqa: E731
    made.append(_workload("batches_of_32", [_rate("batches_of_32", BATCH_MUST)], send_batches))
    made.append(_workload("catch_up", [_rate("catch_up", CATCH_UP_MUST)], arena.catching_up))
    threads: dict[str, object] = {"-w": 64, "-s": 128}
    send_durably: Run = lambda who, effort: arena.sending(who, threads, effort)  # noqa: E731
    load_durably: Run = lambda who, effort: arena.loading(who, 8, 64, effort)  # noqa: E731
    made.append(_workload("on_disk_64", [_rate("on_disk_64", ON_DISK_MUST)], send_durably, name=on_disk))
    made.append(_workload("on_disk_8x64", [_rate("on_disk_8x64", ON_DISK_LOAD_MUST)], load_durably, name=on_disk))
    held = [
        Figure("held_pulls_answer", "answer_us", "us"),
        Figure("held_pulls_answer_ratio", "ratio", "", limits={"limit": HELD_RATIO_MAX}),
        Figure("held_pulls_last", "last_ms", "ms", limits={"limit": HELD_LAST_MS_MAX}),
    ]
    made.append(_workload("held_pulls", held, arena.held_pulls))
    made.append(_workload("route", _seen("route"), arena.routes, name=registered))
    made.append(_workload("key", _seen("key"), arena.keys, name=registered))
    return made


def _seen(name: str) -> list[Figure]:
    """Until what was just made is found; the limit is for a machine that does nothing else."""
    p99 = Figure(f"{name}_p99", "p99_ms", "ms", limits={"limit": SEEN_P99_MS_MAX})
    return [Figure(f"{name}_p50", "p50_ms", "ms"), p99]


def _rate(name: str, must: float) -> Figure:
    return Figure(name, "rate", "msg/s", is_rate=True, musts={PEER: must})


def _workload(
    workload: str, figures: Sequence[Figure], run: Run, *, name: Callable[[str], str] = lambda broker: broker
) -> Workload:
    def of(broker: str) -> Measure:
        return lambda effort: run(name(broker), effort)

    return Workload(workload, of(OURS), figures, {PEER: of(VERSION)})


def main(given: Sequence[str] | None = None) -> int:
    """Run what the command line asks for; returns the exit code."""
    with Arena() as arena:
        try:
            text = f"shmq against {PEER} over TCP"
            return run("python -m benchmarks.tcp", text, workloads(arena), given, quick_effort=QUICK_EFFORT)
        except PeerMissing as reason:
            print(f"nothing to compare with: {reason}", file=sys.stderr)
            return 2


if __name__ == "__main__":
    sys.exit(main())
