"""The sums of the units: they survive a restart, notice every change, and notice when they are not all there."""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from shmq.shm.access import Access
from shmq.shm.unit import pack_unit
from shmq.store.consumequeue import FILE_UNITS, ConsumeQueueFiles
from shmq.store.layout import StoreLayout
from shmq.store.unit_repair import find_faults, find_faults_at_start
from shmq.store.unit_sums import BLOCK_UNITS

QUEUE = ("orders", 3)


def units(first: int, count: int) -> bytes:
    return b"".join(pack_unit(number * 100, 100, number) for number in range(first, first + count))


_open_files = contextlib.ExitStack()


@pytest.fixture
def layout(tmp_path: Path) -> Iterator[StoreLayout]:
    layout = StoreLayout(tmp_path, Access(-1))
    layout.prepare()
    with _open_files:
        yield layout


def unit_files(layout: StoreLayout) -> ConsumeQueueFiles:
    """Files that are closed when the test ends: some open hundreds."""
    files = ConsumeQueueFiles(layout)
    _open_files.callback(files.close)
    return files


def opened(layout: StoreLayout, *, sequence: int = 0, born: dict[str, int] | None = None) -> ConsumeQueueFiles:
    files = unit_files(layout)
    assert files.sums.load(born or {}, {}, sequence=sequence)
    return files


def written(layout: StoreLayout, *parts: tuple[int, int]) -> tuple[ConsumeQueueFiles, int]:
    """Files whose units were written in parts, with a batch of sums behind each."""
    files = unit_files(layout)
    files.sums.load({}, {}, sequence=0)
    sequence = 0
    for first, count in parts:
        files.write(QUEUE, first, units(first, count))
        sequence = files.store_sums()
    return files, sequence


@pytest.mark.parametrize(
    "parts",
    [
        [(0, 1)],
        [(0, BLOCK_UNITS)],
        [(0, 150), (150, 60), (210, 1)],
        [(0, 5 * BLOCK_UNITS + 7), (1007, 200), (1207, 1)],
        [(37, 500), (537, 3)],
        [(FILE_UNITS - 3, 10), (FILE_UNITS + 7, 400)],
    ],
)
def test_sums_of_any_parts_hold_after_a_restart(layout: StoreLayout, parts: list[tuple[int, int]]) -> None:
    first, sequence = written(layout, *parts)
    first.close()
    files = opened(layout, sequence=sequence)
    assert files.sums.end(QUEUE) == parts[-1][0] + parts[-1][1]
    assert find_faults(files, QUEUE) == []
    files.write(QUEUE, files.sums.end(QUEUE), units(files.sums.end(QUEUE), 300))
    files.store_sums()
    assert find_faults(opened(layout), QUEUE) == []
    assert find_faults_at_start(opened(layout), seconds=10.0) == ([], True)


