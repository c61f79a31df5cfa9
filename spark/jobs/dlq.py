"""The dead-letter job: what groups gave up on, by cause, origin, tag and tries; and sending it again.

    %DLQ% topics ─▶ one row a letter, with its cause ─▶ groups of letters · ages · samples
                                                     └▶ --redrive: to its first topic, once however often it is run

`sender` sends each letter once for each name of a run. The name is "redrive" unless another is given, so a later run
does not send a letter again.

    python -m shmq.spark.jobs.dlq --dry-run                     the same as shmq spark dlq …
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from shmq.figures.quantity import iso_text
from shmq.message import DEAD_LETTER_PREFIX, DEAD_LETTER_REASON, nearest
from shmq.spark.access.way import open_place, place_options
from shmq.spark.jobs.replay import chosen, in_queue_order
from shmq.spark.jobs.sender import COLUMNS, Sending, check_session, check_target, sent_report
from shmq.spark.schema import refused

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

AGES: Final = (("1h", 3_600), ("1d", 86_400), ("7d", 604_800))
_SCHEMA: Final = (
    "topic string, queue_id int, queue_offset bigint, uniq_key string, msg_id string, keys string, "
    "tags string, body binary, properties map<string,string>, flag int, store_timestamp timestamp, reconsume_times int"
)
_BODY_SHOWN: Final = 200
RUN: Final = "redrive"


@dataclass(frozen=True)
class DlqSettings:
    """The dead letters to look at, and whether they are sent again."""

    source: Mapping[str, str]
    groups: tuple[str, ...] = ()  # consumer groups; none: all
    where: str | None = None  # SQL over cause, origin, tags, attempts, age_seconds and the messages' columns
    samples: int = 5
    run: str = RUN
    rate: float = 0.0
    target: str | None = None  # None: each letter to its origin


def letters(spark: SparkSession, settings: DlqSettings, now_ms: int) -> DataFrame:
    """Return one row a dead letter that is meant."""
    from pyspark.sql import functions as f

    from shmq.spark.source import ShmqDataSource

    spark.dataSource.register(ShmqDataSource)
    frame = spark.read.format("shmq").options(**_options(settings)).schema(_SCHEMA).load()

    def first(*names: str) -> Any:
        return f.coalesce(*(f.col("properties")[name] for name in names), f.lit(""))

    frame = (
        frame.withColumn("consumer_group", f.expr(f"substring(topic, {len(DEAD_LETTER_PREFIX) + 1})"))
        .withColumn("origin", first("DLQ_ORIGIN_TOPIC", "RETRY_TOPIC", "REAL_TOPIC"))
        .withColumn("cause", f.coalesce(f.col("properties")[DEAD_LETTER_REASON], f.lit("not said")))
        .withColumn("attempts", f.col("reconsume_times"))
        .withColumn("age_seconds", f.expr(f"({now_ms} - unix_millis(store_timestamp)) / 1000.0"))
    )
    return chosen(frame, settings.where)


def check_dlq(settings: DlqSettings) -> None:
    """Check what can be checked before Spark starts.

    Raises:
        UsageError: a group that is named has no dead letters, or the topic they shall go to does not exist.
    """
    known = [name.removeprefix(DEAD_LETTER_PREFIX) for name in _there(settings)]
    for group in settings.groups:
        if group not in known:
            near = nearest(group, known)
            meant = f"did you mean {' or '.join(near)}?" if near else f"these have: {', '.join(known) or 'none'}"
            raise refused(f"group {group} has no dead letters", meant)
    if settings.target is not None:
        check_target(place_options(settings.source), settings.target, queues=1, same_queue=False)


def run_dlq(
    spark: SparkSession,
    settings: DlqSettings,
    *,
    redrive: bool = False,
    dry: bool = False,
    told: Callable[[str], None] = lambda text: None,
) -> dict[str, Any]:
    """Sort the dead letters, send them again if that is wanted, and return the report.

    Args:
        dry: with `redrive`, only count what would be sent.

    Raises:
        UsageError: there is no group with dead letters of that name.
    """
    began, now_ms = time.monotonic(), time.time_ns() // 1_000_000
    check_dlq(settings)
    report: dict[str, Any] = {"job": "dlq", "redrive": redrive and not dry}
    report |= {"letters": 0, "groups": [], "ages": [], "samples": []}
    if _topics(settings):
        frame = letters(spark, settings, now_ms)
        told("reading the dead letters …")
        report["groups"] = [row.asDict() for row in _grouped(frame).collect()]
        report["letters"] = sum(each["letters"] for each in report["groups"])
        report["ages"] = _ages(frame)
        report["samples"] = [_sample(row) for row in _samples(frame, settings.samples).collect()]
        if redrive:
            check_session(spark)
            told("looking what would be sent …" if dry else "sending …")
            report |= _redriven(spark, settings, frame, report, dry=dry)
    return {**report, "seconds": round(time.monotonic() - began, 3)}


def _redriven(
    spark: SparkSession, settings: DlqSettings, frame: DataFrame, report: Mapping[str, Any], *, dry: bool
) -> dict[str, Any]:
    """Send letters to where they shall go, each once by this name of a run."""
    place, homes = place_options(settings.source), ()
    if settings.target is None:
        there = set(open_place(settings.source).topics())
        homes = tuple(sorted({row["origin"] for row in report["groups"]} & there))
    known = frame if settings.target is not None else frame.filter(frame["origin"].isin(list(homes)))
    tasks = max(1, min(spark.sparkContext.defaultParallelism, len(_topics(settings))))
    rate = settings.rate / tasks
    sending = Sending(place, settings.run, settings.target, rate, same_queue=False, targets=homes, dry=dry)
    rows = in_queue_order(known.select(*COLUMNS), tasks).rdd.mapPartitions(sending).collect()
    sent = sent_report(rows, dry=dry)
    taken = sum(count for name, count in sent.items() if name != "queues")
    return {"run": settings.run, "target": settings.target, "homeless": report["letters"] - taken, **sent}


def _grouped(frame: DataFrame) -> DataFrame:
    """Letters whose causes differ in numbers only are of one cause."""
    from pyspark.sql import functions as f

    alike = frame.withColumn("cause", f.regexp_replace("cause", "[0-9]+", "#"))
    return (
        alike.groupBy("consumer_group", "origin", "cause", "tags", "attempts")
        .agg(
            f.count("*").alias("letters"),
            f.round(f.min("age_seconds"), 1).cast("double").alias("youngest_seconds"),
            f.round(f.max("age_seconds"), 1).cast("double").alias("oldest_seconds"),
            f.round(f.avg(f.length("body")), 1).alias("body_bytes"),
        )
        .orderBy(f.desc("letters"), "consumer_group", "origin", "cause", "tags", "attempts")
    )


def _ages(frame: DataFrame) -> list[dict[str, Any]]:
    case = "CASE " + " ".join(f"WHEN age_seconds < {limit} THEN {n}" for n, (_, limit) in enumerate(AGES))
    counts = {
        row.age: row["count"]
        for row in frame.selectExpr(f"{case} ELSE {len(AGES)} END AS age").groupBy("age").count().collect()
    }
    names = [f"< {name}" for name, _ in AGES] + [f">= {AGES[-1][0]}"]
    return [{"age": name, "letters": counts.get(number, 0)} for number, name in enumerate(names)]


def _samples(frame: DataFrame, count: int) -> DataFrame:
    """The newest letters of each cause."""
    from pyspark.sql import Window
    from pyspark.sql import functions as f

    same = Window.partitionBy("consumer_group", "origin", "cause").orderBy(
        f.desc("store_timestamp"), f.desc("queue_offset")
    )
    return (
        frame.withColumn("nth", f.row_number().over(same))
        .withColumn("stored_ms", f.expr("unix_millis(store_timestamp)"))  # Python would have local time
        .filter(f"nth <= {count}")
        .orderBy("consumer_group", "origin", "cause", "nth")
    )


def _sample(row: Any) -> dict[str, Any]:
    return {
        "consumer_group": row.consumer_group,
        "queue_id": row.queue_id,
        "offset": row.queue_offset,
        "origin": row.origin,
        "cause": row.cause,
        "attempts": row.attempts,
        "tag": row.tags,
        "keys": row.keys,
        "message_id": row.uniq_key or row.msg_id,
        "stored": iso_text(row.stored_ms),
        "body": bytes(row.body[:_BODY_SHOWN]).decode("utf-8", "backslashreplace"),
    }


def _there(settings: DlqSettings) -> list[str]:
    return [name for name in open_place(settings.source).topics() if name.startswith(DEAD_LETTER_PREFIX)]


def _topics(settings: DlqSettings) -> list[str]:
    there = _there(settings)
    if not settings.groups:
        return there
    return [name for name in there if name.removeprefix(DEAD_LETTER_PREFIX) in settings.groups]


def _options(settings: DlqSettings) -> dict[str, str]:
    return {**settings.source, "topics": ",".join(_topics(settings))}


if __name__ == "__main__":
    from shmq.tools.start import run

    raise SystemExit(run("spark", "dlq"))
