"""RocketMQ's checkpoint file: the store times up to which the log and the derived files are on disk.

Written so that a stock broker that takes the directory over knows where to begin; we ourselves recover from the durable
mark (durable.py).

    4096 bytes, big-endian, the rest zero
    0  8  physic_ms   store time of the last synced record
    8  8  logics_ms   the same for ConsumeQueue files
    16 8  index_ms    the same for index files
    24 8  flushed     5.x: log position that is on disk
    32 8  confirmed   5.x: log position that replicas confirmed

Rule: a time is written after the sync it speaks of; a stock broker subtracts three seconds, so a time taken before the
sync began is early enough.
"""

from __future__ import annotations

import os
import struct
from dataclasses import dataclass

from shmq.errors import StoreError
from shmq.store.layout import StoreLayout

CHECKPOINT_BYTES = 4096
_FIELDS = struct.Struct(">qqqqq")


@dataclass(frozen=True)
class Checkpoint:
    """Content of the file; times in milliseconds since the epoch."""

    physic_ms: int = 0
    logics_ms: int = 0
    index_ms: int = 0
    flushed: int = 0
    confirmed: int = 0


def read_checkpoint(layout: StoreLayout) -> Checkpoint:
    """Return the checkpoint; all zero when the file is missing or too short, as a new store has it."""
    try:
        content = layout.checkpoint.read_bytes()
    except FileNotFoundError:
        return Checkpoint()
    if len(content) < _FIELDS.size:
        return Checkpoint()
    return Checkpoint(*_FIELDS.unpack_from(content))


def write_checkpoint(layout: StoreLayout, checkpoint: Checkpoint) -> None:
    """Write and sync the checkpoint in place, as RocketMQ does.

    Raises:
        StoreError: the file cannot be written.
    """
    content = _FIELDS.pack(
        checkpoint.physic_ms, checkpoint.logics_ms, checkpoint.index_ms, checkpoint.flushed, checkpoint.confirmed
    )
    try:
        descriptor = os.open(layout.checkpoint, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            if os.fstat(descriptor).st_size != CHECKPOINT_BYTES:
                os.ftruncate(descriptor, CHECKPOINT_BYTES)
            os.pwrite(descriptor, content, 0)
            os.fdatasync(descriptor)
        finally:
            os.close(descriptor)
    except OSError as error:
        raise StoreError(f"{layout.checkpoint} cannot be written: {error.strerror}") from error
