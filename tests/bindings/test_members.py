"""A process acts under the client slot it was given, and under no other life of it.

A connection ends, the broker takes the slot back and gives it to another process; the first has not noticed yet.
Nothing that it does under its slot may concern the one that has the slot by now.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from dataclasses import dataclass

import posix_ipc
import pytest

from shmq.bindings import _core
from shmq.errors import BrokerNotRunning
from tests.bindings.live_store import LiveStore, raises_status, until


@dataclass
class Pair:
    """Two handles with one client slot: `old` was given it first, `new` has it now."""

    live: LiveStore
    old: _core.Store
    new: _core.Store
    queue: int
    slot: int  # of the group's offset
    client_slot: int

    def client(self) -> dict[str, int]:
        """What is shown of the client slot."""
        (row,) = (row for row in self.live.figures.clients() if row[0] == self.client_slot)
        names = ("slot", "state", "pid", "start", "role", "received", "sent", "beat_ns", "settled")
        return dict(zip(names, row, strict=True))

    def use(self, store: _core.Store) -> int:
        """Hand a slot out, without its semaphore."""
        slot = self.live.tables.client_put(os.getpid(), _core.process_start(os.getpid()), 3)
        store.use_client(slot, self.live.tables.client_generation(slot))
        return slot


@pytest.fixture
def pair() -> Iterator[Pair]:
    with LiveStore() as live:
        (queue, *_) = live.topic()
        slot = live.tables.offset_put(live.tables.group_put("g"), queue)
        for number in range(9):
            live.producer().send("orders", b"%d" % number, queue_id=0)
        old, new = live.attach(writable=True), live.attach(writable=True)
        client_slot = live.use_client(old)
        made = Pair(live, old, new, queue, slot, client_slot)
        yield made


def lose(pair: Pair) -> None:
    """Take the slot of `old` back, and give it to `new`."""
    pair.live.tables.client_drop(pair.client_slot)
    assert pair.use(pair.new) == pair.client_slot


def reader_of(pair: Pair, store: _core.Store, offset: int = 0) -> _core.Reader:
    reader = _core.Reader(store)
    reader.assign("orders", pair.queue, 0, offset, pair.slot)
    return reader


def taken(pair: Pair) -> int:
    return pair.live.taken_word(pair.slot) & ~(1 << 63)


# ---- owner words -------------------------------------------------------------------------------------
def test_a_slot_that_is_anothers_by_now_takes_no_free_queue(pair: Pair) -> None:
    lose(pair)
    with raises_status(_core.DETACHED, f"client slot {pair.client_slot} back"):
        pair.old.offset_take(pair.slot)
    assert pair.live.store.offset_owner(pair.slot) == -1
    assert pair.new.offset_take(pair.slot)


def test_a_slot_that_was_taken_back_takes_no_queue_although_it_is_no_ones_yet(pair: Pair) -> None:
    pair.live.tables.client_drop(pair.client_slot)
    with raises_status(_core.DETACHED):
        pair.old.offset_take(pair.slot)
    assert not pair.old.offset_is_own(pair.slot)


def test_the_queue_of_the_one_that_has_the_slot_now_is_not_the_others(pair: Pair) -> None:
    assert pair.old.offset_take(pair.slot) and pair.old.offset_is_own(pair.slot)
    lose(pair)
    assert not pair.old.offset_is_own(pair.slot)
    assert pair.new.offset_take(pair.slot) and pair.new.offset_is_own(pair.slot)
    assert not pair.old.offset_is_own(pair.slot)
    assert pair.live.store.offset_owner(pair.slot) == pair.client_slot
    with raises_status(_core.DETACHED):
        pair.old.offset_take(pair.slot)


def test_who_lost_its_slot_leaves_nothing_of_the_one_that_has_it(pair: Pair) -> None:
    lose(pair)
    assert pair.new.offset_take(pair.slot)
    pair.old.offset_leave(pair.slot)
    assert pair.new.offset_is_own(pair.slot)


def test_a_lock_over_tcp_excludes_the_living_owner_and_not_the_one_that_lost_its_slot(pair: Pair) -> None:
    assert pair.old.offset_take(pair.slot)
    lose(pair)
    assert pair.live.tables.offset_lock(pair.slot, 7, 1 << 37, 1000)
    assert not pair.new.offset_take(pair.slot)
    with raises_status(_core.DETACHED):
        pair.old.offset_take(pair.slot)
    pair.old.offset_leave(pair.slot)
    assert not pair.live.tables.offset_lock(pair.slot, 8, 1 << 37, 1000), "the lock holds on"


def test_acknowledging_without_a_slot_moves_no_offset_and_shows_nothing(pair: Pair) -> None:
    assert pair.old.offset_take(pair.slot)
    old = reader_of(pair, pair.old)
    first, second, *_ = old.poll(5)
    first.ack()
    assert (pair.live.store.offset_get(pair.slot), taken(pair)) == (1, 5)
    lose(pair)
    second.ack()
    assert pair.live.store.offset_get(pair.slot) == 1
    assert pair.new.offset_take(pair.slot)
    new = reader_of(pair, pair.new, 1)
    (again,) = new.poll(1)
    assert (again.offset, taken(pair)) == (1, 2)
    old.seek(pair.queue, 7)
    for late in old.poll(2):
        late.ack()
    assert (pair.live.store.offset_get(pair.slot), taken(pair)) == (1, 2)
    again.ack()
    assert pair.live.store.offset_get(pair.slot) == 2


def test_a_new_slot_makes_a_member_of_it_again(pair: Pair) -> None:
    assert pair.old.offset_take(pair.slot)
    reader = reader_of(pair, pair.old)
    (message,) = reader.poll(1)
    lose(pair)
    assert pair.use(pair.old) != pair.client_slot
    assert not pair.old.offset_is_own(pair.slot) and pair.old.offset_take(pair.slot)
    message.ack()
    assert pair.live.store.offset_get(pair.slot) == 1
    assert not pair.new.offset_take(pair.slot)


def test_what_is_refused_is_an_error_to_try_again(pair: Pair) -> None:
    from shmq.shm.core import public_error  # what applications see

    lose(pair)
    with pytest.raises(_core.CoreError) as caught:
        pair.old.offset_take(pair.slot)
    public = public_error(*caught.value.args[:2])
    assert isinstance(public, BrokerNotRunning) and public.retryable and public.hint


# ---- what is counted, and waiting --------------------------------------------------------------------
def test_nothing_is_counted_for_the_one_that_has_the_slot_now(pair: Pair) -> None:
    reader = _core.Reader(pair.old)
    reader.assign("orders", pair.queue, 0, 0)
    pair.live.producer(pair.old).send("orders", b"x")
    (message,) = reader.poll(1)
    message.ack()
    counts = pair.client()
    assert (counts["received"], counts["sent"], counts["settled"]) == (1, 1, 1) and counts["beat_ns"] > 0
    lose(pair)
    before = pair.client()
    pair.live.producer(pair.old).send("orders", b"x")
    for message in reader.poll(100):
        message.ack()
    assert pair.client() == before
    assert (before["received"], before["sent"], before["settled"]) == (0, 0, 0)


def asleep(pair: Pair) -> bool:
    return pair.client()["state"] == 2


class Waiting:
    """A thread that waits for the next message of the queue."""

    def __init__(self, pair: Pair, store: _core.Store) -> None:
        self.reader = _core.Reader(store, spin_us=0, slice=30.0)
        self.reader.assign("orders", pair.queue, 0, pair.live.store.queue(pair.queue).offset_max)
        self.bodies: list[bytes] = []
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        self.bodies += [message.body for message in self.reader.poll(1, timeout=60.0)]

    def end(self) -> list[bytes]:
        """Wait for the end of the thread; return what it got."""
        self._thread.join(60)
        assert not self._thread.is_alive()
        return self.bodies


def test_who_slept_in_a_slot_leaves_the_sleep_of_the_next_one_alone(pair: Pair) -> None:
    old = Waiting(pair, pair.old)
    until(lambda: asleep(pair))
    lose(pair)
    new = Waiting(pair, pair.new)
    until(lambda: asleep(pair))
    old.reader.stop()
    assert old.end() == [] and asleep(pair)
    pair.live.producer().send("orders", b"news", queue_id=0)
    assert new.end() == [b"news"]


def test_who_slept_in_a_slot_that_is_anothers_now_hears_the_news_as_well(pair: Pair) -> None:
    old = Waiting(pair, pair.old)
    until(lambda: asleep(pair))
    lose(pair)
    new = Waiting(pair, pair.new)
    until(lambda: asleep(pair))
    pair.live.producer().send("orders", b"news", queue_id=0)
    assert old.end() == new.end() == [b"news"]


def test_a_post_for_the_one_that_has_the_slot_now_is_passed_on(pair: Pair) -> None:
    old = Waiting(pair, pair.old)
    until(lambda: asleep(pair))
    lose(pair)
    head = pair.live.store.head
    semaphore = posix_ipc.Semaphore(f"/shmq.{head['broker_name']}.{head['generation']:016x}.w{pair.client_slot}")
    try:
        old.reader.stop()
        semaphore.release()  # a writer's, for `new`
        assert old.end() == []
        semaphore.acquire(0)
    finally:
        semaphore.close()


def test_a_slot_that_was_taken_back_stays_free_while_a_reader_waits_with_it(pair: Pair) -> None:
    pair.live.tables.client_drop(pair.client_slot)
    reader = _core.Reader(pair.old, spin_us=0)
    reader.assign("orders", pair.queue, 0, 9)
    assert reader.poll(1, timeout=0.01) == []
    assert [row[0] for row in pair.live.figures.clients()] == []
    assert pair.use(pair.new) == pair.client_slot


def test_a_sleeper_without_a_slot_goes_on_in_the_one_it_is_given(pair: Pair) -> None:
    pair.live.tables.client_drop(pair.client_slot)
    old = Waiting(pair, pair.old)
    generation = pair.live.tables.client_generation(pair.client_slot)
    mine = pair.use(pair.old)
    assert mine == pair.client_slot and pair.live.tables.client_generation(mine) == generation + 1
    until(lambda: asleep(pair))
    pair.live.producer().send("orders", b"news", queue_id=0)
    assert old.end() == [b"news"]


# ---- arguments ---------------------------------------------------------------------------------------
@pytest.mark.parametrize(("slot", "generation"), [(-1, 1), (8, 1), (0, -1), (0, 1 << 32), (0, 1 << 70)])
def test_a_slot_or_a_generation_that_cannot_be_is_refused(pair: Pair, slot: int, generation: int) -> None:
    with pytest.raises((OverflowError, _core.CoreError)):
        pair.old.use_client(slot, generation)
    assert pair.old.client_slot == pair.client_slot


def test_a_generation_that_has_not_begun_is_no_life_of_ours(pair: Pair) -> None:
    pair.old.use_client(pair.client_slot, pair.live.tables.client_generation(pair.client_slot) + 1)
    with raises_status(_core.DETACHED):
        pair.old.offset_take(pair.slot)


@pytest.mark.parametrize(
    ("pid", "start", "role"), [(-1, 1, 3), (1 << 31, 1, 3), (1, -1, 3), (1, 1, 1 << 32), (1, 1, -1)]
)
def test_a_client_that_cannot_be_is_given_no_slot(pair: Pair, pid: int, start: int, role: int) -> None:
    before = len(pair.live.figures.clients())
    with raises_status(_core.BAD_ARGUMENT, "it must be 0 to"):
        pair.live.tables.client_put(pid, start, role)
    assert len(pair.live.figures.clients()) == before
