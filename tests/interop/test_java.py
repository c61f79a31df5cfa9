"""The official Java clients 4.9.8 and 5.3.3 send and receive in every way they have."""

from collections.abc import Callable

import pytest

from tests.interop.peers.java import ClientError, JavaClient
from tests.interop.peers.process import eventually
from tests.interop.target import STOCK_4, Target

pytestmark = pytest.mark.parametrize("java_version", ["4", "5"])
Named = Callable[[str], str]


@pytest.fixture
def producer(java_client: JavaClient, target: Target, named: Named) -> Callable[..., object]:
    """Call it with a verb and its arguments, as a producer of its own."""
    if not target.name_server:
        pytest.fail("no name server")
    name = named("producer")
    java_client.do("producer", name=name, group=name, nameServer=target.name_server)
    yield lambda verb, **arguments: java_client.do(verb, name=name, **arguments)
    if java_client.is_alive:
        java_client.do("producer-close", name=name)


@pytest.fixture
def topic(producer: Callable[..., object], named: Named) -> str:
    """A topic that exists, so that consumers find its route at once."""
    name = named("topic")
    producer("send", topic=name, bodies=["first"])
    return name


def test_sync_async_and_one_way_sends_and_batches_arrive(
    java_client: JavaClient, target: Target, producer: Callable[..., object], topic: str, named: Named
) -> None:
    sent = producer("send", topic=topic, bodies=["s0", "s1"], tag="red", key="k1", properties={"colour": "ü"})
    assert [each["status"] for each in sent] == ["SEND_OK", "SEND_OK"]
    assert all(each["broker"] == target.broker_name and each["region"] == "DefaultRegion" for each in sent)
    batch = producer("batch", topic=topic, bodies=["b0", "b1", "b2"])
    assert batch["status"] == "SEND_OK" and len(batch["offsetMsgId"].split(",")) == 3
    later = producer("async", topic=topic, bodies=["a0", "a1"])
    assert [each["status"] for each in later] == ["SEND_OK", "SEND_OK"]
    producer("oneway", topic=topic, bodies=["o0"])
    name = named("push")
    java_client.do("push", name=name, group=name, topic=topic, nameServer=target.name_server)
    received = java_client.expect(name, 9)
    assert sorted(each["body"] for each in received) == ["a0", "a1", "b0", "b1", "b2", "first", "o0", "s0", "s1"]
    first = next(each for each in received if each["body"] == "s0")
    assert first["tag"] == "red" and first["keys"] == "k1" and first["properties"]["colour"] == "ü"
    assert first["msgId"] == sent[0]["msgId"]
    java_client.do("push-close", name=name)


def test_an_ordered_consumer_sees_each_queue_in_order_even_when_it_fails_once(
    java_client: JavaClient, target: Target, producer: Callable[..., object], topic: str, named: Named
) -> None:
    for shard in range(3):
        producer("send", topic=topic, shard=shard, bodies=[f"{shard}/{number}" for number in range(10)])
    name = named("orderly")
    arguments = {"group": name, "topic": topic, "nameServer": target.name_server, "orderly": True, "failFirst": 1}
    java_client.do("push", name=name, **arguments)
    received = java_client.expect(name, 62)
    java_client.do("push-close", name=name)
    for shard in range(3):
        done = [
            each["body"] for each in received if each["body"].startswith(f"{shard}/") and each["reconsumeTimes"] == 1
        ]
        assert done == [f"{shard}/{number}" for number in range(10)]


def test_two_broadcast_consumers_each_get_everything_and_two_cluster_consumers_share(
    java_client: JavaClient, target: Target, producer: Callable[..., object], topic: str, named: Named
) -> None:
    both = named("broadcast")
    shared = named("cluster")
    names = [f"{both}_{number}" for number in range(2)]
    sharers = [f"{shared}_{number}" for number in range(2)]
    for name in names:
        arguments = {"group": both, "topic": topic, "nameServer": target.name_server, "broadcast": True}
        java_client.do("push", name=name, **arguments)
    for name in sharers:
        java_client.do("push", name=name, group=shared, topic=topic, nameServer=target.name_server)
    bodies = [f"m{number}" for number in range(16)]

    def idle() -> list[str]:
        producer("send", topic=topic, bodies=["probe"] * 4)
        return [name for name in (*names, *sharers) if not java_client.received(name)]

    eventually(lambda: idle() == [], "every consumer has its share", timeout=45.0, interval=0.5)
    producer("send", topic=topic, bodies=bodies)
    for name in names:
        eventually(lambda name=name: set(bodies) <= {each["body"] for each in java_client.received(name)}, name)
    eventually(lambda: _bodies(java_client, sharers) >= set(bodies), "the group has all")
    for name in (*names, *sharers):
        java_client.do("push-close", name=name)
    seen = [each["body"] for name in sharers for each in java_client.received(name) if each["body"] in bodies]
    assert sorted(seen) == sorted(bodies), "each message goes to one member of a cluster group"


def _bodies(client: JavaClient, names: list[str]) -> set[str]:
    return {each["body"] for name in names for each in client.received(name)}


