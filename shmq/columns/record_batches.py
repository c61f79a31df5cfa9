"""Arrow record batches of what the core gathers.

The core hands columns over through the Arrow C data interface, so pyarrow takes them without a copy. A batch with
compressed bodies is the rare one: its body column is built again, in pieces, so that what a few stored bytes inflate to
never fills the memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

import pyarrow

from shmq.shm.core import body_inflate, columns_names, columns_schema

_NUMBERS: Final = {name: number for number, name in enumerate(columns_names())}


class _Capsules:
    """The object that pyarrow imports without copying."""

    def __init__(self, schema: object, array: object) -> None:
        self._pair = (schema, array)

    def __arrow_c_array__(self, requested_schema: object = None) -> tuple[object, object]:
        return self._pair


class _Schema:
    """A schema's capsule, as pyarrow asks for it."""

    def __init__(self, capsule: object) -> None:
        self._capsule = capsule

    def __arrow_c_schema__(self) -> object:
        return self._capsule


def column_numbers(names: Sequence[str]) -> bytes:
    """Return the core's numbers of columns, in this order."""
    return bytes(_NUMBERS[name] for name in names)


def schema_of(numbers: bytes) -> Any:
    """Return the Arrow schema of the core's columns."""
    return pyarrow.schema(_Schema(columns_schema(numbers)))


def import_batch(numbers: bytes, array: object) -> Any:
    """Return the record batch of a capsule the core made."""
    return pyarrow.record_batch(_Capsules(columns_schema(numbers), array))


def inflated(batch: Any, packed: Sequence[tuple[int, int]], *, bytes_max: int) -> Iterator[Any]:
    """Yield a batch with its compressed bodies inflated; in slices of about bytes_max when they grow.

    Args:
        packed: (row, sysFlag) of each compressed body, in order.

    Raises:
        CorruptionError: a body does not inflate.
        MessageTooLarge: it inflates to more than a message may have.
    """
    at = batch.schema.get_field_index("body")
    if not packed or at < 0:
        yield batch
        return
    flags = dict(packed)
    bodies = batch.column(at)
    begin, made, size = 0, [], 0
    for row in range(batch.num_rows):
        stored = bodies[row].as_buffer()
        made.append(body_inflate(stored, flags[row]) if row in flags else stored.to_pybytes())
        size += len(made[-1])
        if size >= bytes_max or row == batch.num_rows - 1:
            column = pyarrow.array(made, type=pyarrow.binary())
            yield batch.slice(begin, len(made)).set_column(at, batch.schema.field(at), column)
            begin, made, size = row + 1, [], 0
