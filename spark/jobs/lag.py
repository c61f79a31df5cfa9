"""The lag job: how far groups are behind, over time, and how long messages take, as percentiles.

    view groups, again and again      messages behind, and how old the oldest of them is
    view messages                     born ─▶ stored, by topic and minute
    topic of traces                   stored ─▶ taken ─▶ consumed, by group and topic, where clients trace

Nothing is changed. Born is the producer's clock: where it is ahead of the broker's, the message counts as `skewed` and
as 0 ms.

    python -m shmq.spark.jobs.lag --topic orders --for 30s      the same as shmq spark lag …
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from shmq.spark.access.way import open_access, open_place, place_options
from shmq.spark.options import parse_options
from shmq.spark.plan.ranges import chosen_queues
from shmq.spark.schema import refused

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

TRACE_TOPIC: Final = "RMQ_SYS_TRACE_TOPIC"
PERCENTILES: Final = (0.5, 0.9, 0.99, 0.999)
NAMES: Final = ("p50", "p90", "p99", "p999")
_STORED: Final = "topic string, uniq_key string, msg_id string, store_timestamp timestamp"
_TRACES: Final = (
    "message_id string, consumer_group string, request_id string, began_ms bigint, ended_ms bigint, ok boolean"
)


@dataclass(frozen=True)
class LagSettings:
    """The groups to look at, and for how long. `source` are options of the source; times are seconds."""

    source: Mapping[str, str]
    group: str | None = None
    run_seconds: float = 0.0  # from the first look on, at least two; 0: one look
    every_seconds: float = 2.0
    bucket_seconds: int = 60


def run_lag(
    spark: SparkSession,
    settings: LagSettings,
    *,
    told: Callable[[str], None] = lambda text: None,
    stop: threading.Event | None = None,
) -> dict[str, Any]:
    """Look, and return the report.

    Raises:
        UsageError: no such topic.
    """
    from shmq.spark.source import ShmqDataSource

    spark.dataSource.register(ShmqDataSource)
    began, ended, samples = time.monotonic(), stop or threading.Event(), []
    looked = None  # when the first look was over, which takes Spark seconds
    while True:
        rows = sample(spark, settings)
        samples += rows
        over = looked is not None and time.monotonic() - looked >= settings.run_seconds
        looked = looked or time.monotonic()
        told(f"{len(rows)} queues of groups, {sum(row['lag'] for row in rows):,} messages behind")
        if over or not settings.run_seconds or ended.wait(settings.every_seconds):
            break
    told("reading how long messages took …")
    return {
        "job": "lag",
        "groups": summary(samples),
        "samples": samples,
        "born_to_stored": born_to_stored(spark, settings),
        "stored_to_consumed": stored_to_consumed(spark, settings),
        "seconds": round(time.monotonic() - began, 3),
    }


def plan_lag(settings: LagSettings) -> dict[str, Any]:
    """Return what a run would look at.

    Raises:
        UsageError: no such topic, or a group that is not known.
    """
    options = parse_options(settings.source)
    access = open_access(options)
    topics = sorted({queue.topic for queue in chosen_queues(access, options)})
    if settings.group is not None and not access.has_group(settings.group):
        raise refused(f"there is no group {settings.group}", "shmq group list")
    return {"job": "lag", "topics": topics, "group": settings.group, "run_seconds": settings.run_seconds}


def late(groups: list[dict[str, Any]], lag_max: int | None, age_max_seconds: float | None) -> list[str]:
    """Return one sentence for each queue of a group that is further behind than it may be. Pure."""
    found = []
    for row in groups:
        place = f"group {row['group']}, topic {row['topic']}, queue {row['queue_id']}"
        if lag_max is not None and row["lag"] > lag_max:
            found.append(f"{place}: {row['lag']:,} messages behind, {lag_max:,} are allowed")
        if age_max_seconds is not None and row["age_ms"] > age_max_seconds * 1000:
            found.append(f"{place}: a message waits for {row['age_ms'] / 1000:,.1f} s, {age_max_seconds:g} are allowed")
    return found


def sample(spark: SparkSession, settings: LagSettings) -> list[dict[str, Any]]:
    """Return one row for each queue of each group: how many messages it is behind, and the age of the oldest."""
    options = {**settings.source, **({} if settings.group is None else {"group": settings.group})}
    at_ms = time.time_ns() // 1_000_000
    groups = spark.read.format("shmq").options(**options, view="groups").load().collect()
    stored = _stored(spark, settings, {_next(row) for row in groups if _next(row)[2] < row.offset_max})
    return [
        {
            "at_ms": at_ms,
            "group": row.consumer_group,
            "topic": row.topic,
            "queue_id": row.queue_id,
            "committed": row.committed or 0,
            "lag": row.lag,
            "age_ms": max(0, at_ms - stored.get(_next(row), at_ms)) if row.lag else 0,
        }
        for row in sorted(groups, key=lambda each: (each.consumer_group, each.topic, each.queue_id))
    ]


def _next(row: Any) -> tuple[str, int, int]:
    """The offset at which a group goes on in a queue; what is popped lies before it."""
    return row.topic, row.queue_id, row.committed or 0


def _stored(
    spark: SparkSession, settings: LagSettings, places: set[tuple[str, int, int]]
) -> dict[tuple[str, int, int], int]:
    """The store times of the messages at some places; places of one queue are read one load after the other."""
    found: dict[tuple[str, int, int], int] = {}
    left = set(places)
    while left:
        chosen = {(topic, queue): offset for topic, queue, offset in sorted(left)}
        left -= {(topic, queue, offset) for (topic, queue), offset in chosen.items()}
        start: dict[str, dict[str, int]] = {}
        for topic, queue in _queues(settings, {topic for topic, _ in chosen}):
            start.setdefault(topic, {})[str(queue)] = chosen.get((topic, queue), -1)
        end = {
            topic: {queue: at + 1 if at >= 0 else -1 for queue, at in queues.items()} for topic, queues in start.items()
        }
        rows = (
            spark.read.format("shmq")
            .options(**place_options(settings.source), topics=",".join(start), failOnDataLoss="false")
            .options(startingOffsets=json.dumps(start), endingOffsets=json.dumps(end))
            .schema("topic string, queue_id int, queue_offset bigint, store_timestamp timestamp")
            .load()
            .selectExpr("*", "unix_millis(store_timestamp) AS ms")
            .collect()
        )
        found |= {(row.topic, row.queue_id, row.queue_offset): row.ms for row in rows}
    return found


def _queues(settings: LagSettings, topics: set[str]) -> Iterator[tuple[str, int]]:
    access = open_place(settings.source)
    for topic in sorted(topics):
        for queue in access.queues(topic):
            yield topic, queue.queue_id


def summary(samples: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return for each queue of each group the last look, and how fast it caught up between first and last. Pure."""
    series: dict[tuple[str, str, int], list[dict[str, Any]]] = {}
    for row in samples:
        series.setdefault((row["group"], row["topic"], row["queue_id"]), []).append(row)
    found = []
    for (group, topic, queue_id), rows in sorted(series.items()):
        first, last = rows[0], rows[-1]
        seconds = (last["at_ms"] - first["at_ms"]) / 1000
        drained = (first["lag"] - last["lag"]) / seconds if seconds else None
        found.append(
            {
                "group": group,
                "topic": topic,
                "queue_id": queue_id,
                "lag": last["lag"],
                "lag_max": max(row["lag"] for row in rows),
                "age_ms": last["age_ms"],
                "drained_per_second": None if drained is None else round(drained, 3),
                "empty_in_seconds": round(last["lag"] / drained, 1) if drained and drained > 0 else None,
                "is_stuck": len(rows) > 1 and last["lag"] > 0 and first["committed"] == last["committed"],
            }
        )
    return found


