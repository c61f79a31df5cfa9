"""What a process has mapped of the log counts as its memory only near the end of the log."""

from pathlib import Path

from tests.bindings.live_store import LiveStore

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


def test_a_synchronous_flush_finds_nothing_dirty_that_nobody_has_stored() -> None:
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
