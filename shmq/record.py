"""The fixed head of a stored record, for readers that need single fields and not the whole record decoded.

    byte   0   record bytes   4   length of the whole record
           4   magic          4   which kind of record; the blank fills the rest of a log file
           8   body CRC       4
          12   queue id       4
          16   flag           4
          20   queue offset   8
          28   log position   8   of the record's own first byte

All fields are big-endian. What follows is decoded by `shmq.shm.core.record_decode`; `bindings/core/record/record.c`
owns the format, and `tests/test_record.py` compares this head with what it writes.
"""

from __future__ import annotations

import struct
from typing import Final

HEAD_BYTES: Final = 36
LENGTH_BYTES: Final = 4
MAGIC_AT: Final = 4
MAGIC_BYTES: Final = 4
LENGTH_AND_MAGIC: Final = struct.Struct(">iI")
RECORD_MAGICS: Final = (0xDAA320A7, 0xDAA320AB)  # SHMQ_RECORD_MAGIC_V1 and _V2
BLANK_MAGIC: Final = 0xCBD43194
HOLE_TOPIC: Final = b"RMQ_SYS_SHMQ_HOLE"  # SHMQ_HOLE_TOPIC
RECORD_BYTES_MAX: Final = (4 << 20) + (64 << 10)  # SHMQ_RECORD_BYTES_MAX

_OFFSETS: Final = struct.Struct(">qq")
_OFFSETS_AT: Final = 20


_MAGICS: Final = tuple(magic.to_bytes(MAGIC_BYTES) for magic in RECORD_MAGICS)


def record_starts(data: bytes) -> list[int]:
    """Return where in `data` a record could begin, judged by the magic alone; ascending, from -4 on."""
    if data == bytes(len(data)):  # ten times as fast as the search, and most of what is searched
        return []
    found = []
    for magic in _MAGICS:
        index = data.find(magic)
        while index >= 0:
            found.append(index - MAGIC_AT)
            index = data.find(magic, index + 1)
    return sorted(found)


def record_bytes_at(data: bytes, at: int) -> int:
    """Return the length of the record that begins at a byte of `data`."""
    return int.from_bytes(data[at : at + LENGTH_BYTES])


def queue_offset_of(record: bytes) -> int:
    """Return the queue offset of a record of which at least the head is there."""
    return _OFFSETS.unpack_from(record, _OFFSETS_AT)[0]  # type: ignore[no-any-return]


def log_position_of(record: bytes) -> int:
    """Return the log position of a record of which at least the head is there."""
    return _OFFSETS.unpack_from(record, _OFFSETS_AT)[1]  # type: ignore[no-any-return]