def born_to_stored(spark: SparkSession, settings: LagSettings) -> list[dict[str, Any]]:
    """Return percentiles of the time from birth to the log, by topic and span of time; all spans first."""
    frame = _messages(spark, settings, "topic string, born_timestamp timestamp, store_timestamp timestamp")
    took = frame.selectExpr(
        "topic",
        "unix_millis(store_timestamp) - unix_millis(born_timestamp) AS took",
        f"unix_millis(store_timestamp) div {settings.bucket_seconds * 1000} AS bucket",
    )
    sets = [["topic"], ["topic", "bucket"]]
    rows = took.groupingSets(sets, "topic", "bucket").agg(*_statistics()).collect()
    found = [
        {
            "topic": row.topic,
            "from_ms": None if row.bucket is None else row.bucket * settings.bucket_seconds * 1000,
            **_figures(row),
        }
        for row in rows
    ]
    return sorted(found, key=lambda each: (each["topic"], each["from_ms"] is not None, each["from_ms"] or 0))


def stored_to_consumed(spark: SparkSession, settings: LagSettings) -> list[dict[str, Any]]:
    """Return percentiles of the time from the log to the listener, and to its end, of messages that were traced."""
    from pyspark.sql import functions as f

    if TRACE_TOPIC not in open_place(settings.source).topics():
        return []
    stored_traces = (
        spark.read.format("shmq")
        .options(**place_options(settings.source), topic=TRACE_TOPIC)
        .schema("body binary")
        .load()
    )
    traces = (
        spark.createDataFrame(stored_traces.rdd.flatMap(decoded), _TRACES)
        .groupBy("message_id", "consumer_group", "request_id")
        .agg(f.max("began_ms").alias("began_ms"), f.max("ended_ms").alias("ended_ms"), f.max("ok").alias("ok"))
    )
    if settings.group is not None:
        traces = traces.filter(f.col("consumer_group") == settings.group)
    stored = _messages(spark, settings, _STORED).selectExpr(
        "topic", "coalesce(uniq_key, msg_id) AS message_id", "unix_millis(store_timestamp) AS stored_ms"
    )
    joined = traces.join(stored, "message_id")
    steps = joined.selectExpr(
        "consumer_group",
        "topic",
        "stack(2, 'taken', began_ms - stored_ms, 'consumed', ended_ms - stored_ms) AS (step, took)",
    ).filter("took IS NOT NULL")
    rows = steps.groupBy("consumer_group", "topic", "step").agg(*_statistics()).collect()
    found = [{"group": row.consumer_group, "topic": row.topic, "step": row.step, **_figures(row)} for row in rows]
    return sorted(found, key=lambda each: (each["group"], each["topic"], each["step"]))


