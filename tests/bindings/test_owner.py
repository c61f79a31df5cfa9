"""What an owner word may become, and by whom: the rules at the head of bindings/core/segments/owner.c.

Words that no call makes at will, as of a slot that is just moving, are written into the segment by hand.
"""

from __future__ import annotations

import mmap
import os
import struct
from collections.abc import Iterator

import pytest

from shmq.bindings import _core
from tests.bindings.live_store import LiveStore, raises_status

MOVING = (1 << 64) - 1
LOCK = 1 << 31
LIFE_MS = 60_000
UNTIL_MS_MAX = (1 << 38) - 129
HOLDER_MAX = LOCK - 1
OFFSET_MAX = (1 << 63) - 2
PLACE_AT, OWNER_AT, TAKEN_AT = 8, 16, 32  # struct shmq_offset
ENTRY_BYTES = 48


class Bed:
    """A group's offset slot of one queue, and its words."""

    def __init__(self, live: LiveStore) -> None:
        self.live = live
        for number in range(3):  # so that the words of the place are no others'
            group = live.tables.group_put(f"g{number}")
        self.queue = live.topic(queues=3)[2]
        self.group = group
        self.slot = live.tables.offset_put(group, self.queue)
        self.words = mmap.mmap(live.descriptors[2], 0)
        place = struct.pack("=QQ", 0, group << 32 | self.queue)
        at = self.words.find(place)
        assert at >= 0 and self.words.find(place, at + 1) < 0
        self._at = at

    def word(self, at: int = OWNER_AT) -> int:
        return int(struct.unpack_from("=Q", self.words, self._at + at)[0])

    def put(self, word: int, at: int = OWNER_AT) -> None:
        struct.pack_into("=Q", self.words, self._at + at, word)

    def move(self, part: str) -> int:
        """Let the slot become that of the entry's next queue, or group; return the slot of the former one."""
        lives = self.live.store.head[f"{part}_mask"] + 1
        self.put(self.slot + (lives if part == "queue" else lives << 32), PLACE_AT)
        return self.slot


@pytest.fixture
def bed() -> Iterator[Bed]:
    with LiveStore() as live:
        made = Bed(live)
        yield made
        made.words.close()


@pytest.fixture(params=["queue", "group"])
def moved(request: pytest.FixtureRequest) -> str:
    """What another has the entry of by now."""
    return str(request.param)


def own_word(live: LiveStore, slot: int) -> int:
    return live.tables.client_generation(slot) << 32 | (slot + 1)


def dead_word(live: LiveStore) -> int:
    """The word of a client whose slot was taken back."""
    slot = live.tables.client_put(os.getpid(), _core.process_start(os.getpid()), 1)
    word = own_word(live, slot)
    live.tables.client_drop(slot)
    return word


def test_an_owner_word_is_the_slot_and_the_generation_that_were_handed_out(bed: Bed) -> None:
    mine = bed.live.use_client()
    assert bed.live.store.offset_take(bed.slot)
    assert bed.word() == own_word(bed.live, mine)


# ---- show --------------------------------------------------------------------------------------------
def test_showing_takes_no_queue_from_a_living_member(bed: Bed) -> None:
    mine = bed.live.use_client()
    assert bed.live.store.offset_take(bed.slot)
    bed.live.tables.offset_show(bed.slot, 5)
    assert bed.word() == own_word(bed.live, mine) and bed.word(TAKEN_AT) == 0


def test_showing_frees_the_queue_of_a_dead_member(bed: Bed) -> None:
    bed.put(dead_word(bed.live))
    bed.live.tables.offset_show(bed.slot, 5)
    assert (bed.word(), bed.word(TAKEN_AT)) == (0, 5)


@pytest.mark.parametrize("word", [LOCK | 7 | 99 << 32, MOVING, 0])
def test_showing_leaves_a_word_that_is_no_members(bed: Bed, word: int) -> None:
    bed.put(word)
    bed.live.tables.offset_show(bed.slot, 5)
    assert bed.word() == word


# ---- the place ---------------------------------------------------------------------------------------
def test_leaving_a_queue_leaves_the_next_place_of_its_slot(bed: Bed, moved: str) -> None:
    mine = bed.live.use_client()
    former = bed.move(moved)
    bed.put(own_word(bed.live, mine))
    bed.put(4, TAKEN_AT)
    bed.live.store.offset_leave(former)
    assert (bed.word(), bed.word(TAKEN_AT)) == (own_word(bed.live, mine), 4)


