"""Compressed bodies say how in their sysFlag, and only those that become shorter are."""

import zlib

import pytest

from shmq.protocol.compression import compress
from shmq.shm.core import record_encode, records_read


@pytest.mark.parametrize(("kind", "bits"), [("zlib", 1), ("lz4", 1 | 1 << 8), ("zstd", 1 | 2 << 8)])
def test_every_compression_is_read_by_the_core(kind: str, bits: int) -> None:
    body = b"shared memory " * 1000
    packed, flags = compress(body, kind)
    assert flags == bits and len(packed) < len(body)
    (message,) = records_read(record_encode(body=packed, topic=b"T", sys_flag=flags))
    assert message.body == body


@pytest.mark.parametrize("body", [b"x" * 4096, zlib.compress(bytes(range(256)) * 64, 9) * 30])
def test_short_and_incompressible_bodies_go_as_they_are(body: bytes) -> None:
    packed, flags = compress(body, "zlib")
    assert flags == 0 or len(packed) < len(body)
    assert compress(b"x" * 4096, "zstd") == (b"x" * 4096, 0)
    assert compress(b"x" * 9999, "none") == (b"x" * 9999, 0)
