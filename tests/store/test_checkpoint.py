"""RocketMQ's checkpoint: five big-endian longs at the beginning of 4096 bytes."""

import struct
import threading
from dataclasses import replace
from pathlib import Path

from shmq.shm.access import Access
from shmq.store.checkpoint import (
    Checkpoint,
    believed_checkpoint,
    change_checkpoint,
    checkpoint_fault,
    read_checkpoint,
    write_checkpoint,
)
from shmq.store.layout import StoreLayout


def test_the_file_is_what_a_stock_broker_reads(tmp_path: Path) -> None:
    layout = StoreLayout(tmp_path, Access(-1))
    write_checkpoint(layout, Checkpoint(1, 2, 3, 4, 5))
    content = layout.checkpoint.read_bytes()
    assert len(content) == 4096 and content[:256] == struct.pack(">qqqqq", 1, 2, 3, 4, 5) + bytes(256 - 40)
    assert read_checkpoint(layout) == Checkpoint(1, 2, 3, 4, 5)


def test_every_flipped_bit_is_noticed_and_what_we_wrote_is_believed(tmp_path: Path) -> None:
    layout = StoreLayout(tmp_path, Access(-1))
    written = Checkpoint(1_700_000_000_000, 1_700_000_000_001, 1_699_999_999_999, 4096, 4096)
    write_checkpoint(layout, written)
    whole = layout.checkpoint.read_bytes()
    assert checkpoint_fault(layout, has_grown=False) == ""
    for bit in [*range(8 * 40), *range(8 * 256, 8 * 308)]:
        content = bytearray(whole)
        content[bit // 8] ^= 1 << bit % 8
        layout.checkpoint.write_bytes(content)
        assert checkpoint_fault(layout, has_grown=False)
        assert believed_checkpoint(layout, has_grown=False) in (written, Checkpoint())
    layout.checkpoint.write_bytes(bytes(4096))
    assert checkpoint_fault(layout, has_grown=True) == "it is empty"


def test_times_that_a_stock_broker_moved_forward_are_no_damage(tmp_path: Path) -> None:
    layout = StoreLayout(tmp_path, Access(-1))
    write_checkpoint(layout, Checkpoint(1000, 2000, 3000, 4096, 4096))
    content = bytearray(layout.checkpoint.read_bytes())
    content[:24] = struct.pack(">qqq", 5000, 5000, 5000)
    layout.checkpoint.write_bytes(content)
    assert checkpoint_fault(layout, has_grown=True) == ""
    assert checkpoint_fault(layout, has_grown=False)
    assert believed_checkpoint(layout, has_grown=True).physic_ms == 5000


def test_changes_of_two_threads_that_meet_are_both_kept(tmp_path: Path) -> None:
    layout = StoreLayout(tmp_path, Access(-1))
    other = threading.Thread(target=change_checkpoint, args=(layout, lambda known: replace(known, index_ms=3)))

    def change(known: Checkpoint) -> Checkpoint:
        other.start()
        other.join(0.2)  # it ends here only where nothing holds it back
        return replace(known, flushed=4096)

    change_checkpoint(layout, change)
    other.join()
    assert read_checkpoint(layout) == Checkpoint(index_ms=3, flushed=4096)


def test_a_missing_or_short_file_says_nothing(tmp_path: Path) -> None:
    layout = StoreLayout(tmp_path, Access(-1))
    assert read_checkpoint(layout) == Checkpoint()
    layout.checkpoint.write_bytes(b"\0" * 39)
    assert read_checkpoint(layout) == Checkpoint()
