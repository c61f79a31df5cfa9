"""RocketMQ's checkpoint: five big-endian longs at the beginning of 4096 bytes."""

import struct
from pathlib import Path

from shmq.shm.access import Access
from shmq.store.checkpoint import Checkpoint, read_checkpoint, write_checkpoint
from shmq.store.layout import StoreLayout


def test_the_file_is_what_a_stock_broker_reads(tmp_path: Path) -> None:
    layout = StoreLayout(tmp_path, Access(-1))
    write_checkpoint(layout, Checkpoint(1, 2, 3, 4, 5))
    content = layout.checkpoint.read_bytes()
    assert content == struct.pack(">qqqqq", 1, 2, 3, 4, 5) + bytes(4096 - 40)
    assert read_checkpoint(layout) == Checkpoint(1, 2, 3, 4, 5)


def test_a_missing_or_short_file_says_nothing(tmp_path: Path) -> None:
    layout = StoreLayout(tmp_path, Access(-1))
    assert read_checkpoint(layout) == Checkpoint()
    layout.checkpoint.write_bytes(b"\0" * 39)
    assert read_checkpoint(layout) == Checkpoint()
