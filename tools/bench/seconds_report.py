"""The report of a sustained run: a line of figures, a table of percentiles, and a picture of its seconds.

The picture has two parts over the same axis: messages sent and taken in each second with their mean, and how long a
send took in it. Both begin with the second second: in the first one processes start, and it counts in no rate either.
matplotlib is imported when a picture is wanted, and needs no display.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from shmq.errors import UsageError
from shmq.figures.quantity import rate_text, size_text
from shmq.measurement.sustained import SHARES
from shmq.tools.terminal.output import Column, Terminal

_SIZE = (8.0, 5.2)  # inches
_DOTS = 110


def check_plot(path: str | None) -> None:
    """Refuse a picture that could not be drawn, before anything is measured.

    Raises:
        UsageError: matplotlib is missing, or the name does not end in .png or .svg.
    """
    if path is None:
        return
    if Path(path).suffix not in (".png", ".svg"):
        raise UsageError(f"--plot {path}: a picture is a .png or an .svg", hint="--plot seconds.png")
    if find_spec("matplotlib") is None:
        raise UsageError("--plot needs matplotlib, which is not installed", hint="pip install matplotlib")


def print_seconds(terminal: Terminal, size: int, figures: Mapping[str, Any]) -> None:
    """Print one sustained run."""
    seconds = len(figures["taken_each"])
    terminal.line(f"bodies of {size_text(size)}, one producer process, one consumer process, {seconds} seconds")
    terminal.table(
        [Column("throughput"), *(Column(name, right=True) for name in ("mean", "median s", "worst s", "bodies/s"))],
        [
            [
                "taken, msg/s",
                *(rate_text(figures[name]) for name in ("rate", "median", "worst")),
                size_text(int(figures["bytes"])),
            ]
        ],
    )
    terminal.table(
        [Column("one send, µs"), *(Column(name, right=True) for name in SHARES)],
        [["", *(f"{figures[name]:.1f}" for name in SHARES)]],
    )


def _steps(axes: Any, seconds: range, lines: Iterable[tuple[str, list[float]]], *, share: float) -> None:
    """Draw a step for each second from the second one on, and the last one to its end."""
    for label, values in lines:
        counted = [value / share for value in values[1:]]
        axes.step(seconds, [*counted, *counted[-1:]], where="post", label=label)


def draw_seconds(figures: Mapping[str, Any], path: str) -> None:
    """Draw throughput and latency of each second that counts.

    Raises:
        UsageError: the file cannot be written.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=_SIZE, dpi=_DOTS, layout="constrained")
    FigureCanvasAgg(figure)
    throughput, latency = figure.subplots(2, 1, sharex=True)
    seconds = range(1, len(figures["taken_each"]) + 1)  # with the end of the last
    _steps(throughput, seconds, (("sent", figures["sent_each"]), ("taken", figures["taken_each"])), share=1e6)
    throughput.axhline(figures["rate"] / 1e6, linestyle=":", color="grey", label=f"mean {figures['rate'] / 1e6:.2f}")
    throughput.set_ylabel("million messages/s")
    _steps(latency, seconds, (("p50", figures["p50_each"]), ("p99", figures["p99_each"])), share=1.0)
    latency.set_ylabel("one send, µs")
    latency.set_xlabel("second")
    for axes in (throughput, latency):
        axes.set_ylim(bottom=0)
        axes.set_xlim(seconds[0], seconds[-1])
        axes.legend(loc="lower right")
    try:
        figure.savefig(Path(path))
    except OSError as error:
        raise UsageError(f"the picture cannot be written to {path}: {error.strerror}", hint="--plot FILE") from None
