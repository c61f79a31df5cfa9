"""An archive read with Spark: exactly the files that are in, by their manifests or by Delta's log."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from shmq.errors import UsageError
from shmq.spark.jobs.table.entry import Entry
from shmq.spark.jobs.table.manifest import entries_in, versions
from shmq.spark.jobs.table.table import local_root

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_SETTLE_SECONDS: Final = 2.0
_INFERENCE = "spark.sql.sources.partitionColumnTypeInference.enabled"


def archive_files(path: str) -> list[str]:
    """Return the files that are in an archive.

    Raises:
        UsageError: there is no archive, or nothing in it.
        CorruptionError: a manifest is damaged.
    """
    root = local_root(path)
    if (root / "_delta_log").exists():
        from shmq.spark.jobs.driver.session import require

        require("deltalake", extra="pip install 'shmq[delta]'")
        from deltalake import DeltaTable

        files = [uri.removeprefix("file://") for uri in DeltaTable(root).file_uris()]
    elif versions(root):
        files = [str(root / entry.path) for entry in settled(root)]
    else:
        raise UsageError(f"{root} is no archive", hint="shmq spark archive --to DIR makes one")
    if not files:
        raise UsageError(f"the archive {root} holds no message", hint="archive something first")
    return files


def settled(root: Path, seconds: float = _SETTLE_SECONDS) -> list[Entry]:
    """Return what a Parquet archive holds, as soon as every file has its name.

    A job names the files of a batch right after its manifest, so this takes a moment at most; where it was killed in
    between, what was in before that batch is returned.

    Raises:
        UsageError: files are gone.
        CorruptionError: a manifest is damaged.
    """
    until = time.monotonic() + seconds
    while True:
        newest = versions(root)
        entries = entries_in(root, newest)
        missing = [entry.path for entry in entries if not (root / entry.path).exists()]
        if not missing:
            return entries
        if time.monotonic() > until:
            break
        time.sleep(0.05)
    before = entries_in(root, newest[:-1])
    if all((root / entry.path).exists() for entry in before):
        return before
    raise UsageError(
        f"{len(missing)} files of the archive {root} are not there: {missing[0]}",
        hint="if a job was killed, run it again: it finishes what it began",
    )


def read_archive(spark: SparkSession, path: str) -> DataFrame:
    """Return an archive as a data frame; partition columns are strings.

    Raises:
        UsageError: there is no archive, or nothing in it.
        CorruptionError: a manifest is damaged.
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
