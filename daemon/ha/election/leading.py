"""The term of one leader: keep-alives, changes of the set, promises and the hand-over, and until when it may append.

    the lease is        and                                                    may append
    kept alive          -                                                      until 3 s after the last one was sent
    any                 no other counts: none can be elected                   without limit
    any                 synchronous, all that count are heard of               without limit: nothing is confirmed that
                                                                               an elected one has not
    not kept alive      asynchronous, all that count have promised             until 3 s after the oldest question
    not kept alive      otherwise                                              no
    any                 handing over, or the epoch has not begun               no

A broker that cannot begin its epoch gives the place back: in one transaction no broker leads, and who could be elected
before may be again; in the first epoch of a group that is every one. A lease that has expired while no other was
elected is reclaimed: the state is as this leader wrote it, so epoch and set go on.

Invariants:
 1. What is allowed is lowered before the store is asked for members that could be elected.
 2. One change of the state is under way at a time, and none without a lease.
 3. A term that is over stays over.
"""

from __future__ import annotations

from functools import partial

from shmq.daemon.ha.election.coordination import (
    READ,
    Answer,
    Commit,
    Grant,
    KeepAlive,
    LeaderKey,
    Lease,
    Outcome,
    Revoke,
    StateKey,
    Transaction,
    View,
)
from shmq.daemon.ha.election.effects import Allow, Left, Outbox, Promise, PromiseWanted, Tell
from shmq.daemon.ha.election.members import MemberSet
from shmq.daemon.ha.election.policy import (
    CAMPAIGN_AGAIN_MS,
    CHANGE_AGAIN_MS,
    FENCE_MS,
    HAND_OVER_MS,
    KEEP_ALIVE_MS,
    LEASE_MS,
    NO_LIMIT_MS,
    PROMISE_ASK_MS,
    PROMISE_FROM_MS,
    Identity,
    Policy,
)


class _HandOver:
    def __init__(self, successor: str, deadline_ms: int) -> None:
        self.successor = successor
        self.deadline_ms = deadline_ms
        self.is_log_known = False  # its log end was reported after appending had been forbidden
        self.is_asked_for = False


