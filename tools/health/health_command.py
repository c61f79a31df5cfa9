"""`shmq health`: is the broker of this host well, why not, and what to type.

Figures come from read-only mappings, /proc and the file systems (`shmq.figures`), so no daemon is asked; what
they mean is decided in this folder. `health --fast` does not come here: `start.py` answers it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from shmq.errors import ShmqError, UsageError
from shmq.figures.observer import Depth, Observer
from shmq.figures.thresholds import Thresholds
from shmq.tools.command import Call, Command, Duration, Size, pass_call
from shmq.tools.health.examine import examine, wait_until_well
from shmq.tools.health.report import FORMATS, Report

_EPILOG = "Exit status: 0 OK, 1 WARNING, 2 CRITICAL, 3 UNKNOWN, as Nagios has it; 64 usage."

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]


class Percent(click.FloatRange):
    """`80`, `80%`."""

    name = "percent"

    def __init__(self) -> None:
        super().__init__(0, 100)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        text: Any = value.rstrip("%") if isinstance(value, str) else value
        return super().convert(text, param, ctx)


format_option = click.option(
    "--format", "form", type=click.Choice(FORMATS), help="How to say it; --json is --format json."
)
wait_option = click.option(
    "--wait", type=Duration(), metavar="TIME", help="Look again until all is OK, so long at most."
)

LAG_OPTIONS: tuple[tuple[str, Any, str], ...] = (
    ("--lag-warn", click.IntRange(0), "Messages that wait for a group (10000)."),
    ("--lag-crit", click.IntRange(0), "(100000)"),
    ("--age-warn", Duration(), "Age of the oldest message that waits for a group."),
    ("--age-crit", Duration(), ""),
    ("--idle-warn", Duration(), "A member with nothing in hand leaves messages alone (1s)."),
    ("--stuck-warn", Duration(), "A member gives no result for what it has in hand (60s)."),
    ("--stuck-crit", Duration(), "A member does either for so long."),
)
STORE_OPTIONS: tuple[tuple[str, Any, str], ...] = (
    ("--behind-warn", Size(), "Bytes the flush is behind (64m)."),
    ("--behind-crit", Size(), "(1g)"),
    ("--beat-warn", Duration(), "Since the keeper's last round (3s)."),
    ("--beat-crit", Duration(), "(10s)"),
)
MEMORY_OPTIONS: tuple[tuple[str, Any, str], ...] = (
    ("--shm-warn", Percent(), "Use of /dev/shm (80)."),
    ("--shm-crit", Percent(), "(95)"),
    ("--memory-warn", Percent(), "Use of the control group's limit (90)."),
    ("--memory-crit", Percent(), "(97)"),
)


def threshold_options(*tables: tuple[tuple[str, Any, str], ...]) -> Decorator:
    """Add an option for each threshold; the command gets those that were given as keyword arguments."""

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        for name, kind, text in reversed([row for table in tables for row in table]):
            function = click.option(name, type=kind, help=text or None)(function)
        return function

    return decorate


def thresholds_of(given: dict[str, Any]) -> Thresholds:
    """Return the thresholds with those replaced that were given."""
    return Thresholds()._replace(**{name: value for name, value in given.items() if value is not None})


def emit(call: Call, report: Report, form: str | None, *, parts: bool = True, metrics: str = "") -> int:
    """Print a report in the form asked for, `metrics` behind that of Prometheus; return the exit status."""
    terminal = call.terminal
    form = form or ("json" if terminal.structured else "table")
    if form == "json":
        terminal.document(report.document(parts=parts))
    elif form == "nagios":
        terminal.line(report.nagios())
    elif form == "prometheus":
        terminal.data(report.prometheus() + metrics)
    elif not terminal.style.quiet:
        import sys

        terminal.data("\n".join(report.lines(colored=terminal.colored(sys.stdout))) + "\n")
    return report.verdict.exit_status


def observer_of(call: Call) -> Observer:
    """Return an observer of the broker this call is about.

    Raises:
        UsageError: it is a cluster elsewhere.
    """
    call.refuse_remote(
        "{url} is reached over TCP; health reads the memory of the broker's own host",
        hint="run it there, or use mqadmin brokerStatus",
    )
    return Observer(call.url)


@click.command(cls=Command, epilog=_EPILOG)
@format_option
@wait_option
@click.option("--fast", is_flag=True, help="Broker, store, memory and disk only: for container health checks.")
@click.option("--deep", is_flag=True, help="Also USS, PSS, mappings, and the log in the page cache.")
@click.option("-a", "--all", "everything", is_flag=True, help="Each group, and those of the broker itself.")
@threshold_options(LAG_OPTIONS, STORE_OPTIONS, MEMORY_OPTIONS)
@pass_call
def health(
    call: Call, /, form: str | None, wait: float | None, fast: bool, deep: bool, everything: bool, **given: Any
) -> int:
    """Say whether the broker of this host is well, why not, and what to type."""
    if fast and deep:
        raise UsageError("--fast and --deep contradict each other", hint="leave one out")
    depth: Depth = "quick" if fast else "deep" if deep else "usual"
    thresholds = thresholds_of(given)
    with observer_of(call) as observer:
        report = wait_until_well(lambda: examine(observer, thresholds, depth), wait or 0.0)
        report.everything = everything
        metrics = _metrics_of(observer) if form == "prometheus" else ""
    return emit(call, report, form, metrics=metrics)


def _metrics_of(observer: Observer) -> str:
    """The exporter's metrics as of now; only the end where nothing can be read."""
    from shmq.metrics.report import MetricsReport

    metrics = MetricsReport(observer.place)
    try:
        return metrics.text()
    except ShmqError:
        return "# EOF\n"
    finally:
        metrics.close()
