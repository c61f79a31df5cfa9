"""What one try to become the leader asks the store for, and when."""

from __future__ import annotations

from shmq.daemon.ha.election.campaign import Campaign
from shmq.daemon.ha.election.coordination import (
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
from shmq.daemon.ha.election.effects import Ask, Outbox
from shmq.daemon.ha.election.policy import LEASE_MS, Identity

LED = View(
    4, LeaderKey("old", "10.0.0.5:10911/10.0.0.5:10912", 3, 4), StateKey(1, frozenset({"old", "me"}), "", "first", 4)
)


class Forced:
    """A campaign by force against a leader that holds lease 3, answered by hand; its own lease is 5."""

    def __init__(self) -> None:
        self.outbox = Outbox()
        me = Identity("me", "10.0.0.4:10911/10.0.0.4:10912")
        self.campaign = Campaign(me, self.outbox, LED, 1, "forced by hand", 0, is_forced=True)
        self.asked: list[Ask] = []

    def requests(self) -> list[Request]:
        """Return what was asked for since the last call."""
        self.asked = [effect for effect in self.outbox.take() if isinstance(effect, Ask)]
        return [ask.request for ask in self.asked]

    def commit(self) -> Commit:
        """Let the lease be granted; return the transaction that is asked for then."""
        assert self.requests() == [Grant(LEASE_MS)]
        self.outbox.answered(self.asked[0].number, Lease(5, LEASE_MS), 0)
        [request] = self.requests()
        assert isinstance(request, Commit)
        return request

    def answer(self, outcome: Outcome) -> list[Request]:
        """Answer the transaction; return what is asked for then."""
        self.outbox.answered(self.asked[0].number, outcome, 0)
        return self.requests()


def test_force_takes_the_place_in_the_transaction_that_begins_the_epoch() -> None:
    forced = Forced()
    transaction = forced.commit().transaction
    assert transaction.leader is not None and transaction.leader.uuid == "me"
    assert transaction.state is not None and transaction.state.epoch == 2
    assert transaction.leader_revision is None and transaction.state_revision == 4
    [revoke] = forced.answer(Outcome(True, View(5, transaction.leader, transaction.state)))
    assert forced.campaign.is_won
    assert isinstance(revoke, Revoke) and revoke.lease == 3, "its next keep-alive tells the old leader"


def test_force_that_fails_leaves_the_leader_its_lease() -> None:
    forced = Forced()
    forced.commit()
    [revoke] = forced.answer(Outcome(False, LED._replace(revision=6)))
    assert forced.campaign.is_over and not forced.campaign.is_won
    assert isinstance(revoke, Revoke) and revoke.lease == 5
