"""What a member does about what the store says; the simulation has all the rest."""

from __future__ import annotations

import pytest

from shmq.daemon.ha.election.coordination import (
    Answer,
    Commit,
    Grant,
    KeepAlive,
    LeaderKey,
    Lease,
    Outcome,
    Request,
    Revoke,
    StateKey,
    View,
)
from shmq.daemon.ha.election.effects import (
    Allow,
    Ask,
    Effect,
    Finished,
    Follow,
    Outbox,
    Position,
    Promise,
    PromiseWanted,
    Rest,
    Tell,
)
from shmq.daemon.ha.election.leading import Term
from shmq.daemon.ha.election.member import Member, Role
from shmq.daemon.ha.election.policy import (
    CAMPAIGN_AGAIN_MS,
    HAND_OVER_MS,
    KEEP_ALIVE_MS,
    LEASE_MS,
    PROMISE_FROM_MS,
    PROMISE_MS,
    RESIGN_MS,
    UNABLE_AGAIN_MS,
    Identity,
    Policy,
)

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


def test_a_store_whose_copy_leads_elsewhere_does_not_depose_it() -> None:
    member = Member(Identity("me", HERE), Policy(True, 1), 3, 0, is_empty=False)
    member.seen(View(7, LeaderKey("me", THERE, 1, 7), StateKey(3, frozenset({"me"}), "", "elected", 7)), 0)
    for now_ms in range(0, 20_000, 100):
        member.tick(now_ms)
    member.seen(View(8, None, StateKey(3, frozenset({"me"}), "", "elected", 7)), 20_000)
    member.tick(40_000)
    asked = [each.request for each in member.take() if isinstance(each, Ask)]
    assert not any(isinstance(request, Grant | Revoke) for request in asked), "nor when that host is gone"
    assert "shmq.identity" in member.status(0).reason


def test_a_host_whose_address_was_changed_waits_for_its_lease_of_before() -> None:
    member = Member(Identity("me", HERE), Policy(True, 1), 3, 0, is_empty=False)
    state = StateKey(3, frozenset({"me"}), "", "elected", 7)
    member.seen(View(7, LeaderKey("me", THERE, 1, 7), state), 0)
    member.tick(LEASE_MS)
    member.seen(View(8, None, state), LEASE_MS)
    asked = [each.request for each in member.take() if isinstance(each, Ask)]
    assert any(isinstance(request, Grant) for request in asked)


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
        self.member.promoted(0)
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


def test_a_leader_that_has_resigned_allows_nothing_when_the_store_answers_at_last() -> None:
    leading = Leading({"me", "away"})
    leading.pass_ms(KEEP_ALIVE_MS)
    asked = {type(each.request): each for each in leading.effects if isinstance(each, Ask)}
    leading.member.stop(leading.now)
    leading.take()
    assert leading.resigned_at is not None
    leading.member.answered(asked[KeepAlive].number, Lease(5, LEASE_MS), leading.now)
    leading.member.answered(asked[Commit].number, None, leading.now)
    assert not any(isinstance(each, Allow) for each in leading.take())


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


