"""The PySpark source and sink `shmq`: topics of a broker as data frames, and data frames into topics.

    spark.read.format("shmq").option("topic", "orders").load()

    source ─▶ options · schema         what was asked for, checked on the driver
           ─▶ plan/                    which offsets, and which partition reads them
           ─▶ scan/                    batch and streaming readers; what a partition yields: Arrow record batches
           ─▶ access/                  the way to the broker: mapped segments, or TCP
           ─▶ sink/                    rows into topics
    jobs/                              archive, replay, reconcile, lag, dlq

Records are read from the mapped log without asking the broker; the core's `bindings/core/columns/gather.c` copies the
wanted fields into Arrow buffers, one copy a body, in batches of 2 MiB that are still in the processor's cache when
they are sent on. Spark refuses zero-copy views of bodies, and `Message` objects would cost ten times as much.

Importing this package loads nothing else; each name is imported when it is first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from shmq.spark.scan.located import located_read as located_read
    from shmq.spark.scan.selection import read as read
    from shmq.spark.scan.stream_lag import StreamLag as StreamLag
    from shmq.spark.scan.stream_lag import lag_from_progress as lag_from_progress

_HOMES = {
    "read": "scan.selection",
    "located_read": "scan.located",
    "lag_from_progress": "scan.stream_lag",
    "StreamLag": "scan.stream_lag",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)


def register(spark: SparkSession) -> None:
    """Make the source `shmq` known to a session; doing it twice is harmless.

    Spark finds an installed wheel by itself. It does not find what is imported by a hook (`pip install -e`); there, and
    wherever one does not want to care, this is called once a session.
    """
    from shmq.spark.source import ShmqDataSource

    spark.dataSource.register(ShmqDataSource)


def write_batch(frame: DataFrame, batch_id: int, query_id: str, **options: Any) -> None:
    """Write a batch of `foreachBatch` once, however often it comes: guarantee transactional, if nothing else is said.

    Args:
        query_id: the writer; the same for every batch and every restart of the query.
        options: those of the sink.

    Raises:
        ShmqError: what `save()` would raise.
    """
    given = {"guarantee": "transactional", **options, "writerId": query_id, "batchId": batch_id}
    frame.write.format("shmq").options(**given).mode("append").save()