def test_every_changed_byte_is_in_the_block_that_is_named(layout: StoreLayout) -> None:
    files, sequence = written(layout, (0, 3 * BLOCK_UNITS + 10))
    path = next((layout.consumequeue / "orders" / "3").iterdir())
    whole = path.read_bytes()[: 20 * (3 * BLOCK_UNITS + 10)]
    for at in [*range(0, len(whole), 37), len(whole) - 1]:
        with path.open("r+b") as file:
            file.seek(at)
            file.write(bytes([whole[at] ^ 1]))
        (fault,) = find_faults(opened(layout, sequence=sequence), QUEUE)
        assert fault.first <= at // 20 < fault.end <= fault.first + BLOCK_UNITS
        assert fault.is_tail == (at // 20 >= 3 * BLOCK_UNITS)
        with path.open("r+b") as file:
            file.write(whole)
    assert find_faults(files, QUEUE) == []


def test_a_missing_file_and_an_older_version_of_a_page_are_faults(layout: StoreLayout) -> None:
    files, _ = written(layout, (0, 900), (900, 50))
    path = next((layout.consumequeue / "orders" / "3").iterdir())
    older = path.read_bytes()[: 900 * 20]
    path.write_bytes(older + bytes(6_000_000 - len(older)))
    assert [(fault.first, fault.end, fault.is_tail) for fault in find_faults(files, QUEUE)] == [(800, 950, True)]
    files.close()
    path.unlink()
    assert [(fault.first, fault.end) for fault in find_faults(opened(layout), QUEUE)] == [(0, 950)]


def test_units_written_over_or_cut_off_have_new_sums(layout: StoreLayout) -> None:
    files, _ = written(layout, (0, 700))
    files.write(QUEUE, 250, units(1000, 5))
    files.store_sums()
    assert find_faults(opened(layout), QUEUE) == []
    files.truncate(QUEUE, 333)
    files.store_sums()
    again = opened(layout)
    assert (again.sums.end(QUEUE), find_faults(again, QUEUE)) == (333, [])


def test_a_topic_that_was_removed_has_no_sums(layout: StoreLayout) -> None:
    files, _ = written(layout, (0, 10))
    files.write(("kept", 0), 0, units(0, 1))
    files.remove_topic("orders", born=77)
    files.store_sums()
    assert opened(layout).sums.queues() == [("kept", 0)]
    files.write(QUEUE, 0, units(0, 1))
    files.store_sums()
    assert opened(layout, born={"orders": 77}).sums.queues() == [("kept", 0), QUEUE]
    assert opened(layout, born={"orders": 78}).sums.queues() == [("kept", 0)]  # its next life
    assert opened(layout).sums.queues() == [("kept", 0), QUEUE]  # a table that is older than the sums


def test_blocks_of_removed_files_are_forgotten(layout: StoreLayout) -> None:
    files, _ = written(layout, (0, FILE_UNITS + 500))
    assert files.remove_below(QUEUE, FILE_UNITS + 100) == 1
    files.store_sums()
    again = opened(layout)
    assert (again.sums.end(QUEUE), find_faults(again, QUEUE)) == (FILE_UNITS + 500, [])


def test_what_is_missing_or_damaged_in_the_file_is_noticed(layout: StoreLayout) -> None:
    _, sequence = written(layout, *[(number * 10, 10) for number in range(5)])
    whole = layout.unit_sums.read_bytes()

    def is_complete() -> bool:
        return unit_files(layout).sums.load({}, {}, sequence=sequence)

    assert is_complete()
    for at in range(len(whole)):
        layout.unit_sums.write_bytes(whole[:at] + bytes([whole[at] ^ 0x10]) + whole[at + 1 :])
        assert not is_complete(), at
        layout.unit_sums.write_bytes(whole[:at])
        assert not is_complete(), at
    layout.unit_sums.unlink()
    assert not is_complete()
    # What a killed keeper had half written behind the last batch is none of the mark's business.
    layout.unit_sums.write_bytes(whole + whole[:30])
    assert is_complete()


def test_the_file_is_written_anew_when_most_of_it_is_outdated(layout: StoreLayout) -> None:
    files, _ = written(layout, (0, 1))
    sizes = []
    for number in range(500):
        for queue_id in range(60):
            files.write(("orders", queue_id), number, units(number, 1))
        batch, whole = files.sums.batch(files.read)
        if whole:
            sizes.append(layout.unit_sums.stat().st_size)
        files.sums.store(batch, whole=whole)
    assert sizes and max(sizes) < 3 << 20
    again = opened(layout)
    assert [find_faults(again, queue) for queue in again.sums.queues()] == [[]] * 60


def test_after_a_failed_sync_the_whole_file_is_written_anew(
    layout: StoreLayout, monkeypatch: pytest.MonkeyPatch
) -> None:
    files, _ = written(layout, (0, 5), (5, 5))
    files.write(QUEUE, 10, units(10, 5))
    batch, whole = files.sums.batch(files.read)
    assert not whole

    def refused(_descriptor: int) -> None:
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as broken:
        broken.setattr(os, "fdatasync", refused)
        with pytest.raises(OSError, match="Input/output"):
            files.sums.store(batch, whole=whole)
    before = layout.unit_sums.stat().st_ino
    sequence = files.store_sums()
    assert layout.unit_sums.stat().st_ino != before
    assert opened(layout, sequence=sequence).sums.end(QUEUE) == 15


def test_a_file_that_was_truncated_gets_no_batch_behind_a_hole_and_is_written_anew(layout: StoreLayout) -> None:
    files, _ = written(layout, (0, BLOCK_UNITS), (BLOCK_UNITS, BLOCK_UNITS))
    os.truncate(layout.unit_sums, layout.unit_sums.stat().st_size - 1)
    files.write(QUEUE, 2 * BLOCK_UNITS, units(2 * BLOCK_UNITS, 10))
    with pytest.raises(OSError, match="was truncated"):
        files.store_sums()
    sequence = files.store_sums()
    again = opened(layout, sequence=sequence)
    assert again.sums.end(QUEUE) == 2 * BLOCK_UNITS + 10 and not list(find_faults(again, QUEUE))
