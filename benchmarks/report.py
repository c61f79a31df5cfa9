"""Prints lines: a table for people, one JSON object a line for programs."""

from __future__ import annotations

import json
from collections.abc import Sequence

from benchmarks.workload import Line

HEADINGS = ("figure", "ours", "peer", "value", "unit", "ratio", "must", "holds", "min … max of ours")
WIDTHS = (26, 11, 17, 11, 7, 8, 9, 6, 0)


def show_headings() -> None:
    """Print the first row of the table."""
    print(_row(HEADINGS))


def show(line: Line, *, as_json: bool) -> None:
    """Print one line now."""
    print(json.dumps(line.as_json()) if as_json else _row(_cells(line)), flush=True)


def _number(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:,.3g}" if abs(value) < 100 else f"{value:,.1f}"


def _row(cells: Sequence[str]) -> str:
    return " ".join(cell.ljust(width) for cell, width in zip(cells, WIDTHS, strict=True)).rstrip()


def _cells(line: Line) -> tuple[str, ...]:
    holds = {None: "", True: "yes", False: "NO"}[line.holds]
    spread = f"{_number(line.min)} … {_number(line.max)}"
    ratio = "-" if line.ratio is None else f"{line.ratio:.2f}"
    value = (line.figure, _number(line.ours), line.peer, _number(line.peer_value), line.unit)
    return (*value, ratio, line.must or "", holds, spread)
