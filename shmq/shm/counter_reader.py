"""Reads the counters segment of a broker, whether its processes live or not.

`counters.py` describes the layout. Nothing is mapped and nothing is changed: bytes are copied with pread, so that a
hole takes no memory and a short file raises no SIGBUS.
"""

from __future__ import annotations

import contextlib
import os
import sys
from dataclasses import dataclass

from shmq.errors import SegmentError
from shmq.shm.counters import (
    BLOCK_HEAD,
    BLOCK_HEAD_BYTES,
    HEAD,
    MAGIC,
    PAGE_BYTES,
    SEPARATOR,
    VERSION,
    WORD_BYTES,
    WRITER_BYTES,
    counters_name,
    open_segment,
    walk_entries,
)
from shmq.shm.instance import Instance
from shmq.shm.liveness import ProcessMark


@dataclass(frozen=True, slots=True)
class Entry:
    """One counter as it was read: family, labels, and its words."""

    family: str
    labels: tuple[tuple[str, str], ...]
    words: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Block:
    """The counts of one writer; `refused` entries found no room."""

    writer: int
    mark: ProcessMark
    began_ms: int
    refused: int
    entries: tuple[Entry, ...]


class CounterWord:
    """One counter, read again and again: its place is looked for until it is found, then stays what it is."""

    def __init__(self, descriptor: int, base: int, family: str) -> None:
        self._descriptor = descriptor
        self._base = base
        self._name = family.encode()
        self._at = 0

    @property
    def value(self) -> int:
        """Its value; 0 while its writer has not counted yet."""
        if not self._at:
            self._at = self._find()
        word = os.pread(self._descriptor, WORD_BYTES, self._base + self._at) if self._at else b""
        return int.from_bytes(word, sys.byteorder)

    def _find(self) -> int:
        head = os.pread(self._descriptor, BLOCK_HEAD.size, self._base)
        used = BLOCK_HEAD.unpack(head)[0] if len(head) == BLOCK_HEAD.size else 0
        if BLOCK_HEAD_BYTES <= used <= WRITER_BYTES:
            with contextlib.suppress(SegmentError):
                for name, at, _ in walk_entries(os.pread(self._descriptor, used, self._base)):
                    if name == self._name:
                        return at
        return 0


class CounterReader:
    """Reads the counters of one generation; it maps nothing and changes nothing."""

    def __init__(self, descriptor: int, instance: Instance) -> None:
        """Take over a descriptor.

        Raises:
            SegmentError: it is no counters segment of this generation.
        """
        self._descriptor = descriptor
        self._names: dict[bytes, tuple[str, tuple[tuple[str, str], ...]]] = {}
        head = os.pread(descriptor, HEAD.size, 0)
        if len(head) < HEAD.size or HEAD.unpack(head)[:3] != (MAGIC, VERSION, instance.generation):
            os.close(descriptor)
            raise SegmentError(f"{counters_name(instance)} holds no counters of this version and generation")
        self.made_ms: int = HEAD.unpack(head)[3]

    def blocks(self) -> list[Block]:
        """Return what every writer has counted so far; a block that makes no sense is left out."""
        size = os.fstat(self._descriptor).st_size
        found = []
        for writer in range(max(0, size - PAGE_BYTES) // WRITER_BYTES):
            with contextlib.suppress(SegmentError):
                block = self._block(writer)
                if block is not None:
                    found.append(block)
        return found

    def word(self, writer: int, family: str) -> CounterWord:
        """Return a counter without labels of one writer."""
        return CounterWord(self._descriptor, PAGE_BYTES + writer * WRITER_BYTES, family)

    def close(self) -> None:
        """Let go of the segment."""
        os.close(self._descriptor)

    def _block(self, writer: int) -> Block | None:
        base = PAGE_BYTES + writer * WRITER_BYTES
        head = os.pread(self._descriptor, BLOCK_HEAD.size, base)
        if len(head) < BLOCK_HEAD.size:
            return None
        used, refused, pid, start, began_ms = BLOCK_HEAD.unpack(head)
        if not BLOCK_HEAD_BYTES <= used <= WRITER_BYTES or used % WORD_BYTES:
            return None  # never counted there
        data = os.pread(self._descriptor, used, base)
        if len(data) < used:
            return None
        words = memoryview(data).cast("Q")
        entries = []
        for name, at, count in walk_entries(data):
            known = self._names.get(name)
            if known is None:
                known = self._names[name] = _parts_of(name)
            first = at // WORD_BYTES
            entries.append(Entry(*known, tuple(words[first : first + count])))
        return Block(writer, ProcessMark(pid, start), began_ms, refused, tuple(entries))


def open_counters(instance: Instance) -> CounterReader:
    """Open the counters of a generation for reading.

    Raises:
        SegmentError: there are none, or they are not what the broker made.
    """
    return CounterReader(open_segment(instance, writable=False), instance)


def _parts_of(name: bytes) -> tuple[str, tuple[tuple[str, str], ...]]:
    family, *rest = name.decode(errors="replace").split(SEPARATOR)
    return family, tuple(zip(rest[::2], rest[1::2], strict=False))
