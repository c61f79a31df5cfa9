"""Owns the replay job: messages of an archive or a topic, sent to a topic again, in order and at most so fast.

    select rows ─▶ one task has whole queues, in offset order ─▶ sending.Sending in executors

It does not know how a message is sent once (sending). Order is kept within each source queue: with --order queue the
message goes to the queue of the same number, with --order key to the queue of its ordering key.

    python -m shmq.spark.jobs.replay --from /data/orders --to orders-again     the same as shmq spark replay …
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from shmq.spark.access import open_access
from shmq.spark.jobs.archived import read_archive
from shmq.spark.jobs.place import place_options
from shmq.spark.jobs.sending import COLUMNS, Sending, check_target, sent_report
from shmq.spark.moment import moment_ms
from shmq.spark.options import parse_options
from shmq.spark.ranges import chosen_queues
from shmq.spark.schema import column_kinds, refused

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@dataclass(frozen=True)
class ReplaySettings:
    """What one run sends. `source` are options of the source; with an archive only store and topics of it count."""

    source: Mapping[str, str]
    target: str
    run: str  # its name; the same name goes on where a killed run was
    archive: str | None = None
    where: str | None = None  # SQL over the messages' columns
    since: str | None = None  # store times, as startingTimestamp
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
        if (time_ms := moment_ms(option, text)) is not None:
            frame = frame.filter(f"unix_millis(store_timestamp) {compare} {time_ms}")
    return frame if settings.where is None else frame.filter(settings.where)


def plan_replay(spark: SparkSession, settings: ReplaySettings) -> dict[str, Any]:
    """Return the report of what a run would send."""
    rows = selected(spark, settings).groupBy("topic", "queue_id").count().orderBy("topic", "queue_id").collect()
    queues = [{"topic": row.topic, "queue_id": row.queue_id, "messages": row["count"]} for row in rows]
    return {**_head(settings, True), "messages": sum(each["messages"] for each in queues), "queues": queues}


def run_replay(spark: SparkSession, settings: ReplaySettings) -> dict[str, Any]:
    """Send, and return the report.

    Raises:
        UsageError: what is meant cannot be.
    """
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
    sending = Sending(place, settings.run, settings.target, settings.rate / tasks, settings.same_queue)
    rows = in_queue_order(frame, tasks).rdd.mapPartitions(sending).collect()
    return {**_head(settings, False), **sent_report(rows), "seconds": round(time.monotonic() - began, 3)}


def in_queue_order(frame: DataFrame, tasks: int) -> DataFrame:
    """Give each task whole queues, in the order they were stored in."""
    return frame.repartition(tasks, "topic", "queue_id").sortWithinPartitions("topic", "queue_id", "queue_offset")


def _topics(source: Mapping[str, str]) -> list[str]:
    text = source.get("topics") or source.get("topic") or ""
    return [name.strip() for name in text.split(",") if name.strip()]


def _head(settings: ReplaySettings, dry_run: bool) -> dict[str, Any]:
    return {"job": "replay", "run": settings.run, "target": settings.target, "dry_run": dry_run}


def main() -> int:
    """Run `shmq spark replay` with the arguments of this process: what spark-submit calls."""
    import sys

    from shmq.tools.cli import main as shmq

    return shmq(["spark", "replay", *sys.argv[1:]])


if __name__ == "__main__":
    raise SystemExit(main())