class Elected:
    """A member in sync that was elected, with lease 5, and whose disk then took nothing.

    Args:
        answers_lost: of campaigns before: by the first one it was elected, the others were not done.
        is_first_election: the group had no epoch.
    """

    def __init__(self, *, answers_lost: int = 0, is_first_election: bool = False) -> None:
        self.before = frozenset({"me", "old", "third"})
        epoch = 0 if is_first_election else 3
        self.member = Member(Identity("me", HERE), Policy(True, 1), epoch, -PROMISE_MS, is_empty=False)
        state = None if is_first_election else StateKey(3, self.before, "me", "handed over", 7)
        self.member.seen(View(7, None, state), 0)
        self.leader = LeaderKey("me", HERE, 5, 8)
        won: StateKey | None = None
        for number in range(answers_lost):
            asked_for = self.campaign()._replace(revision=7)
            won = won or asked_for
            self.answer(self.committing, None)
            self.answer(self.asked(Revoke), Lease(5, 0))
            self.answer(self.asked(Commit), Outcome(True, View(8, None, won)))
            self.member.tick((number + 1) * CAMPAIGN_AGAIN_MS)
        self.state = self.campaign()._replace(revision=8)
        self.answer(self.committing, Outcome(True, View(8, self.leader, self.state)))
        assert self.member.role is Role.LEADING
        self.member.unable("the disk is full", 0)
        self.giving = self.asked(Commit)

    def campaign(self) -> StateKey:
        """Grant the lease; return the state that is asked for then."""
        self.answer(self.asked(Grant), Lease(5, LEASE_MS))
        self.committing = self.asked(Commit)
        assert isinstance(self.committing.request, Commit)
        state = self.committing.request.transaction.state
        assert state is not None
        return state

    def asked(self, kind: type[Request]) -> Ask:
        self.taken = self.member.take()
        return [each for each in self.taken if isinstance(each, Ask) and isinstance(each.request, kind)][-1]

    def answer(self, ask: Ask, answer: Answer | None, now_ms: int = 0) -> None:
        self.member.answered(ask.number, answer, now_ms)

    def give(self) -> View:
        """What the store has once the place is given back."""
        assert isinstance(self.giving.request, Commit)
        transaction = self.giving.request.transaction
        assert transaction.is_leader_deleted and transaction.leader is None and transaction.state is not None
        assert (transaction.leader_revision, transaction.state_revision) == (8, 8)
        return View(9, None, transaction.state._replace(revision=9))


def test_who_cannot_begin_its_epoch_lets_those_be_elected_who_could_be_before() -> None:
    elected = Elected()
    assert elected.member.verdict() is None, "nothing is confirmed of an epoch that has not begun"
    assert all(not each.until_ms for each in elected.taken if isinstance(each, Allow))
    view = elected.give()
    assert view.state is not None and (view.state.epoch, view.state.in_sync) == (4, elected.before)
    elected.answer(elected.giving, Outcome(True, view))
    assert elected.member.role is Role.WAITING and "the disk is full" in elected.member.status(0).reason


def test_who_cannot_begin_its_epoch_tries_again_after_the_others() -> None:
    elected = Elected()
    elected.answer(elected.giving, Outcome(True, elected.give()))
    others = {
        uuid: Member(Identity(uuid, f"{uuid}:1/{uuid}:2"), Policy(True, 1), 3, -PROMISE_MS, is_empty=False)
        for uuid in ("old", "third")
    }
    tries: dict[str, int] = {}
    for now_ms in range(0, UNABLE_AGAIN_MS + 200, 100):
        for uuid, member in {**others, "me": elected.member}.items():
            if not now_ms:
                member.seen(elected.give(), now_ms)
            member.tick(now_ms)
            if any(isinstance(each, Ask) and isinstance(each.request, Grant) for each in member.take()):
                tries.setdefault(uuid, now_ms)
    assert tries == {"old": 0, "third": 0, "me": UNABLE_AGAIN_MS}


def test_a_place_whose_return_was_not_answered_is_given_back_again() -> None:
    elected = Elected()
    elected.answer(elected.giving, None, 100)
    elected.member.tick(200)
    elected.giving = elected.asked(Commit)
    elected.answer(elected.giving, Outcome(True, elected.give()), 300)
    assert elected.member.role is Role.WAITING


def test_a_place_whose_lease_has_ended_is_given_back_all_the_same() -> None:
    """A disk that dies slowly: no keep-alive was asked for while the broker tried to begin."""
    elected = Elected()
    elected.answer(elected.giving, Outcome(False, View(9, None, elected.state)), 5_000)
    assert elected.member.status(5_000).role is Role.CAMPAIGNING, "it does not lead, and its turn is not over"
    elected.member.tick(5_100)
    giving = elected.asked(Commit)
    assert isinstance(giving.request, Commit)
    transaction = giving.request.transaction
    assert (transaction.leader_revision, transaction.state_revision, transaction.is_leader_deleted) == (0, 8, False)
    assert transaction.state is not None and transaction.state.in_sync == elected.before
    elected.answer(giving, Outcome(True, View(10, None, transaction.state._replace(revision=10))), 5_200)
    assert elected.member.role is Role.WAITING


