"""Which hosts `shmq cluster members` shows, from what each kind of host knows."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

from shmq.figures.snapshot import Election, Master, Replica, Replication, Snapshot
from shmq.tools.cluster.members_command import Member, members_of

A, B, C = "a" * 12, "b" * 12, "c" * 12
LEADER, FOLLOWER = "10.0.0.4:10911", "10.0.0.5:41822"


def seen_by(told: Replication | None, *, end: int = 100) -> list[Member]:
    return list(members_of(cast(Snapshot, SimpleNamespace(replication=told, log=SimpleNamespace(end=end)))))


def election(role: str, store: str, *in_sync: str) -> Election:
    return Election(role, store, A, in_sync, None, "", "")


def replica(store: str, state: str) -> Replica:
    return Replica(FOLLOWER, "shmq", state, 1.0, 90, 80, 10, 0, store)


def test_a_broker_without_other_hosts_is_its_only_member() -> None:
    assert seen_by(None) == [Member("", "", "leads", True, None, 100)]


def test_an_elected_leader_shows_who_is_connected_and_who_else_can_be_elected() -> None:
    told = Replication(
        "sync-master", 0.0, (replica(B, "catching up"),), (), (), None, 3, election=election("leading", A, A, C)
    )
    assert seen_by(told) == [
        Member(A, "", "leads", True, True, 100),
        Member(B, FOLLOWER, "follows", False, False, 90, 10),
        Member(C, "", "", False, True),
    ]


def test_a_follower_shows_its_leader_with_the_log_end_that_it_has_heard_of() -> None:
    master = Master(LEADER, "shmq", "up to date", 1.0, 0.0, 20, 5, "", "", None)
    told = Replication("slave", 0.0, (), (), (), master, 3, "follows", LEADER, election("following", B, A, B))
    assert seen_by(told) == [
        Member(B, "", "follows", True, True, 100),
        Member(A, LEADER, "leads", False, True, 120),
    ]


def test_a_fenced_host_that_knows_no_leader_is_alone() -> None:
    told = Replication(
        "sync-master", 0.0, (), (), (), None, 3, "fenced", "", Election("waiting", B, "", (A,), None, "", "")
    )
    assert seen_by(told) == [Member(B, "", "fenced", True, False, 100), Member(A, "", "", False, True)]


def test_without_an_election_the_links_say_who_is_in_sync() -> None:
    told = Replication("sync-master", 0.0, (replica(B, "in sync"), replica("", "catching up")), (), (), None)
    assert [member.in_sync for member in seen_by(told)] == [True, True, False]
    told = Replication("master", 0.0, (replica(B, "asynchronous"),), (), (), None)
    assert [member.in_sync for member in seen_by(told)] == [None, None]
