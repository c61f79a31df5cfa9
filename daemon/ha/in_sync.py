"""The replicas in sync with a synchronous master: reports, ends of links and ticks in, what is confirmed out.

    state       caught up within 500 ms      has all that is confirmed     behind for 2 s or 256 MiB, or gone
    LEARNER     JOINING                      -                             -
    JOINING     -                            IN_SYNC                       LEARNER
    IN_SYNC     -                            -                             LEARNER

Nothing is confirmed that a member, joining or in sync, has not on its disk. A learner delays nothing. A joining one
holds confirmation where it is until it has what was confirmed before; only then is it counted, so a counted replica
lacks no confirmed byte.

A replica is caught up as of the moment when the master's log ended where the replica's disk is now. So one that is
always a millisecond behind is in sync under any load, and one that stands still is not.

Where the set is kept in a coordination store, `election/members.py` owns it; what is caught up is defined here.

Invariants:
 1. Without a member nothing is confirmed where `in_sync_min` is 2, nor in the first moments: the replicas of before
    come again, and what they lack was never seen.
 2. Time and positions are arguments; nothing here waits.
"""

from __future__ import annotations

from collections.abc import Hashable
from enum import Enum, auto
from typing import NamedTuple

CAUGHT_UP_MS = 500
BEHIND_MS_MAX = 2_000
BEHIND_BYTES_MAX = 256 << 20  # RocketMQ's haSlaveFallbehindMax
GRACE_MS = 3_000  # a slave comes again after a second; RocketMQ's own client waits 3 s for an answer


class State(Enum):
    """Where a replica stands."""

    LEARNER = auto()
    JOINING = auto()
    IN_SYNC = auto()


class Verdict(NamedTuple):
    """What the core may confirm.

    Attributes:
        end: on the disk of every member; None: no replica is needed.
        replicas: how many are in sync.
        lacks_replicas: there are fewer than are asked for, so nothing is to be stored.
    """

    end: int | None
    replicas: int
    lacks_replicas: bool


class Progress:
    """How close one replica's disk is to the master's log."""

    def __init__(self, flushed: int, log_end: int, now_ms: int) -> None:
        self.flushed = flushed
        self.caught_up_ms: int | None = None
        self._goal, self._goal_ms = log_end, now_ms

    def look(self, log_end: int, now_ms: int) -> None:
        """Compare it with the log as it is now."""
        if self.flushed >= log_end:
            self.caught_up_ms = now_ms
        elif self.flushed >= self._goal:
            self.caught_up_ms = self._goal_ms
        if self.flushed >= self._goal:
            self._goal, self._goal_ms = log_end, now_ms

    def is_caught_up(self, log_end: int, now_ms: int, within_ms: int) -> bool:
        """Return whether it had all of the log that long ago, and is not too many bytes behind."""
        is_near = log_end - self.flushed <= BEHIND_BYTES_MAX
        return is_near and self.caught_up_ms is not None and now_ms - self.caught_up_ms <= within_ms


class _Replica(Progress):
    def __init__(self, flushed: int, log_end: int, now_ms: int) -> None:
        super().__init__(flushed, log_end, now_ms)
        self.state = State.LEARNER
        self.needed: int | None = None  # what was confirmed when it joined


class InSyncSet:
    """The replicas of one master.

    Args:
        in_sync_min: disks that have to have a message, this host's among them.
    """

    def __init__(self, in_sync_min: int, now_ms: int) -> None:
        assert in_sync_min in (1, 2)
        self._in_sync_min = in_sync_min
        self._replicas: dict[Hashable, _Replica] = {}
        self._alone_from_ms = now_ms + GRACE_MS

    def report(self, key: Hashable, flushed: int, log_end: int, now_ms: int) -> None:
        """Take what a replica says of its disk."""
        replica = self._replicas.get(key)
        if replica is None:
            replica = self._replicas[key] = _Replica(flushed, log_end, now_ms)
        replica.flushed = flushed
        self._judge(replica, log_end, now_ms)

    def gone(self, key: Hashable) -> None:
        """Note that the link of a replica has ended."""
        self._replicas.pop(key, None)

    def tick(self, log_end: int, now_ms: int) -> None:
        """Look at the clock."""
        if self._members:
            self._alone_from_ms = min(self._alone_from_ms, now_ms)
        for replica in self._replicas.values():
            self._judge(replica, log_end, now_ms)

    def confirmed(self, confirmed_end: int) -> None:
        """The core has the verdict, and from then on confirms no more than it says; this is how far it was."""
        for replica in self._replicas.values():
            if replica.state is State.JOINING:
                replica.needed = confirmed_end if replica.needed is None else replica.needed
                if replica.flushed >= replica.needed:
                    replica.state = State.IN_SYNC

    def verdict(self, now_ms: int) -> Verdict:
        """Return what the core may confirm."""
        members = self._members
        count = sum(replica.state is State.IN_SYNC for replica in members)
        if members:
            end: int | None = min(replica.flushed for replica in members)
        else:
            end = None if self._in_sync_min == 1 and now_ms >= self._alone_from_ms else 0
        return Verdict(end, count, 1 + count < self._in_sync_min)

    def states(self) -> dict[Hashable, State]:
        """Return where each replica stands."""
        return {key: replica.state for key, replica in self._replicas.items()}

    @property
    def _members(self) -> list[_Replica]:
        return [replica for replica in self._replicas.values() if replica.state is not State.LEARNER]

    def _judge(self, replica: _Replica, log_end: int, now_ms: int) -> None:
        replica.look(log_end, now_ms)
        if replica.state is State.LEARNER:
            if replica.is_caught_up(log_end, now_ms, CAUGHT_UP_MS):
                replica.state, replica.needed = State.JOINING, None
        elif not replica.is_caught_up(log_end, now_ms, BEHIND_MS_MAX):
            replica.state = State.LEARNER
