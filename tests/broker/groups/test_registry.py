"""The registry of members: which get a notice, which expire, what is forgotten."""

from collections import defaultdict

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from shmq.daemon.broker.groups.consumer_group import Origin
from shmq.daemon.broker.groups.registry import Change, GroupRegistry
from shmq.daemon.broker.settings import BrokerSettings
from shmq.errors import FlowControl, InvalidName, SubscriptionConflict
from shmq.protocol.body import ConsumerData, HeartbeatData, ProducerData, SubscriptionData
from shmq.protocol.codes import Language

LIMITS = BrokerSettings(
    broker_name="b",
    version="0",
    abi=1,
    generation=1,
    pid_namespace=1,
    groups_per_client_max=4,
    topics_per_group_max=3,
    members_per_group_max=3,
    expression_characters_max=20,
    tags_characters_max=20,
)


def local(connection_id: int) -> Origin:
    return Origin(connection_id, True, Language.PYTHON, 409)


def remote(connection_id: int) -> Origin:
    return Origin(connection_id, False, Language.JAVA, 409)


def consumer(group: str, *topics: str, tags: str = "*", version: int = 1, model: str = "CLUSTERING") -> ConsumerData:
    entries = [SubscriptionData(topic=topic, subString=tags, subVersion=version) for topic in topics]
    return ConsumerData(groupName=group, subscriptionDataSet=entries, messageModel=model)


def beat(client_id: str, *consumers: ConsumerData, producers: tuple[str, ...] = ()) -> HeartbeatData:
    return HeartbeatData(client_id, list(consumers), [ProducerData(name) for name in producers])


@pytest.fixture
def registry() -> GroupRegistry:
    return GroupRegistry(LIMITS)


def test_a_new_member_changes_its_group_and_a_repeated_heartbeat_does_not(registry: GroupRegistry) -> None:
    assert registry.heartbeat(local(1), beat("a", consumer("g", "t")), 0).groups == ["g"]
    assert registry.heartbeat(local(1), beat("a", consumer("g", "t")), 1).groups == []
    assert registry.heartbeat(local(2), beat("b", consumer("g", "t")), 2).groups == ["g"]
    assert registry.members("g") == ["a", "b"]
    assert [origin.connection_id for origin in registry.origins("g")] == [1, 2]


def test_a_changed_subscription_changes_the_group(registry: GroupRegistry) -> None:
    registry.heartbeat(local(1), beat("a", consumer("g", "t")), 0)
    assert registry.heartbeat(local(1), beat("a", consumer("g", "t", "u")), 1).groups == ["g"]
    assert registry.subscribers("u") == ["g"]


def test_a_heartbeat_leaves_groups_it_does_not_name_alone(registry: GroupRegistry) -> None:
    registry.heartbeat(local(1), beat("a", consumer("g", "t"), producers=("p",)), 0)
    registry.heartbeat(local(1), beat("a", consumer("h", "t")), 1)
    assert registry.memberships(1) == (["g", "h"], ["p"])


def test_every_member_sees_the_same_order(registry: GroupRegistry) -> None:
    for connection_id, client in enumerate(("c", "a", "b")):
        registry.heartbeat(remote(connection_id), beat(client, consumer("g", "t")), 0)
    assert registry.members("g") == ["a", "b", "c"]


def test_unregistering_takes_only_the_named_groups(registry: GroupRegistry) -> None:
    registry.heartbeat(local(1), beat("a", consumer("g", "t"), consumer("h", "t"), producers=("p",)), 0)
    registry.heartbeat(local(2), beat("b", consumer("g", "t")), 0)
    change = registry.unregister(1, "a", producer_group="p", consumer_group="g", now_ms=1)
    assert change.groups == ["g"]
    assert registry.members("g") == ["b"]
    assert registry.memberships(1) == (["h"], [])


