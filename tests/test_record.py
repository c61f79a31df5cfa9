"""The head of a record, as Python reads it, is what the C core writes."""

import pytest

from shmq.record import (
    HEAD_BYTES,
    LENGTH_AND_MAGIC,
    RECORD_BYTES_MAX,
    RECORD_MAGICS,
    log_position_of,
    queue_offset_of,
    record_bytes_at,
    record_starts,
)
from shmq.shm.core import BODY_BYTES_MAX, record_decode, record_encode


@pytest.fixture
def record() -> bytes:
    return record_encode(
        body=b"body", topic=b"orders", queue_id=3, queue_offset=1 << 33, log_position=1 << 41, born_ms=1, store_ms=2
    )


def test_the_head_says_what_the_core_encoded(record: bytes) -> None:
    fields = record_decode(record)
    head = record[:HEAD_BYTES]
    assert queue_offset_of(head) == fields["queue_offset"] == 1 << 33
    assert log_position_of(head) == fields["log_position"] == 1 << 41
    assert LENGTH_AND_MAGIC.unpack_from(head) == (len(record), RECORD_MAGICS[0])
    assert record_bytes_at(b"xy" + record, 2) == len(record)


def test_starts_are_found_wherever_a_magic_lies(record: bytes) -> None:
    assert record_starts(record * 3) == [0, len(record), 2 * len(record)]
    assert record_starts(record[4:]) == [-4]
    assert record_starts(bytes(100)) == []


def test_the_limit_leaves_room_for_the_largest_body() -> None:
    assert BODY_BYTES_MAX < RECORD_BYTES_MAX
    record_decode(record_encode(body=bytes(BODY_BYTES_MAX), topic=b"orders", log_position=0, born_ms=1, store_ms=2))
