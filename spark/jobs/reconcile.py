"""The reconcile job: what should be the same is compared, and every difference is counted and shown by example.

    continuity   offsets of each queue, first to last, each once; records that do not fit their checksum
    archive      store against archive, over the offsets both have, in blocks; blocks that differ, message by message
    ledger       what producers got acknowledged, against store and archive: lost, changed, doubled

Nothing is repaired. A block's sums are count, sum and xor of the CRCs of the bodies; sum and xor together with the
count see a message that is missing, doubled or exchanged.

    python -m shmq.spark.jobs.reconcile --topic orders --archive /data/orders     as shmq spark reconcile …
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from shmq.spark.access.way import open_access
from shmq.spark.jobs.archived import archive_files, read_archive
from shmq.spark.jobs.ledger import check_files, read_ledger
from shmq.spark.options import parse_options
from shmq.spark.plan.ranges import resolve
from shmq.spark.schema import refused

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

BLOCK: Final = 10_000  # messages whose sums are compared
SAMPLES: Final = 20
_SCHEMA: Final = (
    "topic string, queue_id int, queue_offset bigint, body binary, uniq_key string, msg_id string, keys string"
)
_QUEUE: Final = ["topic", "queue_id"]
_PLACE: Final = ["topic", "queue_id", "queue_offset"]


@dataclass(frozen=True)
class ReconcileSettings:
    """The sides to compare. `source` are options of the source."""

    source: Mapping[str, str]
    archive: str | None = None
    ledgers: tuple[str, ...] = ()
    block: int = BLOCK
    samples: int = SAMPLES


def run_reconcile(
    spark: SparkSession, settings: ReconcileSettings, *, told: Callable[[str], None] = lambda text: None
) -> dict[str, Any]:
    """Compare, and return the report; `differences` is 0 when everything is as it should be.

    Raises:
        UsageError: no such topic, archive or ledger.
    """
    from shmq.spark.source import ShmqDataSource

    spark.dataSource.register(ShmqDataSource)
    began = time.monotonic()
    stored = _summed(_stored(spark, settings))
    told("reading the store …")
    blocks = _blocks(stored, settings.block)
    checks = [continuity(blocks)]
    archived = None
    if settings.archive is not None:
        told("comparing with the archive …")
        archived = _summed(_archived(spark, settings))
        checks.append(against_archive(settings, stored, archived, blocks))
    if settings.ledgers:
        told("comparing with the ledger …")
        checks.append(against_ledger(spark, settings, stored, archived))
    return {
        "job": "reconcile",
        "differences": sum(check["differences"] for check in checks),
        "checks": checks,
        "seconds": round(time.monotonic() - began, 3),
    }


def plan_reconcile(settings: ReconcileSettings) -> dict[str, Any]:
    """Return how much a run would read of the store.

    Raises:
        UsageError: no such topic, archive or ledger.
    """
    options = parse_options(settings.source)
    ranges = resolve(open_access(options), options)
    if settings.archive is not None:
        archive_files(settings.archive)
    check_files(settings.ledgers)
    queues = [
        {"topic": each.topic, "queue_id": each.queue_id, "from": each.start, "until": each.end} for each in ranges
    ]
    return {"job": "reconcile", "messages": sum(each.count for each in ranges), "queues": queues}


def _stored(spark: SparkSession, settings: ReconcileSettings) -> DataFrame:
    options = {"verifyCrc": "true", **settings.source}
    return spark.read.format("shmq").options(**options).schema(_SCHEMA).load()


def _archived(spark: SparkSession, settings: ReconcileSettings) -> DataFrame:
    frame = read_archive(spark, settings.archive or "")
    missing = {"topic", "queue_id", "queue_offset", "body"} - set(frame.columns)
    if missing:
        raise refused(f"the archive has no column {', '.join(sorted(missing))}", "archive it with --columns")
    names = [name.split()[0] for name in _SCHEMA.split(", ")]
    whole = [name if name in frame.columns else f"cast(null AS string) AS {name}" for name in names]
    wanted = [name.strip() for name in (settings.source.get("topics") or settings.source.get("topic") or "").split(",")]
    frame = frame.selectExpr(*whole)
    return frame.filter(frame["topic"].isin(wanted)) if any(wanted) else frame


def _summed(frame: DataFrame) -> DataFrame:
    return frame.selectExpr(
        *_PLACE,
        "coalesce(uniq_key, msg_id) AS message_id",
        "keys AS key",
        "length(body) AS bytes",
        "crc32(body) AS crc",
    )


def _blocks(frame: DataFrame, block: int) -> dict[tuple[str, int, int], Any]:
    """Sums by topic, queue and block."""
    rows = (
        frame.withColumn("block", frame["queue_offset"] - frame["queue_offset"] % block)
        .groupBy(*_QUEUE, "block")
        .agg(*_sums())
        .collect()
    )
    return {(row.topic, row.queue_id, row.block): row for row in rows}


def _sums() -> list[Any]:
    from pyspark.sql import functions as f

    return [
        f.count("*").alias("messages"),
        f.count_distinct("queue_offset").alias("offsets"),
        f.min("queue_offset").alias("first"),
        f.max("queue_offset").alias("last"),
        f.sum("bytes").alias("bytes"),
        f.sum("crc").alias("crc_sum"),
        f.bit_xor("crc").alias("crc_xor"),
    ]


def continuity(blocks: Mapping[tuple[str, int, int], Any]) -> dict[str, Any]:
    """Check that each queue has every offset from its first to its last once. Pure, over sums by block."""
    queues: dict[tuple[str, int], list[Any]] = {}
    for key in sorted(blocks):
        queues.setdefault(key[:2], []).append(blocks[key])
    rows = []
    for (topic, queue_id), sums in queues.items():
        first, last = sums[0].first, sums[-1].last
        messages, offsets = sum(each.messages for each in sums), sum(each.offsets for each in sums)
        rows.append(
            {
                "topic": topic,
                "queue_id": queue_id,
                "first": first,
                "last": last,
                "messages": messages,
                "bytes": sum(each.bytes or 0 for each in sums),
                "missing": last - first + 1 - offsets,
                "doubled": messages - offsets,
            }
        )
    wrong = sum(row["missing"] + row["doubled"] for row in rows)
    return {"check": "continuity", "differences": wrong, "queues": rows}


def against_archive(
    settings: ReconcileSettings, stored: DataFrame, archived: DataFrame, blocks: Mapping[tuple[str, int, int], Any]
) -> dict[str, Any]:
    """Compare store and archive over the offsets both have."""
    others = _blocks(archived, settings.block)
    spans = _common(blocks, others)
    differing = []
    for topic, queue_id, block in sorted(blocks.keys() | others.keys()):
        low, high = spans.get((topic, queue_id), (0, 0))
        if block + settings.block <= low or block >= high:
            continue
        one, two = blocks.get((topic, queue_id, block)), others.get((topic, queue_id, block))
        edge = block < low or block + settings.block > high  # one side goes on there: its sums say nothing
        if edge or one is None or two is None or _figures(one) != _figures(two):
            differing.append((topic, queue_id, max(low, block), min(high, block + settings.block)))
    queues = [
        {"topic": topic, "queue_id": queue_id, "from": low, "until": high, "messages": max(0, high - low)}
        for (topic, queue_id), (low, high) in sorted(spans.items())
    ]
    kinds, samples = _drilled(stored, archived, differing, settings.samples) if differing else ({}, [])
    return {
        "check": "archive",
        "differences": sum(kinds.values()),
        "kinds": kinds,
        "compared": queues,
        "not_archived": _behind(blocks, others),
        "samples": samples,
    }


def _common(one: Mapping[tuple[str, int, int], Any], two: Mapping[tuple[str, int, int], Any]) -> dict[Any, Any]:
    """Offsets [low, high) of each queue that lie within both."""
    spans = [_spans(each) for each in (one, two)]
    return {
        queue: (max(spans[0][queue][0], spans[1][queue][0]), min(spans[0][queue][1], spans[1][queue][1]))
        for queue in spans[0].keys() & spans[1].keys()
    }


def _spans(blocks: Mapping[tuple[str, int, int], Any]) -> dict[tuple[str, int], tuple[int, int]]:
    found: dict[tuple[str, int], tuple[int, int]] = {}
    for (topic, queue_id, _), row in blocks.items():
        low, high = found.get((topic, queue_id), (row.first, row.last + 1))
        found[topic, queue_id] = (min(low, row.first), max(high, row.last + 1))
    return found


def _behind(one: Mapping[tuple[str, int, int], Any], two: Mapping[tuple[str, int, int], Any]) -> int:
    """Messages behind the archive's end: not wrong, only not archived yet."""
    ends = {queue: span[1] for queue, span in _spans(two).items()}
    return sum(max(0, high - max(low, ends.get(queue, low))) for queue, (low, high) in _spans(one).items())