@pytest.mark.parametrize(("connection_id", "client"), [(2, "a"), (1, "z"), (9, "a")])
def test_a_client_cannot_unregister_another(registry: GroupRegistry, connection_id: int, client: str) -> None:
    registry.heartbeat(local(1), beat("a", consumer("g", "t")), 0)
    registry.heartbeat(local(2), beat("b", consumer("g", "t")), 0)
    change = registry.unregister(connection_id, client, producer_group="", consumer_group="g", now_ms=1)
    assert change == Change()
    assert registry.members("g") == ["a", "b"]


def test_a_leaving_connection_takes_everything_with_it(registry: GroupRegistry) -> None:
    registry.heartbeat(local(1), beat("a", consumer("g", "t"), consumer("h", "t"), producers=("p",)), 0)
    registry.heartbeat(local(2), beat("b", consumer("g", "t")), 0)
    assert registry.leave(1, 5).groups == ["g"]  # h has no member left for a notice
    assert registry.members("g") == ["b"]
    assert registry.members("h") == [] and registry.producer_groups() == {}
    assert registry.leave(1, 5) == Change()


def test_a_client_that_comes_back_is_not_removed_by_its_old_connection(registry: GroupRegistry) -> None:
    registry.heartbeat(local(1), beat("a", consumer("g", "t"), producers=("p",)), 0)
    assert registry.heartbeat(local(2), beat("a", consumer("g", "t"), producers=("p",)), 1).groups == ["g"]
    assert registry.leave(1, 2) == Change()
    assert registry.members("g") == ["a"]
    assert registry.producer_groups() == {"p": ["a"]}


def test_only_tcp_members_expire(registry: GroupRegistry) -> None:
    registry.heartbeat(local(1), beat("a", consumer("g", "t")), 0)
    registry.heartbeat(remote(2), beat("b", consumer("g", "t")), 0)
    registry.heartbeat(remote(3), beat("c", producers=("p",)), 500)
    assert registry.expired_connections(LIMITS.member_expiry_ms) == []
    assert registry.expired_connections(LIMITS.member_expiry_ms + 1) == [2]
    assert registry.expired_connections(LIMITS.member_expiry_ms + 501) == [2, 3]
    registry.heartbeat(remote(2), beat("b", consumer("g", "t")), 1000)
    assert registry.expired_connections(LIMITS.member_expiry_ms + 501) == [3]


def test_a_conflicting_local_member_is_refused_in_all_its_groups(registry: GroupRegistry) -> None:
    registry.heartbeat(local(1), beat("a", consumer("g", "t", tags="x"), consumer("h", "t", tags="x")), 0)
    wanted = consumer("g", "t", tags="x||y"), consumer("h", "t", tags="y")
    with pytest.raises(SubscriptionConflict):
        registry.heartbeat(local(2), beat("b", *wanted, producers=("p",)), 0)
    assert registry.memberships(2) == ([], [])
    # The refused superset in g must not have begun an update either.
    assert registry.consumer_groups()[0].agreement.differs_since_ms is None
    with pytest.raises(SubscriptionConflict):
        registry.heartbeat(local(3), beat("c", consumer("g", "t", tags="y")), 0)


def test_a_member_that_differs_by_an_old_update_may_repeat_itself_for_ever(registry: GroupRegistry) -> None:
    registry.heartbeat(local(1), beat("a", consumer("g", "t", tags="x")), 0)
    registry.heartbeat(local(2), beat("b", consumer("g", "t", tags="x||y")), 0)
    late = LIMITS.subscription_grace_ms * 5
    registry.heartbeat(local(1), beat("a", consumer("g", "t", tags="x")), late)
    # What it reads besides is not a reason to judge again what it has.
    registry.heartbeat(local(1), beat("a", consumer("g", "t", "u", tags="x")), late)
    with pytest.raises(SubscriptionConflict):
        registry.heartbeat(local(3), beat("c", consumer("g", "t", tags="x")), late)


