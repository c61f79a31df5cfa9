"""Owns the command `python -m benchmarks.tcp`: shmq and a stock RocketMQ broker over TCP, under the same Java client.

It does not know how a broker is driven (rocketmq.py) nor how a line is computed (workload.py) or printed (report.py).
The exit code is 1 when a must does not hold.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from fnmatch import fnmatch

from benchmarks.contestants import name_of
from benchmarks.report import show, show_headings
from benchmarks.rocketmq import Arena
from benchmarks.workload import Figure, Measure, Workload, measure
from tests.interop.peers.cache import PeerMissing

RUNS = 5
QUICK_RUNS = 1
QUICK_EFFORT = 0.1
VERSION = "4"
PEER = name_of(VERSION)
BATCH = 32
SINGLE_MUST = 1.4
MANY_MUST = 2.0
BATCH_MUST = 1.2
CATCH_UP_MUST = 1.0
MEMORY_MUST = 0.3

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
            made.append(_workload(name, figures, lambda who, effort, words=words: arena.sending(who, words, effort)))
    batch = {"-b": BATCH, "-w": 64, "-s": 128}
    send_batches: Run = lambda who, effort: arena.sending(who, batch, effort, "BatchProducer")  # noqa: E731
    made.append(_workload("batches_of_32", [_rate("batches_of_32", BATCH_MUST)], send_batches))
    made.append(_workload("catch_up", [_rate("catch_up", CATCH_UP_MUST)], arena.catching_up))
    return made


def _rate(name: str, must: float) -> Figure:
    return Figure(name, "rate", "msg/s", is_rate=True, musts={PEER: must})


def _workload(name: str, figures: Sequence[Figure], run: Run) -> Workload:
    def of(broker: str) -> Measure:
        return lambda effort: run(broker, effort)

    return Workload(name, of("ours"), figures, {PEER: of(VERSION)})


def _arguments(given: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.tcp", description=f"shmq against {PEER} over TCP")
    parser.add_argument("--json", action="store_true", help="one JSON object a line")
    parser.add_argument("--figure", nargs="+", metavar="NAME", help="only these workloads; * and ? match")
    parser.add_argument("--runs", type=int, help=f"interleaved runs, of which the median counts ({RUNS})")
    parser.add_argument("--quick", action="store_true", help="one short run: shows that it works, not how fast it is")
    parser.add_argument("--peers-only", action="store_true", help="measure the stock broker alone")
    parser.add_argument("--list", action="store_true", help="print the names of workloads and figures, measure nothing")
    return parser.parse_args(given)


def main(given: Sequence[str] | None = None) -> int:
    """Run what the command line asks for; returns the exit code."""
    arguments = _arguments(given)
    with Arena() as arena:
        names = arguments.figure or ["*"]
        chosen = [each for each in workloads(arena) if any(fnmatch(each.name, name) for name in names)]
        if arguments.list:
            for workload in chosen:
                print(f"{workload.name}: {' '.join(figure.name for figure in workload.figures)}")
            return 0
        if not chosen:
            print(f"no workload is called {' or '.join(names)}; see --list", file=sys.stderr)
            return 2
        try:
            return _measure_all(chosen, arguments)
        except PeerMissing as reason:
            print(f"nothing to compare with: {reason}", file=sys.stderr)
            return 2


def _measure_all(chosen: Sequence[Workload], arguments: argparse.Namespace) -> int:
    runs = arguments.runs or (QUICK_RUNS if arguments.quick else RUNS)
    effort = QUICK_EFFORT if arguments.quick else 1.0
    if not arguments.json:
        show_headings()
    broken = 0
    for workload in chosen:
        results = measure(workload, [PEER], runs, effort, with_ours=not arguments.peers_only)
        for figure in workload.figures:
            for line in results.lines(figure):
                show(line, as_json=arguments.json)
                broken += line.holds is False
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
