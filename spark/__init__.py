"""The PySpark source `shmq`: topics of a broker on this host as data frames, read from its segments without asking it.

    spark.read.format("shmq").option("topic", "orders").load()

    source ─▶ options · schema         what was asked for, checked on the driver
           ─▶ stream ─▶ progress · admission    a streaming query's checkpoint, and how much a micro-batch takes
           ─▶ ranges ─▶ plan           which offsets, and which partition reads them
           ─▶ messages · frames · tables    what a partition yields: Arrow record batches
                 └▶ attach             one read-only attachment a process and broker

It does not know TCP, nor who produced what it reads. Importing it loads nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def register(spark: SparkSession) -> None:
    """Make the source `shmq` known to a session; doing it twice is harmless.

    Spark finds an installed wheel by itself. It does not find what is imported by a hook (`pip install -e`) or out of
    `--py-files`; there, and wherever one does not want to care, this is called once a session.
    """
    from shmq.spark.source import ShmqDataSource

    spark.dataSource.register(ShmqDataSource)