def test_local_members_with_different_topics_do_not_conflict_and_divide_each_topic_alone(
    registry: GroupRegistry,
) -> None:
    assert registry.heartbeat(local(1), beat("a", consumer("g", "t")), 0).reports == []
    change = registry.heartbeat(local(2), beat("b", consumer("g", "u")), 0)
    assert change == Change(groups=["g"])
    assert registry.sharers("g", "t") == ["a"] and registry.sharers("g", "u") == ["b"]
    assert registry.members("g") == ["a", "b"] and registry.sharers("g", "v") == []
    assert registry.sharers("h", "t") == []
    (group,) = registry.consumer_groups()
    assert group.conflicts == 0 and group.agreement.differs_since_ms is None


def test_topics_may_be_taken_up_one_after_the_other(registry: GroupRegistry) -> None:
    """Two processes of one program that subscribes to t and then to u, and then drops t."""
    for topics in (("t",), ("t", "u")):
        assert registry.heartbeat(local(1), beat("a", consumer("g", *topics)), 0).groups == ["g"]
    registry.heartbeat(local(2), beat("b", consumer("g", "t")), 0)
    assert registry.sharers("g", "t") == ["a", "b"] and registry.sharers("g", "u") == ["a"]
    registry.heartbeat(local(2), beat("b", consumer("g", "t", "u")), 0)
    assert registry.sharers("g", "u") == ["a", "b"]
    assert registry.heartbeat(local(1), beat("a", consumer("g", "u")), 0).groups == ["g"]
    assert registry.sharers("g", "t") == ["b"] and registry.sharers("g", "u") == ["a", "b"]


def test_where_a_client_of_rocketmq_reads_a_topic_ours_follow_it_and_other_topics_are_ours_alone(
    registry: GroupRegistry,
) -> None:
    registry.heartbeat(local(1), beat("a", consumer("g", "t")), 0)
    registry.heartbeat(local(2), beat("b", consumer("g", "u")), 0)
    change = registry.heartbeat(remote(3), beat("c", consumer("g", "t")), 10)
    assert registry.sharers("g") == registry.sharers("g", "t") == ["a", "c"]
    assert registry.sharers("g", "u") == ["b"] and registry.members("g") == ["a", "b", "c"]
    (group,) = registry.consumer_groups()
    assert change.groups == ["g"] and len(change.reports) == 1
    assert group.conflicts == 1 and group.agreement.differs_since_ms == 10
    # When it has left, the others get a notice, and divide each topic alone again.
    assert registry.leave(3, 20).groups == ["g"]
    assert registry.sharers("g", "t") == ["a"] and group.agreement.differs_since_ms is None


def test_a_local_member_with_another_topic_than_a_tcp_member_is_counted_not_refused(registry: GroupRegistry) -> None:
    registry.heartbeat(remote(1), beat("a", consumer("g", "t")), 0)
    assert len(registry.heartbeat(local(2), beat("b", consumer("g", "u")), 0).reports) == 1
    (group,) = registry.consumer_groups()
    assert group.conflicts == 1 and registry.sharers("g") == ["a"] and registry.sharers("g", "u") == ["b"]
    with pytest.raises(SubscriptionConflict):
        registry.heartbeat(local(3), beat("c", consumer("g", "t", tags="x")), 0)


def test_models_cannot_be_mixed_by_local_members(registry: GroupRegistry) -> None:
    registry.heartbeat(local(1), beat("a", consumer("g", "t")), 0)
    with pytest.raises(SubscriptionConflict, match="CLUSTERING, this member BROADCASTING"):
        registry.heartbeat(local(2), beat("b", consumer("g", "t", model="BROADCASTING")), 0)
    registry.heartbeat(local(1), beat("a", consumer("g", "t", model="BROADCASTING")), 0)


