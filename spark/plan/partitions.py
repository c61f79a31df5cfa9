"""Divides ranges into partitions: a pure function of their sizes.

    a range above maxBytesPerPartition      cut into equal pieces of messages
    a small range                           packed with others: a task costs some 55 ms whatever it reads
    minPartitions                           the largest pieces are halved until there are so many

Rules: (1) every offset of every range is in exactly one piece, and pieces of one queue are in order within a partition;
(2) the same ranges give the same partitions, so that a retried task reads the same messages.
"""

from __future__ import annotations

import heapq
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace

from shmq.spark.access.broker import Range

PARTITION_MAX = 65_536


@dataclass(frozen=True)
class Sized:
    """A range with about how many bytes its records have."""

    range: Range
    bytes: int


def partition_count(total_bytes: int, *, bytes_max: int, wanted: int, slots: int) -> int:
    """Return how many partitions a read gets: what the bytes demand, at least `wanted`, and no more than useful."""
    demanded = -(-total_bytes // bytes_max)
    useful = min(slots * 2, -(-total_bytes // (4 << 20)))  # less than 4 MiB is not worth a task
    return min(PARTITION_MAX, max(1, demanded, wanted, useful))


def plan(sized: Sequence[Sized], *, bytes_max: int, wanted: int = 0, slots: int = 0) -> list[tuple[Range, ...]]:
    """Return the partitions, each a tuple of ranges; the largest are dealt out first."""
    if not sized:
        return []
    slots = slots or os.cpu_count() or 1
    total = sum(piece.bytes for piece in sized)
    count = partition_count(total, bytes_max=bytes_max, wanted=wanted, slots=slots)
    piece_bytes = max(1, min(bytes_max, -(-total // count)))
    pieces = [part for each in sized for part in _cut(each, piece_bytes)]
    pieces = _halved(pieces, wanted)
    count = min(count, len(pieces))
    bins: list[list[Sized]] = [[] for _ in range(count)]
    heap = [(0, number) for number in range(count)]
    for piece in sorted(
        pieces, key=lambda each: (-each.bytes, each.range.topic, each.range.queue_id, each.range.start)
    ):
        filled, number = heapq.heappop(heap)
        bins[number].append(piece)
        heapq.heappush(heap, (filled + max(piece.bytes, 1), number))
    return [_ordered(each) for each in bins if each]


def _ordered(pieces: list[Sized]) -> tuple[Range, ...]:
    """In queue order, and pieces that follow each other as one."""
    joined: list[Range] = []
    for each in sorted((piece.range for piece in pieces), key=lambda one: (one.topic, one.queue_id, one.start)):
        last = joined[-1] if joined else None
        if last is not None and (last.topic, last.queue_id, last.end) == (each.topic, each.queue_id, each.start):
            joined[-1] = replace(last, end=each.end)
        else:
            joined.append(each)
    return tuple(joined)


def _cut(sized: Sized, bytes_max: int) -> list[Sized]:
    count = max(1, min(sized.range.count, -(-sized.bytes // bytes_max)))
    return [_piece(sized, number, count) for number in range(count)]


def _piece(sized: Sized, number: int, count: int) -> Sized:
    whole = sized.range
    start, end = (whole.start + whole.count * at // count for at in (number, number + 1))
    return Sized(replace(whole, start=start, end=end), sized.bytes * (end - start) // max(1, whole.count))


def _halved(pieces: list[Sized], wanted: int) -> list[Sized]:
    """At least `wanted` pieces, as far as there are messages."""
    heap = [(-piece.range.count, number, piece) for number, piece in enumerate(pieces)]
    heapq.heapify(heap)
    serial = len(pieces)
    while len(heap) < min(wanted, PARTITION_MAX) and -heap[0][0] > 1:
        _, _, largest = heapq.heappop(heap)
        for part in (_piece(largest, 0, 2), _piece(largest, 1, 2)):
            serial += 1
            heapq.heappush(heap, (-part.range.count, serial, part))
    return [piece for _, _, piece in heap]
