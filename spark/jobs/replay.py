"""The replay job: messages of an archive or a topic, sent to a topic again, in order and at most so fast.

    select rows ─▶ one task has whole queues, in offset order ─▶ sender.Sending in executors

`sender` sees to it that each message is sent once. Order is kept within each source queue: with --order queue the
message goes to the queue of the same number, with --order key to the queue of its ordering key.

    python -m shmq.spark.jobs.replay --from /data/orders --to orders-again     the same as shmq spark replay …
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from shmq.spark.access.way import open_access, place_options
from shmq.spark.jobs.archived import archive_files, read_archive
from shmq.spark.jobs.growth import Growth
from shmq.spark.jobs.sender import COLUMNS, Sending, check_session, check_target, sent_report
from shmq.spark.option_values import moment_ms
from shmq.spark.options import parse_options
from shmq.spark.plan.ranges import chosen_queues
from shmq.spark.schema import column_kinds, refused

_ERROR_CLASS = re.compile(r"^\s*\[[A-Z0-9_.]+\] ")

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@dataclass(frozen=True)
class ReplaySettings:
    """Settings of one run. `source` are options of the source; with an archive only store and topics of it count."""

    source: Mapping[str, str]
    target: str
    run: str  # its name; the same name goes on where a killed run was
    archive: str | None = None
    where: str | None = None  # SQL over the messages' columns
    since: str | None = None  # store times: milliseconds or ISO 8601, local without a zone
    until: str | None = None
    rate: float = 0.0  # messages a second, of all tasks together; 0: as fast as it goes
    same_queue: bool = True


def selected(spark: SparkSession, settings: ReplaySettings) -> DataFrame:
    """Return the rows that are meant.

    Raises:
        UsageError: no such topic or archive, or the target is a source.
    """
    from pyspark.sql import functions as f

    from shmq.spark.source import ShmqDataSource

    names = _topics(settings.source)
    if settings.target in names:
        raise refused(f"{settings.target} is read and written", "replay to another topic")
    if settings.archive is not None:
        frame = read_archive(spark, settings.archive)
        if names:
            frame = frame.filter(f.col("topic").isin(names))
        missing = set(COLUMNS) - set(frame.columns)
        if missing:
            raise refused(f"the archive has no column {', '.join(sorted(missing))}", "archive it with --columns")
    else:
        spark.dataSource.register(ShmqDataSource)
        kinds = column_kinds("messages")
        schema = ", ".join(f"{name} {kind}" for name, kind in kinds.items())
        frame = spark.read.format("shmq").options(**settings.source).schema(schema).load()
    for option, text, compare in (("--since", settings.since, ">="), ("--until", settings.until, "<")):
        if (time_ms := moment_ms(option, text, None)) is not None:
            frame = frame.filter(f"unix_millis(store_timestamp) {compare} {time_ms}")
    return chosen(frame, settings.where)


def chosen(frame: DataFrame, where: str | None) -> DataFrame:
    """Return the rows of which SQL says so.

    Raises:
        UsageError: it is no condition over the columns there are.
    """
    from pyspark.errors import AnalysisException

    try:
        return frame if where is None else frame.filter(where)
    except AnalysisException as error:  # a ParseException is one
        said = next(line for line in str(error).splitlines() if line.strip())
        said = _ERROR_CLASS.sub("", said).partition(". SQLSTATE")[0]
        raise refused(f"--where {where!r}: {said}", "give SQL as after WHERE") from None


def check_replay(settings: ReplaySettings) -> None:
    """Check what can be checked before Spark starts.

    Raises:
        UsageError: no such topic, archive or target; times that are none.
    """
    if settings.target in _topics(settings.source):
        raise refused(f"{settings.target} is read and written", "replay to another topic")
    times = [moment_ms(name, text, None) for name, text in (("--since", settings.since), ("--until", settings.until))]
    if None not in times and times[0] >= times[1]:  # type: ignore[operator]
        raise refused("--since is not before --until", "swap them")
    highest = 0
    if settings.archive is None:
        options = parse_options(settings.source)
        highest = max((each.queue_id for each in chosen_queues(open_access(options), options)), default=0)
    else:
        archive_files(settings.archive)
    check_target(place_options(settings.source), settings.target, queues=highest + 1, same_queue=settings.same_queue)


def plan_replay(spark: SparkSession, settings: ReplaySettings) -> dict[str, Any]:
    """Return the report of what a run would send: it reads what is meant and what the target has, and sends nothing.

    Raises:
        UsageError: what is meant cannot be.
    """
    return _run(spark, settings, lambda text: None, dry=True)


def run_replay(
    spark: SparkSession, settings: ReplaySettings, *, told: Callable[[str], None] = lambda text: None
) -> dict[str, Any]:
    """Send, and return the report.

    Raises:
        UsageError: what is meant cannot be.
    """
    check_session(spark)
    return _run(spark, settings, told, dry=False)


def _run(spark: SparkSession, settings: ReplaySettings, told: Callable[[str], None], *, dry: bool) -> dict[str, Any]:
    began = time.monotonic()
    frame = selected(spark, settings).select(*COLUMNS)
    place = place_options(settings.source)
    if settings.archive is None:  # the tables know; the source would read every body
        options = parse_options(settings.source)
        queues = {(each.topic, each.queue_id) for each in chosen_queues(open_access(options), options)}
    else:
        queues = {(row.topic, row.queue_id) for row in frame.select("topic", "queue_id").distinct().collect()}
    highest = max((queue_id for _, queue_id in queues), default=0)
    check_target(place, settings.target, queues=highest + 1, same_queue=settings.same_queue)
    tasks = max(1, min(len(queues), spark.sparkContext.defaultParallelism))
    sending = Sending(place, settings.run, settings.target, settings.rate / tasks, settings.same_queue, dry=dry)
    rows = in_queue_order(frame, tasks).rdd.mapPartitions(sending)
    head = {"job": "replay", "run": settings.run, "target": settings.target, "dry_run": dry}
    if dry:
        return {**head, **sent_report(rows.collect(), dry=True), "seconds": round(time.monotonic() - began, 3)}
    with Growth(place, settings.target, told) as growth:
        report = sent_report(rows.collect())
    return {**head, **report, "seconds": round(time.monotonic() - began, 3), "samples": growth.samples}


def in_queue_order(frame: DataFrame, tasks: int) -> DataFrame:
    """Give each task whole queues, in the order they were stored in."""
    return frame.repartition(tasks, "topic", "queue_id").sortWithinPartitions("topic", "queue_id", "queue_offset")


def _topics(source: Mapping[str, str]) -> list[str]:
    text = source.get("topics") or source.get("topic") or ""
    return [name.strip() for name in text.split(",") if name.strip()]


if __name__ == "__main__":
    from shmq.tools.start import run

    raise SystemExit(run("spark", "replay"))
