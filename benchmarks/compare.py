"""Two commits against each other: `python -m benchmarks.compare --base PYTHON --head PYTHON --pairs 9`.

Both are checkouts that are installed in environments of their own (`pip install -e .`). Every figure of the tables
`local`, `tcp`, `features`, `spark` and `health` is measured in turn, by the benchmarks of each checkout itself and
without rivals, workload by workload:

    pair 1   base head        pair 2   head base        pair 3   base head …

    ratio of a pair   head / base
    ratio             median of the pairs' ratios
    interval          two of the sorted ratios, so far out that the true median lies between them with 95 % or more,
                      whatever the distribution (sign test): of 9 pairs the 2nd and the 8th; below 6 there is none

A minute in which the machine is slow hits both of a pair, and a drift hits one commit first as often as the other. A
figure holds when the interval's worse end is at most `--tolerance` (0.03) worse than base. The last thing printed is
one JSON object with everything; the exit code is 0 when every figure holds, 1 when one does not, 2 when nothing could
be compared.

    --only 'throughput*' blocking      these figures or workloads; * and ? match
    --effort 0.2                       a fifth of the work of a full run, so a fifth of its time
    --quick                            rough and short: shows that it works, and large differences
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from fnmatch import fnmatch
from pathlib import Path

from shmq.measurement.measure import median

TABLES = ("local", "tcp", "features", "spark", "health")
PAIRS = 9
TOLERANCE = 0.03
CONFIDENCE = 0.95
_BROKEN_PROMISE = 1  # a figure was measured and is not what benchmarks/README.md promises; here only two commits count
# Runs in a checkout's own Python. Rivals are taken out, because commits from before this program have no option for it.
_ALONE = """
import importlib, os, sys
sys.path.insert(0, os.getcwd())
from benchmarks import workload
measure = workload.measure
whole = float(sys.argv[2])
workload.measure = lambda each, peers, runs, effort, **named: measure(each, (), runs, effort * whole, **named)
sys.exit(importlib.import_module("benchmarks." + sys.argv[1]).main(sys.argv[3:]))
"""
_WHERE = "import pathlib, shmq; print(pathlib.Path(shmq.__file__).resolve().parent.parent)"


class Unusable(Exception):
    """An environment cannot be measured; the text says why."""


@dataclass(frozen=True)
class Checkout:
    """A Python and the checkout that is installed in it."""

    python: str
    tree: Path

    def measured(self, table: str, options: Sequence[str], effort: float = 1.0) -> str:
        """Run a table of this checkout's benchmarks and return what it prints.

        Args:
            effort: which part of the work that the run would do.

        Raises:
            Unusable: it failed.
        """
        command = [self.python, "-c", _ALONE, table, str(effort), *options]
        done = subprocess.run(command, cwd=self.tree, capture_output=True, text=True, check=False)
        if done.returncode not in (0, _BROKEN_PROMISE) or (done.returncode and "Traceback" in done.stderr):
            said = done.stderr.strip().splitlines()[-5:] or [f"exit code {done.returncode}"]
            raise Unusable(f"{table} in {self.tree}: " + "\n  ".join(said))
        return done.stdout

    def listed(self, table: str) -> dict[str, list[str]]:
        """Return the figures of each workload of a table; none when this checkout does not have it."""
        try:
            lines = self.measured(table, ["--list"]).splitlines()
        except Unusable as reason:
            print(f"skipped: {reason}", file=sys.stderr)
            return {}
        return {name: figures.split() for name, _, figures in (line.partition(":") for line in lines)}


@dataclass
class Comparison:
    """One figure in both checkouts, pair by pair."""

    table: str
    figure: str
    unit: str
    base: list[float] = field(default_factory=list)
    head: list[float] = field(default_factory=list)

    @property
    def is_rate(self) -> bool:
        """Whether more is better."""
        return self.unit.endswith("/s")

    def as_json(self, tolerance: float) -> dict[str, object]:
        """Return all there is to say about it; `ratio`, `low` and `high` are head / base."""
        ratios = [head / base for base, head in zip(self.base, self.head, strict=True) if base]
        low, high, confidence = interval(ratios)
        worse = low if self.is_rate else high
        limit = 1 - tolerance if self.is_rate else 1 + tolerance
        holds = None if worse is None else worse >= limit if self.is_rate else worse <= limit
        middle = median(ratios) if ratios else None
        return {**asdict(self), "ratio": middle, "low": low, "high": high, "confidence": confidence, "holds": holds}


def interval(values: Sequence[float]) -> tuple[float | None, float | None, float]:
    """Return the narrowest pair of sorted values around the true median with 95 %, and its real confidence."""
    ordered, count = sorted(values), len(values)
    outside, cut = 0.0, 0  # probability that the true median lies below the cut-th value
    for number in range(count // 2):
        more = outside + math.comb(count, number) / 2**count
        if 1 - 2 * more < CONFIDENCE:
            break
        outside, cut = more, number + 1
    if not cut:
        return None, None, 0.0
    return ordered[cut - 1], ordered[count - cut], 1 - 2 * outside


def checkout_of(text: str) -> Checkout:
    """Read PYTHON or PYTHON=TREE, where PYTHON may be an environment's directory.

    Raises:
        Unusable: there is no Python, or no checkout is installed in it.
    """
    place, _, tree = text.partition("=")
    python = Path(place) / "bin" / "python" if Path(place).is_dir() else Path(place)
    if not python.exists():
        raise Unusable(f"{python} is no Python")
    if not tree:
        command = [str(python.absolute()), "-P", "-c", _WHERE]
        done = subprocess.run(command, cwd="/", capture_output=True, text=True, check=False)
        tree = done.stdout.strip()
    if not tree or not (Path(tree) / "benchmarks").is_dir():
        raise Unusable(f"no checkout with benchmarks is installed in {python}: pip install -e CHECKOUT, or PYTHON=TREE")
    return Checkout(str(python.absolute()), Path(tree).resolve())


def chosen(checkout: Checkout, tables: Sequence[str], only: Sequence[str]) -> dict[str, dict[str, list[str]]]:
    """Return the wanted figures by table and workload."""
    found: dict[str, dict[str, list[str]]] = {}
    for table in tables:
        for workload, figures in checkout.listed(table).items():
            whole = any(fnmatch(workload, name) for name in only)
            wanted = [figure for figure in figures if whole or any(fnmatch(figure, name) for name in only)]
            if wanted:
                found.setdefault(table, {})[workload] = wanted
    return found


def samples(
    checkout: Checkout, table: str, workload: str, wanted: Sequence[str], *, effort: float, quick: bool
) -> Iterator[dict[str, str]]:
    """Yield the line of each wanted figure out of one run of a workload.

    Raises:
        Unusable: the run failed.
    """
    seen = set(wanted)
    options = ["--json", "--runs", "1", *(["--quick"] if quick else []), "--figure", workload]
    for line in map(json.loads, checkout.measured(table, options, effort).splitlines()):
        if line["figure"] in seen and line["ours"] is not None:
            seen.discard(line["figure"])  # a figure has a line for each of its limits
            yield line


def compared(
    base: Checkout,
    head: Checkout,
    wanted: Mapping[str, Mapping[str, Sequence[str]]],
    pairs: int,
    *,
    effort: float = 1.0,
    quick: bool = False,
) -> list[Comparison]:
    """Measure all wanted figures `pairs` times in both checkouts; figures that one of them lacks are left out.

    Raises:
        Unusable: a run failed.
    """
    found: dict[tuple[str, str], Comparison] = {}
    turns = [("base", base), ("head", head)]
    for number in range(pairs):
        for table, workloads in wanted.items():
            print(f"pair {number + 1} of {pairs}: {table}", file=sys.stderr)
            for workload, figures in workloads.items():
                sides: dict[str, dict[str, dict[str, str]]] = {}
                for side, checkout in turns if number % 2 == 0 else reversed(turns):
                    lines = samples(checkout, table, workload, figures, effort=effort, quick=quick)
                    sides[side] = {line["figure"]: line for line in lines}
                for figure in sides["base"].keys() & sides["head"].keys():
                    line = sides["base"][figure]
                    each = found.setdefault((table, figure), Comparison(table, figure, line["unit"]))
                    each.base.append(float(line["ours"]))
                    each.head.append(float(sides["head"][figure]["ours"]))
    return [found[key] for key in sorted(found)]


def _row(found: Mapping[str, object]) -> str:
    numbers = " ".join("      -" if found[name] is None else f"{found[name]:7.3f}" for name in ("ratio", "low", "high"))
    verdict = {None: "too few pairs", True: "holds", False: "WORSE OR UNCLEAR"}[found["holds"]]  # type: ignore[index]
    return f"{found['table']:<9} {found['figure']:<32} {numbers}  {found['unit']:<8} {verdict}"


def _arguments(given: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.compare", description="one commit against another")
    place = "an environment or its Python; =TREE where the checkout is not installed with pip install -e"
    parser.add_argument("--base", required=True, metavar="PYTHON", help=place)
    parser.add_argument("--head", required=True, metavar="PYTHON", help=place)
    parser.add_argument("--pairs", type=int, default=PAIRS, help=f"runs of each, in turn ({PAIRS})")
    parser.add_argument("--tables", nargs="+", choices=TABLES, default=TABLES, metavar="TABLE", help=", ".join(TABLES))
    parser.add_argument("--only", nargs="+", default=["*"], metavar="NAME", help="only these; * matches")
    length = parser.add_mutually_exclusive_group()
    length.add_argument("--effort", type=float, default=1.0, help="which part of a full run's work each run does (1)")
    length.add_argument("--quick", action="store_true", help="short runs")
    parser.add_argument("--tolerance", type=float, default=TOLERANCE, help=f"how much worse is the same ({TOLERANCE})")
    return parser.parse_args(given)


def main(given: Sequence[str] | None = None) -> int:
    """Compare what the command line asks for; returns the exit code."""
    arguments = _arguments(given)
    try:
        base, head = checkout_of(arguments.base), checkout_of(arguments.head)
        wanted = chosen(head, arguments.tables, arguments.only)
        if not wanted:
            raise Unusable(f"no figure or workload is called {' or '.join(arguments.only)}")
        found = compared(base, head, wanted, arguments.pairs, effort=arguments.effort, quick=arguments.quick)
        rows = [each.as_json(arguments.tolerance) for each in found]
    except Unusable as reason:
        print(reason, file=sys.stderr)
        return 2
    named = {figure for workloads in wanted.values() for figures in workloads.values() for figure in figures}
    missing = sorted(named - {row["figure"] for row in rows})
    for row in rows:
        print(_row(row))
    facts = {"base": str(base.tree), "head": str(head.tree), "pairs": arguments.pairs, "quick": arguments.quick}
    how = {"effort": arguments.effort, "tolerance": arguments.tolerance}
    print(json.dumps({**facts, **how, "missing": missing, "figures": rows}))
    return 0 if rows and all(row["holds"] is not False for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
