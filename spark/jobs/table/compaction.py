"""Small files of a Parquet archive joined: neighbours of one queue and partition become one file.

Short batches leave small files, and together they are little data, so this runs without Spark. The manifest puts the
joined file in the place of its parts in one step, so that whoever reads the manifests never sees both.
"""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.parquet

from shmq.errors import CorruptionError
from shmq.shm.descriptors import above_standard
from shmq.spark.jobs.table.entry import Entry
from shmq.spark.jobs.table.file import parquet_writer
from shmq.spark.jobs.table.manifest import Manifest
from shmq.spark.jobs.table.table import local_root

_PARTS_MAX = 1000  # of one file, and of one step


def compact(
    path: str, file_bytes: int, compression: str, *, told: Callable[[str], None] = lambda text: None
) -> dict[str, Any]:
    """Join files below `file_bytes` and return how many became how many.

    Raises:
        CorruptionError: a file does not hold what the manifest says.
        StoreLocked: a job writes the archive.
    """
    root = local_root(path)
    before = after = 0
    with Manifest(root) as manifest:
        for parts in _runs(manifest.entries(), file_bytes):
            manifest.replace([_joined(root, parts, compression)], parts)
            before, after = before + len(parts), after + 1
            told(f"joined {len(parts)} files of topic {parts[0].topic}, queue {parts[0].queue_id}")
    return {"files_before": before, "files_after": after}


def _runs(entries: Sequence[Entry], file_bytes: int) -> Iterator[list[Entry]]:
    """Neighbours that fit into one file, two at least."""
    run: list[Entry] = []
    for entry in [*entries, None]:
        last = run[-1] if run else None
        fits = (
            entry is not None
            and last is not None
            and (entry.key, entry.partition, entry.start) == (last.key, last.partition, last.end)
            and sum(each.file_bytes for each in run) + entry.file_bytes <= file_bytes
            and len(run) < _PARTS_MAX
        )
        if not fits:
            if len(run) > 1:
                yield run
            run = []
        if entry is not None:
            run.append(entry)


def _joined(root: Path, parts: Sequence[Entry], compression: str) -> Entry:
    first, last = parts[0], parts[-1]
    folder = Path(first.path).parent
    staged = folder / f".{secrets.token_hex(8)}.parquet"
    stem = f"q{first.queue_id:03d}-{first.start:020d}-{last.end:020d}-{first.broker}-{first.born_position}"
    writer, rows = None, 0
    try:
        for part in parts:
            with above_standard:
                file = pyarrow.parquet.ParquetFile(root / part.path)
            if file.metadata.num_rows != part.rows:
                raise CorruptionError(
                    root / part.path, 0, f"{file.metadata.num_rows} rows, the manifest says {part.rows}"
                )
            for group in range(file.num_row_groups):
                table = file.read_row_group(group)
                writer = writer or parquet_writer(root / staged, table.schema, compression)
                writer.write_table(table, row_group_size=max(1, table.num_rows))
                rows += table.num_rows
    finally:
        if writer is not None:
            writer.close()
    crc_xor = 0
    for part in parts:
        crc_xor ^= part.crc_xor
    with contextlib.suppress(OSError), above_standard, open(root / staged, "rb") as made:
        _sync(made.fileno())
    return replace(
        first,
        end=last.end,
        path=str(folder / f"{stem}.parquet"),
        staged=str(staged),
        rows=rows,
        file_bytes=(root / staged).stat().st_size,
        body_bytes=sum(part.body_bytes for part in parts),
        crc_xor=crc_xor,
        crc_sum=sum(part.crc_sum for part in parts),
        stored_min_ms=min(part.stored_min_ms for part in parts),
        stored_max_ms=max(part.stored_max_ms for part in parts),
    )


def _sync(descriptor: int) -> None:
    import os

    os.fsync(descriptor)