def test_freeing_a_queue_frees_not_the_next_place_of_its_slot(bed: Bed, moved: str) -> None:
    mine = bed.live.use_client()
    former = bed.move(moved)
    bed.put(own_word(bed.live, mine))
    bed.put(4, TAKEN_AT)
    bed.live.tables.offset_free(former)
    assert (bed.word(), bed.word(TAKEN_AT)) == (own_word(bed.live, mine), 4)


def test_who_owns_the_next_place_of_a_slot_has_not_taken_the_one_before(bed: Bed, moved: str) -> None:
    mine = bed.live.use_client()
    assert bed.live.store.offset_take(bed.slot)
    former = bed.move(moved)
    assert not bed.live.store.offset_take(former) and not bed.live.store.offset_is_own(former)
    assert bed.word() == own_word(bed.live, mine)


def test_nothing_is_taken_for_a_place_that_is_no_more(bed: Bed, moved: str) -> None:
    bed.live.use_client()
    former = bed.move(moved)
    assert not bed.live.store.offset_take(former)
    assert not bed.live.tables.offset_lock(former, 7, 1000, LIFE_MS)
    assert bed.word() == 0 and bed.live.store.offset_owner(former) == -1


def test_nothing_is_shown_unlocked_or_committed_for_a_place_that_is_no_more(bed: Bed, moved: str) -> None:
    former = bed.move(moved)
    bed.put(LOCK | 7 | 1 << 50)
    bed.live.tables.offset_show(former, 5)
    bed.live.tables.offset_unlock(former, 7)
    bed.live.store.offset_set(former, 5)
    assert (bed.word(), bed.word(TAKEN_AT), bed.word(0)) == (LOCK | 7 | 1 << 50, 0, 0)


def test_a_member_of_a_deleted_group_takes_no_queue_of_the_group_that_has_its_entry() -> None:
    with LiveStore(group_max=1) as live:
        (queue, *_) = live.topic()
        live.use_client()
        former = live.tables.offset_put(live.tables.group_put("former"), queue)
        reader = _core.Reader(live.store)
        reader.assign("orders", queue, 0, 0, former)
        live.producer().send("orders", b"x", queue_id=0)
        (message,) = reader.poll()
        live.tables.group_delete("former")
        assert live.store.offset_take(former), "no other group has the entry yet"
        slot = live.tables.offset_put(live.tables.group_put("next"), queue)
        assert slot != former and live.store.offset_owner(slot) == -1
        assert not live.store.offset_take(former) and not live.store.offset_is_own(former)
        live.store.offset_set(former, 5)
        message.ack()
        assert live.store.offset_get(slot) == live.store.offset_get(former) == -1
        assert live.store.offset_take(slot) and not live.store.offset_is_own(former)
        live.store.offset_leave(former)
        assert live.store.offset_is_own(slot)
        reader.close()


# ---- moving ------------------------------------------------------------------------------------------
def test_a_slot_that_is_moving_is_no_ones_to_take_lock_or_free(bed: Bed) -> None:
    bed.live.use_client()
    bed.put(MOVING)
    assert not bed.live.store.offset_take(bed.slot)
    for holder in (7, HOLDER_MAX):  # the last one's bits are those of MOVING
        assert not bed.live.tables.offset_lock(bed.slot, holder, 1000, LIFE_MS)
    bed.live.tables.offset_free(bed.slot)
    bed.live.store.offset_leave(bed.slot)
    bed.live.tables.offset_unlock(bed.slot, HOLDER_MAX)
    assert bed.word() == MOVING


# ---- locks -------------------------------------------------------------------------------------------
def test_the_longest_lock_of_the_highest_holder_is_no_moving_slot(bed: Bed) -> None:
    assert bed.live.tables.offset_lock(bed.slot, HOLDER_MAX, UNTIL_MS_MAX - LIFE_MS, LIFE_MS)
    assert bed.word() == MOVING - (1 << 32)
    assert not bed.live.tables.offset_lock(bed.slot, 7, UNTIL_MS_MAX - LIFE_MS, LIFE_MS)
    bed.live.tables.offset_unlock(bed.slot, HOLDER_MAX)
    assert bed.word() == 0


