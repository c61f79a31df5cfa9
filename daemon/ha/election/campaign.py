"""One try to become the leader: a lease, then one transaction. By force, the transaction takes the leader's place.

    state        granted        done     not done    no outcome known     the lease is revoked    read
    GRANTING     COMMITTING     -        -           over, lost           -                       -
    COMMITTING   -              won      over, lost  RESOLVING            -                       -
    RESOLVING    -              -        -           is asked again       READING                 -
    READING      -              -        -           is asked again       -                       over, lost

Invariants:
 1. A candidate acknowledges nothing; it campaigns again only when its try is over.
 2. A try is over when its transaction is done or can never be: a transaction that names a revoked lease cannot.
 3. The lease of a leader that is forced out is revoked once its place is taken: every member may take a place that is
    free, and that leader may still append. One that it has got since ends by itself.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from shmq.daemon.ha.election.coordination import (
    READ,
    Answer,
    Commit,
    Grant,
    LeaderKey,
    Lease,
    Outcome,
    Request,
    Revoke,
    StateKey,
    Transaction,
    View,
)
from shmq.daemon.ha.election.effects import Outbox, Then
from shmq.daemon.ha.election.policy import CHANGE_AGAIN_MS, LEASE_MS, Identity


class Campaign:
    """One try.

    Args:
        view: what was seen of the store; the transaction is done only if it is still so.
        epoch: that of this host's log; the new one is above it and above the store's.
        is_forced: whichever broker leads, and whether or not this one is in sync.
    """

    def __init__(
        self, me: Identity, outbox: Outbox, view: View, epoch: int, why: str, now_ms: int, *, is_forced: bool = False
    ) -> None:
        self.is_over = False
        self.is_won = False
        self.view: View | None = None  # what was read at the end
        self.lease = 0
        self.granted_ms = now_ms  # when the lease was asked for
        self._me = me
        self._outbox = outbox
        self._state_revision = view.state.revision if view.state else 0
        self._state = StateKey(max(epoch, view.state.epoch if view.state else 0) + 1, frozenset({me.uuid}), "", why)
        self._is_forced = is_forced
        self._again: tuple[int, Callable[[], None]] | None = None
        self._old_lease = view.leader.lease if is_forced and view.leader is not None else 0
        outbox.ask(Grant(LEASE_MS), self._granted)

    @property
    def epoch(self) -> int:
        """The epoch that begins if it is won."""
        return self._state.epoch

    def tick(self, now_ms: int) -> None:
        """Ask again what was not answered."""
        if self._again is not None and now_ms >= self._again[0]:
            (_, ask), self._again = self._again, None
            ask()

    def _granted(self, answer: Answer | None, now_ms: int) -> None:
        if not isinstance(answer, Lease):
            self.is_over = True
            return
        self.lease = answer.number
        leader = LeaderKey(self._me.uuid, self._me.address, self.lease, 0)
        transaction = Transaction(None if self._is_forced else 0, self._state_revision, leader, False, self._state)
        self._outbox.ask(Commit(transaction), self._committed)

    def _committed(self, answer: Answer | None, now_ms: int) -> None:
        if answer is None:
            self._revoke()
            return
        self.is_over = True
        if isinstance(answer, Outcome):
            self.view, self.is_won = answer.view, answer.is_done
        if not self.is_won:
            self._outbox.ask(Revoke(self.lease), _ignore)
        elif self._old_lease:
            self._outbox.ask(Revoke(self._old_lease), _ignore)  # its next keep-alive tells the old leader

    def _revoke(self) -> None:
        self._ask_until_answered(Revoke(self.lease), self._revoked)

    def _revoked(self, answer: Answer | None, now_ms: int) -> None:
        del answer
        self._ask_until_answered(READ, self._read)

    def _read(self, answer: Answer | None, now_ms: int) -> None:
        assert isinstance(answer, Outcome)
        self.view, self.is_over = answer.view, True

    def _ask_until_answered(self, request: Request, then: Then) -> None:
        def look(answer: Answer | None, now_ms: int) -> None:
            if isinstance(answer, Lease | Outcome):
                then(answer, now_ms)
            else:
                self._again = now_ms + CHANGE_AGAIN_MS, partial(self._ask_until_answered, request, then)

        self._outbox.ask(request, look)


def _ignore(answer: Answer | None, now_ms: int) -> None:
    """Drop the answer to a revocation: a lease that is not kept alive ends by itself."""
