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
    from collections.abc import Sequence

    from pyspark.sql import DataFrame, SparkSession


def register(spark: SparkSession) -> None:
    """Make the source `shmq` known to a session; doing it twice is harmless.

    Spark finds an installed wheel by itself. It does not find what is imported by a hook (`pip install -e`) or out of
    `--py-files`; there, and wherever one does not want to care, this is called once a session.
    """
    from shmq.spark.source import ShmqDataSource

    spark.dataSource.register(ShmqDataSource)


def located_read(
    spark: SparkSession, *, schema: str | None = None, hosts: Sequence[str] | None = None, **options: Any
) -> DataFrame:
    """Return what `spark.read.format("shmq")` would load, read by preference on the broker's host.

    Args:
        schema: columns wanted, as Spark DDL; None takes the view's default.
        hosts: as Spark names its executors; None takes those on this host, if the broker is.
        options: those of the source.

    Raises:
        ShmqError: what `load()` would raise; this is Spark Connect, or pandas is missing.
    """
    from shmq.spark import located

    return located.located_read(spark, schema=schema, hosts=hosts, **options)
