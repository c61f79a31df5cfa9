"""One broker of a group that elects its master: what it sees, hears and is asked, and the time in; effects out.

    state         the leader is        none leads, and this store      the try is          another one leads, or
                  another one          is in sync and may campaign     won      lost       a higher epoch is heard of
    WAITING       FOLLOWING            CAMPAIGNING                     -        -          -
    FOLLOWING     FOLLOWING            CAMPAIGNING                     -        -          WAITING, until it is seen
    CAMPAIGNING   -                    -                               LEADING  WAITING    -
    LEADING       -                    -                               -        -          WAITING; so it is where
                                                                                           the place was given back
    FINISHED      stopped in order

Invariants:
 1. Only a follower acknowledges, and only in the epoch of the leader it follows, once its log is a part of that
    leader's (`acknowledges`): bytes of an older epoch that the leader has not are no acknowledgement.
 2. A store that is not in sync never campaigns, but by force; nor does one whose log knows a higher epoch than the
    coordination store.
 3. Nothing above what is known as confirmed is shown while neither led nor followed: a leader that comes again does
    not know what it had confirmed.
 4. After its start a member does not campaign for as long as a promise lasts: it may have given one.
 5. An older view of the store never follows a newer one.
"""

from __future__ import annotations

from enum import Enum, auto
from functools import partial
from typing import NamedTuple

from shmq.daemon.ha.election.campaign import Campaign
from shmq.daemon.ha.election.coordination import READ, Answer, LeaderKey, Outcome, Revoke, View
from shmq.daemon.ha.election.effects import (
    Effect,
    Finished,
    Follow,
    HandOverWanted,
    Leaving,
    Left,
    Message,
    OldEpoch,
    Outbox,
    Position,
    Promise,
    PromiseWanted,
    Promote,
    Rest,
    Tell,
)
from shmq.daemon.ha.election.leading import Term
from shmq.daemon.ha.election.policy import (
    CAMPAIGN_AGAIN_MS,
    LAGGING_MS,
    LEASE_MS,
    PROMISE_MS,
    READ_AGAIN_MS,
    READ_MS,
    RESIGN_MS,
    SUCCESSOR_MS,
    UNABLE_AGAIN_MS,
    Identity,
    Policy,
)
from shmq.daemon.ha.in_sync import Verdict

_TWIN = (
    "one of the two stores is a copy; stop the broker of the copy, rm -f shmq.identity shmq.role there, start it again"
)


class Role(Enum):
    """The state of a member."""

    WAITING = auto()
    FOLLOWING = auto()
    CAMPAIGNING = auto()
    LEADING = auto()
    FINISHED = auto()


class Status(NamedTuple):
    """What is shown of a member.

    Attributes:
        kept_ms_ago: since the last keep-alive that succeeded was sent; None where this broker does not lead.
        reason: why it is fenced, or waits.
        why: how the epoch began.
    """

    role: Role
    epoch: int
    leader: str
    leader_address: str
    in_sync: frozenset[str]
    kept_ms_ago: int | None
    reason: str
    why: str