class Term:
    """From a won campaign until another broker leads.

    Args:
        view: the store after the campaign.
        granted_ms: when the lease was asked for.
    """

    def __init__(
        self, me: Identity, policy: Policy, outbox: Outbox, view: View, lease: int, granted_ms: int, log_end: int
    ) -> None:
        assert view.leader is not None and view.state is not None
        self.over = ""  # why it is
        self.is_begun = False  # the broker has begun the epoch
        self.epoch = view.state.epoch
        self.members = MemberSet(me.uuid, view.state, policy)
        self.kept_ms = granted_ms  # when the last keep-alive that succeeded was sent
        self.fence_reason = ""
        self._me, self._policy, self._outbox = me, policy, outbox
        self._log_end = log_end
        self._lease, self._leader_revision = lease, view.leader.revision
        self._lease_until_ms = granted_ms + FENCE_MS
        self._is_keeping = False
        self._keep_at_ms = granted_ms + KEEP_ALIVE_MS
        self._trying = 0  # the lease a reclaim was sent with
        self._is_reclaiming = False
        self._reclaim_at_ms = 0
        self._is_changing = False
        self._change_at_ms = 0
        self._strays: set[int] = set()
        self._promise_number = 0
        self._promises_asked: dict[int, int] = {}  # number: when it was sent
        self._promised_until_ms: dict[str, int] = {}
        self._hand_over: _HandOver | None = None
        self._given_back: frozenset[str] | None = None  # the set that could be elected before this term
        self._leaving: set[str] = set()
        self._allowed: Allow | None = None

    @property
    def lease(self) -> int:
        """The number of its lease, 0 without one."""
        return self._lease

    @property
    def is_handing_over(self) -> bool:
        """Whether it gives the place to another one now."""
        return self._hand_over is not None

    def log(self, log_end: int, now_ms: int) -> None:
        """Take the log end as it is after everything that was asked before was done."""
        self._log_end = log_end
        if self._hand_over is not None and not self._hand_over.is_log_known:
            self._hand_over.is_log_known = True
            self.tick(now_ms)

    def tick(self, now_ms: int) -> None:
        """Look at the clock."""
        if self.over:
            return
        self.members.tick(self._log_end, now_ms)
        self.allow(now_ms)
        if self._given_back is not None:
            self._go_on_giving_back(self._given_back)
        elif not self._lease:
            self._reclaim(now_ms)
        if self._lease and not self._is_keeping and now_ms >= self._keep_at_ms:
            self._is_keeping = True
            self._outbox.ask(KeepAlive(self._lease), partial(self._kept, now_ms))
        if self._hand_over is not None:
            self._go_on_handing_over(self._hand_over, now_ms)
        self._change(now_ms)
        self._ask_for_promises(now_ms)

    def allow(self, now_ms: int) -> None:
        """Say until when may be appended, if that is something else than before."""
        if self.over or not self.is_begun:
            return  # nothing was allowed yet, or the end of the term forbids it
        allowed = self._may_append(now_ms)
        before = self._allowed
        if before is None or (allowed.until_ms, bool(allowed.reason)) != (before.until_ms, bool(before.reason)):
            self._allowed = allowed
            self.fence_reason = allowed.reason
            self._outbox.put(allowed)

    def reported(self, uuid: str, flushed: int, now_ms: int) -> None:
        """A follower of this epoch says what is on its disk."""
        self.members.report(uuid, flushed, self._log_end, now_ms)
        if self._hand_over is not None:
            self._go_on_handing_over(self._hand_over, now_ms)

    def gone(self, uuid: str) -> None:
        """The link of a follower has ended."""
        self.members.gone(uuid)
        self._leaving.discard(uuid)

    def leaving(self, uuid: str, now_ms: int) -> None:
        """A follower wants to stop."""
        self.members.leave(uuid)
        self._leaving.add(uuid)
        self._let_leave()
        self.tick(now_ms)

    def promised(self, uuid: str, promise: Promise) -> None:
        """A follower does not campaign for a while."""
        asked_ms = self._promises_asked.get(promise.number)
        if asked_ms is not None and promise.epoch == self.epoch:
            until_ms = asked_ms + FENCE_MS
            self._promised_until_ms[uuid] = max(self._promised_until_ms.get(uuid, 0), until_ms)

    def hand_over(self, successor: str, now_ms: int) -> str:
        """Begin to give the place to a member in sync; return why not. An empty name: to the one that has most."""
        successor = successor or self.members.successor()
        if not successor or successor not in self.members.committed.in_sync or successor == self._me.uuid:
            return f"no other broker that is in sync could take over: in sync are {self.members.committed.in_sync}"
        if not self._lease:
            return "this broker has no lease in the coordination store now"
        if self._hand_over is None:
            self._hand_over = _HandOver(successor, now_ms + HAND_OVER_MS)
            # The successor does not keep what it has promised before.
            self._promises_asked.clear()
            self._promised_until_ms.clear()
            self.allow(now_ms)
        return ""

    def give_back(self, in_sync: frozenset[str], reason: str, now_ms: int) -> None:
        """Let those be elected who could be before, as the broker cannot begin this epoch: nothing is stored in it."""
        self._given_back, self.fence_reason = in_sync, reason
        self.tick(now_ms)

    def begin(self, now_ms: int) -> None:
        """The broker has begun the epoch."""
        self.is_begun = True
        self.allow(now_ms)

    @property
    def is_given_back(self) -> bool:
        """Whether this broker could not begin the epoch."""
        return self._given_back is not None

    def view(self, view: View, now_ms: int) -> None:
        """Take the store as it is."""
        state, leader = view.state, view.leader
        if state is None:
            self.over = "the coordination store has lost the state of this group"
        elif state.epoch != self.epoch:
            self.over = f"epoch {state.epoch} has begun, this broker led {self.epoch}"
        elif leader is not None and leader.uuid != self._me.uuid:
            self.over = f"{leader.uuid} leads epoch {state.epoch}"
        if self.over or state is None:
            return
        self.members.settle(state)
        self._let_leave()
        if leader is None:
            if self._given_back is not None and state.in_sync == self._given_back:
                self.over = self.fence_reason
            elif self._hand_over is not None and state.successor == self._hand_over.successor:
                self.over = f"handed over to {state.successor}"
            else:
                self._hand_over = None  # it asks for my leader key, which is gone
                self._leader_revision = 0
                if self._lease:
                    self._lost(now_ms)
        elif leader.lease == self._lease:
            self._leader_revision = leader.revision
        elif leader.lease == self._trying:
            self._lease, self._trying, self._leader_revision = self._trying, 0, leader.revision
        elif leader.lease not in self._strays:
            self._strays.add(leader.lease)  # of an earlier try: no process keeps it alive
            self._outbox.ask(Revoke(leader.lease), self._look_again)

    # What may be appended

    def _may_append(self, now_ms: int) -> Allow:
        if self._hand_over is not None:
            return Allow(0, f"this broker hands over to {self._hand_over.successor}")
        until_ms = max(self._lease_until_ms if self._lease else 0, self._backed_until_ms(now_ms))
        if until_ms > now_ms:
            return Allow(until_ms, "")
        what = "is heard of" if self._policy.is_sync else "has promised not to campaign"
        return Allow(0, f"its lease was not renewed for {now_ms - self.kept_ms} ms, and not every member {what}")

    def _backed_until_ms(self, now_ms: int) -> int:
        """Until when no other is elected, or one that is has all that is confirmed, whatever the store does."""
        counted = self.members.counted
        if not counted:
            return NO_LIMIT_MS
        if self._policy.is_sync:
            return NO_LIMIT_MS if self.members.are_heard(now_ms) else 0
        return min(self._promised_until_ms.get(uuid, 0) for uuid in counted)

    # The lease

    def _kept(self, sent_ms: int, answer: Answer | None, now_ms: int) -> None:
        self._is_keeping = False
        if not isinstance(answer, Lease):
            self._keep_at_ms = now_ms + CHANGE_AGAIN_MS
        elif answer.number == self._lease and answer.ttl_ms <= 0:
            self._lost(now_ms)
        elif answer.number == self._lease:
            self.kept_ms = sent_ms
            self._lease_until_ms = sent_ms + min(FENCE_MS, answer.ttl_ms * FENCE_MS // LEASE_MS)
            self._keep_at_ms = sent_ms + KEEP_ALIVE_MS

    def _lost(self, now_ms: int) -> None:
        self._lease = self._lease_until_ms = 0
        self._reclaim_at_ms = now_ms
        if self._hand_over is not None and not self._hand_over.is_asked_for:
            self._hand_over = None  # else it may be done: what is read next says so

    def _reclaim(self, now_ms: int) -> None:
        if not self._is_reclaiming and now_ms >= self._reclaim_at_ms and self._hand_over is None:
            self._is_reclaiming = True
            self._outbox.ask(Grant(LEASE_MS), partial(self._granted, now_ms))

    def _granted(self, sent_ms: int, answer: Answer | None, now_ms: int) -> None:
        if self.over or not isinstance(answer, Lease):
            self._is_reclaiming, self._reclaim_at_ms = False, now_ms + CAMPAIGN_AGAIN_MS
            return
        self._trying = answer.number
        leader = LeaderKey(self._me.uuid, self._me.address, answer.number, 0)
        transaction = Transaction(0, self.members.committed.revision, leader)
        self._outbox.ask(Commit(transaction), partial(self._reclaimed, answer.number, sent_ms))

    def _reclaimed(self, lease: int, sent_ms: int, answer: Answer | None, now_ms: int) -> None:
        self._is_reclaiming, self._reclaim_at_ms = False, now_ms + CAMPAIGN_AGAIN_MS
        if isinstance(answer, Outcome) and answer.is_done:
            assert answer.view.leader is not None
            self._lease, self._trying, self._leader_revision = lease, 0, answer.view.leader.revision
            self.kept_ms, self._keep_at_ms = sent_ms, sent_ms + KEEP_ALIVE_MS
            self._lease_until_ms = sent_ms + FENCE_MS
        elif self._lease != lease:
            self._trying = 0
            self._outbox.ask(Revoke(lease), self._look_again)

    def _look_again(self, answer: Answer | None, now_ms: int) -> None:
        """Read, for what the store has now is unknown; what is read comes to `view`, as every view does."""
        del answer, now_ms
        self._outbox.ask(READ, lambda answer, now_ms: None)

    # The set

    def _change(self, now_ms: int) -> None:
        if self._is_changing or not self._lease or now_ms < self._change_at_ms or self.is_given_back:
            return
        if self._hand_over is not None and not self._hand_over.is_asked_for:
            return
        wanted = self.members.wanted(self._log_end, now_ms, self.kept_ms)
        if wanted is not None:
            self._write(StateKey(self.epoch, wanted, "", self.members.committed.why), is_leader_deleted=False)

    def _write(self, state: StateKey, *, is_leader_deleted: bool) -> None:
        self._is_changing = True
        self.members.ask_for(state.in_sync)
        transaction = Transaction(
            self._leader_revision, self.members.committed.revision, None, is_leader_deleted, state
        )
        self._outbox.ask(Commit(transaction), partial(self._written, state.in_sync))

    def _written(self, in_sync: frozenset[str], answer: Answer | None, now_ms: int) -> None:
        self._is_changing, self._change_at_ms = False, now_ms + CHANGE_AGAIN_MS
        if answer is None:
            self._look_again(None, now_ms)
        elif not (isinstance(answer, Outcome) and answer.is_done):
            self.members.refused(in_sync)
        if self._hand_over is not None:
            self._go_on_handing_over(self._hand_over, now_ms)
        self.allow(now_ms)

    def _go_on_giving_back(self, in_sync: frozenset[str]) -> None:
        """Write the set, also without a lease: an election would write another state."""
        if not self._is_changing:
            self._write(self.members.committed._replace(in_sync=in_sync), is_leader_deleted=self._leader_revision > 0)

    def _let_leave(self) -> None:
        for uuid in sorted(self._leaving - self.members.electable):
            self._leaving.discard(uuid)
            self._outbox.put(Tell(uuid, Left(self.epoch)))

    # Promises, and the orderly switch

    def _ask_for_promises(self, now_ms: int) -> None:
        if self._policy.is_sync or self._hand_over is not None or now_ms - self.kept_ms < PROMISE_FROM_MS:
            return
        last_ms = self._promises_asked.get(self._promise_number, 0)
        counted = self.members.counted
        if counted and now_ms - last_ms >= PROMISE_ASK_MS:
            self._promise_number += 1
            self._promises_asked[self._promise_number] = now_ms
            self._promises_asked.pop(self._promise_number - FENCE_MS // PROMISE_ASK_MS, None)
            for uuid in sorted(counted):
                self._outbox.put(Tell(uuid, PromiseWanted(self.epoch, self._promise_number)))

    def _go_on_handing_over(self, hand_over: _HandOver, now_ms: int) -> None:
        if hand_over.is_asked_for:
            if self.members.is_certain and not self._is_changing:
                self._hand_over = None  # not done, and never will be
            return
        if now_ms > hand_over.deadline_ms or not self._lease:
            self._hand_over = None
            self.allow(now_ms)
        elif (
            hand_over.is_log_known
            and not self._is_changing
            and self.members.is_certain
            and hand_over.successor in self.members.committed.in_sync
            and self.members.flushed_of(hand_over.successor) >= self._log_end
        ):
            hand_over.is_asked_for = True
            state = self.members.committed._replace(successor=hand_over.successor, why="handed over")
            self._write(state, is_leader_deleted=True)
