"""What tests have done on a driver of the cluster: jobs, with plain values in and out."""

from __future__ import annotations

from typing import Any


def archive(spark: Any, path: str, source: dict[str, str], **settings: Any) -> dict[str, Any]:
    """Run the archive job and return its report."""
    from shmq.spark.jobs.archive import ArchiveSettings, run_archive

    return run_archive(spark, ArchiveSettings(path, source, **settings))
