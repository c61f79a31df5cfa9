"""The in-sync set of a leader that keeps it in the coordination store: reports and writes in, counted members out.

    a peer is      caught up within 500 ms    has all that is confirmed    the store has it       behind or silent 2 s
    LEARNER        JOINING                    -                            -                      -
    JOINING        -                          is asked for                 IN_SYNC                LEARNER
    IN_SYNC        -                          -                            -                      to be left out

It is a learner again once the store has left it out. A silent one is to be left out when the store has answered since
it was silent: a leader that hears nothing at all would leave out, with its last word, all that could be elected in its
place. A set is not made smaller than `in_sync_min`: nothing would be confirmed by the smaller one, and the member that
is left in can be elected.

What counts: every member of the set as the store has it, of any set that was asked for and may yet be written, and the
joining ones. Nothing is confirmed that one of them has not on its disk.

Invariants:
 1. A member that could be elected by what the store has, or may yet have, counts.
 2. No set is asked for with a member that lacks a confirmed byte, and from then on none is confirmed that it lacks.
 3. A set whose outcome is not known is forgotten only when the store has written another state than the one that it
    was asked for upon.
"""

from __future__ import annotations

from shmq.daemon.ha.election.coordination import StateKey
from shmq.daemon.ha.election.policy import KEEP_ALIVE_MS, Policy
from shmq.daemon.ha.in_sync import BEHIND_MS_MAX, CAUGHT_UP_MS, Progress, Verdict


class _Peer(Progress):
    def __init__(self, flushed: int, log_end: int, now_ms: int) -> None:
        super().__init__(flushed, log_end, now_ms)
        self.heard_ms = now_ms
        self.is_connected = True
        self.is_leaving = False
        self.is_joining = False
        self.is_near = True  # neither silent nor behind for too long
        self.needed: int | None = None  # what was confirmed when it joined

    def keeps_up(self, log_end: int, now_ms: int, within_ms: int) -> bool:
        is_heard = not self.is_leaving and now_ms - self.heard_ms <= BEHIND_MS_MAX
        return is_heard and self.is_caught_up(log_end, now_ms, within_ms)

    def may_be_unheard(self, now_ms: int, kept_ms: int) -> bool:
        """Whether it is silent, and so is the store: it may be this broker that hears nothing."""
        return now_ms - self.heard_ms > BEHIND_MS_MAX and kept_ms <= self.heard_ms + KEEP_ALIVE_MS