class Member:
    """Lives as long as the process that runs it.

    Args:
        epoch: the newest one that the log of this store knows; 0: none.
        is_empty: the log has no record.
        now_ms: CLOCK_BOOTTIME, like every time here.
    """

    def __init__(self, me: Identity, policy: Policy, epoch: int, now_ms: int, *, is_empty: bool) -> None:
        self.role = Role.WAITING
        self.epoch = epoch
        self.term: Term | None = None
        self._me, self._policy = me, policy
        self._is_empty = is_empty
        self._outbox = Outbox()
        self._campaign: Campaign | None = None
        self._electable_before = frozenset[str]()  # by the state that the last campaign replaces; none: all
        self._unbegun_from = 0  # the first epoch that it asked for in place of that set, until one was begun
        self._twin_lease, self._twin_ms = 0, 0  # of another broker that leads with the id of this store, and since when
        self._has_twin = False
        self._view: View | None = None
        self._following: LeaderKey | None = None
        self._is_cut = False
        self._heard_epoch = epoch
        self._log_end = 0
        self._leader_end = 0  # as far as the leader's log was heard of
        self._absent_ms: int | None = None  # since when no broker leads
        self._campaign_at_ms = 0
        self._silent_until_ms = now_ms + PROMISE_MS
        self._is_reading = False
        self._read_at_ms = now_ms
        self._strays: set[int] = set()
        self._is_stopping = False
        self._resign_at_ms = 0
        self._reason = "it has not heard of the coordination store"

    def take(self) -> list[Effect]:
        """Return what is to be done now, in this order, and forget it."""
        return self._outbox.take()

    @property
    def follows(self) -> int | None:
        """The epoch whose leader is copied; None: no leader's."""
        return self.epoch if self.role is Role.FOLLOWING else None

    @property
    def acknowledges(self) -> int | None:
        """The epoch in which this broker tells its leader what is on its disk; None: it tells nothing."""
        return self.epoch if self.role is Role.FOLLOWING and self._is_cut else None

    def cut(self, epoch: int) -> None:
        """The log was cut where it stops being a part of that of the leader of an epoch, on the disk too."""
        self._is_cut = self._is_cut or epoch == self.follows

    def log(self, log_end: int, leader_end: int, now_ms: int) -> None:
        """Say how far this log reaches, and the leader's as far as it was heard of."""
        self._log_end, self._leader_end = log_end, leader_end
        self._is_empty = self._is_empty and not log_end
        if self.term is not None:
            self.term.log(log_end, now_ms)

    def tick(self, now_ms: int) -> None:
        """Look at the clock; every 100 ms will do."""
        if not self._is_reading and now_ms >= self._read_at_ms and self.role is not Role.FINISHED:
            self._read()
        if self.term is not None:
            self.term.tick(now_ms)
            if self._is_stopping:
                self._go_on_stopping(self.term, now_ms)
        if self._campaign is not None:
            self._campaign.tick(now_ms)
        self._look(now_ms)

    def answered(self, number: int, answer: Answer | None, now_ms: int) -> None:
        """Take what the store answers to an `Ask`; None where the outcome is unknown."""
        if isinstance(answer, Outcome):
            self._see(answer.view, now_ms)
        self._outbox.answered(number, answer, now_ms)
        self._look(now_ms)

    def seen(self, view: View, now_ms: int) -> None:
        """Take what a watch has brought."""
        self._see(view, now_ms)
        self._look(now_ms)

    def gone(self, peer: str, now_ms: int) -> None:
        """The link to a peer has ended."""
        if self.term is not None:
            self.term.gone(peer)
            self.term.allow(now_ms)

    def heard(self, peer: str, message: Message, now_ms: int) -> None:
        """Take what a peer says over the link."""
        if message.epoch > self._heard_epoch:
            self._hear_of(message.epoch, now_ms)
        elif message.epoch < self.epoch:
            self._outbox.put(Tell(peer, OldEpoch(self.epoch, self.role is Role.LEADING)))
        elif self.term is not None and message.epoch == self.term.epoch:
            self._hear_as_leader(self.term, peer, message, now_ms)
        elif isinstance(message, PromiseWanted) and message.epoch == self.follows and self._is_led_by(peer):
            self._silent_until_ms = max(self._silent_until_ms, now_ms + PROMISE_MS)
            self._outbox.put(Tell(peer, Promise(message.epoch, message.number)))
        elif isinstance(message, Left) and self._is_stopping:
            self._finish()
        self._look(now_ms)

    def verdict(self) -> Verdict | None:
        """Return what the core may confirm; None where this broker does not lead."""
        return self.term.members.verdict() if self.term is not None and self.term.is_begun else None

    def promoted(self, now_ms: int) -> None:
        """This broker has begun the epoch it was elected for."""
        self._unbegun_from = 0
        if self.term is not None:
            self.term.begin(now_ms)

    def unable(self, reason: str, now_ms: int) -> None:
        """This broker could not begin the epoch it was elected for: the others come first for a while."""
        if self.term is not None:
            self._campaign_at_ms = now_ms + UNABLE_AGAIN_MS
            self.term.give_back(self._electable_before, reason, now_ms)
            self._look(now_ms)

    def visible_end(self, confirmed_end: int, durable_end: int) -> int:
        """Return how far readers may see under synchronous replication: never above what is known as confirmed.

        A leader that comes again has on its disk what it had not confirmed, and the elected one may not have it.
        """
        return min(confirmed_end, durable_end)

    def confirmed(self, confirmed_end: int) -> None:
        """The core has the verdict, and has confirmed up to here."""
        if self.term is not None:
            self.term.members.confirmed(confirmed_end)

    def hand_over(self, successor: str, now_ms: int) -> str:
        """Let a member in sync lead in an orderly way, the best one if none is named; return why not."""
        if self.term is None:
            return "this broker does not lead"
        refused = self.term.hand_over(successor, now_ms)
        self._look(now_ms)
        return refused

    def promote(self, now_ms: int, *, is_forced: bool = False) -> str:
        """An operator wants this broker to lead; return why not."""
        if self.role in (Role.LEADING, Role.CAMPAIGNING, Role.FINISHED):
            return "" if self.role is not Role.FINISHED else "this broker stops"
        view = self._view
        if view is None:
            return "the coordination store does not answer"
        if is_forced:
            self._begin_campaign(view, "forced by hand", now_ms, is_forced=True)
            return ""
        if not self._is_electable(view):
            return f"{self._reason}; it can be forced to be the master all the same: {self.loss_if_forced()}"
        if view.leader is not None and self._following is not None:
            self._outbox.put(Tell(view.leader.uuid, HandOverWanted(self.epoch)))
        return ""

    def loss_if_forced(self) -> str:
        """Say what may be lost when this broker is made the master by force."""
        state = self._view.state if self._view is not None else None
        others = sorted(state.in_sync - {self._me.uuid}) if state is not None else []
        if state is not None and self._me.uuid in state.in_sync:
            return "nothing that was confirmed: its store is in sync"
        behind = max(self._leader_end - self._log_end, 0)
        return (
            f"every message that is confirmed and not here, this log ends at {self._log_end}, {behind} bytes below what"
            f" was heard of the master; in sync are the stores {', '.join(others) or '(none is known)'}"
        )

    def stop(self, now_ms: int) -> None:
        """End in order: a leader hands over or resigns, a follower leaves the set; `Finished` says when."""
        self._is_stopping = True
        self._resign_at_ms = now_ms + RESIGN_MS
        if self.term is not None:
            self._go_on_stopping(self.term, now_ms)
        elif self._following is not None and self._view is not None and self._is_electable(self._view):
            self._outbox.put(Tell(self._following.uuid, Leaving(self.epoch)))
        else:
            self._finish()

    def status(self, now_ms: int) -> Status:
        """Return what is shown."""
        state = self._view.state if self._view is not None else None
        leader = self._view.leader if self._view is not None else None
        return Status(
            Role.CAMPAIGNING if self.term is not None and not self.term.is_begun else self.role,
            self.epoch,
            leader.uuid if leader else "",
            leader.address if leader else "",
            self.term.members.committed.in_sync if self.term else state.in_sync if state else frozenset(),
            now_ms - self.term.kept_ms if self.term else None,
            self.term.fence_reason if self.term else self._reason,
            state.why if state else "",
        )

    # The store

    def _read(self) -> None:
        self._is_reading = True
        self._outbox.ask(READ, self._was_read)

    def _was_read(self, answer: Answer | None, now_ms: int) -> None:
        self._is_reading = False
        self._read_at_ms = now_ms + (READ_MS if isinstance(answer, Outcome) else READ_AGAIN_MS)

    def _see(self, view: View, now_ms: int) -> None:
        if self._view is not None and view.revision < self._view.revision:
            return
        self._view = view
        if view.leader is not None:
            self._absent_ms = None
        elif self._absent_ms is None:
            self._absent_ms = now_ms
        if self.term is not None:
            self.term.view(view, now_ms)

    # What follows from it

    def _look(self, now_ms: int) -> None:
        if self._campaign is not None and self._campaign.is_over:
            self._end_campaign(self._campaign, now_ms)
        if self.term is not None:
            if self.term.over:
                self._end_term(self.term, now_ms)
            else:
                self.term.allow(now_ms)
        if self.role in (Role.WAITING, Role.FOLLOWING) and self._view is not None:
            self._decide(self._view, now_ms)

    def _decide(self, view: View, now_ms: int) -> None:
        state, leader = view.state, view.leader
        epoch = state.epoch if state is not None else 0
        if epoch < self.epoch:
            self._rest(
                f"the coordination store knows epoch {epoch}, this log {self.epoch}: the store's state was lost or put"
                " back; promote the broker whose log is to stay, by force"
            )
        elif leader is not None and leader.uuid == self._me.uuid and leader.address == self._me.address:
            self._revoke_stray(leader)
        elif leader is not None and leader.uuid == self._me.uuid:
            self._see_twin(leader, now_ms)
        elif epoch < self._heard_epoch:
            self._rest(f"epoch {self._heard_epoch} has begun, the coordination store was seen at {epoch}")
        elif leader is not None and leader.address == self._me.address:
            self._rest(f"store {leader.uuid} led from this broker's address, and is not here now; its lease ends soon")
        elif leader is not None:
            self._follow(leader, epoch)
        elif self._is_electable(view) and not self._is_stopping and now_ms >= self._may_campaign_ms(view):
            is_successor = state is not None and state.successor == self._me.uuid
            why = "first" if state is None else "handed over" if is_successor else "elected"
            self._begin_campaign(view, why, now_ms)

    def _is_electable(self, view: View) -> bool:
        if self._has_twin:
            self._reason = f"another broker has led with the id of this store, {self._me.uuid}: {_TWIN}"
            return False
        if view.state is None or not view.state.in_sync or self._me.uuid in view.state.in_sync:
            return True
        self._reason = f"its store is not in sync: only {', '.join(sorted(view.state.in_sync))} can be elected"
        return False

    def _may_campaign_ms(self, view: View) -> int:
        assert self._absent_ms is not None
        at_ms = self._campaign_at_ms
        state = view.state
        if state is None:
            return max(at_ms, self._absent_ms + (SUCCESSOR_MS if self._is_empty else 0))
        if state.successor == self._me.uuid or state.in_sync == {self._me.uuid}:
            return at_ms
        at_ms = max(at_ms, self._silent_until_ms, self._absent_ms + (SUCCESSOR_MS if state.successor else 0))
        return max(at_ms, self._absent_ms + (LAGGING_MS if self._log_end < self._leader_end else 0))

    def _begin_campaign(self, view: View, why: str, now_ms: int, *, is_forced: bool = False) -> None:
        self._rest("it campaigns")
        self.role = Role.CAMPAIGNING
        state = view.state
        is_own = state is not None and 0 < self._unbegun_from <= state.epoch and state.in_sync == {self._me.uuid}
        self._campaign = Campaign(self._me, self._outbox, view, self._heard_epoch, why, now_ms, is_forced=is_forced)
        if not is_own:
            self._electable_before = state.in_sync if state is not None else frozenset()
            self._unbegun_from = self._campaign.epoch

    def _end_campaign(self, campaign: Campaign, now_ms: int) -> None:
        self._campaign = None
        if campaign.is_won and campaign.view is not None:
            self.role = Role.LEADING
            self.epoch = self._heard_epoch = campaign.epoch
            why = campaign.view.state.why if campaign.view.state is not None else ""
            self._outbox.put(Promote(self.epoch, why))
            self.term = Term(
                self._me, self._policy, self._outbox, campaign.view, campaign.lease, campaign.granted_ms, self._log_end
            )
            if self._view is not None:
                self.term.view(self._view, now_ms)
            return
        self.role = Role.WAITING
        self._campaign_at_ms = now_ms + CAMPAIGN_AGAIN_MS
        if campaign.view is None and not self._is_reading:
            self._read()

    def _end_term(self, term: Term, now_ms: int) -> None:
        self.term = None
        self._absent_ms = now_ms
        self._rest(term.over)
        if self._is_stopping:
            self._finish()

    def _go_on_stopping(self, term: Term, now_ms: int) -> None:
        """Hand over, again where that was not done in time; resign where it cannot be."""
        if term.over or term.is_given_back:
            return
        if now_ms >= self._resign_at_ms or (not term.is_handing_over and term.hand_over("", now_ms)):
            self.term = None
            term.over = "it was stopped in order"  # what it has asked the store for may be answered yet
            self._rest(term.over)  # nothing is appended any more when the others may begin
            if not term.lease:
                self._finish()
                return
            self._strays.add(term.lease)
            self._outbox.ask(Revoke(term.lease), self._has_resigned)

    def _has_resigned(self, answer: Answer | None, now_ms: int) -> None:
        del answer, now_ms  # without an answer the lease ends by itself, a little later
        self._finish()

    def _follow(self, leader: LeaderKey, epoch: int) -> None:
        if self.role is Role.FOLLOWING and self.epoch == epoch and self._is_led_by(leader.uuid):
            return
        self.role = Role.FOLLOWING
        self.epoch = self._heard_epoch = epoch
        self._following = leader
        self._is_cut = False
        self._reason = ""
        self._outbox.put(Follow(leader.uuid, leader.address, epoch))

    def _rest(self, reason: str) -> None:
        if self.role is not Role.WAITING or self._reason != reason:
            self._outbox.put(Rest(reason))
        self.role = Role.WAITING
        self._following = None
        self._reason = reason

    def _finish(self) -> None:
        self._rest("it was stopped in order")
        self.role = Role.FINISHED
        self.term = None
        self._outbox.put(Finished())

    def _revoke_stray(self, leader: LeaderKey) -> None:
        """An earlier process on this store led, or a campaign of it was done late: nothing keeps that lease alive."""
        self._rest("the lease of the process before this one is being revoked")
        if leader.lease not in self._strays:
            self._strays.add(leader.lease)
            self._outbox.ask(Revoke(leader.lease), partial(self._was_revoked, leader.lease))

    def _see_twin(self, leader: LeaderKey, now_ms: int) -> None:
        """Another address leads with my id: that of this host before, until its lease ends, or a copy of this store."""
        if leader.lease != self._twin_lease:
            self._twin_lease, self._twin_ms = leader.lease, now_ms
        self._has_twin = self._has_twin or now_ms - self._twin_ms > 2 * LEASE_MS
        self._rest(f"{leader.address} leads with the id of this store, {leader.uuid}: {_TWIN}")

    def _was_revoked(self, lease: int, answer: Answer | None, now_ms: int) -> None:
        if answer is None:
            self._strays.discard(lease)
        elif not self._is_reading:
            self._read()

    # The link

    def _is_led_by(self, peer: str) -> bool:
        return self._following is not None and self._following.uuid == peer

    def _hear_of(self, epoch: int, now_ms: int) -> None:
        self._heard_epoch = epoch
        if self.term is not None:
            self.term.over = self.term.over or f"epoch {epoch} has begun, this broker led {self.term.epoch}"
        elif self.role is Role.FOLLOWING:
            self._rest(f"epoch {epoch} has begun")
        if not self._is_reading:
            self._read()

    def _hear_as_leader(self, term: Term, peer: str, message: Message, now_ms: int) -> None:
        if isinstance(message, Position):
            term.reported(peer, message.flushed, now_ms)
        elif isinstance(message, Promise):
            term.promised(peer, message)
        elif isinstance(message, Leaving):
            term.leaving(peer, now_ms)
        elif isinstance(message, HandOverWanted):
            term.hand_over(peer, now_ms)
