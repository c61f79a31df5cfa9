"""Owns reading an archive with Spark: exactly the files that are in, by their manifests or by Delta's log."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from shmq.errors import UsageError
from shmq.spark.jobs.manifest import entries_in, versions
from shmq.spark.jobs.table import local_root

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_INFERENCE = "spark.sql.sources.partitionColumnTypeInference.enabled"


def read_archive(spark: SparkSession, path: str) -> DataFrame:
    """Return an archive as a data frame; partition columns are strings.

    Raises:
        UsageError: there is no archive, or nothing in it.
        CorruptionError: a manifest is damaged.
    """
    root = local_root(path)
    if (root / "_delta_log").exists():
        from shmq.spark.jobs.session import require

        require("deltalake", extra="pip install 'shmq[delta]'")
        from deltalake import DeltaTable

        files = [uri.removeprefix("file://") for uri in DeltaTable(root).file_uris()]
    elif versions(root):
        files = [str(root / entry.path) for entry in entries_in(root)]
    else:
        raise UsageError(f"{root} is no archive", hint="shmq spark archive --to DIR makes one")
    if not files:
        raise UsageError(f"the archive {root} holds no message", hint="archive something first")
    before = spark.conf.get(_INFERENCE)
    spark.conf.set(_INFERENCE, "false")  # a topic named 2026 is a name
    try:
        frame: Any = spark.read.option("basePath", str(root)).parquet(*files)
        typed: DataFrame = frame.withColumn("queue_id", frame["queue_id"].cast("int"))
        return typed
    finally:
        spark.conf.set(_INFERENCE, str(before))
