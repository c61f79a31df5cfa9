"""The PySpark source `shmq`: topics of a broker on this host as data frames, read from its segments without asking it.

    spark.read.format("shmq").option("topic", "orders").load()

    source ─▶ options · schema         what was asked for, checked on the driver
           ─▶ stream ─▶ progress · admission    a streaming query's checkpoint, and how much a micro-batch takes
           ─▶ ranges ─▶ plan           which offsets, and which partition reads them
           ─▶ messages · frames · tables    what a partition yields: Arrow record batches
           ─▶ access ─┬▶ attach        the segments: one read-only attachment a process and broker
                      └▶ remote        the same over TCP

It does not know who produced what it reads. Importing it loads nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pyspark.sql import DataFrame, SparkSession

    from shmq.spark.scan.stream_lag import StreamLag


def register(spark: SparkSession) -> None:
    """Make the source `shmq` known to a session; doing it twice is harmless.

    Spark finds an installed wheel by itself. It does not find what is imported by a hook (`pip install -e`); there, and
    wherever one does not want to care, this is called once a session.
    """
    from shmq.spark.source import ShmqDataSource

    spark.dataSource.register(ShmqDataSource)


def read(
    spark: SparkSession,
    topic: str | Sequence[str],
    *,
    where: Mapping[str, Any] | None = None,
    schema: str | None = None,
    **options: Any,
) -> DataFrame:
    """Return `spark.read.format("shmq")` of a topic, or of several, with a selection that is made before reading.

    Args:
        where: `{"queue_id": 3, "tags": ["paid", "sent"], "keys": "order-17", "store_timestamp": (begin, end)}`; a
            value or several; times are datetimes, milliseconds or ISO 8601, `begin <= t < end`, None for no bound.
        schema: columns wanted, as Spark DDL; None takes the view's default.
        options: those of the source.

    Raises:
        UsageError: a selection that only a filter can make.
    """
    from shmq.spark.scan.selection import read as selected

    return selected(spark, topic, where=where, schema=schema, **options)


def write_batch(frame: DataFrame, batch_id: int, query_id: str, **options: Any) -> None:
    """Write a batch of `foreachBatch` once, however often it comes: guarantee transactional, if nothing else is said.

    Args:
        query_id: who writes; the same for every batch and every restart of the query.
        options: those of the sink.

    Raises:
        ShmqError: what `save()` would raise.
    """
    given = {"guarantee": "transactional", **options, "writerId": query_id, "batchId": batch_id}
    frame.write.format("shmq").options(**given).mode("append").save()


def lag_from_progress(progress: Any, *, store: str | None = None) -> list[StreamLag]:
    """Return how far a streaming query is behind, for each of its sources that is shmq.

    Args:
        progress: `query.lastProgress`, an event's `progress`, or its JSON.
        store: as option `store`; with it, the age of the oldest message that is not read yet is looked up.

    Raises:
        UsageError: there are offsets of another version.
        ShmqError: the broker cannot be asked.
    """
    from shmq.spark.scan.stream_lag import lag_from_progress as lag

    return lag(progress, store=store)


def located_read(
    spark: SparkSession, *, schema: str | None = None, hosts: Sequence[str] | None = None, **options: Any
) -> DataFrame:
    """Return what `spark.read.format("shmq")` would load, read by preference on the broker's host.

    Args:
        schema: columns wanted, as Spark DDL; None takes the view's default.
        hosts: as Spark names its executors; None takes those on this host, if the broker is.
        options: those of the source.

    Raises:
        ShmqError: what `load()` would raise; this is Spark Connect.
    """
    from shmq.spark.scan import located

    return located.located_read(spark, schema=schema, hosts=hosts, **options)
