"""What a sustained run looks like: a line of figures, a table of percentiles, and a picture of its seconds.

The picture has two parts over the same axis: messages taken in each second with their mean, and what was sent in it.
matplotlib is imported when a picture is wanted, and needs no display.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from shmq.errors import UsageError
from shmq.tools.measurement.sustained import SHARES
from shmq.tools.terminal.output import Column, Terminal
from shmq.tools.terminal.quantity import rate_text, size_text

_SIZE = (8.0, 3.2)  # inches
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


def draw_seconds(figures: Mapping[str, Any], path: str) -> None:
    """Draw what was taken and sent in each second.

    Raises:
        UsageError: the file cannot be written.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=_SIZE, dpi=_DOTS, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    for name, label in (("sent_each", "sent"), ("taken_each", "taken")):
        axes.step(range(len(figures[name])), [count / 1e6 for count in figures[name]], where="post", label=label)
    axes.axhline(figures["rate"] / 1e6, linestyle=":", color="grey", label=f"mean {figures['rate'] / 1e6:.2f}")
    axes.set_ylim(bottom=0)
    axes.set_xlabel("second")
    axes.set_ylabel("million messages")
    axes.legend(loc="lower right")
    try:
        figure.savefig(Path(path))
    except OSError as error:
        raise UsageError(f"the picture cannot be written to {path}: {error.strerror}", hint="--plot FILE") from None
