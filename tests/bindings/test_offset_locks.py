"""One word says who reads a queue: a local member, or a client over TCP that locked it for a while."""

from __future__ import annotations

import time

import pytest

from shmq.bindings import _core
from tests.bindings.live_store import LiveStore

A, B = 1, (1 << 31) - 1
LIFE_MS = 60_000


def now_ms() -> int:
    return time.monotonic_ns() // 1_000_000


@pytest.mark.parametrize("holder", [0, A, B])
def test_a_lock_has_one_holder_who_may_renew_and_end_it(holder: int) -> None:
    with LiveStore() as live:
        slot = live.tables.offset_put(live.tables.group_put("g"), live.topic()[0])
        others = _core.BrokerTables(live.attach(writable=True))
        assert live.tables.offset_lock(slot, holder, 1000, LIFE_MS)
        assert not others.offset_lock(slot, 77, 1000, LIFE_MS)
        assert others.offset_lock(slot, holder, 30_000, LIFE_MS), "the holder renews, over any store"
        assert not live.tables.offset_lock(slot, 77, 30_000 + LIFE_MS, LIFE_MS)
        others.offset_unlock(slot, 77)
        assert not others.offset_lock(slot, 77, 30_000, LIFE_MS)
        others.offset_unlock(slot, holder)
        assert others.offset_lock(slot, 77, 30_000, LIFE_MS)


def test_a_lock_ends_by_its_age_and_never_before() -> None:
    with LiveStore() as live:
        slot = live.tables.offset_put(live.tables.group_put("g"), live.topic()[0])
        for begin in (0, 1, 63, 64, 65, 10**11 + 63):
            live.tables.offset_free(slot)
            assert live.tables.offset_lock(slot, A, begin, LIFE_MS)
            assert not live.tables.offset_lock(slot, B, begin + LIFE_MS, LIFE_MS)
            assert live.tables.offset_lock(slot, B, begin + LIFE_MS + 128, LIFE_MS)


def test_a_local_member_and_a_lock_exclude_each_other() -> None:
    with LiveStore() as live:
        slot = live.tables.offset_put(live.tables.group_put("g"), live.topic()[0])
        mine = live.use_client()
        assert live.tables.offset_lock(slot, A, now_ms(), LIFE_MS)
        assert live.store.offset_owner(slot) == -1, "no client slot"
        assert not live.store.offset_take(slot)
        live.store.offset_leave(slot)
        assert not live.store.offset_take(slot), "leaving what is not ours changes nothing"
        live.tables.offset_unlock(slot, A)
        assert live.store.offset_take(slot)
        assert not live.tables.offset_lock(slot, A, now_ms(), LIFE_MS)
        live.tables.offset_unlock(slot, A)
        assert live.store.offset_owner(slot) == mine
        live.tables.client_drop(mine)
        assert live.tables.offset_lock(slot, A, now_ms(), LIFE_MS), "the dead lose it"


def test_a_lock_whose_time_is_over_keeps_no_local_member_away() -> None:
    with LiveStore() as live:
        slot = live.tables.offset_put(live.tables.group_put("g"), live.topic()[0])
        live.use_client()
        assert live.tables.offset_lock(slot, A, now_ms() - LIFE_MS - 1000, LIFE_MS)
        assert live.store.offset_take(slot)


def test_a_deleted_group_has_no_locks() -> None:
    with LiveStore() as live:
        queue = live.topic()[0]
        slot = live.tables.offset_put(live.tables.group_put("g"), queue)
        assert live.tables.offset_lock(slot, A, 1000, LIFE_MS)
        live.tables.group_delete("g")
        assert live.tables.offset_lock(live.tables.offset_put(live.tables.group_put("g"), queue), B, 1000, LIFE_MS)
