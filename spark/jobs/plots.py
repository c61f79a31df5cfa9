"""Owns the pictures of reports: small PNG files, drawn from the report alone, so that they can be drawn again later.

It does not know Spark. matplotlib is imported when a picture is wanted, and needs no display.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from shmq.errors import UsageError
from shmq.spark.jobs.session import require

_SIZE: Final = (8.0, 3.2)
_DOTS: Final = 90
_LINES_MAX: Final = 8
_BARS_MAX: Final = 12


def draw(report: Mapping[str, Any], path: str) -> None:
    """Draw the picture of a report.

    Raises:
        UsageError: matplotlib is missing, the job has no picture, or the place cannot be written.
    """
    require("matplotlib")
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    drawing = _DRAWINGS.get(str(report["job"]))
    if drawing is None:
        raise UsageError(f"job {report['job']} has no picture", hint=f"these have: {', '.join(_DRAWINGS)}")
    figure = Figure(figsize=_SIZE, dpi=_DOTS, layout="constrained")
    FigureCanvasAgg(figure)
    drawing(report, figure.subplots(1, 2))
    try:
        figure.savefig(Path(path), format="png")
    except OSError as error:
        raise UsageError(f"the picture cannot be written to {path}: {error.strerror}", hint="--plot FILE") from None


def _lag(report: Mapping[str, Any], axes: Any) -> None:
    left, right = axes
    totals: dict[str, dict[int, int]] = {}
    for row in report["samples"]:
        times = totals.setdefault(f"{row['group']} · {row['topic']}", {})
        times[row["at_ms"]] = times.get(row["at_ms"], 0) + row["lag"]
    begin = min((row["at_ms"] for row in report["samples"]), default=0)
    for name, times in sorted(totals.items(), key=lambda item: -max(item[1].values()))[:_LINES_MAX]:
        at = sorted(times)
        left.plot([(each - begin) / 1000 for each in at], [times[each] for each in at], marker=".", label=name)
    left.set(title="messages behind", xlabel="seconds", ylim=(0, None))
    if totals:
        left.legend(fontsize=7, frameon=False)
    whole = [row for row in report["born_to_stored"] if row["from_ms"] is None]
    steps = [(row["topic"], "stored", row) for row in whole]
    steps += [(row["topic"], f"{row['step']} by {row['group']}", row) for row in report["stored_to_consumed"]]
    names = ("p50_ms", "p90_ms", "p99_ms", "p999_ms", "max_ms")
    for topic, step, row in steps[:_LINES_MAX]:
        right.plot(range(len(names)), [row[name] + 0.5 for name in names], marker="o", label=f"{topic}: {step}")
    right.set(title="how long messages took (ms)", yscale="log")
    right.set_xticks(range(len(names)), ["p50", "p90", "p99", "p99.9", "max"])
    if steps:
        right.legend(fontsize=7, frameon=False)


def _dlq(report: Mapping[str, Any], axes: Any) -> None:
    causes: dict[str, int] = {}
    for row in report["groups"]:
        name = f"{row['consumer_group']}: {row['cause']}"
        causes[name] = causes.get(name, 0) + row["letters"]
    _bars(axes[0], "dead letters by cause", dict(sorted(causes.items(), key=lambda item: -item[1])[:_BARS_MAX]))
    _bars(axes[1], "by age", {row["age"]: row["letters"] for row in report["ages"]})


def _reconcile(report: Mapping[str, Any], axes: Any) -> None:
    kinds: dict[str, int] = {}
    for check in report["checks"]:
        named = check.get("kinds")
        if named is None:
            named = {name: sum(row[name] for row in check["queues"]) for name in ("missing", "doubled")}
        kinds |= {f"{check['check']}: {name}": count for name, count in named.items()}
    _bars(axes[0], "differences", kinds or {"none": 0})
    queues = report["checks"][0]["queues"][:_BARS_MAX]
    _bars(axes[1], "messages compared", {f"{row['topic']}/{row['queue_id']}": row["messages"] for row in queues})


def _bars(axis: Any, title: str, counts: Mapping[str, int]) -> None:
    names = [name if len(name) <= 40 else f"{name[:39]}…" for name in counts]
    places = range(len(names))
    drawn = axis.barh(places, list(counts.values()))
    axis.bar_label(drawn, padding=2, fontsize=7)
    axis.set_yticks(places, names, fontsize=7)
    axis.invert_yaxis()
    axis.margins(x=0.15)
    axis.set_title(title)


_DRAWINGS: Final[dict[str, Callable[[Mapping[str, Any], Any], None]]] = {
    "lag": _lag,
    "dlq": _dlq,
    "reconcile": _reconcile,
}
