"""The counters segment: what the daemon's processes count, in memory that outlives each of them.

This is the layout of /dev/shm/shmq.<broker>.<generation>.counters. A counter is a name, labels and 64-bit words. Each
process counts in a block of its own, so no word needs a lock, and the exporter can be a process that only reads.

    page of 4096 bytes     magic · version · generation · when it was made (ms)
    1 MiB a writer         keeper, primary bridge, bridge 1, 2 …; holes until they are used
        64 bytes           bytes used · entries refused · pid · start time of the writer · when it began (ms)
        entries            bytes of the name (4) · words (4) · name, padded with zeros to 8 · words

    name     family 1F label 1F value 1F label 1F value …

Rules: (1) a block has one writer, so a word is changed without a lock; within the writer one thread changes it;
(2) an entry is complete before `bytes used` covers it, and stays where it is: the next process in the same place goes
on with its words;
(3) memory is reserved before it is touched, so a full /dev/shm costs new entries and never a SIGBUS;
(4) readers copy with pread and check every length: bytes of a segment are input.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import stat
import struct
import time
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from typing import Protocol

import posix_ipc

from shmq.errors import SegmentError
from shmq.plain_file import write_whole
from shmq.shm.access import Access
from shmq.shm.descriptors import above_standard
from shmq.shm.instance import Instance
from shmq.shm.liveness import own_mark

# What `event_log.py` counts in each process; the name with LATEST behind it says when it counted last, epoch ms.
LOG_LINES_DROPPED, INTERNAL_ERRORS, LATEST = "shmq_log_lines_dropped", "shmq_internal_errors", "_latest"

KEEPER = 0
BRIDGE = 1  # the primary one; bridge N is BRIDGE + N

WRITER_BYTES = 1 << 20
SEPARATOR = "\x1f"

MAGIC = 0x53484D51434F554E  # "SHMQCOUN"
VERSION = 1
PAGE_BYTES = 4096
_STEP_BYTES = 64 << 10  # reserved at once
HEAD = struct.Struct("=QQQQ")
BLOCK_HEAD = struct.Struct("=QQQQQ")
BLOCK_HEAD_BYTES = 64
_ENTRY = struct.Struct("=II")
_NAME_BYTES_MAX = 1024
_WORDS_MAX = 64
WORD_BYTES = 8
_USED, _REFUSED, _PID, _START, _BEGAN = range(5)  # words of a writer's head


def counters_name(instance: Instance) -> str:
    """Return the POSIX name of a generation's counters segment."""
    return f"/shmq.{instance.broker_name}.{instance.generation:016x}.counters"


class Counter:
    """A word that grows, or that says how many there are now."""

    __slots__ = ("_at", "_words")

    def __init__(self, words: memoryview, at: int) -> None:
        self._words = words
        self._at = at

    def add(self, count: int = 1) -> None:
        """Count some more."""
        self._words[self._at] += count

    def set(self, value: int) -> None:
        """Say how many there are now; not below zero."""
        self._words[self._at] = value if value > 0 else 0

    @property
    def value(self) -> int:
        """The value of the word."""
        return int(self._words[self._at])


class Histogram:
    """Counts of values up to each bound and above the last, and their sum."""

    __slots__ = ("_at", "_bounds", "_words")

    def __init__(self, words: memoryview, at: int, bounds: Sequence[int]) -> None:
        self._words = words
        self._at = at
        self._bounds = bounds

    def observe(self, value: int, times: int = 1) -> None:
        """Count a value, in the unit of the bounds, so many times."""
        words, at = self._words, self._at
        words[at + bisect_left(self._bounds, value)] += times
        words[at + len(self._bounds) + 1] += (value if value > 0 else 0) * times

    def merge(self, counts: Sequence[int]) -> None:
        """Add counts of values that were looked at elsewhere: one a bound, one above, and the sum."""
        for step, count in enumerate(counts):
            if count:
                self._words[self._at + step] += count


class Counters(Protocol):
    """The counters of a process."""

    def counter(self, family: str, **labels: str) -> Counter:
        """Return the counter of a family with these labels, made if need be."""

    def histogram(self, family: str, bounds: Sequence[int], **labels: str) -> Histogram:
        """Return a histogram; `bounds` rise and are whole numbers."""