def decoded(row: Any) -> Iterator[tuple[Any, ...]]:
    """Yield what a trace message says about listeners' calls, in an executor; columns as in _TRACES."""
    from shmq.protocol.system_topics.trace import SUB_AFTER, SUB_BEFORE, decode_traces

    for trace in decode_traces(bytes(row.body).decode("utf-8", "replace")):
        if trace.kind == SUB_BEFORE:
            yield trace.message_id, trace.group or None, trace.request_id, trace.time_ms, None, None
        elif trace.kind == SUB_AFTER:
            yield trace.message_id, trace.group or None, trace.request_id, None, trace.time_ms or None, trace.succeeded


def _statistics() -> list[Any]:
    from pyspark.sql import functions as f

    took = f.greatest(f.col("took"), f.lit(0))
    return [
        f.count("*").alias("messages"),
        f.percentile_approx(took, list(PERCENTILES), 10_000).alias("percentiles"),
        f.max(took).alias("max_ms"),
        f.avg(took).alias("mean_ms"),
        f.count_if(f.col("took") < 0).alias("skewed"),
    ]


def _figures(row: Any) -> dict[str, Any]:
    percentiles = {f"{name}_ms": value for name, value in zip(NAMES, row.percentiles, strict=True)}
    return {
        "messages": row.messages,
        **percentiles,
        "max_ms": row.max_ms,
        "mean_ms": round(row.mean_ms, 3),
        "skewed": row.skewed,
    }


def _messages(spark: SparkSession, settings: LagSettings, schema: str) -> DataFrame:
    return spark.read.format("shmq").options(**settings.source).schema(schema).load()


if __name__ == "__main__":
    from shmq.tools.start import run

    raise SystemExit(run("spark", "lag"))
