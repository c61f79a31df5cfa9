"""The columns of every view: their names, order and Spark types, and what may be left out.

A user's schema is a projection: any of a view's columns, in any order, with their own types.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from shmq.columns.names import DEARER
from shmq.errors import UsageError
from shmq.message import nearest

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

_MESSAGES: Final = (
    "topic string, broker string, queue_id int, queue_offset bigint, commitlog_offset bigint, store_size int, "
    "msg_id string, uniq_key string, keys string, tags string, tags_code bigint, body binary, body_crc int, "
    "properties map<string,string>, flag int, sys_flag int, born_timestamp timestamp, store_timestamp timestamp, "
    "born_host string, store_host string, reconsume_times int, prepared_txn_offset bigint"
)

VIEWS: Final = {
    "messages": _MESSAGES,
    "index": (
        "topic string, broker string, queue_id int, queue_offset bigint, commitlog_offset bigint, store_size int, "
        "tags_code bigint"
    ),
    "index_stats": (
        "topic string, broker string, queue_id int, offset_first bigint, offset_last bigint, commitlog_first bigint, "
        "commitlog_last bigint, messages bigint, bytes bigint, size_min int, size_max int"
    ),
    "frames": (
        "frame binary, commitlog_offset bigint, store_size int, topic string, queue_id int, queue_offset bigint, "
        "sys_flag int, store_timestamp timestamp"
    ),
    "queues": (
        "topic string, broker string, queue_id int, offset_min bigint, offset_max bigint, persisted bigint, "
        "bytes bigint, first_stored timestamp, last_stored timestamp"
    ),
    "groups": (
        "consumer_group string, topic string, broker string, queue_id int, committed bigint, offset_max bigint, "
        "lag bigint, updated timestamp"
    ),
    "segments": (
        "path string, broker string, commitlog_offset bigint, bytes bigint, is_sealed boolean, modified timestamp"
    ),
}
"""Every view as Spark DDL, with all its columns."""


def default_columns(view: str, *, include_properties: bool) -> str:
    """Return the DDL of what a view has when no schema is given."""
    dropped = DEARER - {"properties"} if include_properties else DEARER
    if view != "messages":
        return VIEWS[view]
    return ", ".join(part for part in VIEWS[view].split(", ") if part.split()[0] not in dropped)


def column_kinds(view: str) -> dict[str, str]:
    """Return all columns a view can have, in their order, with their Spark types."""
    return dict((name, kind) for name, kind in (part.split() for part in VIEWS[view].split(", ")))


def projected(view: str, schema: StructType) -> list[str]:
    """Check a schema against a view and return its columns in the order they are wanted.

    Raises:
        UsageError: a column the view does not have, or of another type; no column at all.
    """
    known = column_kinds(view)
    names: Sequence[str] = [field.name for field in schema.fields]
    if not names:
        raise refused(f"the schema of view {view} has no column", f"take some of {', '.join(known)}")
    for field in schema.fields:
        if field.name not in known:
            near = nearest(field.name, known)
            meant = f"did you mean {' or '.join(near)}?" if near else f"it has {', '.join(known)}"
            raise refused(f"view {view} has no column {field.name}", meant)
        wanted, given = known[field.name], field.dataType.simpleString()
        if wanted != given:
            raise refused(
                f"column {field.name} of view {view} is {wanted}, not {given}",
                f"read it as {wanted} and cast it afterwards",
            )
    if len(set(names)) != len(names):
        raise refused("the schema names a column twice", "name it once and duplicate it with select()")
    return list(names)


def refused(message: str, hint: str) -> UsageError:
    """Return the error for what a user wrote; Spark shows its text only, so the hint is part of it."""
    return UsageError(f"{message}; {hint}", hint=hint)
