"""What a member does about what the store says; the simulation has all the rest."""

from __future__ import annotations

from shmq.daemon.ha.election.coordination import LeaderKey, StateKey, View
from shmq.daemon.ha.election.effects import Follow
from shmq.daemon.ha.election.member import Member, Role
from shmq.daemon.ha.election.policy import Identity, Policy

HERE = "10.0.0.4:10911/10.0.0.4:10912"
THERE = "10.0.0.5:10911/10.0.0.5:10912"


def member_that_sees(leader_address: str) -> Member:
    """A member with a new store, and what it has done when another store led from there."""
    member = Member(Identity("new", HERE), Policy(True, 1), 0, 0, is_empty=True)
    state = StateKey(3, frozenset({"old"}), "", "elected", 7)
    member.seen(View(7, LeaderKey("old", leader_address, 1, 7), state), 0)
    return member


def test_a_leader_elsewhere_is_followed() -> None:
    member = member_that_sees(THERE)
    assert member.role is Role.FOLLOWING
    assert Follow("old", THERE, 3) in member.take()


def test_a_broker_whose_store_was_replaced_does_not_follow_itself() -> None:
    member = member_that_sees(HERE)
    assert member.role is Role.WAITING
    assert not any(isinstance(effect, Follow) for effect in member.take())
    assert "store old led from this broker's address" in member.status(0).reason
