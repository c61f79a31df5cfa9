"""The tables of a name server keep their promises whatever brokers do, in whatever order."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from shmq.daemon.nameserver.registration import Claim, Identity, QueueEntry, Version
from shmq.daemon.nameserver.registry import EMBEDDED, Registry
from shmq.daemon.nameserver.settings import NameServerSettings
from shmq.errors import PermissionDenied, ShmqError

SMALL = NameServerSettings(topics_max=4, brokers_max=3, members_max=2, routes_max=8)
QUEUE = QueueEntry(4, 4, 6, 0)

names = st.sampled_from(["a", "b", "c", "d"])
topics = st.dictionaries(st.sampled_from("vwxyz"), st.builds(QueueEntry, *[st.integers(0, 9)] * 4), max_size=5)
identities = st.builds(
    Identity,
    st.sampled_from(["C1", "C2"]),
    names,
    st.integers(0, 2),
    st.sampled_from(["h1:1", "h1:2", "h2:1"]),
)
claims = st.builds(
    Claim,
    identities,
    ha_address=st.just("h:1"),
    expiry_ms=st.sampled_from([0, 10_000]),
    version=st.builds(Version, counter=st.integers(0, 3)),
    topics=topics,
)
steps = st.one_of(
    st.tuples(st.just("register"), claims, st.integers(1, 4), st.sampled_from(["h1", "h2"])),
    st.tuples(st.just("embed"), st.integers(0, 9), topics),
    st.tuples(st.just("unregister"), identities),
    st.tuples(st.just("disconnected"), st.integers(1, 4)),
    st.tuples(st.just("later"), st.integers(0, 200_000)),
    st.tuples(st.just("delete"), st.sampled_from("vwxyz"), st.sampled_from(["", "C1"])),
    st.tuples(st.just("add"), st.sampled_from("vwxyz"), st.dictionaries(names, st.just(QUEUE), max_size=3)),
    st.tuples(st.just("write"), names, st.booleans()),
)


class Played:
    """A registry and the clock of one sequence of steps."""

    def __init__(self) -> None:
        self.registry = Registry(SMALL)
        self.now_ms = 0
        self.is_embedded = False

    def play(self, step: tuple[Any, ...]) -> None:
        kind, *rest = step
        registry = self.registry
        before = snapshot(registry)
        try:
            if kind == "register":
                claim, connection_id, host = rest
                registry.register(claim, connection_id=connection_id, host=host, now_ms=self.now_ms)
            elif kind == "embed":
                identity = Identity("C1", "a", 0, ":10911")
                claim = Claim(identity, version=Version(counter=rest[0]), topics=rest[1])
                registry.register(claim, connection_id=EMBEDDED, host="", now_ms=self.now_ms)
                self.is_embedded = True
            elif kind == "unregister":
                member = registry.member(rest[0])
                if member is None or member.connection_id != EMBEDDED:  # its requests are refused before
                    registry.unregister(rest[0])
            elif kind == "disconnected":
                registry.disconnected(rest[0])
            elif kind == "later":
                self.now_ms += rest[0]
                registry.expire(self.now_ms)
            elif kind == "delete":
                registry.delete_topic(rest[0], cluster=rest[1])
            elif kind == "add":
                registry.add_queues(*rest)
            else:
                registry.set_write_perm(rest[0], is_allowed=rest[1])
        except ShmqError:
            assert snapshot(registry) == before  # a refused step changes nothing
        self.check()

    def check(self) -> None:
        registry = self.registry
        assert len(registry.brokers()) <= SMALL.brokers_max and len(registry.topics()) <= SMALL.topics_max
        for entry in registry.brokers().values():
            addresses = [member.address for member in entry.members.values()]
            assert 0 < len(addresses) == len(set(addresses)) <= SMALL.members_max
        for name, member in ((entry, member) for entry in registry.brokers() for member in _members(registry, entry)):
            assert member.identity.broker_name == name
            assert member.connection_id == EMBEDDED or self.now_ms - member.seen_ms <= member.expiry_ms
        for queues in registry.topics().values():
            assert queues and set(queues) <= registry.brokers().keys()
        assert sum(map(len, registry.topics().values())) == registry.route_count <= SMALL.routes_max
        if self.is_embedded:
            assert registry.brokers()["a"].members[0].connection_id == EMBEDDED


def _members(registry: Registry, name: str) -> list[Any]:
    return list(registry.brokers()[name].members.values())


def snapshot(registry: Registry) -> Any:
    brokers = {
        name: (entry.cluster, {key: (member.identity, member.seen_ms) for key, member in entry.members.items()})
        for name, entry in registry.brokers().items()
    }
    return brokers, {topic: dict(queues) for topic, queues in registry.topics().items()}, registry.route_count


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(steps, max_size=30))
def test_any_sequence_of_steps_keeps_the_invariants(sequence: list[tuple[Any, ...]]) -> None:
    played = Played()
    for step in sequence:
        played.play(step)


def new_claim(
    *topic_names: str, counter: int = 1, broker_id: int = 0, address: str = "h1:1", name: str = "a", cluster: str = "C1"
) -> Claim:
    identity = Identity(cluster, name, broker_id, address)
    return Claim(identity, version=Version(counter=counter), topics=dict.fromkeys(topic_names, QUEUE))


def register(registry: Registry, claim: Claim, *, connection_id: int = 1, host: str = "h1", now_ms: int = 0) -> None:
    registry.register(claim, connection_id=connection_id, host=host, now_ms=now_ms)


def test_topics_are_taken_only_when_the_version_differs_and_missing_ones_are_kept() -> None:
    registry = Registry(SMALL)
    register(registry, new_claim("x", counter=1))
    register(registry, new_claim("y", counter=1))
    assert registry.topics().keys() == {"x"}
    register(registry, new_claim("y", counter=2))
    assert registry.topics().keys() == {"x", "y"}
    register(registry, new_claim("z", counter=1))  # an older version is another one, too
    assert registry.topics().keys() == {"x", "y", "z"}


def test_a_slave_brings_no_topics() -> None:
    registry = Registry(SMALL)
    register(registry, new_claim("x", broker_id=1))
    assert registry.topics() == {} and registry.brokers()["a"].members.keys() == {1}


def test_a_slave_that_becomes_master_gives_its_old_id_up_and_brings_its_topics() -> None:
    registry = Registry(SMALL)
    register(registry, new_claim("x", broker_id=1, counter=5))
    register(registry, new_claim("x", broker_id=0, counter=5))
    assert registry.brokers()["a"].members.keys() == {0}
    assert registry.topics().keys() == {"x"}


def test_a_master_that_was_replaced_does_not_come_back_with_its_older_epoch() -> None:
    registry = Registry(SMALL)
    for epoch, address in ((0, "h1:1"), (2, "h1:2"), (2, "h1:3")):
        claim = new_claim("x", address=address)
        register(registry, replace(claim, version=Version(state=epoch, counter=1)))
        assert [member.address for member in _members(registry, "a")] == [address]
    before = snapshot(registry)
    with pytest.raises(PermissionDenied, match="in epoch 2"):
        register(registry, replace(new_claim("x", address="h1:1"), version=Version(state=1, counter=9)))
    assert snapshot(registry) == before


def test_a_broker_that_moves_brings_its_topics_again() -> None:
    registry = Registry(SMALL)
    register(registry, new_claim("x"))
    registry.delete_topic("x")
    register(registry, new_claim("x", address="h1:9"))
    assert registry.topics().keys() == {"x"}
    assert registry.brokers()["a"].members[0].address == "h1:9"


def test_the_old_connection_of_a_broker_that_came_back_ends_nothing() -> None:
    registry = Registry(SMALL)
    register(registry, new_claim("x"), connection_id=1)
    register(registry, new_claim("x"), connection_id=2)
    assert registry.disconnected(1) == [] and registry.topics().keys() == {"x"}
    assert len(registry.disconnected(2)) == 1 and registry.topics() == {}


def test_a_topic_of_two_brokers_stays_with_the_other() -> None:
    registry = Registry(SMALL)
    register(registry, new_claim("x"), connection_id=1)
    register(registry, new_claim("x", name="b", cluster="C2"), connection_id=2)
    registry.delete_topic("x", cluster="C2")
    assert registry.topics()["x"].keys() == {"a"}
    register(registry, new_claim("x", name="b", cluster="C2", counter=2), connection_id=2)
    registry.disconnected(1)
    assert registry.topics()["x"].keys() == {"b"} and registry.brokers().keys() == {"b"}


def test_a_name_stays_with_the_host_that_holds_it_until_it_is_gone() -> None:
    registry = Registry(SMALL)
    register(registry, new_claim("x"), connection_id=1, host="h1")
    for forged in (new_claim("x", address="evil:1"), new_claim("x", broker_id=1)):
        with pytest.raises(PermissionDenied, match="registered from h1, not from evil"):
            register(registry, forged, connection_id=2, host="evil")
    registry.disconnected(1)
    register(registry, new_claim("x", address="h9:1"), connection_id=2, host="h9")
    assert registry.brokers()["a"].members[0].address == "h9:1"


def test_a_second_broker_of_a_name_on_the_same_host_takes_no_route() -> None:
    registry = Registry(SMALL)
    register(registry, new_claim("x"), connection_id=1)
    for second in (new_claim("y", address="h1:2"), new_claim("y", address="h1:2", counter=9)):
        with pytest.raises(PermissionDenied, match="registered at h1:1, and its connection is open"):
            register(registry, second, connection_id=2)
    assert registry.brokers()["a"].members[0].address == "h1:1" and registry.topics().keys() == {"x"}
    register(registry, new_claim("x"), connection_id=3)  # the first one connects anew
    register(registry, new_claim("y", address="h1:2", broker_id=1), connection_id=2)  # a slave
    registry.disconnected(3)
    register(registry, new_claim("y", address="h1:2"), connection_id=2)
    assert registry.brokers()["a"].members[0].address == "h1:2" and "y" in registry.topics()


def test_slaves_of_one_broker_have_an_id_each() -> None:
    registry = Registry(replace(SMALL, members_max=3))
    register(registry, new_claim("x"), connection_id=1, host="h1")
    register(registry, new_claim("x", broker_id=1, address="h2:1"), connection_id=2, host="h2")
    with pytest.raises(PermissionDenied, match="id 1 is registered from h2, not from h3") as refused:
        register(registry, new_claim("x", broker_id=1, address="h3:1"), connection_id=3, host="h3")
    assert refused.value.hint.endswith("another id: --slave-id, or brokerId in broker.conf")
    register(registry, new_claim("x", broker_id=2, address="h3:1"), connection_id=3, host="h3")
    members = registry.brokers()["a"].members
    assert {key: member.address for key, member in members.items()} == {0: "h1:1", 1: "h2:1", 2: "h3:1"}


def test_a_master_on_another_host_takes_the_name_with_a_newer_epoch_and_no_other_way() -> None:
    registry = Registry(SMALL)
    register(registry, replace(new_claim("x"), version=Version(state=1)), connection_id=1, host="h1")
    register(registry, new_claim("x", broker_id=1, address="h2:1"), connection_id=2, host="h2")
    # Its host is gone or stands still: its connection is not closed.
    for epoch in (0, 1):
        same = replace(new_claim("x", address="h2:1"), version=Version(state=epoch, counter=9))
        with pytest.raises(PermissionDenied, match="registered from h1, not from h2"):
            register(registry, same, connection_id=3, host="h2")
    register(registry, replace(new_claim("x", address="h2:1"), version=Version(state=2)), connection_id=3, host="h2")
    assert {key: member.address for key, member in registry.brokers()["a"].members.items()} == {0: "h2:1"}
    with pytest.raises(PermissionDenied, match="registered from h2, not from h1"):  # it wakes up
        register(registry, replace(new_claim("x"), version=Version(state=1)), connection_id=1, host="h1")
    assert registry.disconnected(1) == []
    with pytest.raises(PermissionDenied, match="registered from"):  # a slave's epoch is no title
        slave = replace(new_claim("x", broker_id=0, address="h3:1"), version=Version(state=2))
        register(registry, slave, connection_id=4, host="h3")
    register(registry, new_claim("x", broker_id=1), connection_id=1, host="h1")
    assert registry.brokers()["a"].members.keys() == {0, 1}


def test_who_is_silent_for_its_expiry_is_gone() -> None:
    registry = Registry(SMALL)
    register(registry, new_claim("x"))
    assert registry.expire(SMALL.expiry_ms) == []
    assert [member.address for member in registry.expire(SMALL.expiry_ms + 1)] == ["h1:1"]
    assert registry.brokers() == {} and registry.topics() == {}


def test_write_permission_is_taken_and_given_back() -> None:
    registry = Registry(SMALL)
    register(registry, new_claim("x", "y"))
    assert registry.set_write_perm("a", is_allowed=False) == 2
    assert {queues["a"].perm for queues in registry.topics().values()} == {4}
    register(registry, new_claim("x", "y"))
    assert {queues["a"].perm for queues in registry.topics().values()} == {4}
    assert registry.set_write_perm("a", is_allowed=True) == 2
    assert {queues["a"].perm for queues in registry.topics().values()} == {6}
    assert registry.set_write_perm("absent", is_allowed=True) == 0