def _figures(row: Any) -> tuple[Any, ...]:
    return row.messages, row.offsets, row.bytes, row.crc_sum, row.crc_xor


def _drilled(
    stored: DataFrame, archived: DataFrame, ranges: list[tuple[str, int, int, int]], limit: int
) -> tuple[dict[str, int], list[dict[str, Any]]]:
    """The messages that differ within ranges, and how."""
    from pyspark.sql import functions as f

    spark = stored.sparkSession
    chosen = f.broadcast(spark.createDataFrame(ranges, "topic string, queue_id int, low bigint, high bigint"))

    def within(frame: DataFrame, name: str) -> DataFrame:
        kept = frame.join(chosen, _QUEUE).filter("queue_offset >= low AND queue_offset < high")
        return kept.groupBy(*_PLACE).agg(f.count("*").alias(f"{name}_count"), f.min("crc").alias(f"{name}_crc"))

    both = within(stored, "stored").join(within(archived, "archived"), _PLACE, "full_outer")
    kind = """CASE WHEN archived_count IS NULL THEN 'missing_in_archive'
        WHEN stored_count IS NULL THEN 'missing_in_store'
        WHEN archived_count > 1 THEN 'doubled_in_archive'
        WHEN stored_crc <> archived_crc THEN 'other_body' END"""
    wrong = both.withColumn("kind", f.expr(kind)).filter("kind IS NOT NULL").cache()
    kinds = {row.kind: row["count"] for row in wrong.groupBy("kind").count().collect()}
    samples = [row.asDict() for row in wrong.select(*_PLACE, "kind").orderBy(*_PLACE).limit(limit).collect()]
    wrong.unpersist()
    return kinds, samples


