"""RocketMQ's checkpoint file: the store times up to which the log and the derived files are on disk.

Written so that a stock broker that takes the directory over knows where to begin; we ourselves recover from the durable
mark (durable.py).

    4096 bytes, big-endian, the rest zero
    0  8  physic_ms   store time of the last synced record
    8  8  logics_ms   the same for ConsumeQueue files
    16 8  index_ms    the same for index files
    24 8  flushed     5.x: log position that is on disk
    32 8  confirmed   5.x: log position that replicas confirmed
    256   ours        magic "SHMQCKPT" 8 · the five again · CRC-32 of them 4; in the same sector, so no cut tears them

A stock broker changes the first five and leaves ours as they were, so a difference is its work, or damage.

Rule: a time is written after the sync it speaks of; a stock broker subtracts three seconds, so a time taken before the
sync began is early enough. Parts of the keeper change different fields from different threads, so each change reads and
writes the file under one lock.
"""

from __future__ import annotations

import os
import struct
import threading
import time
import zlib
from collections.abc import Callable
from dataclasses import astuple, dataclass

from shmq.errors import StoreError
from shmq.plain_file import NoPlainFile, open_plain, read_plain, write_whole
from shmq.store.layout import StoreLayout

CHECKPOINT_BYTES = 4096
_FIELDS = struct.Struct(">qqqqq")
_OURS_AT = 256
_MAGIC = b"SHMQCKPT"
_CRC = struct.Struct(">I")
_AHEAD_MS_MOST = 86_400_000

_changing = threading.Lock()


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
    return _found(_content(layout))


def checkpoint_fault(layout: StoreLayout, *, has_grown: bool) -> str:
    """Say what is wrong with the checkpoint of a store of ours; "" when nothing is.

    Args:
        has_grown: the log goes on behind what our mark says, so a stock broker may have moved the times forward.
    """
    content = _content(layout)
    found, ours = _found(content), _ours(content)
    if found == ours:
        return ""
    if not content.strip(b"\0"):
        return "it is empty"
    if ours is None:
        return "its checksum does not hold" if content[_OURS_AT:].strip(b"\0") else ""  # of a stock broker
    is_ahead = all(theirs >= mine for theirs, mine in zip(astuple(found), astuple(ours), strict=True))
    if has_grown and is_ahead and found.physic_ms < 1000 * time.time() + _AHEAD_MS_MOST:
        return ""
    return "it is not what this broker wrote"


def is_of_stock_broker(layout: StoreLayout) -> bool:
    """Whether a stock broker has moved the times forward since we wrote them."""
    content = _content(layout)
    return (
        bool(content.strip(b"\0"))
        and _found(content) != _ours(content)
        and not checkpoint_fault(layout, has_grown=True)
    )


def believed_checkpoint(layout: StoreLayout, *, has_grown: bool) -> Checkpoint:
    """Return the checkpoint, or what we wrote where that is damaged."""
    content = _content(layout)
    if checkpoint_fault(layout, has_grown=has_grown):
        return _ours(content) or Checkpoint()
    return _found(content)


def known_confirmed(layout: StoreLayout) -> int:
    """Return up to where we noted that replicas had confirmed the log; 0 where that cannot be read.

    What only the open fields say is damage: stock brokers take no part in elections of ours.
    """
    ours = _ours(_content(layout))
    return ours.confirmed if ours is not None else 0


def _content(layout: StoreLayout) -> bytes:
    try:
        return read_plain(layout.checkpoint)
    except (FileNotFoundError, NoPlainFile):
        return b""


def _found(content: bytes) -> Checkpoint:
    return Checkpoint(*_FIELDS.unpack_from(content)) if len(content) >= _FIELDS.size else Checkpoint()


def _ours(content: bytes) -> Checkpoint | None:
    """Our last written copy; None where that cannot be read."""
    seal = content[_OURS_AT:][: len(_MAGIC) + _FIELDS.size + _CRC.size]
    fields = seal[len(_MAGIC) : -_CRC.size]
    if not seal.startswith(_MAGIC) or seal[-_CRC.size :] != _CRC.pack(zlib.crc32(fields)):
        return None
    return Checkpoint(*_FIELDS.unpack(fields))


def change_checkpoint(layout: StoreLayout, change: Callable[[Checkpoint], Checkpoint]) -> None:
    """Write what `change` makes of the checkpoint, with no other thread's change in between.

    Raises:
        StoreError: the file cannot be written.
    """
    with _changing:
        write_checkpoint(layout, change(read_checkpoint(layout)))


def write_checkpoint(layout: StoreLayout, checkpoint: Checkpoint) -> None:
    """Write and sync the checkpoint in place, as RocketMQ does.

    Raises:
        StoreError: the file cannot be written.
    """
    content = _FIELDS.pack(
        checkpoint.physic_ms, checkpoint.logics_ms, checkpoint.index_ms, checkpoint.flushed, checkpoint.confirmed
    )
    try:
        descriptor = open_plain(layout.checkpoint, os.O_RDWR | os.O_CREAT)
        try:
            if os.fstat(descriptor).st_size != CHECKPOINT_BYTES:
                os.ftruncate(descriptor, CHECKPOINT_BYTES)
            seal = _MAGIC + content + _CRC.pack(zlib.crc32(content))
            write_whole(descriptor, content.ljust(_OURS_AT, b"\0") + seal, 0)
            os.fdatasync(descriptor)
        finally:
            os.close(descriptor)
    except OSError as error:
        raise StoreError(f"{layout.checkpoint} cannot be written: {error.strerror}") from error
