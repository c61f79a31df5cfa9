"""Speed of the disk alone: large writes past the page cache, one after the other."""

from __future__ import annotations

import mmap
import os
import tempfile

from shmq.measurement.measure import clock

CHUNK_BYTES = 4 << 20
TOTAL_BYTES = 4 << 30


def direct_writes(effort: float) -> float:
    """Return the bytes a second of O_DIRECT writes of 4 MiB into a file with its blocks, synced at the end."""
    total = max(64 * CHUNK_BYTES, int(TOTAL_BYTES * effort) // CHUNK_BYTES * CHUNK_BYTES)
    with tempfile.TemporaryDirectory(prefix="bench-disk-") as directory, mmap.mmap(-1, CHUNK_BYTES) as chunk:
        chunk.write(b"\x5a" * CHUNK_BYTES)
        descriptor = os.open(os.path.join(directory, "file"), os.O_RDWR | os.O_CREAT | os.O_DIRECT, 0o600)
        try:
            os.posix_fallocate(descriptor, 0, total)
            started = clock()
            for at in range(0, total, CHUNK_BYTES):
                os.pwrite(descriptor, chunk, at)
            os.fdatasync(descriptor)
            return total * 1e9 / (clock() - started)
        finally:
            os.close(descriptor)
