"""The command line of every table of figures: choose some, measure them one after the other, print lines.

`benchmarks.local`, `tcp`, `features`, `spark` and `health` hand their tables of workloads to `run`. The exit code is 0
when every promise holds, 1 when one does not, 2 when nothing could be measured.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import replace
from fnmatch import fnmatch

from benchmarks.report import show, show_headings
from benchmarks.workload import Workload, measure

RUNS = 5
QUICK_RUNS = 1
QUICK_EFFORT = 0.02


def _arguments(program: str, description: str, given: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog=program, description=description)
    parser.add_argument("--json", action="store_true", help="one JSON object a line")
    parser.add_argument("--figure", nargs="+", metavar="NAME", help="only these figures or workloads; * and ? match")
    parser.add_argument("--runs", type=int, help=f"interleaved runs, of which the median counts ({RUNS})")
    parser.add_argument("--quick", action="store_true", help="one short run: shows that it works, not how fast it is")
    parser.add_argument("--peers-only", action="store_true", help="measure the rivals alone")
    parser.add_argument("--list", action="store_true", help="print the names of workloads and figures, measure nothing")
    return parser.parse_args(given)


def _chosen(table: Sequence[Workload], names: Sequence[str] | None) -> list[Workload]:
    chosen: list[Workload] = []
    for workload in table:
        if names is None or any(fnmatch(workload.name, name) for name in names):
            chosen.append(workload)
            continue
        figures = [figure for figure in workload.figures if any(fnmatch(figure.name, name) for name in names)]
        if figures:
            chosen.append(replace(workload, figures=figures))
    return chosen


def run(
    program: str,
    description: str,
    table: Sequence[Workload],
    given: Sequence[str] | None,
    *,
    quick_effort: float = QUICK_EFFORT,
    notes: Sequence[str] = (),
) -> int:
    """Measure what a command line asks for of a table of workloads; returns the exit code.

    Args:
        quick_effort: of a run with --quick; 1 is a full one.
        notes: what to say on stderr before anything is measured.
    """
    arguments = _arguments(program, description, given)
    chosen = _chosen(table, arguments.figure)
    if arguments.list:
        for workload in chosen:
            print(f"{workload.name}: {' '.join(figure.name for figure in workload.figures)}")
        return 0
    if not chosen:
        print(f"no figure or workload is called {' or '.join(arguments.figure)}; see --list", file=sys.stderr)
        return 2
    runs = arguments.runs or (QUICK_RUNS if arguments.quick else RUNS)
    effort = quick_effort if arguments.quick else 1.0
    for sentence in notes:
        print(sentence, file=sys.stderr)
    if not arguments.json:
        show_headings()
    broken = 0
    told: set[str] = set()
    for workload in chosen:
        if arguments.peers_only and not workload.peers:
            continue
        results = measure(workload, list(workload.peers), runs, effort, with_ours=not arguments.peers_only)
        for name in results.absent.keys() - told:
            told.add(name)
            print(f"skipped: {name}: {results.absent[name]}", file=sys.stderr)
        for figure in workload.figures:
            for line in results.lines(figure):
                show(line, as_json=arguments.json)
                broken += line.holds is False
    return 1 if broken else 0