def test_a_failed_message_comes_again_with_its_count_and_the_original_topic(
    java_client: JavaClient, target: Target, producer: Callable[..., object], topic: str, named: Named
) -> None:
    name = named("retry")
    java_client.do("push", name=name, group=name, topic=topic, nameServer=target.name_server, failFirst=1)
    received = java_client.expect(name, 2)
    java_client.do("push-close", name=name)
    assert [each["reconsumeTimes"] for each in received] == [0, 1]
    assert [each["topic"] for each in received] == [topic, topic]
    assert received[0]["msgId"] == received[1]["msgId"]


def test_lite_pull_polls_seeks_and_commits(
    java_client: JavaClient, target: Target, producer: Callable[..., object], topic: str, named: Named
) -> None:
    if (java_client.version, target.kind) == ("5", STOCK_4):
        pytest.skip("the lite pull consumer of 5.3.3 asks code 361, which a broker of 4.9 does not know")
    producer("send", topic=topic, broker=target.broker_name, queue=1, bodies=[f"m{number}" for number in range(5)])
    end = producer("send", topic=topic, broker=target.broker_name, queue=1, bodies=["last"])[0]["offset"]
    name = named("lite")
    where = {"topic": topic, "broker": target.broker_name, "queue": 1}
    java_client.do("lite", name=name, group=name, topic=topic, nameServer=target.name_server, assign=1)
    java_client.do("lite-seek", name=name, offset=end - 1, **where)
    found: list[dict[str, object]] = []

    def last_came() -> bool:
        found.extend(java_client.do("lite-poll", name=name, timeoutMs=500))
        return any(each["body"] == "last" for each in found)

    eventually(last_came, "the last message")
    assert [each["body"] for each in found][-2:] == ["m4", "last"], "a poll may still return what came before the seek"
    java_client.do("lite-commit", name=name)
    eventually(lambda: java_client.do("lite-committed", name=name, **where) == end + 1, "the offset is committed")
    assert (
        java_client.do("lite-offset-for", name=name, timestamp=found[0]["storeTimestamp"] + 3_600_000, **where) >= end
    )
    java_client.do("lite-close", name=name)


def test_pull_and_offsets_agree_with_what_was_sent(
    java_client: JavaClient, target: Target, producer: Callable[..., object], topic: str, named: Named
) -> None:
    first = producer("send", topic=topic, broker=target.broker_name, queue=2, tag="a", bodies=["p0", "p1"])[0]["offset"]
    producer("send", topic=topic, broker=target.broker_name, queue=2, tag="b", bodies=["p2"])
    name = named("pull")
    where = {"topic": topic, "broker": target.broker_name, "queue": 2}
    java_client.do("pull", name=name, group=name, nameServer=target.name_server)
    assert java_client.do("pull-queues", name=name, topic=topic) == [f"{target.broker_name}/{n}" for n in range(4)]
    offsets = java_client.do("pull-offsets", name=name, timestamp=0, **where)
    assert offsets["min"] == 0 and offsets["max"] == first + 3 and offsets["atTime"] == 0 and offsets["earliest"] > 0
    pulled = java_client.do("pull-once", name=name, offset=first, **where)
    assert [each["body"] for each in pulled["messages"]] == ["p0", "p1", "p2"] and pulled["next"] == first + 3
    tagged = java_client.do("pull-once", name=name, offset=first, tags="b", **where)
    assert [each["body"] for each in tagged["messages"]] == ["p2"]
    assert java_client.do("pull-once", name=name, offset=first + 3, **where)["status"] == "NO_NEW_MSG"
    far = java_client.do("pull-once", name=name, offset=first + 900, **where)
    assert far["status"] == "OFFSET_ILLEGAL" and far["next"] == first + 3
    java_client.do("pull-commit", name=name, offset=first + 2, **where)
    assert java_client.do("pull-offsets", name=name, timestamp=0, **where)["committed"] == first + 2
    java_client.do("pull-close", name=name)


def test_messages_are_found_by_id_and_by_key(
    java_client: JavaClient, target: Target, producer: Callable[..., object], topic: str, named: Named
) -> None:
    sent = producer("send", topic=topic, bodies=["wanted"], key="order-42")[0]
    name = named("admin")
    java_client.do("admin", name=name, nameServer=target.name_server)
    assert java_client.do("view", name=name, topic=topic, msgId=sent["offsetMsgId"])["body"] == "wanted"

    def found(key: str) -> object:
        try:
            return [each["body"] for each in java_client.do("query", name=name, topic=topic, key=key)]
        except ClientError:
            return []

    eventually(lambda: found("order-42") == ["wanted"], "the index has the key")
    assert java_client.do("view", name=name, topic=topic, msgId=sent["msgId"])["body"] == "wanted", "by its unique key"
    java_client.do("admin-close", name=name)


def test_a_send_to_an_illegal_topic_is_refused(
    java_client: JavaClient, producer: Callable[..., object], topic: str
) -> None:
    with pytest.raises(ClientError, match=r"(?i)topic"):
        producer("send", topic="SCHEDULE_TOPIC_XXXX", bodies=["x"])
