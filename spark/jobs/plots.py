"""The pictures of reports: small PNG files, drawn from the report alone, so that they can be drawn again later.

matplotlib is imported when a picture is wanted, and needs no display.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from shmq.errors import UsageError
from shmq.spark.jobs.driver.session import require

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_SIZE: Final = (8.0, 3.2)
_DOTS: Final = 90
_LINES_MAX: Final = 8
_BARS_MAX: Final = 12
_NAME_MAX: Final = 40
_BAR_ALPHA: Final = 0.75  # so that figures in a bar can be read


def draw(report: Mapping[str, Any], path: str) -> None:
    """Draw the picture of a report.

    Raises:
        UsageError: matplotlib is missing, the job has no picture, or the place cannot be written.
    """
    figure = picture_of(report)
    try:
        figure.savefig(Path(path), format="png")
    except OSError as error:
        raise UsageError(f"the picture cannot be written to {path}: {error.strerror}", hint="--plot FILE") from None


def picture_of(report: Mapping[str, Any]) -> Figure:
    """Return the picture of a report, which no file holds yet.

    Raises:
        UsageError: matplotlib is missing, or the job has no picture.
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
    return figure


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
    left.set(title="messages behind", xlabel="seconds")
    _from_zero(left)
    _counts(left, "y")
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
        kinds |= {f"{check['check']}: {name}": count for name, count in (named or {"none": 0}).items()}
    _bars(axes[0], "differences", kinds or {"none": 0})
    queues = report["checks"][0]["queues"][:_BARS_MAX]
    _bars(axes[1], "messages compared", {f"{row['topic']}/{row['queue_id']}": row["messages"] for row in queues})


def _archive(report: Mapping[str, Any], axes: Any) -> None:
    left, right = axes
    steps = report.get("steps", ())  # a dry run has none
    messages, at, counts = 0, [0.0], [0]
    for step in steps:
        messages += step["messages"]
        at.append(step["at_seconds"])
        counts.append(messages)
    left.plot(at, counts, marker=".", drawstyle="steps-post")  # a batch is in at once, not bit by bit
    left.set(title="messages archived", xlabel="seconds")
    _from_zero(left)
    _counts(left, "y")
    queues = sorted(report["queues"], key=lambda row: -row["behind"])[:_BARS_MAX]
    ends = {f"{row['topic']}/{row['queue_id']}": row["archived_until"] or 0 for row in queues}
    behind = dict(zip(ends, (row["behind"] for row in queues), strict=True))
    if any(behind.values()):
        _stacked(right, "by queue: archived until, and behind", {"archived until": ends, "behind": behind})
    else:
        _stacked(right, "archived until, by queue", {"archived until": ends})


def _replay(report: Mapping[str, Any], axes: Any) -> None:
    left, right = axes
    samples = report.get("samples", ())
    left.plot([each["at_seconds"] for each in samples], [each["messages"] for each in samples])
    left.set(title=f"growth of {report['target']}", xlabel="seconds", ylabel="messages")
    _from_zero(left)
    _counts(left, "y")
    sent = "messages" if report["dry_run"] else "sent"
    queues = report["queues"][:_BARS_MAX]
    titles = {sent: "to send" if report["dry_run"] else "sent", "in_already": "sent before", "loops": "came from there"}
    parts = {
        title: {f"{row['topic']}/{row['queue_id']}": row[name] for row in queues}
        for name, title in titles.items()
        if name == sent or any(row[name] for row in queues)
    }
    _stacked(right, "messages by source queue", parts)


def _from_zero(axis: Any) -> None:
    """Let time begin at 0, and last a second at least."""
    axis.set_xlim(0, max(1.0, axis.get_xlim()[1]))


def _counts(axis: Any, direction: str) -> None:
    """Make an axis one of whole numbers from 0, also where all of them are 0 and matplotlib would zoom in on that."""
    limits, plane = (axis.set_ylim, axis.yaxis) if direction == "y" else (axis.set_xlim, axis.xaxis)
    limits(0, max(1.0, (axis.get_ylim() if direction == "y" else axis.get_xlim())[1]))
    axis.locator_params(axis=direction, integer=True)
    plane.set_major_formatter("{x:,.0f}")


def _stacked(axis: Any, title: str, parts: Mapping[str, Mapping[str, int]]) -> None:
    """Bars of the same names, one part behind the other."""
    names = list(next(iter(parts.values())))
    before = [0] * len(names)
    for label, counts in parts.items():
        values = [counts[name] for name in names]
        drawn = axis.barh(range(len(names)), values, left=before, label=label, alpha=_BAR_ALPHA)
        axis.bar_label(drawn, [f"{value:,}" if value else "" for value in values], label_type="center", fontsize=7)
        before = [one + two for one, two in zip(before, values, strict=True)]
    axis.set_yticks(range(len(names)), [_short(name) for name in names], fontsize=7)
    axis.invert_yaxis()
    axis.set_title(title)
    _counts(axis, "x")
    if len(parts) > 1:
        axis.legend(fontsize=7, frameon=False, loc="lower center", bbox_to_anchor=(0.5, -0.35), ncols=3)


def _short(name: str) -> str:
    return name if len(name) <= _NAME_MAX else f"{name[: _NAME_MAX - 1]}…"


def _bars(axis: Any, title: str, counts: Mapping[str, int]) -> None:
    names = [_short(name) for name in counts]
    places = range(len(names))
    drawn = axis.barh(places, list(counts.values()))
    axis.bar_label(drawn, [f"{count:,}" for count in counts.values()], padding=2, fontsize=7)
    axis.set_yticks(places, names, fontsize=7)
    axis.invert_yaxis()
    axis.margins(x=0.15)
    _counts(axis, "x")
    axis.set_title(title)


_DRAWINGS: Final[dict[str, Callable[[Mapping[str, Any], Any], None]]] = {
    "archive": _archive,
    "replay": _replay,
    "lag": _lag,
    "dlq": _dlq,
    "reconcile": _reconcile,
}
