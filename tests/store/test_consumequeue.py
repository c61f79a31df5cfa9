"""The ConsumeQueue files: RocketMQ's units, borders by bisection, nothing beyond."""

import gc
import os
import struct
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from shmq.shm.access import Access
from shmq.shm.unit import pack_unit, unpack_unit
from shmq.store.consumequeue import FILE_BYTES, FILE_UNITS, ConsumeQueueFiles, UnitRange
from shmq.store.layout import StoreLayout, file_name
from tests.store.descriptors import open_below

QUEUE = ("orders", 3)


def units(first: int, count: int) -> bytes:
    """Units of records of 100 bytes that lie one after the other."""
    return b"".join(pack_unit(number * 100, 100, number) for number in range(first, first + count))


@pytest.fixture
def layout(tmp_path: Path) -> StoreLayout:
    layout = StoreLayout(tmp_path, Access(-1))
    layout.prepare()
    return layout


@pytest.fixture
def files(layout: StoreLayout) -> ConsumeQueueFiles:
    return ConsumeQueueFiles(layout)


def before(position_end: int) -> object:
    return lambda position, size: size > 0 and position < position_end


def test_a_unit_is_what_rocketmq_reads(layout: StoreLayout, files: ConsumeQueueFiles) -> None:
    files.write(QUEUE, 0, pack_unit(7, 9, -5))
    path = layout.consumequeue / "orders" / "3" / file_name(0)
    assert path.stat().st_size == 6_000_000
    assert path.read_bytes()[:40] == struct.pack(">qiq", 7, 9, -5) + bytes(20)
    assert unpack_unit(files.read(QUEUE, 0, 1)) == (7, 9, -5)


def test_units_go_on_in_the_next_file(layout: StoreLayout, files: ConsumeQueueFiles) -> None:
    files.write(QUEUE, 0, units(0, FILE_UNITS - 2))
    files.write(QUEUE, FILE_UNITS - 2, units(FILE_UNITS - 2, 5))
    assert sorted(os.listdir(layout.consumequeue / "orders" / "3")) == [file_name(0), file_name(FILE_BYTES)]
    assert files.read(QUEUE, FILE_UNITS - 3, 6) == units(FILE_UNITS - 3, 6)
    # The next file has a predecessor, so nothing before its units is filled.
    assert files.bisect(QUEUE, before(10**12)) == FILE_UNITS + 3


def test_a_queue_that_begins_in_the_middle_is_filled_before_its_first_unit(files: ConsumeQueueFiles) -> None:
    files.write(QUEUE, FILE_UNITS + 3, units(0, 1))
    assert files.read(QUEUE, FILE_UNITS, 4) == pack_unit(0, 0x7FFFFFFF, 0) * 3 + units(0, 1)
    assert files.read(QUEUE, 0, 1) == b""


@pytest.mark.parametrize("count", [0, 1, 2, 203, 204, 5000])
def test_the_border_between_written_and_unwritten_is_found(files: ConsumeQueueFiles, count: int) -> None:
    files.write(QUEUE, 0, units(0, max(count, 1)))
    assert files.bisect(QUEUE, before(count * 100)) == count
    assert files.bisect(QUEUE, before(10**12), high=count) == count


def test_a_queue_without_files_begins_at_zero(files: ConsumeQueueFiles) -> None:
    assert files.bisect(QUEUE, before(10**12)) == 0
    assert files.read(QUEUE, 0, 5) == b""
    assert files.queues() == []


def test_cutting_zeroes_the_rest_and_removes_whole_files(layout: StoreLayout, files: ConsumeQueueFiles) -> None:
    files.write(QUEUE, FILE_UNITS - 10, units(0, 20))
    assert files.truncate(QUEUE, FILE_UNITS - 5)
    assert files.read(QUEUE, FILE_UNITS - 10, 20) == units(0, 5) + bytes(100)
    assert os.listdir(layout.consumequeue / "orders" / "3") == [file_name(0)]
    assert not files.truncate(QUEUE, FILE_UNITS - 5)
    assert files.truncate(QUEUE, 0)
    assert files.read(QUEUE, FILE_UNITS - 10, 10) == bytes(200)


