"""Record batches of ConsumeQueue units that came over TCP.

Where a query wants only what units say (positions, sizes, tag codes), only they travel: 20 bytes a message. The batches
are the same to the byte as those the core gathers from mapped units.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

import numpy
import pyarrow

from shmq.columns.record_batches import column_numbers, schema_of
from shmq.errors import ProtocolError
from shmq.shm.unit import UNIT_FIELDS
from shmq.spark.access.broker import Range
from shmq.spark.schema import column_kinds

UNIT_COLUMNS: Final = frozenset(column_kinds("index"))
_UNIT: Final = numpy.dtype(UNIT_FIELDS)
_FIELDS: Final = {
    "commitlog_offset": ("log_position", numpy.int64),
    "store_size": ("record_bytes", numpy.int32),
    "tags_code": ("tag_code", numpy.int64),
}


def unit_sizes(units: bytes) -> Any:
    """Return the record sizes of units, as a numpy array: a batch of a stream looks at millions of them."""
    return numpy.frombuffer(units, _UNIT)["record_bytes"].astype(numpy.int64)


def unit_batches(
    names: Sequence[str], units: bytes, wanted: Range, *, broker: str, first: int, rows_max: int
) -> Iterator[Any]:
    """Yield record batches of units.

    Args:
        names: columns out of UNIT_COLUMNS.
        units: those of queue offsets from `first` on.

    Raises:
        ProtocolError: a unit that no broker writes.
    """
    table = numpy.frombuffer(units, _UNIT)
    if len(table) and (table["record_bytes"].min() <= 0 or table["log_position"].min() < 0):
        place = f"queue {wanted.queue_id} of topic {wanted.topic}, from offset {first} on"
        raise ProtocolError(f"{place}: the units that arrived are impossible")
    schema = schema_of(column_numbers(names))
    constants = {"topic": wanted.topic, "broker": broker, "queue_id": pyarrow.scalar(wanted.queue_id, pyarrow.int32())}
    for begin in range(0, len(table), rows_max):
        part = table[begin : begin + rows_max]
        columns = [
            pyarrow.repeat(constants[name], len(part)) if name in constants else _column(name, part, first + begin)
            for name in names
        ]
        yield pyarrow.record_batch(columns, schema=schema)


def _column(name: str, part: Any, first: int) -> Any:
    if name == "queue_offset":
        return pyarrow.array(numpy.arange(first, first + len(part), dtype=numpy.int64))
    field, kind = _FIELDS[name]
    return pyarrow.array(part[field].astype(kind))
