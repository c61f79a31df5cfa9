"""What a slave shows of its master, second by second."""

from __future__ import annotations

from shmq.daemon.ha.slave.master_state import STUCK_MS, MasterState
from shmq.shm.links import CONNECTING, LOST, STUCK, UP_TO_DATE


def test_a_master_that_has_never_answered_is_lost_after_some_seconds() -> None:
    state = MasterState("10.0.0.4:10912")
    assert [state.row(at).state for at in (0, 4_999, 5_000)] == [CONNECTING, CONNECTING, LOST]
    row = state.row(6_000)
    assert row.error and row.cure and row.lag_bytes is None
    state.heard(is_stock=False, now_ms=6_100)
    assert (state.row(6_200).state, state.row(6_200).error) == (UP_TO_DATE, "")


def test_what_cannot_be_stored_is_stuck_and_the_reason_stays_until_another() -> None:
    state = MasterState("10.0.0.4:10912")
    state.heard(is_stock=False, now_ms=0)
    for at in (0, STUCK_MS):
        state.waits("the disk is full", "make room", at)
    assert (state.row(STUCK_MS).state, state.row(STUCK_MS).error) == (STUCK, "the disk is full")
    state.reached(100, 100, STUCK_MS + 1)
    assert (state.row(STUCK_MS + 1).state, state.row(STUCK_MS + 1).error) == (UP_TO_DATE, "the disk is full")
    state.fails("its tables are not copied", "look there", STUCK_MS + 2)
    assert (state.row(STUCK_MS + 2).state, state.row(STUCK_MS + 2).cure) == (UP_TO_DATE, "look there")
    state.lost("refused", "ask there", STUCK_MS + 3)
    assert (state.row(STUCK_MS + 3).state, state.row(STUCK_MS + 3).error) == (LOST, "refused")


def test_a_master_lived_until_its_connection_ended() -> None:
    """An idle one says nothing for seconds; one that is about to start again is waited for from its end on."""
    state = MasterState("10.0.0.4:10912")
    assert state.lived_ms is None
    state.lost("refused", "", 1_000)
    assert state.lived_ms is None
    state.heard(is_stock=False, now_ms=2_000)
    state.lost("it closed the connection", "", 6_900)
    state.lost("refused", "", 8_000)
    assert (state.heard_ms, state.lived_ms) == (2_000, 6_900)
    state.heard(is_stock=False, now_ms=9_000)
    assert state.lived_ms == 9_000


def test_a_master_that_was_refused_stays_so_until_it_is_followed() -> None:
    state = MasterState("10.0.0.4:10912")
    assert not state.row(0).is_refused
    state.refuse()
    for reason in ("these are two logs", "connection refused"):
        state.lost(reason, "start again", 1_000)
        assert state.row(2_000).is_refused
    state.heard(is_stock=False, now_ms=3_000)
    assert not state.row(3_000).is_refused
