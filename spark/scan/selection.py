"""A selection given as a dictionary, and the load that takes it: options in place of filters.

Spark 4.3 gives a pushed filter to every query over one `load()`, so a selection is part of the load; each call makes a
new one.

    queue_id          3, [0, 3]                        queueIds
    tags              "paid", ["paid", "sent"]         tags
    keys              "order-17", […]                  keys
    store_timestamp   (begin, end), begin <= t < end   startingTimestamp, endingTimestamp
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from shmq.message import nearest
from shmq.spark.schema import refused

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_JOINED = {"queue_id": ("queueIds", ","), "tags": ("tags", " || "), "keys": ("keys", ",")}
_TIME = "store_timestamp"


def where_options(where: Mapping[str, Any]) -> dict[str, str]:
    """Return the options a selection means.

    Raises:
        UsageError: a column that nothing but a filter can select by, no value, or no pair of times.
    """
    options: dict[str, str] = {}
    for name, wanted in where.items():
        if name == _TIME:
            options |= _times(wanted)
        elif name in _JOINED:
            option, divider = _JOINED[name]
            values = [wanted] if isinstance(wanted, str | int) else list(wanted)
            if not values or any(divider.strip() in str(value) for value in values):
                raise refused(f"where: {name}={wanted!r} is no value of {name}", "leave it out, or use filter()")
            options[option] = divider.join(map(str, values))
        else:
            near = nearest(name, (*_JOINED, _TIME))
            meant = f"did you mean {' or '.join(near)}? " if near else ""
            raise refused(
                f"where: {name} is not looked at before reading",
                f"{meant}use filter(); where takes {', '.join((*_JOINED, _TIME))}",
            )
    return options


def _times(wanted: Any) -> dict[str, str]:
    if not isinstance(wanted, Sequence) or isinstance(wanted, str) or len(wanted) != 2:
        raise refused(f"where: {_TIME}={wanted!r} is no pair", "give (begin, end), None for no bound")
    named = zip(("startingTimestamp", "endingTimestamp"), wanted, strict=True)
    return {option: _text(moment) for option, moment in named if moment is not None}


def _text(moment: Any) -> str:
    if not isinstance(moment, datetime):
        return str(moment)
    return (moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)).isoformat()


def read(
    spark: SparkSession,
    topic: str | Sequence[str],
    *,
    where: Mapping[str, Any] | None = None,
    schema: str | None = None,
    **options: Any,
) -> DataFrame:
    """Return `spark.read.format("shmq")` of a topic, or of several, with a selection that is made before reading.

    Args:
        where: `{"queue_id": 3, "tags": ["paid", "sent"], "keys": "order-17", "store_timestamp": (begin, end)}`; a
            value or several; times are datetimes, milliseconds or ISO 8601, `begin <= t < end`, None for no bound.
        schema: columns wanted, as Spark DDL; None takes the view's default.
        options: those of the source.

    Raises:
        UsageError: a selection that only a filter can make.
    """
    topics = topic if isinstance(topic, str) else ",".join(topic)
    selected = where_options(where or {})
    if "startingTimestamp" in selected:  # nothing stored since then is an empty frame, not a mistake
        selected["startingOffsetsByTimestampStrategy"] = "latest"
    reader = spark.read.format("shmq").options(topics=topics, **selected, **options)
    return (reader.schema(schema) if schema else reader).load()
