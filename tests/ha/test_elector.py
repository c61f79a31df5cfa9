"""Elections on a real clock over a real etcd; the brokers are small, and their logs hold what was acknowledged."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from shmq.daemon.ha.election.coordination import StoreUnanswered
from shmq.daemon.ha.election.policy import NO_LIMIT_MS, Policy
from shmq.errors import UsageError
from tests.deadline import eventually
from tests.ha.etcd.server import EtcdServer, needs_etcd, three_members
from tests.ha.small_group import SmallBroker, SmallGroup

pytest.importorskip("urllib3")
pytestmark = [needs_etcd(), pytest.mark.slow]
SYNC, ASYNC = Policy(is_sync=True), Policy(is_sync=False)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[EtcdServer]:
    server = EtcdServer(tmp_path)
    server.start()
    yield server
    server.stop()


def has_all_of(broker: SmallBroker, other: SmallBroker) -> bool:
    return set(other.acknowledged) <= set(broker.log.records)


def receipts(broker: SmallBroker) -> None:
    before = len(broker.acknowledged)
    eventually(lambda: len(broker.acknowledged) > before, "it acknowledges")


def test_one_broker_leads_and_others_join_it(server: EtcdServer) -> None:
    with SmallGroup((server.endpoint,), "ABC", SYNC) as group:
        leader = group.wait_for_leader()
        group.wait_for_set("A", "B", "C")
        receipts(leader)
        assert [sum(broker.begun) for broker in group.brokers.values()].count(1) == 1


def test_a_successor_has_all_that_was_acknowledged(server: EtcdServer) -> None:
    with SmallGroup((server.endpoint,), "AB", SYNC) as group:
        for _ in range(2):
            group.wait_for_set("A", "B")
            leader = group.wait_for_leader()
            receipts(leader)
            assert not leader.elector.hand_over()
            other = group.wait_for_leader(besides=leader.name)
            assert has_all_of(other, leader)
        assert sorted(leader.begun + other.begun) == [1, 2, 3]


def test_after_a_kill_one_that_was_in_sync_leads(server: EtcdServer) -> None:
    with SmallGroup((server.endpoint,), "ABC", SYNC) as group:
        group.wait_for_set("A", "B", "C")
        leader = group.wait_for_leader()
        receipts(leader)
        group.kill(leader)
        other = group.wait_for_leader(besides=leader.name)
        assert has_all_of(other, leader) and other.begun == [2]
        group.wait_for_set(*set("ABC") - {leader.name})
        receipts(other)
        with pytest.raises(UsageError):
            leader.elector.status()


def test_without_etcd_a_synchronous_leader_goes_on_with_its_set(server: EtcdServer) -> None:
    with SmallGroup((server.endpoint,), "AB", SYNC) as group:
        group.wait_for_set("A", "B")
        leader = group.wait_for_leader()
        server.stop()
        eventually(lambda: (leader.elector.status().kept_ms_ago or 0) > 4_500, "its lease is over")
        receipts(leader)
        server.start()
        eventually(lambda: (leader.elector.status().kept_ms_ago or 9_999) < 1_500, "it has a lease again")
        assert leader.begun == [1]


def test_without_etcd_an_asynchronous_leader_that_is_alone_is_fenced_and_its_tail_is_known(server: EtcdServer) -> None:
    with SmallGroup((server.endpoint,), "AB", ASYNC) as group:
        group.wait_for_set("A", "B")
        leader = group.wait_for_leader()
        receipts(leader)
        os.kill(server.process.pid, signal.SIGSTOP)
        try:
            eventually(lambda: (leader.elector.status().kept_ms_ago or 0) > 4_500, "its lease is over")
            receipts(leader)  # the other has promised not to campaign
            group.cut.add(leader.name)
            eventually(lambda: not leader.may_append, "it is fenced")
            assert "promised" in eventually(lambda: leader.refused, "it says why")
        finally:
            os.kill(server.process.pid, signal.SIGCONT)


def test_a_leader_stays_when_a_member_of_etcd_dies(tmp_path: Path) -> None:
    with three_members(tmp_path) as members:
        endpoints = tuple(member.endpoint for member in members)
        with SmallGroup(endpoints, "AB", ASYNC) as group:
            group.wait_for_set("A", "B")
            leader = group.wait_for_leader()
            for member in members:
                member.stop()
                receipts(leader)
                eventually(lambda: (leader.elector.status().kept_ms_ago or 9_999) < 1_500, "its lease is kept alive")
                member.start()
            assert leader.begun == [1] and not any(o.begun for o in group.brokers.values() if o is not leader)


def test_a_follower_that_cannot_watch_says_so(server: EtcdServer, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(revision: int) -> None:
        raise StoreUnanswered("nothing is seen of it")

    with SmallGroup((server.endpoint,), "AB", SYNC) as group:
        group.wait_for_set("A", "B")
        leader = group.wait_for_leader()
        [follower] = [broker for broker in group.brokers.values() if broker is not leader]
        assert not follower.elector.status().reason
        monkeypatch.setattr(follower.elector._store, "watch", fails)
        eventually(lambda: "nothing is seen of it" in follower.elector.status().reason, "it says why")
        assert not leader.elector.status().reason
        monkeypatch.undo()
        eventually(lambda: not follower.elector.status().reason, "it sees again")


def test_who_stops_in_order_hands_over_and_ends(server: EtcdServer) -> None:
    with SmallGroup((server.endpoint,), "AB", ASYNC) as group:
        group.wait_for_set("A", "B")
        leader = group.wait_for_leader()
        receipts(leader)
        leader.elector.stop()
        other = group.wait_for_leader(besides=leader.name)
        assert has_all_of(other, leader) and not leader.may_append


def test_a_broker_that_cannot_begin_its_epoch_lets_another_one_lead(
    server: EtcdServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    with SmallGroup((server.endpoint,), "ABC", SYNC) as group:
        group.wait_for_set("A", "B", "C")
        leader = group.wait_for_leader()
        receipts(leader)
        unable = next(broker for broker in group.brokers.values() if broker is not leader)
        tried: list[int] = []

        def fails(epoch: int, why: str) -> None:
            tried.append(epoch)
            raise OSError("the disk is full")

        monkeypatch.setattr(unable, "promote", fails)
        assert not leader.elector.hand_over(unable.name)
        eventually(lambda: tried, group.told)
        other = eventually(lambda: (leads := group.leader()) is not None and 3 in leads.begun and leads, group.told)
        assert other is not unable and unable.begun == [] and tried == [2]
        group.wait_for_set("A", "B", "C")
        receipts(other)


def test_what_was_fenced_by_mistake_is_allowed_again(server: EtcdServer) -> None:
    """Without another member there is no lease to renew, so nothing else would say it again."""
    with SmallGroup((server.endpoint,), "A", SYNC) as group:
        leader = group.wait_for_leader()
        eventually(lambda: leader.allowed_ms == NO_LIMIT_MS, group.told)
        with group.lock:
            leader.allowed_ms, stored = 0, leader.log.end
        eventually(lambda: leader.log.end > stored, group.told)


def test_a_broker_that_fails_is_allowed_nothing(server: EtcdServer, monkeypatch: pytest.MonkeyPatch) -> None:
    def breaks(epoch: int, why: str) -> None:
        raise RuntimeError("it is broken")

    group = SmallGroup((server.endpoint,), "A", SYNC)
    broker = group.brokers["A"]
    monkeypatch.setattr(broker, "promote", breaks)
    with pytest.raises(RuntimeError, match="it is broken"):
        broker.elector.run()
    assert not broker.may_append and "no part in elections" in broker.refused
