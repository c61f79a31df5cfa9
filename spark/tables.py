"""Owns the small views `queues`, `groups` and `segments`: one row for each thing, as it is when the task looks.

It does not read bodies. Rows are made in one task, because there are thousands of them, not millions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow

from shmq.errors import ShmqError
from shmq.spark.attach import Attachment, Queue, attach
from shmq.spark.batches import column_numbers, import_batch
from shmq.spark.messages import Reading
from shmq.spark.options import Options
from shmq.spark.ranges import bounds_of, chosen_queues
from shmq.spark.schema import column_kinds

Row = dict[str, Any]
_STORE_TIME = column_numbers(["store_timestamp"])
_ROWS_MAX = 8192
_ARROW = {
    "string": pyarrow.string(),
    "int": pyarrow.int32(),
    "bigint": pyarrow.int64(),
    "boolean": pyarrow.bool_(),
    "timestamp": pyarrow.timestamp("us", tz="UTC"),
}


def read_table(reading: Reading) -> Iterator[Any]:
    """Yield the record batches of a small view."""
    view = reading.options.view
    rows = list(_ROWS[view](attach(reading.options.store), reading.options))
    kinds = column_kinds(view)
    schema = pyarrow.schema([(name, _ARROW[kinds[name]]) for name in reading.columns])
    for begin in range(0, len(rows), _ROWS_MAX):
        part = [{name: row[name] for name in reading.columns} for row in rows[begin : begin + _ROWS_MAX]]
        yield pyarrow.RecordBatch.from_pylist(part, schema=schema)


def _queues(attachment: Attachment, options: Options) -> Iterator[Row]:
    for queue in chosen_queues(attachment, options):
        low, high = bounds_of(attachment, queue)
        facts = attachment.store.queue(queue.index)
        yield {
            "topic": queue.topic,
            "broker": attachment.broker,
            "queue_id": queue.queue_id,
            "offset_min": low,
            "offset_max": high,
            "persisted": facts[2],
            "bytes": facts[5],
            "first_stored": _stored(attachment, queue, low) if high > low else None,
            "last_stored": _stored(attachment, queue, high - 1) if high > low else None,
        }


def _stored(attachment: Attachment, queue: Queue, offset: int) -> datetime | None:
    """When a message was stored; None when it went meanwhile."""
    try:
        answer = attachment.store.columns(
            queue.index, queue.queue_id, offset, offset + 1, _STORE_TIME, queue.topic, attachment.broker
        )
    except ShmqError:
        return None
    stored: datetime | None = import_batch(_STORE_TIME, answer[4]).column(0)[0].as_py()
    return stored


def _groups(attachment: Attachment, options: Options) -> Iterator[Row]:
    store = attachment.store
    names = dict(store.groups())
    topics = {int(entry["index"]): str(entry["name"]) for entry in store.topics()}
    for _, group, index, committed, _, updated_ms in store.offsets():
        _, _, _, topic, queue_id, _ = store.queue(index)
        name = topics.get(topic)
        wanted = options.group in (None, names.get(group)) and name is not None and options.matches(name)
        if group not in names or not wanted or committed < 0:
            continue
        high = store.queue_visible(index)
        yield {
            "consumer_group": names[group],
            "topic": name,
            "broker": attachment.broker,
            "queue_id": queue_id,
            "committed": committed,
            "offset_max": high,
            "lag": max(0, high - max(committed, store.queue(index)[0])),
            "updated": datetime.fromtimestamp(updated_ms / 1000, UTC) if updated_ms else None,
        }


def _segments(attachment: Attachment, options: Options) -> Iterator[Row]:
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


_ROWS: dict[str, Callable[[Attachment, Options], Iterator[Row]]] = {
    "queues": _queues,
    "groups": _groups,
    "segments": _segments,
}
