"""The columns of the sink: which there may be, of which types, and what a row of them means.

A frame has a body and any of the others, in any order. Null means that a message has none, inside an array or a map
too, as does an empty text beside the body: RocketMQ stores no empty property.

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

Options keyColumn and orderBy give one column, of any name, the meaning of `keys` or of `message_group`, beside its own
if it has one; whole numbers are written as text.

Rules: (1) an unknown column is an error on the driver, with the nearest name;
(2) `value` and the other second names mean the same as the first; both at once is an error.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import pyarrow

from shmq.message import nearest
from shmq.spark.schema import refused

if TYPE_CHECKING:
    from pyspark.sql.types import StructField, StructType

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
NAMED: Final = {"keyColumn": "keys", "orderBy": "message_group"}  # option -> what the column it names means
_WHOLE_NUMBERS: Final = ("tinyint", "smallint", "int", "bigint")
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


def column_names(
    schema: StructType, *, has_topic: bool, named: Mapping[str, str | None] | None = None
) -> tuple[str, ...]:
    """Check the schema of what is written; return what each column means, with a blank between two meanings.

    Args:
        has_topic: there is an option for rows without a column `topic`.
        named: the columns that options keyColumn and orderBy name.

    Raises:
        UsageError: a column that is missing, unknown, of another type or there twice.
    """
    wanted = {option: name for option, name in (named or {}).items() if name is not None}
    _check_named(schema, wanted)
    meanings: list[str] = []
    for field in schema.fields:
        more = [NAMED[option] for option, name in wanted.items() if name == field.name]
        mine = [meaning for meaning in _own_meaning(field, is_named=bool(more)) if meaning not in more] + more
        for meaning in mine:
            if meaning in " ".join(meanings).split():
                raise refused(f"column {field.name} is there twice, {meaning} means the same", "keep one of them")
        meanings.append(" ".join(mine))
    _check_whole(" ".join(meanings).split(), has_topic=has_topic)
    return tuple(meanings)


def _own_meaning(field: StructField, *, is_named: bool) -> list[str]:
    """The meaning of a column by its name; none if it is there only because an option names it."""
    meaning = SECOND_NAMES.get(field.name, field.name)
    if meaning not in COLUMNS:
        if is_named:
            return []
        near = nearest(field.name, (*COLUMNS, *SECOND_NAMES))
        meant = f"did you mean {' or '.join(near)}? " if near else ""
        raise refused(
            f"the sink has no column {field.name}",
            f"{meant}drop('{field.name}'); columns are {', '.join(COLUMNS)}",
        )
    given = field.dataType.simpleString()
    if given not in COLUMNS[meaning] and not (is_named and meaning in NAMED.values()):
        wanted = " or ".join(COLUMNS[meaning])
        kinds = COLUMNS[meaning]
        kind = kinds[-1 if given.startswith("array") else 0]
        cure = _CURES.get(meaning, f"cast it: .withColumn('{field.name}', col('{field.name}').cast('{kind}'))")
        raise refused(f"column {field.name} of the sink is {wanted}, not {given}", cure)
    return [meaning]


def _check_named(schema: StructType, named: Mapping[str, str]) -> None:
    kinds = {field.name: field.dataType.simpleString() for field in schema.fields}
    for option, name in named.items():
        if name not in kinds:
            near = nearest(name, kinds)
            meant = f"did you mean {' or '.join(near)}?" if near else f"it has {', '.join(kinds)}"
            raise refused(f"option {option}={name!r}: the frame has no such column", meant)
        possible = (*COLUMNS[NAMED[option]], *_WHOLE_NUMBERS)
        if kinds[name] not in possible:
            cure = f"cast it: .withColumn('{name}', col('{name}').cast('string'))"
            raise refused(
                f"option {option}={name!r}: the column is {kinds[name]}, not one of {', '.join(possible)}", cure
            )


def _check_whole(meanings: Collection[str], *, has_topic: bool) -> None:
    if "body" not in meanings:
        raise refused("the sink needs a column body", "name it: .withColumn('body', to_json(struct('*')))")
    if "topic" not in meanings and not has_topic:
        raise refused("nothing says which topic", "add option topic=… or a column topic")
    if "delay_level" in meanings and "deliver_at" in meanings:
        raise refused("columns delay_level and deliver_at exclude each other", "keep one of them")


def rows_of(batch: Any, meanings: tuple[str, ...], topic: str | None) -> Iterator[Outgoing]:
    """Yield the messages of a record batch.

    Raises:
        UsageError: a row without body, or without a topic anywhere.
    """
    columns = {name: column for names, column in zip(meanings, batch.columns, strict=True) for name in names.split()}
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
    if name in NAMED.values() and pyarrow.types.is_integer(column.type):
        column = column.cast(pyarrow.string())
    values: list[Any] = column.to_pylist()
    if name == "properties":
        return [{key: value for key, value in pairs or () if value} or None for pairs in values]
    if name == "keys":
        return [[key for key in ([keys] if isinstance(keys, str) else keys or ()) if key] or None for keys in values]
    if name in ("tag", "message_group"):
        return [text or None for text in values]
    return values
