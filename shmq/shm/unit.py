"""The ConsumeQueue unit: 20 bytes that say where the record of one queue offset lies. This module owns its layout.

    byte   0   log position   8   first byte of the record in the CommitLog
           8   record bytes   4   length of the whole record
          12   tag code       8   hash of the tag; in the schedule and timer queues the due time in ms

All fields are big-endian and signed, as in RocketMQ. The same bytes lie in the unit frames in shared memory, in the
files below `consumequeue/`, and in the body of a READ_RANGE reply that asked for units. `bindings/shmq.h`
packs and unpacks them in C; `tests/shm/test_unit.py` holds both sides together.

A queue that begins in the middle of a file has RocketMQ's pre-blank (0, 0x7FFFFFFF, 0) before its first unit.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Final, NamedTuple

from shmq.shm.core import UNIT_BYTES

UNIT: Final = struct.Struct(">qiq")
# For numpy.dtype(); numpy itself is imported only where columns are made.
UNIT_FIELDS: Final = [("log_position", ">i8"), ("record_bytes", ">i4"), ("tag_code", ">i8")]
RECORD_BYTES_LIMIT: Final = 0x7FFFFFFF  # no record has so many bytes: the pre-blank says it
PRE_BLANK: Final = UNIT.pack(0, RECORD_BYTES_LIMIT, 0)
_LOG_POSITION: Final = struct.Struct(">q12x")
_TAG_CODE: Final = struct.Struct(">12xq")
assert UNIT.size == _LOG_POSITION.size == _TAG_CODE.size == UNIT_BYTES


class Unit(NamedTuple):
    """The place of the record of a queue offset, its length, and the hash of its tag or its due time."""

    log_position: int
    record_bytes: int
    tag_code: int


def pack_unit(log_position: int, record_bytes: int, tag_code: int) -> bytes:
    """Return the bytes of one unit."""
    return UNIT.pack(log_position, record_bytes, tag_code)


def unpack_unit(data: bytes, index: int = 0) -> Unit:
    """Return one of the units that lie one behind the other."""
    return Unit._make(UNIT.unpack_from(data, index * UNIT_BYTES))


def units_of(data: bytes) -> Iterator[Unit]:
    """Yield every unit of bytes that hold whole ones."""
    return map(Unit._make, UNIT.iter_unpack(data))


def tag_codes_of(data: bytes) -> list[int]:
    """Return the tag code of every unit."""
    return [code for (code,) in _TAG_CODE.iter_unpack(data)]


def log_positions_of(data: bytes) -> list[int]:
    """Return the log position of every unit."""
    return [position for (position,) in _LOG_POSITION.iter_unpack(data)]


def is_pre_blank(log_position: int, record_bytes: int) -> bool:
    """Say whether a unit only fills the room before a queue's first one."""
    return log_position == 0 and record_bytes == RECORD_BYTES_LIMIT