def test_a_tcp_members_conflict_is_counted_and_reported_not_refused(registry: GroupRegistry) -> None:
    registry.heartbeat(remote(1), beat("a", consumer("g", "t")), 0)
    change = registry.heartbeat(remote(2), beat("b", consumer("g", "u")), 0)
    assert change.groups == ["g"] and len(change.reports) == 1
    (group,) = registry.consumer_groups()
    assert group.conflicts == 1
    # Repeating it is not a new conflict.
    assert registry.heartbeat(remote(2), beat("b", consumer("g", "u", version=2)), 0).reports == []
    assert group.conflicts == 1


def test_the_groups_table_follows_rocketmq(registry: GroupRegistry) -> None:
    """An entry is replaced by a greater version only; what the last heartbeat does not list is gone."""
    registry.heartbeat(remote(1), beat("a", consumer("g", "t", "u", version=5)), 0)
    (group,) = registry.consumer_groups()
    assert {topic: entry.subVersion for topic, entry in group.table.items()} == {"t": 5, "u": 5}
    registry.heartbeat(remote(2), beat("b", consumer("g", "t", version=4)), 0)
    assert {topic: entry.subVersion for topic, entry in group.table.items()} == {"t": 5}
    registry.heartbeat(remote(2), beat("b", consumer("g", "t", version=6)), 0)
    assert {topic: entry.subVersion for topic, entry in group.table.items()} == {"t": 6}


def test_the_groups_table_keeps_what_members_of_ours_read_and_what_others_read_beside_them(
    registry: GroupRegistry,
) -> None:
    """Else a pull of one is refused after the heartbeat of the other, and both beat again and again."""
    ours = consumer("g", "t", "%RETRY%g")
    ours.sharesByTopic = True
    registry.heartbeat(remote(1), beat("a", ours), 0)
    (group,) = registry.consumer_groups()
    registry.heartbeat(remote(2), beat("b", consumer("g", "u", "%RETRY%g")), 0)
    registry.heartbeat(local(3), beat("c", consumer("g", "x")), 0)
    registry.heartbeat(remote(1), beat("a", ours), 0)
    assert group.table.keys() == {"t", "u", "x", "%RETRY%g"}
    # A member that reads a topic no more takes it along; of two clients of RocketMQ the last one decides.
    registry.heartbeat(local(3), beat("c", consumer("g", "y")), 0)
    assert group.table.keys() == {"t", "u", "y", "%RETRY%g"}
    registry.leave(3, 0)
    registry.heartbeat(remote(4), beat("d", consumer("g", "w", "%RETRY%g")), 0)
    assert group.table.keys() == {"t", "w", "%RETRY%g"}


def test_a_heartbeat_without_subscriptions_keeps_them(registry: GroupRegistry) -> None:
    registry.heartbeat(remote(1), beat("a", consumer("g", "t")), 0)
    bare = beat("a", consumer("g"))
    bare.withoutSub = True
    assert registry.heartbeat(remote(1), bare, 1).groups == []
    assert registry.subscribers("t") == ["g"]


@pytest.mark.parametrize(
    ("wrong", "error"),
    [
        (beat("a", consumer("bad name", "t")), InvalidName),
        (beat("a", producers=("",)), InvalidName),
        (beat("a", consumer("g", "bad/topic")), InvalidName),
        (beat("a", consumer("g", "t1", "t2", "t3", "t4")), FlowControl),
        (beat("a", *(consumer(f"g{n}", "t") for n in range(5))), FlowControl),
        (beat("a", consumer("full", "t")), FlowControl),
        (
            beat("a", ConsumerData("g", [SubscriptionData(topic="t", subString="x" * 21)])),
            FlowControl,
        ),
    ],
)
def test_limits_are_answers_and_change_nothing(
    registry: GroupRegistry, wrong: HeartbeatData, error: type[Exception]
) -> None:
    for number in range(LIMITS.members_per_group_max):
        registry.heartbeat(local(100 + number), beat(f"m{number}", consumer("full", "t")), 0)
    for origin in (local(1), remote(1)):
        with pytest.raises(error):
            registry.heartbeat(origin, wrong, 0)
    assert registry.memberships(1) == ([], [])
    assert [group.name for group in registry.consumer_groups()] == ["full"]


