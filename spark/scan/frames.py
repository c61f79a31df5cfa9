"""The view `frames`: whole log files in the order of the log, every topic, each record's bytes as they are stored.

Only files that are full are read, because the kernel may read the pages later, when the batch is written to Spark. The
column `frame` points into the mapped file; nothing of a record is copied in this process.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.compute

from shmq.columns.record_batches import column_numbers, import_batch
from shmq.errors import CorruptionError
from shmq.plain_file import open_plain
from shmq.shm.core import columns_decode
from shmq.shm.descriptors import above_standard
from shmq.spark.access.broker import Reading
from shmq.spark.access.loss import data_loss
from shmq.spark.access.segments import Attachment

_HEADER = ("commitlog_offset", "store_size", "topic", "queue_id", "queue_offset", "sys_flag", "store_timestamp")
_NUMBERS = column_numbers(_HEADER)
_UNQUEUED = 4  # sysFlag: prepared and rolled back records are in the log only, and no messages of their topic


def sealed_files(attachment: Attachment) -> list[str]:
    """Return the paths of the log files that are complete, oldest first."""
    head = attachment.store.head
    file_bytes = int(head["file_bytes"])
    end = attachment.store.log_end
    if head["flush_sync"] or attachment.store.has_sync_topics:
        end = min(end, attachment.store.safe_end)
    folder = Path(attachment.instance.store_path) / "commitlog"
    names = sorted(path.name for path in folder.iterdir() if path.name.isdecimal())
    return [str(folder / name) for name in names if int(name) + file_bytes <= end]


def read_files(reading: Reading, paths: Sequence[str]) -> Iterator[Any]:
    """Yield record batches of whole files.

    Raises:
        CorruptionError: a file holds something else than records, and where.
        OffsetOutOfRange: retention has deleted a file since it was planned, and that may not be.
    """
    for path in paths:
        try:
            with above_standard, open(open_plain(path, os.O_RDONLY), "rb") as file:
                mapped = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
        except FileNotFoundError:
            data_loss(reading.options, f"retention has deleted {path}")
            continue
        # Unmapped with the last batch that points into it, and not before.
        yield from _read_file(reading, path, pyarrow.py_buffer(mapped))


def _read_file(reading: Reading, path: str, data: Any) -> Iterator[Any]:
    at, options = 0, reading.options
    while at < data.size:
        rest = data.slice(at)
        try:
            used, _, rows, _, array = columns_decode(
                rest,
                _NUMBERS,
                None,
                "",
                rows_max=options.batch_rows,
                bytes_max=options.batch_bytes,
                verify=options.verify_crc,
            )
        except CorruptionError as error:
            raise CorruptionError(path, at, str(error)) from error
        if not rows:
            return
        yield _with_frames(import_batch(_NUMBERS, array), rest, reading.columns)
        at += used


def _with_frames(batch: Any, data: Any, columns: Sequence[str]) -> Any:
    sizes = batch.column("store_size")
    ends = pyarrow.compute.cumulative_sum(sizes)
    offsets = pyarrow.concat_arrays([pyarrow.array([0], pyarrow.int32()), ends])
    frames = pyarrow.Array.from_buffers(pyarrow.binary(), batch.num_rows, [None, offsets.buffers()[1], data])
    whole = pyarrow.record_batch(
        [frames if name == "frame" else batch.column(name) for name in columns], names=list(columns)
    )
    hidden = pyarrow.compute.not_equal(pyarrow.compute.bit_wise_and(batch.column("sys_flag"), _UNQUEUED), 0)
    return whole.filter(pyarrow.compute.invert(hidden)) if pyarrow.compute.any(hidden).as_py() else whole