@pytest.mark.parametrize(
    ("holder", "now_ms", "life_ms"),
    [
        (HOLDER_MAX + 1, 1000, LIFE_MS),  # cut to 31 bits, it would be holder 0
        ((1 << 32) + 7, 1000, LIFE_MS),
        (-1, 1000, LIFE_MS),
        (7, UNTIL_MS_MAX - LIFE_MS + 1, LIFE_MS),
        (7, UNTIL_MS_MAX + 1, 0),
        (7, 1000, (1 << 64) - 1000),  # the sum is 0
        (7, (1 << 64) - 1, 1),
        (7, -1, LIFE_MS),
        (7, 1000, 1 << 64),
    ],
)
def test_a_lock_that_fits_into_no_word_is_refused(bed: Bed, holder: int, now_ms: int, life_ms: int) -> None:
    with raises_status(_core.BAD_ARGUMENT, "of a lock"):
        bed.live.tables.offset_lock(bed.slot, holder, now_ms, life_ms)
    assert bed.word() == 0


@pytest.mark.parametrize("holder", [LOCK | 7, (1 << 32) + 7, -1])
def test_a_holder_that_cannot_be_ends_no_lock(bed: Bed, holder: int) -> None:
    assert bed.live.tables.offset_lock(bed.slot, 7, 1000, LIFE_MS)
    with raises_status(_core.BAD_ARGUMENT, f"the holder of a lock is {holder}; it must be 0 to {HOLDER_MAX}"):
        bed.live.tables.offset_unlock(bed.slot, holder)
    assert bed.word() & (LOCK | HOLDER_MAX) == LOCK | 7


def test_a_lock_takes_as_many_numbers_as_it_says(bed: Bed) -> None:
    with pytest.raises(TypeError, match=r"offset_lock\(\) takes .* \(3 given\)"):
        bed.live.tables.offset_lock(bed.slot, 7, 1000)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match=r"offset_unlock\(\) takes .* \(1 given\)"):
        bed.live.tables.offset_unlock(bed.slot)  # type: ignore[call-arg]
    assert bed.word() == 0


# ---- offsets -----------------------------------------------------------------------------------------
@pytest.mark.parametrize("offset", [-1, OFFSET_MAX + 1, 1 << 64])
def test_an_offset_that_cannot_be_is_refused_and_forgets_nothing(bed: Bed, offset: int) -> None:
    bed.live.store.offset_set(bed.slot, 5)
    with raises_status(_core.BAD_ARGUMENT, f"is {offset}; it must be 0 to {OFFSET_MAX}"):
        bed.live.store.offset_set(bed.slot, offset)
    assert bed.live.store.offset_get(bed.slot) == 5
    bed.live.store.offset_set(bed.slot, OFFSET_MAX)
    assert bed.live.store.offset_get(bed.slot) == OFFSET_MAX


@pytest.mark.parametrize(("count", "seconds"), [(-1, 1), (1 << 64, 1), (1, -1), (1, 1 << 64)])
def test_a_loss_that_cannot_be_is_not_counted(bed: Bed, count: int, seconds: int) -> None:
    with raises_status(_core.BAD_ARGUMENT, "it must be 0 to"):
        bed.live.keeper.offset_lose(bed.slot, count, seconds)
    assert bed.live.store.offsets_lost() == []


def test_a_loss_is_counted_up_to_what_its_word_holds(bed: Bed) -> None:
    most = (1 << 32) - 1
    bed.live.keeper.offset_lose(bed.slot, 3, 1 << 32)
    assert bed.live.store.offsets_lost() == [(bed.group, bed.queue, 3, most)]
    bed.live.keeper.offset_lose(bed.slot, 1 << 63, 5)
    assert bed.live.store.offsets_lost() == [(bed.group, bed.queue, most, 5)]


@pytest.mark.parametrize("offset", [-1, 1 << 63])
def test_what_cannot_have_been_handed_out_is_not_shown(bed: Bed, offset: int) -> None:
    with raises_status(_core.BAD_ARGUMENT, "it must be 0 to"):
        bed.live.tables.offset_show(bed.slot, offset)
    assert bed.word(TAKEN_AT) == 0
