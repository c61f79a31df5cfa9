"""What a member does about what the store says; the simulation has all the rest."""

from __future__ import annotations

from shmq.daemon.ha.election.coordination import (
    Answer,
    Commit,
    Grant,
    LeaderKey,
    Lease,
    Outcome,
    Request,
    Revoke,
    StateKey,
    View,
)
from shmq.daemon.ha.election.effects import Ask, Effect, Finished, Follow, Position, Rest
from shmq.daemon.ha.election.member import Member, Role
from shmq.daemon.ha.election.policy import HAND_OVER_MS, LEASE_MS, RESIGN_MS, Identity, Policy

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


class Leading:
    """A member that leads at 0 ms, with lease 5, and a store that answers what it is asked to.

    Attributes:
        effects: everything that the member wanted since it leads.
    """

    def __init__(self, in_sync: set[str]) -> None:
        self.member = Member(Identity("me", HERE), Policy(True, 1), 0, 0, is_empty=False)
        self.effects: list[Effect] = []
        self.now = 0
        self.member.seen(View(1, None, None), 0)
        self._answer(Grant, Lease(5, LEASE_MS))
        leader, state = LeaderKey("me", HERE, 5, 2), StateKey(1, frozenset({"me"}), "", "first", 2)
        self._answer(Commit, Outcome(True, View(2, leader, state)))
        assert self.member.role is Role.LEADING
        self.member.seen(View(3, leader, StateKey(1, frozenset(in_sync), "", "first", 3)), 0)
        self.member.take()

    def _answer(self, kind: type[Request], answer: Answer) -> None:
        [number] = [each.number for each in self.take() if isinstance(each, Ask) and isinstance(each.request, kind)][:1]
        self.member.answered(number, answer, self.now)

    def take(self) -> list[Effect]:
        taken = self.member.take()
        self.effects += taken
        return taken

    def pass_ms(self, ms: int) -> None:
        for _ in range(0, ms, 100):
            self.now += 100
            self.member.tick(self.now)
            self.take()

    def answer_revoke(self) -> None:
        asked = self.effects[self.resigned_at or 0]
        assert isinstance(asked, Ask)
        self.member.answered(asked.number, Lease(5, 0), self.now)
        self.take()

    @property
    def resigned_at(self) -> int | None:
        asks = [(k, each.request) for k, each in enumerate(self.effects) if isinstance(each, Ask)]
        asked = [k for k, request in asks if isinstance(request, Revoke)]
        return asked[0] if asked else None


def test_a_leader_that_stops_and_has_no_successor_gives_its_lease_back() -> None:
    leading = Leading({"me", "away"})
    leading.member.stop(0)
    leading.take()
    rests = [k for k, each in enumerate(leading.effects) if isinstance(each, Rest)]
    assert leading.resigned_at is not None and rests[0] < leading.resigned_at, "what is appended ends first"
    assert Finished() not in leading.effects
    leading.answer_revoke()
    assert Finished() in leading.effects


def test_a_leader_that_stops_and_is_not_relieved_in_time_gives_its_lease_back() -> None:
    leading = Leading({"me", "slow"})
    leading.member.log(100, 0, 0)
    leading.member.heard("slow", Position(1, 50, 50), 0)  # and never more
    leading.member.stop(0)
    leading.pass_ms(RESIGN_MS - 100)
    assert leading.now > HAND_OVER_MS and leading.resigned_at is None
    leading.pass_ms(100)
    leading.answer_revoke()
    assert leading.effects[-1] == Finished()
    assert leading.member.role is Role.FINISHED


def test_a_leader_that_stops_tries_again_to_hand_over() -> None:
    leading = Leading({"me", "slow"})
    leading.member.log(50, 0, 0)
    leading.member.heard("slow", Position(1, 50, 50), 0)
    leading.member.log(100, 0, 0)
    leading.member.stop(0)
    leading.pass_ms(HAND_OVER_MS + 200)
    leading.member.log(100, 0, leading.now)
    leading.member.heard("slow", Position(1, 100, 100), leading.now)
    leading.take()
    requests = [each.request for each in leading.effects if isinstance(each, Ask)]
    assert any(each.transaction.is_leader_deleted for each in requests if isinstance(each, Commit))
    assert leading.resigned_at is None
