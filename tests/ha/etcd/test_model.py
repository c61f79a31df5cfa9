"""The store that elections are simulated with does what etcd does: the same requests, the same answers."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from shmq.daemon.ha.election.coordination import (
    Commit,
    Grant,
    KeepAlive,
    LeaderKey,
    Lease,
    Outcome,
    Refused,
    Revoke,
    StateKey,
    StoreRefused,
    Transaction,
    View,
)
from shmq.daemon.ha.etcd.client import Etcd, EtcdOptions
from tests.ha.etcd.server import EtcdServer, needs_etcd
from tests.ha.simulation.coordination_model import CoordinationModel
from tests.ha.simulation.world import World

pytest.importorskip("urllib3")
pytestmark = [needs_etcd(), pytest.mark.slow]
REQUESTS = 150
TTL_MS = 600_000


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdServer]:
    folder: Path = tmp_path_factory.mktemp("etcd")
    server = EtcdServer(folder)
    server.start()
    yield server
    server.stop()


class Both:
    """The model and etcd, and which number of one is which of the other."""

    def __init__(self, etcd: Etcd, chance: random.Random) -> None:
        self.model, self.etcd, self.chance = CoordinationModel(World(0)), etcd, chance
        self.leases: dict[int, int] = {}  # of the model: of etcd
        self.revisions: dict[int, int] = {0: 0}
        self.done = 0

    def step(self) -> None:
        """Ask both for the same."""
        what = self.chance.random()
        if what < 0.15 or not self.leases:
            mine, theirs = self.model.do(Grant(TTL_MS)), self.etcd.grant(TTL_MS)
            assert isinstance(mine, Lease)
            self.leases[mine.number] = theirs.number
        elif what < 0.3:
            lease = self.chance.choice(list(self.leases))
            answer = self.model.do(Revoke(lease))
            assert isinstance(answer, Lease) and answer.ttl_ms == self.etcd.revoke(self.leases[lease]).ttl_ms
            self.compare(self.model.view, self.etcd.commit(Transaction()).view)
        elif what < 0.4:
            lease = self.chance.choice(list(self.leases))
            answer = self.model.do(KeepAlive(lease))
            assert isinstance(answer, Lease) and answer.ttl_ms == self.etcd.keep_alive(self.leases[lease]).ttl_ms
        else:
            self.commit()

    def commit(self) -> None:
        view, chance = self.model.view, self.chance
        known = list(self.revisions)
        wanted = self.transaction(view)
        guards = (
            chance.choice((None, view.leader.revision if view.leader else 0, chance.choice(known))),
            chance.choice((None, view.state.revision if view.state else 0, chance.choice(known))),
        )
        mine = self.model.do(Commit(wanted._replace(leader_revision=guards[0], state_revision=guards[1])))
        leader = wanted.leader and wanted.leader._replace(lease=self.leases[wanted.leader.lease])
        leader_guard, state_guard = (None if guard is None else self.revisions[guard] for guard in guards)
        theirs: Outcome | Refused
        try:
            theirs = self.etcd.commit(
                wanted._replace(leader_revision=leader_guard, state_revision=state_guard, leader=leader)
            )
        except StoreRefused as refused:
            theirs = Refused(str(refused))
        assert type(mine) is type(theirs)
        if isinstance(mine, Outcome) and isinstance(theirs, Outcome):
            assert mine.is_done == theirs.is_done
            self.done += mine.is_done
            self.compare(mine.view, theirs.view)

    def transaction(self, view: View) -> Transaction:
        chance = self.chance
        lease = chance.choice(list(self.leases))
        uuid = chance.choice("AB")
        leader = LeaderKey(uuid, f"{uuid}:1", lease, 0) if chance.random() < 0.5 else None
        in_sync = frozenset(chance.choice(("A", "B", "AB")))
        epoch = (view.state.epoch if view.state else 0) + 1
        state = StateKey(epoch, in_sync, chance.choice(("", "B")), "why") if chance.random() < 0.6 else None
        return Transaction(None, None, leader, leader is None and chance.random() < 0.4, state)

    def compare(self, mine: View, theirs: View) -> None:
        """Compare two views, and note which revision is which."""
        assert (mine.leader is None, mine.state is None) == (theirs.leader is None, theirs.state is None)
        if mine.leader is not None and theirs.leader is not None:
            assert self.leases[mine.leader.lease] == theirs.leader.lease
            assert mine.leader[:2] == theirs.leader[:2]
            assert self.revisions.setdefault(mine.leader.revision, theirs.leader.revision) == theirs.leader.revision
        if mine.state is not None and theirs.state is not None:
            assert mine.state[:4] == theirs.state[:4]
            assert self.revisions.setdefault(mine.state.revision, theirs.state.revision) == theirs.state.revision
        assert self.revisions.setdefault(mine.revision, theirs.revision) <= theirs.revision


@pytest.mark.parametrize("seed", range(4))
def test_the_model_answers_as_etcd_does(server: EtcdServer, seed: int) -> None:
    both = Both(Etcd(EtcdOptions((server.endpoint,)), "model", f"{seed}", call_seconds=30.0), random.Random(seed))
    for _ in range(REQUESTS):
        both.step()
    assert both.done > REQUESTS // 10
