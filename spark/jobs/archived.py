"""An archive read with Spark: exactly the files that are in, by Delta's log."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import pyarrow

from shmq.errors import UsageError
from shmq.spark.jobs.table.delta import table_at
from shmq.spark.jobs.table.table import local_root

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_INFERENCE = "spark.sql.sources.partitionColumnTypeInference.enabled"


def archive_files(path: str) -> list[str]:
    """Return the files that are in an archive.

    Raises:
        UsageError: there is no archive, nothing in it, or files are gone.
        CorruptionError: its log cannot be read.
    """
    root = local_root(path)
    table = table_at(root)
    if table is None:
        raise UsageError(f"{root} is no archive", hint="shmq spark archive --to DIR makes one")
    names = pyarrow.table(table.get_add_actions())["path"].to_pylist()
    if not names:
        raise UsageError(f"the archive {root} holds no message", hint="archive something first")
    files = [root / unquote(name) for name in names]
    missing = [file for file in files if not file.exists()]
    if missing:
        raise UsageError(
            f"{len(missing)} files of the archive {root} are not there: {missing[0]}",
            hint=f"put them back, or take them out of the table: deltalake.DeltaTable({str(root)!r}).repair()",
        )
    return [str(file) for file in files]


def read_archive(spark: SparkSession, path: str) -> DataFrame:
    """Return an archive as a data frame; partition columns are strings.

    Raises:
        UsageError: there is no archive, nothing in it, or files are gone.
        CorruptionError: its log cannot be read.
    """
    files, root = archive_files(path), local_root(path)
    before = spark.conf.get(_INFERENCE)
    spark.conf.set(_INFERENCE, "false")  # a topic named 2026 is a name
    try:
        frame: Any = spark.read.option("basePath", str(root)).parquet(*files)
        typed: DataFrame = frame.withColumn("queue_id", frame["queue_id"].cast("int"))
        return typed
    finally:
        spark.conf.set(_INFERENCE, str(before))
