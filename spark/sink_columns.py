"""Owns the columns of the sink: which there may be, of which types, and what a row of them means.

It does not know where messages go. A frame has a body and any of the others, in any order; what is null is not said.

    body | value      binary, string        what is sent
    topic             string                instead of option topic
    tag | tags        string                at most one
    keys | key        string, array<string> what people search for
    properties        map<string,string>    free pairs
    message_group     string                rows of one group go to one queue, in order; also sharding_key
    queue_id          int                   exactly this queue
    delay_level       int                   RocketMQ's levels, 1 to 18
    deliver_at        timestamp             delivered at this time
    flag              int                   a number for the application

Rules: (1) a column nobody knows is an error on the driver, with the nearest name;
(2) `value` and the other second names mean the same as the first; both at once is an error.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import pyarrow

from shmq.message import nearest
from shmq.spark.schema import refused

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

COLUMNS: Final[dict[str, tuple[str, ...]]] = {
    "body": ("binary", "string"),
    "topic": ("string",),
    "tag": ("string",),
    "keys": ("string", "array<string>"),
    "properties": ("map<string,string>",),
    "message_group": ("string",),
    "queue_id": ("int",),
    "delay_level": ("int",),
    "deliver_at": ("timestamp",),
    "flag": ("int",),
}
SECOND_NAMES: Final = {"value": "body", "tags": "tag", "key": "keys", "sharding_key": "message_group"}
_MICROSECONDS: Final = 1_000_000
_CURES: Final = {
    "body": "encode it: .withColumn('body', to_json(struct('*')))",
    "queue_id": "cast it: .withColumn('queue_id', col('queue_id').cast('int'))",
}


class Outgoing(NamedTuple):
    """One message to be sent: its topic, its body, and the keyword arguments of a send that a row has."""

    topic: str
    body: Any
    arguments: dict[str, Any]


def column_names(schema: StructType, *, has_topic: bool) -> tuple[str, ...]:
    """Check the schema of what is written, and return what each of its columns means.

    Args:
        has_topic: there is an option for rows without a column `topic`.

    Raises:
        UsageError: a column that is missing, unknown, of another type or there twice.
    """
    meanings: list[str] = []
    for field in schema.fields:
        meaning = SECOND_NAMES.get(field.name, field.name)
        if meaning not in COLUMNS:
            near = nearest(field.name, (*COLUMNS, *SECOND_NAMES))
            meant = f"did you mean {' or '.join(near)}? " if near else ""
            raise refused(
                f"the sink has no column {field.name}",
                f"{meant}drop('{field.name}'); columns are {', '.join(COLUMNS)}",
            )
        if meaning in meanings:
            raise refused(f"column {field.name} is there twice, {meaning} means the same", "keep one of them")
        given = field.dataType.simpleString()
        if given not in COLUMNS[meaning]:
            wanted = " or ".join(COLUMNS[meaning])
            cure = _CURES.get(meaning, f"cast it: .withColumn('{field.name}', col('{field.name}').cast('{wanted}'))")
            raise refused(f"column {field.name} of the sink is {wanted}, not {given}", cure)
        meanings.append(meaning)
    if "body" not in meanings:
        raise refused("the sink needs a column body", "name it: .withColumn('body', to_json(struct('*')))")
    if "topic" not in meanings and not has_topic:
        raise refused("nothing says which topic", "add option topic=… or a column topic")
    if "delay_level" in meanings and "deliver_at" in meanings:
        raise refused("columns delay_level and deliver_at exclude each other", "keep one of them")
    return tuple(meanings)


def rows_of(batch: Any, meanings: tuple[str, ...], topic: str | None) -> Iterator[Outgoing]:
    """Yield the messages of a record batch.

    Raises:
        UsageError: a row without body, or without a topic anywhere.
    """
    columns = dict(zip(meanings, batch.columns, strict=True))
    bodies = columns.pop("body").cast(pyarrow.binary()).to_pylist()
    topics = columns.pop("topic").to_pylist() if "topic" in columns else None
    others = [(name, _values(name, column)) for name, column in columns.items()]
    for row, body in enumerate(bodies):
        to = (topics[row] if topics is not None else None) or topic
        if body is None:
            raise refused("a row has no body: column body is null", "filter('body is not null')")
        if to is None:
            raise refused("a row has no topic: column topic is null", "add option topic=… for such rows")
        yield Outgoing(to, body, {name: values[row] for name, values in others if values[row] is not None})


def _values(name: str, column: Any) -> list[Any]:
    """The values of a column, as `send` takes them."""
    if name == "deliver_at":
        return [None if at is None else at / _MICROSECONDS for at in column.cast(pyarrow.int64()).to_pylist()]
    values: list[Any] = column.to_pylist()
    if name == "properties":
        return [dict(pairs) if pairs else None for pairs in values]
    if name == "keys":
        return [[keys] if isinstance(keys, str) else keys or None for keys in values]
    if name in ("tag", "message_group"):
        return [text or None for text in values]
    return values