class MemberSet:
    """The members of one term.

    Args:
        me: counts always; it is not among the peers.
        state: what the store has.
    """

    def __init__(self, me: str, state: StateKey, policy: Policy) -> None:
        self.committed = state
        self._me = me
        self._policy = policy
        self._asked_for: list[frozenset[str]] = []
        self._peers: dict[str, _Peer] = {}

    def report(self, uuid: str, flushed: int, log_end: int, now_ms: int) -> None:
        """Take what a peer says of its disk."""
        peer = self._peers.get(uuid)
        if peer is None:
            peer = self._peers[uuid] = _Peer(flushed, log_end, now_ms)
        peer.flushed, peer.heard_ms, peer.is_connected = flushed, now_ms, True
        self._judge(peer, uuid, log_end, now_ms)

    def gone(self, uuid: str) -> None:
        """The link of a peer has ended."""
        peer = self._peers.get(uuid)
        if peer is not None:
            peer.is_connected = peer.is_joining = peer.is_leaving = peer.is_near = False
            if uuid not in self.electable:
                del self._peers[uuid]

    def leave(self, uuid: str) -> None:
        """A peer wants to stop."""
        if uuid in self._peers:
            self._peers[uuid].is_leaving = True
            self._peers[uuid].is_joining = False

    def tick(self, log_end: int, now_ms: int) -> None:
        """Look at the clock."""
        for uuid, peer in self._peers.items():
            self._judge(peer, uuid, log_end, now_ms)

    def confirmed(self, confirmed_end: int) -> None:
        """The core has the verdict, and from then on confirms no more than it says; this is how far it was."""
        for peer in self._peers.values():
            if peer.is_joining and peer.needed is None:
                peer.needed = confirmed_end

    def wanted(self, log_end: int, now_ms: int, kept_ms: int) -> frozenset[str] | None:
        """Return the set that the store ought to have; None: it has it, for sure.

        Args:
            kept_ms: when the last question that the store has answered was sent.
        """
        wanted = {self._me}
        for uuid, peer in self._peers.items():
            if uuid in self.committed.in_sync:
                is_in = peer.keeps_up(log_end, now_ms, BEHIND_MS_MAX) or peer.may_be_unheard(now_ms, kept_ms)
            else:
                is_in = peer.is_joining and peer.needed is not None and peer.flushed >= peer.needed
            if is_in:
                wanted.add(uuid)
        left_out = sorted(self.committed.in_sync - wanted, key=lambda uuid: (-self.flushed_of(uuid), uuid))
        wanted.update(left_out[: max(self._policy.in_sync_min - len(wanted), 0)])
        return None if wanted == self.committed.in_sync and not self._asked_for else frozenset(wanted)

    def ask_for(self, in_sync: frozenset[str]) -> None:
        """A set is being asked for; who is in it counts from now on."""
        self._asked_for.append(in_sync)

    def refused(self, in_sync: frozenset[str]) -> None:
        """The store has not written a set that was asked for, and will not."""
        if in_sync in self._asked_for:
            self._asked_for.remove(in_sync)

    def settle(self, state: StateKey) -> None:
        """Take what the store has."""
        if state.revision <= self.committed.revision:
            return
        self.committed = state
        self._asked_for.clear()
        for uuid in state.in_sync & self._peers.keys():
            self._peers[uuid].is_joining = False

    @property
    def is_certain(self) -> bool:
        """Whether nothing that was asked for may yet be written."""
        return not self._asked_for

    @property
    def electable(self) -> frozenset[str]:
        """The members that could be elected by what the store has, or may yet have."""
        return self.committed.in_sync.union(*self._asked_for)

    @property
    def counted(self) -> set[str]:
        """The others who count."""
        joining = {uuid for uuid, peer in self._peers.items() if peer.is_joining}
        return joining.union(self.electable) - {self._me}

    def are_heard(self, now_ms: int) -> bool:
        """Return whether every other one that counts was heard of lately."""
        for uuid in self.counted:
            peer = self._peers.get(uuid)
            if peer is None or not peer.is_connected or now_ms - peer.heard_ms > BEHIND_MS_MAX:
                return False
        return True

    def flushed_of(self, uuid: str) -> int:
        """Return how far a peer's disk is; 0 if that is unknown."""
        return self._peers[uuid].flushed if uuid in self._peers else 0

    def successor(self) -> str:
        """Return the member in sync, and connected, that has most; empty: there is none."""
        able = [u for u in self.committed.in_sync if u in self._peers and self._peers[u].is_connected]
        return max(able, key=lambda uuid: (self._peers[uuid].flushed, uuid), default="")

    def verdict(self) -> Verdict:
        """Return what the core may confirm."""
        counted = self.counted
        in_sync = self.committed.in_sync
        replicas = sum(peer.is_near for uuid, peer in self._peers.items() if uuid in in_sync)
        if counted:
            end: int | None = min(self.flushed_of(uuid) for uuid in counted)
        else:
            end = None if self._policy.in_sync_min == 1 else 0
        return Verdict(end, replicas, 1 + replicas < self._policy.in_sync_min)

    def _judge(self, peer: _Peer, uuid: str, log_end: int, now_ms: int) -> None:
        peer.look(log_end, now_ms)
        peer.is_near = peer.is_connected and peer.keeps_up(log_end, now_ms, BEHIND_MS_MAX)
        if uuid in self.committed.in_sync or not peer.is_connected:
            return
        if not peer.is_joining:
            if peer.keeps_up(log_end, now_ms, CAUGHT_UP_MS):
                peer.is_joining, peer.needed = True, None
        elif not peer.is_near:
            peer.is_joining = False
