"""Finds System V segments that no instance.json names any more, as the three parts of one broker.

POSIX segments say in their names whose they are; System V ones have numbers, which only instance.json knows. When that
is gone, and its broker with it, their contents decide: control and readers begin with a head that the core checks;
units are known by the process that made all three and by their exact size.

    looked into    private (no key), not attached, made by this user; everything else is left alone, since looking
                   means attaching for a moment
    taken for one  three of one creator that the core opens as control, units and readers of one generation

Rule: what could be units of two generations belongs to neither.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Mapping
from itertools import permutations
from typing import NamedTuple

from shmq.errors import ShmqError
from shmq.shm.core import Store
from shmq.shm.instance import SEGMENT_PARTS
from shmq.shm.sysv_table import PRIVATE_KEY, SysvSegment

_OF_ONE_CREATOR_MAX = 9  # two or three generations; a process that made more private segments is no keeper


class SysvGeneration(NamedTuple):
    """One generation of System V segments, as it says itself."""

    broker_name: str
    generation: int
    store_path: str
    segments: Mapping[str, SysvSegment]  # by part


def unnamed_generations(table: Iterable[SysvSegment], named: Collection[int]) -> list[SysvGeneration]:
    """Return the generations whose segments no instance.json names.

    Args:
        table: all segments of this IPC namespace.
        named: identifiers that instance.json files tell.
    """
    by_creator: dict[int, list[SysvSegment]] = {}
    for segment in table:
        is_candidate = segment.key == PRIVATE_KEY and not segment.attached and segment.uid == os.geteuid()
        if is_candidate and segment.identifier not in named:
            by_creator.setdefault(segment.creator, []).append(segment)
    return [found for each in by_creator.values() for found in _generations_among(each)]


def _generations_among(segments: list[SysvSegment]) -> list[SysvGeneration]:
    if not len(SEGMENT_PARTS) <= len(segments) <= _OF_ONE_CREATOR_MAX:
        return []
    opened = [found for three in permutations(segments, len(SEGMENT_PARTS)) if (found := _opened(three)) is not None]
    units = [found.segments["units"].identifier for found in opened]
    generations = [found.generation for found in opened]
    return [
        found
        for found in opened
        if generations.count(found.generation) == 1 and units.count(found.segments["units"].identifier) == 1
    ]


def _opened(three: tuple[SysvSegment, ...]) -> SysvGeneration | None:
    try:
        store = Store(*(segment.identifier for segment in three), writable=False, sysv=True, observing=True)
    except (OSError, ShmqError):
        return None
    try:
        head = store.head
    finally:
        store.close()
    segments = dict(zip(SEGMENT_PARTS, three, strict=True))
    if any(segment.size_bytes != head[f"{part}_bytes"] for part, segment in segments.items()):
        return None
    return SysvGeneration(str(head["broker_name"]), int(head["generation"]), str(head["store_path"]), segments)
