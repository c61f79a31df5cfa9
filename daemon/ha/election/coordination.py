"""The keys of an election in the coordination store, the one transaction over them, and leases.

    leader   {uuid, address}, leased    absent: no broker leads
    state    {epoch, in_sync, ...}      not leased: it outlives every leader

    campaign        leader absent  and state unchanged   ->  leader = me, state = {epoch + 1, in_sync {me}}
    change of set   my leader key  and state unchanged   ->  state = {epoch, other set}
    reclaim         leader absent  and state unchanged   ->  leader = me; epoch and set are as I wrote them
    hand over       my leader key  and state unchanged   ->  leader absent, state = {epoch, in_sync, successor}

`Coordination` is all that is asked of a store, so another one than etcd is one file more.

Invariants:
 1. Every write of `state` is guarded by the revision it was last written with: two that were sent upon one state
    cannot both be done.
 2. A transaction that puts `leader` names a lease: it cannot be done any more once that lease is revoked.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

from shmq.errors import ShmqError


class LeaderKey(NamedTuple):
    """The leader, as read. `revision` is that of its last write, as of `StateKey`."""

    uuid: str
    address: str
    lease: int
    revision: int


class StateKey(NamedTuple):
    """What outlives a leader, as read. `revision` is that of its last write.

    Attributes:
        epoch: of the last election.
        in_sync: the stores that have every confirmed byte; only they can be elected. None: no epoch has begun, all can.
        successor: to whom the last leader has handed over; empty if it has not.
        why: how the epoch began.
    """

    epoch: int
    in_sync: frozenset[str]
    successor: str = ""
    why: str = ""
    revision: int = 0


class View(NamedTuple):
    """Both keys at one revision of the store."""

    revision: int
    leader: LeaderKey | None
    state: StateKey | None


class Transaction(NamedTuple):
    """Guards, and what is done if all of them hold; with neither it reads.

    Attributes:
        leader_revision: that of the key `leader`, 0 for an absent one; None: any.
        state_revision: the same of `state`.
        leader: to be put with its lease; its revision says nothing.
        is_leader_deleted: the key `leader` is to be deleted.
        state: to be put; its revision says nothing.
    """

    leader_revision: int | None = None
    state_revision: int | None = None
    leader: LeaderKey | None = None
    is_leader_deleted: bool = False
    state: StateKey | None = None


class Commit(NamedTuple):
    """Ask for a transaction; the answer is an `Outcome`."""

    transaction: Transaction


class Grant(NamedTuple):
    """Ask for a lease; the answer is a `Lease`."""

    ttl_ms: int


class KeepAlive(NamedTuple):
    """Ask for more time; the answer is a `Lease` whose time is 0 when it had expired."""

    lease: int


class Revoke(NamedTuple):
    """End a lease, also one that has ended; the answer is a `Lease` without time."""

    lease: int


class Outcome(NamedTuple):
    """Whether a transaction's guards held, and both keys after it."""

    is_done: bool
    view: View


class Lease(NamedTuple):
    """A lease and how long it lasts from when the store answered."""

    number: int
    ttl_ms: int


class Refused(NamedTuple):
    """The store has not done it, and will not."""

    reason: str


Request = Commit | Grant | KeepAlive | Revoke
Answer = Outcome | Lease | Refused
READ = Commit(Transaction())


class StoreUnanswered(ShmqError):
    """The coordination store did not answer, or not in time: whether it has done it is unknown."""

    retryable = True


class StoreRefused(ShmqError):
    """The coordination store has not done it, and will not."""


class Coordination(Protocol):
    """The five calls. Each raises StoreUnanswered where the outcome is not known, StoreRefused where nothing was done.

    Rules: (1) transactions are linearizable; (2) a lease lasts at least its time from when the store took the request,
    and the keys put with it end with it; (3) nothing is sent twice on behalf of one call.
    """

    def commit(self, transaction: Transaction) -> Outcome:
        """Do a transaction, or only read."""

    def grant(self, ttl_ms: int) -> Lease:
        """Make a lease."""

    def keep_alive(self, lease: int) -> Lease:
        """Let a lease begin anew."""

    def revoke(self, lease: int) -> Lease:
        """End a lease and delete its keys."""

    def watch(self, revision: int) -> View:
        """Wait until there is something newer than a revision, or for a while; return both keys."""