def test_files_below_the_minimum_go_and_the_last_stays(layout: StoreLayout, files: ConsumeQueueFiles) -> None:
    files.write(QUEUE, FILE_UNITS - 1, units(0, 2))
    assert files.remove_below(QUEUE, FILE_UNITS - 1) == 0
    assert files.remove_below(QUEUE, FILE_UNITS) == 1
    assert files.remove_below(QUEUE, 10**9) == 0
    assert os.listdir(layout.consumequeue / "orders" / "3") == [file_name(FILE_BYTES)]


def test_removing_a_topic_takes_its_queues_and_no_other(files: ConsumeQueueFiles) -> None:
    for queue in (("orders", 0), ("orders", 1), ("orders2", 0)):
        files.write(queue, 0, units(0, 1))
    files.remove_topic("orders")
    assert files.queues() == [("orders2", 0)]
    files.sync_all()
    files.write(("orders", 0), 0, units(5, 1))
    assert files.read(("orders", 0), 0, 1) == units(5, 1)


def test_the_number_of_open_files_is_bounded(layout: StoreLayout, files: ConsumeQueueFiles) -> None:
    for queue_id in range(300):
        files.write(("orders", queue_id), 0, units(queue_id, 1))
    assert 0 < open_below(layout.root) <= 64
    assert len(files.dirty_paths()) == 300
    files.sync_all()
    assert files.dirty_paths() == []
    assert [files.read(("orders", queue_id), 0, 1) for queue_id in (0, 299)] == [units(0, 1), units(299, 1)]
    files.close()
    assert open_below(layout.root) == 0


def test_a_file_that_a_crash_left_without_size_is_used_again(layout: StoreLayout, files: ConsumeQueueFiles) -> None:
    directory = layout.consumequeue / "orders" / "3"
    directory.mkdir(parents=True)
    (directory / file_name(0)).touch()
    assert files.bisect(QUEUE, before(10**12)) == 0
    files.write(QUEUE, 0, units(0, 1))
    assert files.files(QUEUE) == [0]
    assert files.read(QUEUE, 0, 1) == units(0, 1)


def test_what_a_failed_sync_covered_is_written_again_before_the_next_one(
    files: ConsumeQueueFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    files.write(QUEUE, 0, units(0, 5))
    files.sync_all()
    files.write(QUEUE, 5, units(5, 3))
    with monkeypatch.context() as broken:
        broken.setattr(os, "fdatasync", refused)
        with pytest.raises(OSError, match="Input/output"):
            files.sync_all()
    files.write(QUEUE, 8, units(8, 1))
    assert files.lost == [UnitRange(QUEUE, 5, 8)] and files.is_dirty
    with pytest.raises(AssertionError):
        files.sync_all()
    files.rewrite(files.lost[0], units(5, 3))
    assert (files.lost, len(files.dirty_paths())) == ([], 1)
    files.sync_all()
    assert files.read(QUEUE, 0, 9) == units(0, 9)


def refused(_descriptor: int) -> None:
    raise OSError(5, "Input/output error")


def lines_run(work: Callable[[], object]) -> int:
    """How many lines of Python a call goes through, without those that a collection of garbage would run in it."""
    count = 0

    def trace(frame: FrameType, event: str, argument: object) -> Any:
        nonlocal count
        count += event == "line"
        return trace

    gc.disable()
    sys.settrace(trace)
    try:
        work()
    finally:
        sys.settrace(None)
        gc.enable()
    return count


@pytest.mark.parametrize("what", ["remove_topic", "set_born"])
def test_what_a_new_topic_costs_does_not_grow_with_the_others(tmp_path: Path, what: str) -> None:
    counts = []
    for others in (100, 400):  # more than are open at once
        layout = StoreLayout(tmp_path / str(others), Access(-1))
        layout.prepare()
        files = ConsumeQueueFiles(layout)
        for number in range(others + 1):
            files.write((f"topic-{number}", 0), 0, pack_unit(number * 100, 100, 0))
        if what == "remove_topic":
            counts.append(lines_run(partial(files.remove_topic, "topic-0")))
        else:
            counts.append(lines_run(partial(files.sums.set_born, "topic-0", 7)))
        files.close()
    assert counts[0] == counts[1]
