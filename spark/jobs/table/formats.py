"""Which kind of table an archive is: plain Parquet files with manifests, or a Delta table.

form "parquet"   `manifest.Manifest`      locked while it is open
form "delta"     `delta.DeltaArchive`     Delta itself refuses two writers
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from shmq.spark.jobs.table.manifest import Manifest, ends_in
from shmq.spark.jobs.table.table import Ends, Table, local_root


def ends_of(path: str, form: str, columns: Sequence[str], partition_by: Sequence[str]) -> Ends:
    """Return what tells how far each queue is in an archive; nothing is locked, made or tidied up for it.

    Raises:
        UsageError: it is of another form, or not on a file system.
    """
    root = local_root(path)
    if form == "delta":
        from shmq.spark.jobs.table.delta import DeltaArchive  # needs delta-rs

        return DeltaArchive(root, columns, partition_by).end_of
    return ends_in(root).get


@contextmanager
def open_table(path: str, form: str, columns: Sequence[str], partition_by: Sequence[str]) -> Iterator[Table]:
    """Open an archive for writing and finish what a killed job left half done.

    Raises:
        UsageError: it is of another form, or not on a file system.
        StoreLocked: another job writes it.
    """
    root = local_root(path)
    if form == "delta":
        from shmq.spark.jobs.table.delta import DeltaArchive  # needs delta-rs

        yield DeltaArchive(root, columns, partition_by)
        return
    with Manifest(root) as manifest:
        yield manifest
