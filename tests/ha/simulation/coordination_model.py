"""The coordination store as it may behave: linearizable transactions, leases with a clock of its own, outages, and
answers that get lost after the work was done, or come after the work was given up.

A lease never ends sooner than its time after the store took the request, and up to half a second later. An outage in
which the store elects a leader of its own lets every lease begin anew.
"""

from __future__ import annotations

from collections.abc import Callable

from shmq.daemon.ha.election.coordination import (
    Answer,
    Commit,
    Grant,
    KeepAlive,
    LeaderKey,
    Lease,
    Outcome,
    Refused,
    Request,
    Revoke,
    StateKey,
    Transaction,
    View,
)
from tests.ha.simulation.world import World

EXPIRY_SLACK_MS = 500


class CoordinationModel:
    """One store, seen by every broker that is not cut off from it."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.revision = 1
        self.leader: LeaderKey | None = None
        self.state: StateKey | None = None
        self.is_down = False
        self.watchers: list[Callable[[View], None]] = []
        self._ends: dict[int, tuple[int, int]] = {}  # lease: (ends at, its time)
        self._next_lease = 100

    @property
    def view(self) -> View:
        return View(self.revision, self.leader, self.state)

    def do(self, request: Request) -> Answer:
        """Do what is asked, at this moment."""
        if isinstance(request, Commit):
            return self._commit(request.transaction)
        if isinstance(request, Grant):
            self._next_lease += 1
            self._begin(self._next_lease, request.ttl_ms)
            return Lease(self._next_lease, request.ttl_ms)
        if isinstance(request, KeepAlive):
            if request.lease not in self._ends:
                return Lease(request.lease, 0)
            ttl_ms = self._ends[request.lease][1]
            self._begin(request.lease, ttl_ms)
            return Lease(request.lease, ttl_ms)
        assert isinstance(request, Revoke)
        self._end(request.lease)
        return Lease(request.lease, 0)

    def go_down(self) -> None:
        """Answer no request, and let no lease end."""
        self.is_down = True

    def come_up(self, *, renews: bool) -> None:
        """Answer again."""
        self.is_down = False
        for lease, (ends, ttl_ms) in list(self._ends.items()):
            if renews:
                self._begin(lease, ttl_ms)
            else:
                self._world.after(max(ends - self._world.now, 0), None, self._look, lease)

    def _commit(self, transaction: Transaction) -> Outcome:
        leader_revision = self.leader.revision if self.leader else 0
        state_revision = self.state.revision if self.state else 0
        if transaction.leader_revision not in (None, leader_revision) or (
            transaction.state_revision not in (None, state_revision)
        ):
            return Outcome(False, self.view)
        if transaction.leader is not None and transaction.leader.lease not in self._ends:
            return Refused("requested lease not found")  # type: ignore[return-value]
        if transaction.leader is None and transaction.state is None and not transaction.is_leader_deleted:
            return Outcome(True, self.view)
        self.revision += 1
        if transaction.leader is not None:
            self.leader = transaction.leader._replace(revision=self.revision)
        elif transaction.is_leader_deleted:
            self.leader = None
        if transaction.state is not None:
            self.state = transaction.state._replace(revision=self.revision)
        self._changed()
        return Outcome(True, self.view)

    def _begin(self, lease: int, ttl_ms: int) -> None:
        ends = self._world.now + ttl_ms + self._world.chance.choice((0, self._world.chance.randrange(EXPIRY_SLACK_MS)))
        self._ends[lease] = ends, ttl_ms
        self._world.after(ends - self._world.now, None, self._look, lease)

    def _look(self, lease: int) -> None:
        if lease in self._ends and self._ends[lease][0] <= self._world.now and not self.is_down:
            self._end(lease)

    def _end(self, lease: int) -> None:
        self._ends.pop(lease, None)
        if self.leader is not None and self.leader.lease == lease:
            self.leader = None
            self.revision += 1
            self._changed()

    def _changed(self) -> None:
        for watcher in self.watchers:
            watcher(self.view)
