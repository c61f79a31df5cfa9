"""What a batch may hold: an entry begins where its queue ends in the archive."""

from __future__ import annotations

import pytest

from shmq.errors import OffsetOutOfRange, UsageError
from shmq.spark.jobs.table.entry import Entry, QueueKey
from shmq.spark.jobs.table.table import accepted

KEY = QueueKey("orders", "a", 0, 7)


def entry(start: int, end: int) -> Entry:
    return Entry(*KEY, start, end)


def test_what_is_in_already_is_dropped_and_what_is_new_taken() -> None:
    new, known, gaps = accepted([entry(10, 20), entry(0, 10), entry(20, 30)], {KEY: 10}.get, may_lose=False)
    assert (new, known, gaps) == ([entry(10, 20), entry(20, 30)], [entry(0, 10)], [])


def test_a_hole_is_refused_or_written_down() -> None:
    with pytest.raises(OffsetOutOfRange, match="ends at offset 10, the batch begins at 15"):
        accepted([entry(15, 20)], {KEY: 10}.get, may_lose=False)
    _, _, gaps = accepted([entry(15, 20)], {KEY: 10}.get, may_lose=True)
    assert [(gap.start, gap.end) for gap in gaps] == [(10, 15)]


def test_a_checkpoint_of_another_archive_is_refused() -> None:
    with pytest.raises(UsageError, match="remove the checkpoint"):
        accepted([entry(5, 15)], {KEY: 10}.get, may_lose=True)