@pytest.mark.parametrize("answers_lost", [1, 2, 3])
def test_a_campaign_whose_answer_was_lost_does_not_forget_who_could_be_elected(answers_lost: int) -> None:
    elected = Elected(answers_lost=answers_lost)
    assert elected.state.epoch == 5
    view = elected.give()
    assert view.state is not None and view.state.in_sync == elected.before


def test_the_first_election_of_a_group_is_open_to_all_again() -> None:
    elected = Elected(is_first_election=True)
    view = elected.give()
    assert view.state is not None and view.state.in_sync == frozenset()
    other = Member(Identity("other", THERE), Policy(True, 1), 0, -PROMISE_MS, is_empty=True)
    other.seen(view, 0)
    for now_ms in range(0, 5_000, 100):
        other.tick(now_ms)
    assert any(isinstance(each, Ask) and isinstance(each.request, Grant) for each in other.take())


def test_who_stops_while_it_gives_its_place_back_finishes_that_first() -> None:
    elected = Elected()
    elected.member.stop(0)
    assert not any(isinstance(each, Ask) and isinstance(each.request, Revoke) for each in elected.member.take())
    elected.answer(elected.giving, Outcome(True, elected.give()), 100)
    assert elected.member.take()[-1] == Finished() and elected.member.role is Role.FINISHED


def term_with_a_follower() -> tuple[Term, Outbox, StateKey]:
    """A term without synchronous replication that has begun, with a follower that has all of its log."""
    outbox = Outbox()
    leader, state = LeaderKey("me", HERE, 5, 2), StateKey(1, frozenset({"me", "next"}), "", "first", 2)
    term = Term(Identity("me", HERE), Policy(is_sync=False), outbox, View(2, leader, state), 5, 0, 100)
    term.begin(0)
    term.reported("next", 100, 0)
    return term, outbox, state


def test_a_leader_that_hands_over_relies_on_no_promise_of_before() -> None:
    """The successor campaigns though it has promised, and the outcome of the hand-over may be unknown."""
    term, outbox, state = term_with_a_follower()
    term.tick(PROMISE_FROM_MS)
    asked = [each.message for each in outbox.take() if isinstance(each, Tell)]
    assert isinstance(asked[0], PromiseWanted)
    term.promised("next", Promise(1, asked[0].number))
    assert term.hand_over("next", 1_600) == ""
    term.view(View(3, None, state), 4_000)  # the lease has ended meanwhile, as far as is known
    term.allow(4_000)
    allowed = [each.until_ms for each in outbox.take() if isinstance(each, Allow)]
    assert not any(allowed), allowed


def test_a_leader_whose_hand_over_may_be_done_asks_for_no_promise() -> None:
    """The successor would give one before it sees that the place is its own."""
    term, outbox, state = term_with_a_follower()
    term.tick(KEEP_ALIVE_MS)
    [kept] = [each for each in outbox.take() if isinstance(each, Ask) and isinstance(each.request, KeepAlive)]
    assert term.hand_over("next", KEEP_ALIVE_MS) == ""
    term.log(100, KEEP_ALIVE_MS)
    term.reported("next", 100, KEEP_ALIVE_MS)
    commits = [each for each in outbox.take() if isinstance(each, Ask) and isinstance(each.request, Commit)]
    assert len(commits) == 1, "it is handed over"
    outbox.answered(kept.number, Lease(5, 0), 2_000)
    term.tick(2_100)
    effects = outbox.take()
    assert not any(isinstance(each, Tell) for each in effects), effects
    assert not any(each.until_ms for each in effects if isinstance(each, Allow))
    term.view(View(3, None, state._replace(successor="next", revision=3)), 2_200)
    assert term.over == "handed over to next"
