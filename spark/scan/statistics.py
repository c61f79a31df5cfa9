"""The view `index_stats`: what ConsumeQueue units say, added up, so that only sums cross over to Spark.

Records are read only where tags or times have to be compared. A row is about as many messages as one batch would have
had; the sums over rows are what counts, not where one ends.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Final

import pyarrow
import pyarrow.compute

from shmq.shm.core import COLUMN_ROWS_MAX
from shmq.spark.access.broker import Access, Range, Reading

INDEX_STATS: Final = "index_stats"
_READ: Final = ("queue_offset", "commitlog_offset", "store_size")
_KINDS: Final = {
    "topic": pyarrow.string(),
    "broker": pyarrow.string(),
    "queue_id": pyarrow.int32(),
    "offset_first": pyarrow.int64(),
    "offset_last": pyarrow.int64(),
    "commitlog_first": pyarrow.int64(),
    "commitlog_last": pyarrow.int64(),
    "messages": pyarrow.int64(),
    "bytes": pyarrow.int64(),
    "size_min": pyarrow.int32(),
    "size_max": pyarrow.int32(),
}


def summed(access: Access, reading: Reading, wanted: Range) -> Iterator[Any]:
    """Yield rows of sums for a range.

    Raises:
        ShmqError: what was planned is not there any more, and that may not be.
    """
    options = replace(reading.options, view="index", batch_rows=COLUMN_ROWS_MAX)
    schema = pyarrow.schema([(name, _KINDS[name]) for name in reading.columns])
    for batch in access.read(Reading(options, _READ), wanted):
        row = {"topic": wanted.topic, "broker": access.broker, "queue_id": wanted.queue_id, **_sums(batch)}
        yield pyarrow.RecordBatch.from_pylist([{name: row[name] for name in reading.columns}], schema=schema)


def _sums(batch: Any) -> dict[str, int]:
    offsets, positions, sizes = (batch.column(name) for name in _READ)
    bounds = pyarrow.compute.min_max(sizes).as_py()
    return {
        "offset_first": offsets[0].as_py(),
        "offset_last": offsets[-1].as_py(),
        "commitlog_first": positions[0].as_py(),
        "commitlog_last": positions[-1].as_py(),
        "messages": batch.num_rows,
        "bytes": pyarrow.compute.sum(sizes).as_py(),
        "size_min": bounds["min"],
        "size_max": bounds["max"],
    }
