"""Which members a leader wants in sync, on a clock that stands."""

from __future__ import annotations

import pytest

from shmq.daemon.ha.election.coordination import StateKey
from shmq.daemon.ha.election.members import MemberSet
from shmq.daemon.ha.election.policy import KEEP_ALIVE_MS, Policy
from shmq.daemon.ha.in_sync import BEHIND_MS_MAX

LOG_END = 1000
HEARD_MS = 50_000


@pytest.fixture
def members() -> MemberSet:
    """Two in sync; the other one was heard of last at HEARD_MS, and had everything."""
    made = MemberSet("me", StateKey(1, frozenset({"me", "other"}), "", "elected", revision=7), Policy(is_sync=True))
    made.report("other", LOG_END, LOG_END, HEARD_MS)
    return made


def test_a_member_that_was_heard_of_stays(members: MemberSet) -> None:
    assert members.wanted(LOG_END, HEARD_MS + BEHIND_MS_MAX, HEARD_MS) is None


def test_a_silent_member_is_left_out_when_the_store_has_answered_since(members: MemberSet) -> None:
    kept_ms = HEARD_MS + KEEP_ALIVE_MS + 1
    assert members.wanted(LOG_END, HEARD_MS + BEHIND_MS_MAX + 1, kept_ms) == {"me"}


@pytest.mark.parametrize("later_ms", [1, 10_000])
def test_a_leader_that_hears_neither_member_nor_store_leaves_no_member_out(members: MemberSet, later_ms: int) -> None:
    """Its words may be heard: the set would say that none but this broker can be elected, and it may not append."""
    for kept_ms in (HEARD_MS - KEEP_ALIVE_MS, HEARD_MS, HEARD_MS + KEEP_ALIVE_MS):
        assert members.wanted(LOG_END, HEARD_MS + BEHIND_MS_MAX + later_ms, kept_ms) is None


def test_a_member_that_wants_to_leave_is_left_out_whatever_the_store_says(members: MemberSet) -> None:
    members.leave("other")
    assert members.wanted(LOG_END, HEARD_MS + 1, HEARD_MS - KEEP_ALIVE_MS) == {"me"}
