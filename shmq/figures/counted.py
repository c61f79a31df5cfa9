"""Reads what keeper and bridges count of themselves from the counters segment, of hung and dead ones as well."""

from __future__ import annotations

import time

from shmq.errors import SegmentError
from shmq.figures.changed_files import changed_files
from shmq.figures.snapshot import Counted
from shmq.shm.counter_reader import open_counters
from shmq.shm.counters import INTERNAL_ERRORS, LATEST, LOG_LINES_DROPPED
from shmq.shm.instance import Instance


def collect_counted(instance: Instance) -> Counted | None:
    """Return it; None where there are no counters, or we may not read them."""
    try:
        reader = open_counters(instance)
    except SegmentError:
        return None
    try:
        entries = [entry for block in reader.blocks() for entry in block.entries]
    finally:
        reader.close()

    def words(family: str) -> list[int]:
        return [entry.words[0] for entry in entries if entry.family == family]

    def age(family: str) -> float | None:
        latest_ms = max(words(family + LATEST), default=0)
        return max(0.0, time.time() - latest_ms / 1000) if latest_ms else None

    files = changed_files(entries)
    return Counted(
        sum(words(LOG_LINES_DROPPED)), age(LOG_LINES_DROPPED), sum(words(INTERNAL_ERRORS)), age(INTERNAL_ERRORS), files
    )
