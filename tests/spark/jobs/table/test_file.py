"""Files of an archive: every message of a range once, in order, with sums that say what is in."""

from __future__ import annotations

import time
import zlib
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow.parquet
import pytest

from shmq.spark.access.broker import Range, Reading
from shmq.spark.access.segments import attach
from shmq.spark.jobs.archive import ArchiveSettings
from shmq.spark.jobs.table.entry import Entry
from shmq.spark.jobs.table.file import write_ranges

COUNT = 300


@pytest.fixture(scope="module")
def bodies(mq: Any) -> list[bytes]:
    mq.admin.create_topic("files", queues=1)
    found = [b"%04d" % number * 25 for number in range(COUNT)]
    for number, body in enumerate(found):
        mq.send("files", body, queue_id=0, tag="t", properties={"n": str(number)})
        now = time.time_ns() // 1_000_000
        while number == COUNT // 2 and time.time_ns() // 1_000_000 < now + 3:
            pass  # the rest is stored in a later millisecond
    return found


def written(broker: Any, root: Path, start: int = 0, end: int = COUNT, **changes: Any) -> list[Entry]:
    source = {"store": broker.url, "topic": "files", "batchRows": "32"}
    settings = ArchiveSettings(str(root), source, **changes)
    layout = settings.layout("b")
    reading = Reading(settings.options(), layout.read_columns)
    return list(write_ranges(reading, [whole_range(broker, start, end)], None, None, layout))


def whole_range(broker: Any, start: int, end: int) -> Range:
    (queue,) = attach(broker.url).queues("files")
    return Range("files", 0, queue.born_position, start, end)


def rows(root: Path, entries: list[Entry]) -> list[dict[str, Any]]:
    return [row for each in entries for row in pyarrow.parquet.ParquetFile(root / each.path).read().to_pylist()]


def test_every_message_is_in_one_file_with_its_sums(broker: Any, bodies: list[bytes], tmp_path: Path) -> None:
    (entry,) = written(broker, tmp_path, 7, 250)
    found = rows(tmp_path, [entry])
    assert [row["body"] for row in found] == bodies[7:250]
    assert [dict(row["properties"])["n"] for row in found] == [str(number) for number in range(7, 250)]
    crc = [zlib.crc32(body) & 0x7FFFFFFF for body in bodies[7:250]]
    xor = 0
    for each in crc:
        xor ^= each
    assert (entry.rows, entry.crc_sum, entry.crc_xor, entry.body_bytes) == (243, sum(crc), xor, 243 * 100)
    assert "topic" not in found[0] and entry.partition.keys() == {"topic", "date"}


def test_full_files_are_followed_by_others_without_a_gap(broker: Any, bodies: list[bytes], tmp_path: Path) -> None:
    entries = written(broker, tmp_path, file_bytes=20_000, row_group_bytes=5_000)
    assert len(entries) > 3 and entries[0].start == 0 and entries[-1].end == COUNT
    assert all(one.end == two.start for one, two in pairwise(entries))
    assert [row["body"] for row in rows(tmp_path, entries)] == bodies


def test_a_selection_leaves_messages_out_but_no_offsets(broker: Any, bodies: list[bytes], tmp_path: Path) -> None:
    settings = ArchiveSettings(str(tmp_path), {"store": broker.url, "topic": "files", "tags": "other"})
    layout = settings.layout("b")
    reading = Reading(settings.options(), layout.read_columns)
    (entry,) = write_ranges(reading, [whole_range(broker, 0, COUNT)], None, None, layout)
    assert (entry.start, entry.end, entry.rows, entry.path) == (0, COUNT, 0, "")


def test_a_day_ends_a_file(broker: Any, bodies: list[bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from shmq.spark.jobs.table import file as archive_file

    monkeypatch.setitem(archive_file._PERIODS_US, "date", 1000)  # a day of a millisecond
    entries = written(broker, tmp_path)
    assert len(entries) > 1 and all(one.end == two.start for one, two in pairwise(entries))
    assert [row["body"] for row in rows(tmp_path, entries)] == bodies


def test_a_task_that_fails_leaves_nothing(broker: Any, bodies: list[bytes], tmp_path: Path) -> None:
    from shmq.errors import ShmqError

    with pytest.raises(ShmqError):
        written(broker, tmp_path, 0, COUNT + 1)
    assert not list(tmp_path.rglob("*.parquet")) and not list(tmp_path.rglob(".*.parquet"))
