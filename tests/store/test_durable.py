"""The durable mark: a torn write costs at most the newest mark, and no position moves back."""

from pathlib import Path

import pytest

from shmq.errors import CorruptionError
from shmq.shm.access import Access
from shmq.store.durable import DurableMark, Mark
from shmq.store.layout import StoreLayout


@pytest.fixture
def layout(tmp_path: Path) -> StoreLayout:
    return StoreLayout(tmp_path, Access(-1))


def written(layout: StoreLayout, *marks: tuple[int, int]) -> None:
    mark = DurableMark(layout)
    mark.load()
    for durable_end, dispatched in marks:
        assert mark.advance(durable_end=durable_end, dispatched=dispatched)
    mark.close()


def test_a_store_without_a_mark_says_so(layout: StoreLayout) -> None:
    assert DurableMark(layout).load() is None


def test_the_newest_mark_is_read(layout: StoreLayout) -> None:
    written(layout, (100, 50), (200, 150), (300, 250))
    assert DurableMark(layout).load() == Mark(300, 250, 3)
    written(layout, (400, 250))
    assert DurableMark(layout).load() == Mark(400, 250, 4)


def test_a_mark_torn_at_any_byte_leaves_the_one_before(layout: StoreLayout) -> None:
    written(layout, (100, 50), (200, 150))
    before = layout.durable_mark.read_bytes()
    written(layout, (300, 250))
    after = layout.durable_mark.read_bytes()
    changed = [at for at in range(len(after)) if before[at] != after[at]]
    for cut in range(changed[0], changed[-1] + 1):
        layout.durable_mark.write_bytes(after[:cut] + before[cut:])
        assert DurableMark(layout).load() in (Mark(200, 150, 2), Mark(300, 250, 3))


def test_every_flipped_bit_is_noticed(layout: StoreLayout) -> None:
    written(layout, (100, 50), (200, 150))
    content = layout.durable_mark.read_bytes()
    for at in range(40):
        for bit in range(8):
            flipped = bytearray(content)
            flipped[at] ^= 1 << bit
            layout.durable_mark.write_bytes(flipped)
            assert DurableMark(layout).load() == Mark(100, 50, 1)


def test_two_unreadable_slots_are_refused_with_what_to_do(layout: StoreLayout) -> None:
    written(layout, (100, 50), (200, 150))
    layout.durable_mark.write_bytes(b"\xff" * 8192)
    with pytest.raises(CorruptionError) as caught:
        DurableMark(layout).load()
    assert "rm " in caught.value.hint


def test_a_position_never_moves_back_and_the_same_mark_is_not_written_twice(layout: StoreLayout) -> None:
    mark = DurableMark(layout)
    assert mark.advance(durable_end=200, dispatched=100)
    assert mark.advance(durable_end=100, dispatched=150)
    assert (mark.current.durable_end, mark.current.dispatched) == (200, 150)
    content = layout.durable_mark.read_bytes()
    assert not mark.advance(durable_end=200, dispatched=150)
    assert layout.durable_mark.read_bytes() == content
    mark.close()


def test_the_begin_of_the_log_outlives_either_slot_and_every_flipped_bit_of_it_is_noticed(layout: StoreLayout) -> None:
    written(layout, (100, 50))
    mark = DurableMark(layout)
    mark.load()
    assert mark.current.log_begin is None
    assert mark.advance(log_begin=64)
    assert not mark.advance(log_begin=32)
    assert mark.current == Mark(100, 50, 3, log_begin=64)
    mark.close()
    content = layout.durable_mark.read_bytes()
    for slot in (0, 4096):
        for at in range(slot, slot + 72):
            flipped = bytearray(content)
            flipped[at] ^= 1 << at % 8
            layout.durable_mark.write_bytes(flipped)
            damaged = DurableMark(layout)
            assert damaged.load() == Mark(100, 50, 2 if slot else 3, log_begin=64)
            assert damaged.damaged_slots == 1


def test_a_mark_of_a_broker_that_knows_no_begin_makes_it_unknown_and_damages_nothing(layout: StoreLayout) -> None:
    mark = DurableMark(layout)
    mark.advance(durable_end=100, log_begin=64)
    newer = layout.durable_mark.read_bytes()
    mark.advance(durable_end=200)
    mark.close()
    content = bytearray(layout.durable_mark.read_bytes())
    content[4096 + 52 : 4096 + 72] = newer[4096 + 52 : 4096 + 72]  # such a broker writes the first 52 bytes
    layout.durable_mark.write_bytes(content)
    again = DurableMark(layout)
    assert again.load() == Mark(200, 0, 3)
    assert again.damaged_slots == 0


def test_an_empty_log_that_begins_elsewhere_says_so_wherever_it_was(layout: StoreLayout) -> None:
    mark = DurableMark(layout)
    mark.advance(durable_end=500, dispatched=500, log_begin=500, config_files=3)
    for position in (700, 100):
        mark.begin_at(position)
        said = DurableMark(layout).load()
        assert said is not None
        assert said[:2] == (position, position)
        assert (said.log_begin, said.config_files) == (position, 3)
    mark.close()