def against_ledger(
    spark: SparkSession, settings: ReconcileSettings, stored: DataFrame, archived: DataFrame | None
) -> dict[str, Any]:
    """Compare what producers got acknowledged with what is stored."""
    from pyspark.sql import functions as f

    ledger, names = read_ledger(spark, list(settings.ledgers))
    there = stored if archived is None else stored.unionByName(archived).dropDuplicates(_PLACE)
    found = there.groupBy(*names).agg(f.count("*").alias("times"), f.min("crc").alias("found_crc"))
    joined = ledger.join(found, list(names), "left")
    kind = """CASE WHEN times IS NULL THEN 'lost' WHEN times > 1 THEN 'doubled'
        WHEN crc32 IS NOT NULL AND crc32 <> found_crc THEN 'other_body' END"""
    judged = joined.withColumn("kind", f.expr(kind)).cache()
    counts = {row.kind: row["count"] for row in judged.groupBy("kind").count().collect()}
    told = list(dict.fromkeys([*names, "topic", "queue_id", "queue_offset", "message_id", "key", "kind"]))
    wrong = judged.filter("kind IS NOT NULL").select(*told).limit(settings.samples).collect()
    unknown = found.join(ledger, list(names), "left_anti").count()
    judged.unpersist()
    kinds = {name: count for name, count in counts.items() if name is not None}
    return {
        "check": "ledger",
        "by": list(names),
        "differences": sum(kinds.values()),
        "acknowledged": sum(counts.values()),
        "kinds": kinds,
        "not_in_ledger": unknown,
        "samples": [row.asDict() for row in wrong],
    }


if __name__ == "__main__":
    from shmq.tools.start import run

    raise SystemExit(run("spark", "reconcile"))
