"""The small views `queues`, `groups` and `segments`: one row for each thing, as it is when the load is planned.

No body is read. Rows are made on the driver and travel with the plan, because there are thousands of them, not
millions, and the executor may be on a host without them. Over TCP there is less to see: what is missing is null.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow

from shmq.errors import ShmqError
from shmq.spark.access.broker import Access, Queue, Range, Reading
from shmq.spark.access.segments import of_segments
from shmq.spark.options import Options
from shmq.spark.plan.ranges import chosen_queues
from shmq.spark.schema import column_kinds

Row = dict[str, Any]
_ONE_TIME = Reading(Options(), ("store_timestamp",))
_ROWS_MAX = 8192
_ARROW = {
    "string": pyarrow.string(),
    "int": pyarrow.int32(),
    "bigint": pyarrow.int64(),
    "boolean": pyarrow.bool_(),
    "timestamp": pyarrow.timestamp("us", tz="UTC"),
}


def table_stream(reading: Reading, access: Access) -> bytes:
    """Return a small view as an Arrow stream.

    Raises:
        UsageError: the view needs what only the broker's host has.
    """
    view = reading.options.view
    rows = list(_ROWS[view](access, reading.options))
    kinds = column_kinds(view)
    schema = pyarrow.schema([(name, _ARROW[kinds[name]]) for name in reading.columns])
    sink = pyarrow.BufferOutputStream()
    with pyarrow.ipc.new_stream(sink, schema) as writer:
        for begin in range(0, len(rows), _ROWS_MAX):
            part = [{name: row[name] for name in reading.columns} for row in rows[begin : begin + _ROWS_MAX]]
            writer.write_batch(pyarrow.RecordBatch.from_pylist(part, schema=schema))
    return bytes(sink.getvalue())


def read_stream(stream: bytes) -> Iterator[Any]:
    """Yield the record batches of a small view."""
    yield from pyarrow.ipc.open_stream(stream)


def _queues(access: Access, options: Options) -> Iterator[Row]:
    for queue in chosen_queues(access, options):
        low, high = access.bounds(queue)
        kept = access.kept(queue)
        yield {
            "topic": queue.topic,
            "broker": access.broker,
            "queue_id": queue.queue_id,
            "offset_min": low,
            "offset_max": high,
            "persisted": kept.persisted,
            "bytes": kept.bytes,
            "first_stored": stored_at(access, queue, low) if high > low else None,
            "last_stored": stored_at(access, queue, high - 1) if high > low else None,
        }


def stored_at(access: Access, queue: Queue, offset: int) -> datetime | None:
    """The store time of a message; None when it went meanwhile."""
    place = Range(queue.topic, queue.queue_id, queue.born_position, offset, offset + 1)
    try:
        for batch in access.read(_ONE_TIME, place):
            stored: datetime | None = batch.column(0)[0].as_py()
            return stored
    except ShmqError:
        return None
    return None


def _groups(access: Access, options: Options) -> Iterator[Row]:
    for group, rows in access.progress(options.group, lambda: chosen_queues(access, options)).items():
        for row in rows:
            if options.matches(row.topic):
                yield {
                    "consumer_group": group,
                    "topic": row.topic,
                    "broker": access.broker,
                    "queue_id": row.queue_id,
                    "committed": row.offset,
                    "offset_max": row.offset_max,
                    "lag": row.behind,
                    "updated": datetime.fromtimestamp(row.updated_ms / 1000, UTC) if row.updated_ms else None,
                }


def _segments(access: Access, options: Options) -> Iterator[Row]:
    attachment = of_segments(access, "segments")
    end = attachment.store.log_end
    for path in sorted((Path(attachment.instance.store_path) / "commitlog").iterdir()):
        if not path.name.isdecimal():
            continue
        try:
            status = path.stat()
        except FileNotFoundError:  # retention has just removed it
            continue
        yield {
            "path": str(path),
            "broker": attachment.broker,
            "commitlog_offset": int(path.name),
            "bytes": status.st_size,
            "is_sealed": int(path.name) + status.st_size <= end,
            "modified": datetime.fromtimestamp(status.st_mtime, UTC),
        }


_ROWS: dict[str, Callable[[Access, Options], Iterator[Row]]] = {
    "queues": _queues,
    "groups": _groups,
    "segments": _segments,
}
