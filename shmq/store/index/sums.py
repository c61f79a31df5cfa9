"""Checksums of the index files: what each one held when it was last synced, and for which part of the log it answers.

RocketMQ's files have none of their own, and a stock broker takes every file beside them for an index file, so the sums
lie in a directory of ours, one file for each.

    <root>/shmq.index.sums/<name of the index file>

    magic "SHMQISUM" 8 · begin 8 · end 8 · next entry 4 · blocks 4 · sums, 4 bytes a block · CRC-32 of all before 4

    begin, end   log positions: every key of a record between them is in this file. The end of one is the begin of the
                 next, so a file that is missing leaves a gap
    block        64 KiB of head, slots and entries; what no entry was stored in has none

All numbers are little-endian.

Rules: (1) sums are made of a file that was synced, and stored before the mark speaks of it; (2) entries are only
appended, so a block of them keeps the sum it once got: what rots later never becomes right; (3) a file whose sums are
missing or do not hold is built again from the log, which is where sums never come from.
"""

from __future__ import annotations

import os
import struct
import sys
import zlib
from array import array
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

from shmq.errors import CorruptionError
from shmq.plain_file import read_plain
from shmq.store.atomic import sync_directory, write_atomically
from shmq.store.index.files import INDEX_ENTRY_BYTES, IndexFile, is_index_name
from shmq.store.layout import StoreLayout

BLOCK_BYTES = 64 << 10

_MAGIC = b"SHMQISUM"
_HEAD = struct.Struct("<8sQQII")
_CRC = struct.Struct("<I")
assert sys.byteorder == "little"  # sums are written as they are in memory


@dataclass(frozen=True, eq=False)
class FileSums:
    """The sums of one file."""

    name: str
    begin: int
    end: int
    next_entry: int
    sums: array[int] = field(repr=False)

    def to_bytes(self) -> bytes:
        """Return the content of the file of sums."""
        head = _HEAD.pack(_MAGIC, self.begin, self.end, self.next_entry, len(self.sums))
        content = head + self.sums.tobytes()
        return content + _CRC.pack(zlib.crc32(content))

    def covered_bytes(self, file: IndexFile) -> int:
        """How many bytes of the index file have a sum."""
        return file.shape.entries_at + INDEX_ENTRY_BYTES * self.next_entry

    def wrong_block(self, file: IndexFile, first: int = 0, stop: int | None = None) -> int | None:
        """Return the number of a block that is not what it was; None when all are. Raises OSError."""
        stop = len(self.sums) if stop is None else min(stop, len(self.sums))
        for number, found in enumerate(_sums_of(file, first, stop, self.covered_bytes(file)), first):
            if found != self.sums[number]:
                return number
        return None


def make_sums(file: IndexFile, begin: int, end: int, before: FileSums | None = None) -> FileSums:
    """Make the sums of a file that is not written to any more.

    Args:
        begin: log position from which on its keys come.
        end: log position below which no key is missing.
        before: its former sums, of which those stay that speak of entries only.

    Raises:
        CorruptionError: the numbers in its head cannot be.
        OSError: it cannot be read.
    """
    entries_at, next_entry = file.shape.entries_at, file.head().next_entry
    covered = entries_at + INDEX_ENTRY_BYTES * next_entry
    blocks = -(-covered // BLOCK_BYTES)
    kept = range(0)
    if before is not None and before.next_entry <= next_entry:
        kept = range(-(-entries_at // BLOCK_BYTES), before.covered_bytes(file) // BLOCK_BYTES)
    if before is None or not kept:
        return FileSums(file.name, begin, end, next_entry, _sums_of(file, 0, blocks, covered))
    sums = _sums_of(file, 0, kept.start, covered) + before.sums[kept.start : kept.stop]
    return FileSums(file.name, begin, end, next_entry, sums + _sums_of(file, kept.stop, blocks, covered))


class IndexSums:
    """The sums of the index files of one store; one process writes them."""

    def __init__(self, layout: StoreLayout) -> None:
        self._layout = layout
        self._directory = layout.index_sums

    def path(self, name: str) -> Path:
        """The path of the sums of an index file."""
        return self._directory / name

    def names(self) -> list[str]:
        """Names of the index files that have sums, the oldest first."""
        try:
            return sorted(filter(is_index_name, os.listdir(self._directory)))
        except FileNotFoundError:
            return []

    def load(self, name: str) -> FileSums | None:
        """Return the sums of an index file; None when there are none.

        Raises:
            CorruptionError: they cannot be believed.
            OSError: they cannot be read.
        """
        try:
            content = read_plain(self.path(name))
        except FileNotFoundError:
            return None
        body, crc = content[: -_CRC.size], content[-_CRC.size :]
        if len(body) >= _HEAD.size and crc == _CRC.pack(zlib.crc32(body)):
            magic, begin, end, next_entry, blocks = _HEAD.unpack_from(body)
            sums = array("I")
            if magic == _MAGIC and len(body) == _HEAD.size + blocks * sums.itemsize:
                sums.frombytes(body[_HEAD.size :])
                return FileSums(name, begin, end, next_entry, sums)
        raise CorruptionError(self.path(name), 0, "the sums of the index file do not hold")

    def store(self, sums: FileSums) -> None:
        """Write and sync the sums of a file. Raises OSError."""
        access = self._layout.access
        if self._layout.make_directory(self._directory):
            sync_directory(self._directory.parent)
        write_atomically(self.path(sums.name), sums.to_bytes(), mode=access.read_mode, gid=access.gid)

    def remove(self, name: str) -> None:
        """Forget the sums of a file. Raises OSError."""
        self.path(name).unlink(missing_ok=True)


def _sums_of(file: IndexFile, first: int, stop: int, covered: int) -> array[int]:
    """The sums of some blocks as the file is now; what was never written is not read."""
    found = array("I")
    data_begin = data_end = -1
    for number in range(first, stop):
        at = number * BLOCK_BYTES
        size = min(BLOCK_BYTES, covered - at)
        if at + size > data_end:
            data_begin, data_end = file.data_range(at)
        if at + size <= data_begin:
            found.append(_zero_sum(size))
        else:
            found.append(zlib.crc32(file.read(at, size)))
    return found


@lru_cache(maxsize=8)
def _zero_sum(size: int) -> int:
    return zlib.crc32(bytes(size))
