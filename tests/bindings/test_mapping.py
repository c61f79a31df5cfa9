"""What a process has mapped of the log counts as its memory only near the end of the log; pages ahead of it."""

import mmap
import os
from pathlib import Path

import pytest

from tests.bindings.live_store import LiveStore
from tests.store.descriptors import open_below

FILE_BYTES = 64 << 20
BODY = bytes(range(256)) * 4096  # 1 MiB


def resident_bytes(path: Path, kinds: tuple[str, ...] = ("Rss:",)) -> int:
    """How much of the files below `path` this process has in its page tables."""
    found, is_ours = 0, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        name, *words = line.split()
        if not name.endswith(":"):
            is_ours = str(path) in line
        elif is_ours and name in kinds:
            found += int(words[0]) * 1024
    return found


def test_pages_far_behind_the_log_end_are_forgotten_and_found_again_with_their_bytes() -> None:
    with LiveStore(files=2, file_bytes=FILE_BYTES) as live:
        live.topic()
        producer = live.producer()
        stored = [producer.append("orders", BODY, queue_id=0) for _ in range(100)]
        before = resident_bytes(live.path)
        live.store.forget_pages()
        assert before > 96 << 20
        assert resident_bytes(live.path) < 56 << 20  # 32 behind, up to 16 made present ahead for long records
        assert [live.store.message_at(position).verify() for _, position, *_ in stored] == [True] * len(stored)
        producer.append("orders", b"goes on", queue_id=0)
        assert live.store.message_at(stored[-1][3]).body == b"goes on"


def test_a_young_log_is_left_alone() -> None:
    with LiveStore(file_bytes=FILE_BYTES) as live:
        live.topic()
        live.producer().append("orders", BODY, queue_id=0)
        before = resident_bytes(live.path)
        live.store.forget_pages()
        assert resident_bytes(live.path) == before > 0


def test_a_synchronous_flush_finds_nothing_dirty_that_was_not_stored() -> None:
    dirty = ("Shared_Dirty:", "Private_Dirty:")
    with LiveStore(file_bytes=FILE_BYTES) as live:
        live.topic()
        live.producer().append("orders", bytes(256), queue_id=0)
        assert resident_bytes(live.path, dirty) > 1 << 20  # made ready ahead
    with LiveStore(file_bytes=FILE_BYTES, flush_sync=True) as live:
        live.topic()
        producer = live.producer()
        for _ in range(64):
            producer.append("orders", bytes(256), queue_id=0)
        assert 0 < resident_bytes(live.path, dirty) < 64 << 10
        producer.append("orders", bytes(12 << 10), queue_id=0)
        assert 12 << 10 < resident_bytes(live.path, dirty) < 96 << 10
        producer.append("orders", BODY, queue_id=0)
        assert 1 << 20 < resident_bytes(live.path, dirty) < (1 << 20) + (256 << 10)


def pages_in_large_pieces(memory: mmap.mmap, path: Path) -> tuple[int, int]:
    """How many pages of a mapped file lie in pieces of 2 MiB of memory, and how many in pieces at all."""
    line = next(line for line in Path("/proc/self/maps").read_text().splitlines() if str(path) in line)
    first = int(line.split("-")[0], 16) // mmap.PAGESIZE
    count = len(memory) // mmap.PAGESIZE
    large = pieces = run = 0
    with open("/proc/self/pagemap", "rb") as pagemap, open("/proc/kpageflags", "rb", buffering=0) as kinds:
        pagemap.seek(8 * first)
        for _ in range(count):
            frame = int.from_bytes(pagemap.read(8), "little") & ((1 << 55) - 1)
            kinds.seek(8 * frame)
            is_tail = int.from_bytes(kinds.read(8), "little") >> 16 & 1
            run = run + 1 if is_tail else 1
            pieces += is_tail
            large += 512 if run == 512 else 0
    return large, pieces


def read_ahead_kib(path: Path) -> int:
    """How far the disk of a path reads ahead; 0 where that is unknown."""
    device = path.stat().st_dev
    try:
        return int(Path(f"/sys/class/bdi/{os.major(device)}:{os.minor(device)}/read_ahead_kb").read_text())
    except OSError:
        return 0


@pytest.mark.parametrize("flush_sync", [False, True])
def test_pages_are_made_of_memory_that_is_in_no_large_pieces(flush_sync: bool) -> None:
    with LiveStore(file_bytes=FILE_BYTES, flush_sync=flush_sync) as live:
        if 2048 <= read_ahead_kib(live.path) < 8192:
            pytest.skip("the pieces become large sooner on a disk that reads 2 to 4 MiB ahead")
        if not os.access("/proc/kpageflags", os.R_OK):
            pytest.skip("only root may see how memory lies")
        for begin in range(0, FILE_BYTES, 16 << 20):
            live.keeper.populate(begin, 16 << 20)
        path = next((live.path / "commitlog").iterdir())
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as memory:
            assert memory[:: mmap.PAGESIZE] == bytes(FILE_BYTES // mmap.PAGESIZE)
            large, pieces = pages_in_large_pieces(memory, path)
        assert large == 0
        assert not (flush_sync and pieces), "a flush of one record would write a whole piece"


def test_making_pages_present_changes_no_byte_and_keeps_no_file_open() -> None:
    with LiveStore(file_bytes=FILE_BYTES) as live:
        live.topic()
        producer = live.producer()
        stored = [producer.append("orders", BODY, queue_id=0) for _ in range(40)]
        path = next((live.path / "commitlog").iterdir())
        live.keeper.populate(0, 1)  # the file is mapped
        before, is_open = path.read_bytes(), open_below(live.path)
        live.keeper.populate(0, FILE_BYTES)
        live.keeper.populate((33 << 20) + 5, 1000)
        assert path.read_bytes() == before and open_below(live.path) == is_open
        assert [live.store.message_at(position).verify() for _, position, *_ in stored] == [True] * len(stored)
        assert resident_bytes(live.path) >= FILE_BYTES, "who asked finds the pages in its page table too"


def test_pages_are_made_through_the_mapping_where_the_file_cannot_be_opened_again() -> None:
    with LiveStore(file_bytes=FILE_BYTES) as live:
        path = next((live.path / "commitlog").iterdir())
        live.keeper.populate(0, 1)
        path.unlink()
        live.keeper.populate(0, FILE_BYTES)
        assert resident_bytes(live.path) >= FILE_BYTES
