"""The shared part of all jobs' commands: common options, the Spark session, and the output of the report.

    @click.command(cls=Command)
    @source_options             --topic, --topic-pattern, --option
    @click.option(…)            the job's own
    @job_command                --plot, --master, --conf, --report, --dry-run
    def lag(job: Job, /, **given) ─▶ job.source(…) · job.session() · job.finish(report, …)

The report is one JSON object; on a terminal a few lines say the same for people.
"""

from __future__ import annotations

import functools
import json
import os
import signal
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from shmq.errors import UsageError
from shmq.figures.quantity import count_text
from shmq.shm.descriptors import above_standard
from shmq.shm.signal_event import SignalEvent, handling
from shmq.spark.jobs.driver.failure import explained
from shmq.spark.jobs.driver.session import open_session, require
from shmq.spark.jobs.driver.stages import Stages
from shmq.tools.command import Call, dry_run_option, pass_call

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Function = TypeVar("Function", bound=Callable[..., Any])


option_option = click.option(
    "--option", "options", multiple=True, metavar="KEY=VALUE", help="Of the source; may be repeated."
)


def source_options(function: Function) -> Function:
    """Add --topic, --topic-pattern and --option."""
    for option in (
        option_option,
        click.option("--topic-pattern", metavar="REGEX", help="All topics whose whole name it matches."),
        click.option("--topic", "topics", multiple=True, metavar="NAME", help="Which; may be repeated."),
    ):
        function = option(function)
    return function


def pairs(option: str, texts: Sequence[str]) -> dict[str, str]:
    """Read KEY=VALUE texts.

    Raises:
        UsageError: one has no "=".
    """
    wrong = [text for text in texts if not text.partition("=")[1]]
    if wrong:
        raise UsageError(f"{option} {wrong[0]} has no value", hint=f"{option} key=value")
    return dict((text.partition("=")[0], text.partition("=")[2]) for text in texts)


@contextmanager
def ended_by_signal() -> Iterator[threading.Event]:
    """Give an event that Ctrl-C and SIGTERM set, so that a job ends between two batches and still reports."""
    event = SignalEvent()
    numbers = [each for each in (signal.SIGINT, signal.SIGTERM) if signal.getsignal(each) is not signal.SIG_IGN]
    with handling(dict.fromkeys(numbers, lambda *_: event.set())):
        yield event


def check_outputs(report: str | None, plot: str | None) -> None:
    """Check before a job works for an hour that what it finds can be written and drawn.

    Raises:
        UsageError: a place cannot be written, or matplotlib is missing.
    """
    if plot is not None:
        require("matplotlib")
    for option, path in (("--report", report), ("--plot", plot)):
        folder = Path(path or ".").absolute().parent
        if path is not None and not (folder.is_dir() and os.access(folder, os.W_OK)):
            why = "cannot be written to" if folder.is_dir() else "does not exist"
            raise UsageError(f"{option} {path}: the directory {folder} {why}", hint=f"mkdir -p {folder}")


def sent_sentence(report: Mapping[str, Any], target: str) -> str:
    """Return what a replay or re-drive has done, or would do, as one sentence for people."""
    is_dry = "sent" not in report
    count = report["messages"] if is_dry else report["sent"]
    text = f"{'would send' if is_dry else 'sent'} {count_text(count)} messages to {target}"
    if report["in_already"]:
        text += f"; {count_text(report['in_already'])} were sent before by run {report['run']}"
    return text + (f"; {count_text(report['loops'])} came from there and stay" if report["loops"] else "")


def write_report(path: Path, report: Mapping[str, Any]) -> None:
    """Write a report, whole or not at all.

    Raises:
        UsageError: the place cannot be written.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with above_standard:
            temporary.write_text(json.dumps(report, indent=2, ensure_ascii=False) + "\n")
        temporary.replace(path)
    except OSError as error:
        raise UsageError(f"the report cannot be written to {path}: {error.strerror}", hint="--report FILE") from None


@dataclass(frozen=True)
class Work:
    """The surroundings of a job: its Spark session, and its output meanwhile."""

    spark: SparkSession
    told: Callable[[str], None]


@dataclass(frozen=True)
class Job:
    """One call of a job's command: the options of all jobs, and what becomes of its report."""

    name: str
    call: Call
    dry_run: bool
    report: str | None
    plot: str | None
    master: str | None
    conf: tuple[str, ...]

    def source(self, given: dict[str, Any], *, has_topics: bool = True) -> dict[str, str]:
        """Take what `source_options` added out of `given`, and return the options of the source that it means.

        Args:
            has_topics: topics have to be named; otherwise the job knows them from elsewhere.

        Raises:
            UsageError: no topic, or text that is no KEY=VALUE.
        """
        found = pairs("--option", given.pop("options"))
        topics, topic_pattern = given.pop("topics", ()), given.pop("topic_pattern", None)
        if self.call.url is not None or "SHMQ_URL" in os.environ:
            found.setdefault("store", self.call.url or os.environ["SHMQ_URL"])
        if topics:
            found["topics"] = ",".join(topics)
        if topic_pattern is not None:
            found["topicPattern"] = topic_pattern
        if has_topics and not {"topics", "topicPattern", "topic"} & found.keys():
            raise UsageError("no topic is named", hint="--topic orders, or --topic-pattern 'orders-.*'")
        return found

    @contextmanager
    def session(self) -> Iterator[Work]:
        """Give the job its Spark session, and tell how far it is as long as it works.

        Raises:
            ShmqError: what made Spark fail, where that is known.
        """
        settings, terminal = pairs("--conf", self.conf), self.call.terminal
        terminal.say(f"starting Spark for {self.name} …")
        with explained(), open_session(f"shmq {self.name}", self.master, settings, heard=terminal.say) as spark:
            terminal.note(f"Spark {spark.version} at {spark.sparkContext.master}")
            with Stages(spark.sparkContext, terminal) as stages:
                yield Work(spark, stages.say)

    def finish(self, found: Mapping[str, Any], lines: Callable[[], None], *, drawn: bool = True) -> None:
        """Write the report to its file, its picture, and to stdout: as JSON, or as `lines` prints it for people."""
        terminal = self.call.terminal
        if self.report is not None:
            write_report(Path(self.report), found)
            terminal.say(f"report: {self.report}")
        if drawn and self.plot is not None:
            from shmq.spark.jobs.plots import draw

            draw(found, self.plot)
            terminal.say(f"picture: {self.plot}")
        if terminal.structured:
            terminal.document(found)
        else:
            lines()


def job_command(function: Function) -> Function:
    """Add the options of every job; the function gets a `Job` and the values of its own options, by name."""

    @pass_call
    @functools.wraps(function)
    def run(
        call: Call,
        /,
        dry_run: bool,
        report: str | None,
        plot: str | None,
        master: str | None,
        conf: tuple[str, ...],
        **given: Any,
    ) -> None:
        check_outputs(report, plot)
        require("pyspark", "pyarrow", "numpy")
        function(Job(function.__name__, call, dry_run, report, plot, master, conf), **given)

    found: Any = run
    for option in (
        dry_run_option,
        click.option(
            "--report", type=click.Path(dir_okay=False), metavar="FILE", help="Write the report there too, as JSON."
        ),
        click.option("--conf", multiple=True, metavar="KEY=VALUE", help="Of Spark; may be repeated."),
        click.option("--master", metavar="URL", help="local[N] or spark://HOST:PORT.  [spark-submit's, or local[*]]"),
        click.option("--plot", type=click.Path(dir_okay=False), metavar="FILE", help="Draw the report as PNG."),
    ):
        found = option(found)
    made: Function = found
    return made