def test_a_full_group_still_takes_its_own_members(registry: GroupRegistry) -> None:
    for number in range(LIMITS.members_per_group_max):
        registry.heartbeat(local(number), beat(f"m{number}", consumer("g", "t")), 0)
    registry.heartbeat(local(0), beat("m0", consumer("g", "t")), 0)
    assert len(registry.members("g")) == LIMITS.members_per_group_max


class RegistryMachine(RuleBasedStateMachine):
    """The registry against the plainest model: which connection holds which client in which group."""

    GROUPS = ("g", "h", "p")

    def __init__(self) -> None:
        super().__init__()
        self.registry = GroupRegistry(LIMITS)
        self.consumers: dict[str, dict[str, int]] = defaultdict(dict)
        self.producers: dict[str, dict[str, int]] = defaultdict(dict)
        self.now_ms = 0

    @rule(
        connection_id=st.integers(1, 3),
        client=st.sampled_from("ab"),
        consumed=st.sets(st.sampled_from(GROUPS), max_size=2),
        produced=st.sets(st.sampled_from(GROUPS), max_size=1),
        is_local=st.booleans(),
    )
    def heartbeat(
        self, connection_id: int, client: str, consumed: set[str], produced: set[str], is_local: bool
    ) -> None:
        self.now_ms += 1
        origin = local(connection_id) if is_local else remote(connection_id)
        self.registry.heartbeat(
            origin, beat(client, *(consumer(group, "t") for group in consumed), producers=tuple(produced)), self.now_ms
        )
        for group in consumed:
            self.consumers[group][client] = connection_id
        for group in produced:
            self.producers[group][client] = connection_id

    @rule(connection_id=st.integers(1, 3), client=st.sampled_from("ab"), group=st.sampled_from(GROUPS))
    def unregister(self, connection_id: int, client: str, group: str) -> None:
        self.registry.unregister(connection_id, client, producer_group=group, consumer_group=group, now_ms=self.now_ms)
        for table in (self.consumers, self.producers):
            if table[group].get(client) == connection_id:
                del table[group][client]

    @rule(connection_id=st.integers(1, 3))
    def leave(self, connection_id: int) -> None:
        told = set(self.registry.leave(connection_id, self.now_ms).groups)
        lost = set()
        for table in (self.consumers, self.producers):
            for group, clients in table.items():
                for client in [name for name, holder in clients.items() if holder == connection_id]:
                    del clients[client]
                    if table is self.consumers and clients:
                        lost.add(group)
        assert told <= {group for group in self.GROUPS} and lost <= told

    @invariant()
    def the_registry_knows_what_the_model_knows(self) -> None:
        for group in self.GROUPS:
            assert self.registry.members(group) == sorted(self.consumers[group])
        assert self.registry.producer_groups() == {
            group: sorted(clients) for group, clients in sorted(self.producers.items()) if clients
        }
        for connection_id in (1, 2, 3):
            consumed, produced = self.registry.memberships(connection_id)
            for names, table in ((consumed, self.consumers), (produced, self.producers)):
                held = [group for group in self.GROUPS for holder in table[group].values() if holder == connection_id]
                assert sorted(names) == sorted(held)


TestRegistryMachine = RegistryMachine.TestCase


def test_a_producer_group_has_as_many_members_as_a_consumer_group_may_have(registry: GroupRegistry) -> None:
    for number in range(LIMITS.members_per_group_max):
        registry.heartbeat(remote(1), beat(f"p{number}", producers=("g",)), 0)
    with pytest.raises(FlowControl):
        registry.heartbeat(remote(1), beat("one more", producers=("g",)), 0)
    registry.heartbeat(remote(1), beat("p0", producers=("g",)), 1)
    assert len(registry.producers()["g"]) == LIMITS.members_per_group_max