class LooseCounters:
    """Counts in private memory: for tests, and where there is no segment."""

    def __init__(self) -> None:
        self._counters: dict[str, Counter] = {}
        self._histograms: dict[str, Histogram] = {}

    def counter(self, family: str, **labels: str) -> Counter:
        name = _name_of(family, labels)
        if name not in self._counters:
            self._counters[name] = Counter(*_private(1))
        return self._counters[name]

    def histogram(self, family: str, bounds: Sequence[int], **labels: str) -> Histogram:
        name = _name_of(family, labels)
        if name not in self._histograms:
            self._histograms[name] = Histogram(*_private(len(bounds) + 2), bounds)
        return self._histograms[name]


class CounterWriter:
    """One process' own block. Counters that find no room count in private memory, and are `refused`."""

    def __init__(self, descriptor: int, writer: int) -> None:
        """Map the block of a writer; the descriptor is the caller's to close.

        Raises:
            SegmentError: there is no such block, or no memory for it.
        """
        with above_standard:
            self._descriptor = os.dup(descriptor)
        self._base = PAGE_BYTES + writer * WRITER_BYTES
        self._known: dict[str, tuple[int, int]] = {}  # name -> first word, words
        self._reserved = 0
        try:
            if os.fstat(descriptor).st_size < self._base + WRITER_BYTES:
                raise SegmentError(f"the counters segment has no block {writer}")
            if not self._reserve(BLOCK_HEAD_BYTES):
                raise SegmentError("there is no memory for the counters", hint="df /dev/shm")
            with above_standard:  # it keeps a descriptor of its own
                self._map = mmap.mmap(self._descriptor, WRITER_BYTES, offset=self._base)
        except BaseException:
            os.close(self._descriptor)
            raise
        self._words = memoryview(self._map).cast("Q")
        if not BLOCK_HEAD_BYTES <= self._words[_USED] <= WRITER_BYTES or not self._adopt():
            self._map[:BLOCK_HEAD_BYTES] = bytes(BLOCK_HEAD_BYTES)
            self._words[_USED] = BLOCK_HEAD_BYTES
        mark = own_mark()
        self._words[_PID], self._words[_START], self._words[_BEGAN] = mark.pid, mark.start, _now_ms()

    def counter(self, family: str, **labels: str) -> Counter:
        return Counter(*self._place(_name_of(family, labels), 1))

    def histogram(self, family: str, bounds: Sequence[int], **labels: str) -> Histogram:
        return Histogram(*self._place(_name_of(family, labels), len(bounds) + 2), bounds)

    def close(self) -> None:
        """Let go of the block; what was counted stays."""
        self._words.release()
        with contextlib.suppress(BufferError):  # a counter that is still referenced keeps the mapping
            self._map.close()
        os.close(self._descriptor)

    def _place(self, name: str, words: int) -> tuple[memoryview, int]:
        found = self._known.get(name)
        if found is not None and found[1] == words:
            return self._words, found[0]
        at = self._append(name.encode(), words)
        if at < 0:
            self._words[_REFUSED] += 1
            return _private(words)
        self._known[name] = at, words
        return self._words, at

    def _append(self, name: bytes, words: int) -> int:
        used = int(self._words[_USED])
        padded = -(-len(name) // WORD_BYTES) * WORD_BYTES
        end = used + _ENTRY.size + padded + words * WORD_BYTES
        if len(name) > _NAME_BYTES_MAX or words > _WORDS_MAX or end > WRITER_BYTES or not self._reserve(end):
            return -1
        entry = _ENTRY.pack(len(name), words) + name.ljust(padded, b"\0")
        self._map[used:end] = entry + bytes(words * WORD_BYTES)
        self._words[_USED] = end
        return (used + len(entry)) // WORD_BYTES

    def _adopt(self) -> bool:
        """Find the entries that a predecessor made; False when what is there cannot be its work."""
        used = int(self._words[_USED])
        if not self._reserve(used):
            return False
        try:
            for name, at, words in _walk(self._map[:used]):
                self._known[name] = at // WORD_BYTES, words
        except SegmentError:
            self._known.clear()
            return False
        return True

    def _reserve(self, size: int) -> bool:
        if size <= self._reserved:
            return True
        wanted = min(-(-size // _STEP_BYTES) * _STEP_BYTES, WRITER_BYTES)
        try:
            os.posix_fallocate(self._descriptor, self._base, wanted)
        except OSError:
            return False
        self._reserved = wanted
        return True


def create_counters(instance: Instance, access: Access, *, bridges: int) -> None:
    """Make the counters segment of a generation, unless it is there and usable; only the keeper calls this.

    Raises:
        SegmentError: the kernel refuses.
    """
    size = PAGE_BYTES + (1 + bridges) * WRITER_BYTES
    with contextlib.suppress(SegmentError):
        descriptor = open_segment(instance, writable=True)
        try:
            head = os.pread(descriptor, HEAD.size, 0)
            if len(head) == HEAD.size and HEAD.unpack(head)[:3] == (MAGIC, VERSION, instance.generation):
                if os.fstat(descriptor).st_size < size:
                    os.ftruncate(descriptor, size)  # more bridges than last time
                return
        finally:
            os.close(descriptor)
    remove_counters(instance)
    _create(instance, access, size)


@above_standard
def _create(instance: Instance, access: Access, size: int) -> None:
    try:
        descriptor: int = posix_ipc.SharedMemory(counters_name(instance), posix_ipc.O_CREX, mode=0o600).fd
    except (posix_ipc.Error, OSError) as error:
        raise SegmentError(f"/dev/shm{counters_name(instance)} could not be made: {error}") from error
    try:
        os.fchown(descriptor, -1, access.gid)
        os.fchmod(descriptor, access.read_mode)
        os.ftruncate(descriptor, size)
        os.posix_fallocate(descriptor, 0, PAGE_BYTES)
        write_whole(descriptor, HEAD.pack(MAGIC, VERSION, instance.generation, _now_ms()), 0)
    except OSError as error:
        remove_counters(instance)
        raise SegmentError(f"/dev/shm{counters_name(instance)} could not be made: {error}") from error
    finally:
        os.close(descriptor)


def remove_counters(instance: Instance) -> None:
    """Remove the counters segment of a generation; one that is gone already is no error."""
    with contextlib.suppress(posix_ipc.Error):
        posix_ipc.unlink_shared_memory(counters_name(instance))


def open_counter_writer(instance: Instance, writer: int) -> CounterWriter:
    """Open one's own block: KEEPER, or BRIDGE and its number.

    Raises:
        SegmentError: there is no such segment or block.
    """
    descriptor = open_segment(instance, writable=True)
    try:
        return CounterWriter(descriptor, writer)
    finally:
        os.close(descriptor)


@above_standard
def open_segment(instance: Instance, *, writable: bool) -> int:
    name = counters_name(instance)
    try:
        descriptor: int = posix_ipc.SharedMemory(name, read_only=not writable).fd
    except (posix_ipc.Error, OSError) as error:
        raise SegmentError(
            f"/dev/shm{name} could not be opened: {error}", hint="start the broker: shmq serve"
        ) from error
    status = os.fstat(descriptor)
    if status.st_uid != instance.uid or not stat.S_ISREG(status.st_mode) or status.st_mode & stat.S_IRWXO:
        os.close(descriptor)
        raise SegmentError(
            f"/dev/shm{name} is not the broker's: uid {status.st_uid}, mode {status.st_mode & 0o7777:04o}"
        )
    return descriptor


def walk_entries(data: bytes) -> Iterator[tuple[bytes, int, int]]:
    """Yield (name, position of the words, number of words) of every entry of a block."""
    at = BLOCK_HEAD_BYTES
    while at < len(data):
        if at + _ENTRY.size > len(data):
            raise SegmentError("an entry of the counters is cut short")
        name_bytes, words = _ENTRY.unpack_from(data, at)
        begin = at + _ENTRY.size
        first = begin + -(-name_bytes // WORD_BYTES) * WORD_BYTES
        end = first + words * WORD_BYTES
        if not 0 < name_bytes <= _NAME_BYTES_MAX or not 0 < words <= _WORDS_MAX or end > len(data):
            raise SegmentError(f"an entry of the counters says {name_bytes} bytes of name and {words} words")
        yield data[begin : begin + name_bytes], first, words
        at = end


def _walk(data: bytes) -> Iterator[tuple[str, int, int]]:
    for name, at, words in walk_entries(data):
        yield name.decode(errors="replace"), at, words


def _private(words: int) -> tuple[memoryview, int]:
    return memoryview(bytearray(words * WORD_BYTES)).cast("Q"), 0


def _name_of(family: str, labels: dict[str, str]) -> str:
    return SEPARATOR.join((family, *(part for label in sorted(labels) for part in (label, labels[label]))))


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
