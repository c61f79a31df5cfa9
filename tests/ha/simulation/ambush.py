"""Faults at the moment when they hurt most: while the store is asked to change something, or keeps a lease alive.

    moment                        strikes, up to three of them together
    a lease is asked for          the request is on its way for long
    who leads, or the set, is     the same; nothing comes from the store; the asker is alone, or its process stops;
    being written                 the one that joins or leaves is killed, or cut off from the asker; the asker's disk
                                  takes nothing any more; the asker is to stop in order
    a promise was given           no answer of the store comes; then an operator has the leader hand over, or it loses
                                  one of its peers for as long
    a lease was kept alive        the answer takes long; then the asker is alone, or has some of its peers and no store

Faults at any moment seldom come together in the tenth of a second in which two of them matter.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from shmq.daemon.ha.election.coordination import Commit, Grant, KeepAlive, Request, Transaction
from shmq.daemon.ha.election.policy import LEASE_MS

if TYPE_CHECKING:
    from tests.ha.simulation.broker_model import Broker
    from tests.ha.simulation.group import Group

STRIKES_MAX = 3


class Ambush:
    """The ambushes of one schedule: how often they strike is decided once.

    Attributes:
        count: how often it has struck.
    """

    def __init__(self, group: Group, answer_ms: int) -> None:
        self._group = group
        self._chance = group.world.chance
        self._answer_ms = answer_ms
        self._of_writes = self._chance.choice((0.0, 0.15, 0.5))
        self._of_keep_alives = self._chance.choice((0.0, 0.1, 0.5))
        self._of_promises = self._chance.choice((0.0, 0.5, 1.0))
        self._is_over = False
        self.count = 0

    def end(self) -> None:
        """Strike no more."""
        self._of_writes = self._of_keep_alives = self._of_promises = 0.0
        self._is_over = True

    def request_ms(self, broker: Broker, request: Request) -> int:
        """A request is sent to the store: return how much longer than usual it is on its way."""
        if not (isinstance(request, Grant) or (isinstance(request, Commit) and _writes(request.transaction))):
            return 0
        if self._chance.random() >= self._of_writes:
            return 0
        self.count += 1
        if isinstance(request, Grant):
            return self._chance.randrange(self._answer_ms)
        ms = 0
        for _ in range(1 + self._chance.randrange(STRIKES_MAX)):
            ms = max(ms, self._strike(broker, request.transaction))
        return ms

    def answer_ms(self, broker: Broker, request: Request) -> int:
        """The store has done a request: return how much longer than usual the answer is on its way."""
        state = self._group.store.state
        if not isinstance(request, KeepAlive) or state is None or len(state.in_sync) < 2:
            return 0
        if self._chance.random() >= self._of_keep_alives:
            return 0
        self._of_keep_alives = 0.0
        self.count += 1
        ms = self._answer_ms // 2 + self._chance.randrange(self._answer_ms // 2 - 20)
        self._group.world.after(ms + 20, None, self._isolate, broker, self._chance.choice((1.0, 0.5)), LEASE_MS)
        return ms

    def promised(self, leader: Broker) -> None:
        """A leader that hears nothing of the store was given a promise."""
        if self._chance.random() >= self._of_promises:
            return
        self._of_promises = 0.0
        self.count += 1
        self._group.cut.discard((leader.name, "store"))
        if self._chance.random() < 0.5:
            self._group.cut_for(self._span(), {("store", leader.name)})
            leader.hand_over()
        else:
            peer = self._chance.choice([name for name in self._group.brokers if name != leader.name])
            pairs = {*_both(leader.name, peer), *_both(leader.name, "store")}
            self._group.cut_for(LEASE_MS + self._span(), pairs)

    def _strike(self, broker: Broker, transaction: Transaction) -> int:
        what = self._chance.randrange(8)
        if what == 0:
            return self._chance.randrange(self._answer_ms)
        if what == 1:
            self._group.cut_for(self._span(), {("store", broker.name)})
        elif what == 2:
            self._group.world.after(self._chance.randrange(30), None, self._isolate, broker)
        elif what == 3:
            self._group.stop_for(self._span(), broker)
        elif what == 6:
            self._group.fill_for_good(broker)
        elif what == 7:
            self._group.world.after(self._chance.randrange(30), broker.host, self._stop_in_order, broker)
        else:
            self._strike_peer(broker, transaction, is_killed=what == 4)
        return 0

    def _strike_peer(self, broker: Broker, transaction: Transaction, *, is_killed: bool) -> None:
        group = self._group
        before = group.store.state.in_sync if group.store.state else frozenset()
        after = transaction.state.in_sync if transaction.state else before
        others = [peer for peer in group.brokers.values() if peer is not broker]
        concerned = [peer for peer in others if (peer.uuid in before) != (peer.uuid in after)] or others
        peer = self._chance.choice(concerned)
        if not is_killed:
            group.cut_for(self._span(), {(broker.name, peer.name), (peer.name, broker.name)})
        elif peer.is_running:
            peer.kill(loses_unflushed=self._chance.random() < 0.5)
            group.world.after(self._span(), None, group.restart, peer)

    def _stop_in_order(self, broker: Broker) -> None:
        if not self._is_over:
            broker.stop_in_order()

    def _isolate(self, broker: Broker, share: float = 1.0, least_ms: int = 0) -> None:
        if self._is_over:
            return
        peers = [name for name in self._group.brokers if name != broker.name and self._chance.random() < share]
        pairs = {pair for name in ["store", *peers] for pair in _both(broker.name, name)}
        self._group.cut_for(least_ms + self._span(), pairs)

    def _span(self) -> int:
        return self._chance.choice((300, 1_200, 3_500, 6_000)) + self._chance.randrange(600)


def _both(one: str, other: str) -> tuple[tuple[str, str], tuple[str, str]]:
    return (one, other), (other, one)


def _writes(transaction: Transaction) -> bool:
    return transaction.leader is not None or transaction.state is not None
