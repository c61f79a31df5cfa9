"""What a process has mapped of the log counts as its memory only near the end of the log."""

from pathlib import Path

from tests.bindings.live_store import LiveStore

FILE_BYTES = 64 << 20
BODY = bytes(range(256)) * 4096  # 1 MiB


def resident_bytes(path: Path) -> int:
    """How much of the files below `path` this process has in its page tables."""
    lines = iter(Path("/proc/self/smaps").read_text().splitlines())
    return sum(
        int(next(each for each in lines if each.startswith("Rss:")).split()[1]) * 1024
        for line in lines
        if str(path) in line
    )


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
