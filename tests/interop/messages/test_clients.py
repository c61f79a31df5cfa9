"""Stock clients of four languages send and receive in every way they have: as from a stock broker."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from tests.deadline import eventually
from tests.interop.coverage import covers, on_pairs
from tests.interop.pair import Pair
from tests.interop.peers.wire import Wire
from tests.interop.target import Target, start_ours

QUERY_CONSUMER_OFFSET = 14
Produce = Callable[..., Any]
ALL = ("java-4", "java-5", "go", "cpp", "node")


@pytest.fixture
def produce(pair: Pair) -> Iterator[Produce]:
    """Call it with a verb and its arguments, as a producer of its own."""
    name = pair.named("producer")
    pair.do("producer", name=name, group=name)
    yield lambda verb, **arguments: pair.do(verb, name=name, **arguments)
    pair.close("producer-close", name)


@pytest.fixture(scope="module")
def hasty() -> Iterator[Target]:
    """A broker of ours whose retries come after a second: some clients cannot ask for less than its first delay."""
    with start_ours(delay_levels=" ".join(["1s"] * 18)) as target:
        yield target


@pytest.fixture
def topic(pair: Pair) -> str:
    """A topic of four queues that has a route."""
    return pair.new_topic()


def _consume(pair: Pair, topic: str, **arguments: Any) -> str:
    name = arguments.pop("name", None) or pair.named("consumer")
    pair.do("push", name=name, group=arguments.pop("group", name), topic=topic, **arguments)
    return name


@on_pairs(*ALL)
@covers("synchronous send", "push, concurrent", "tags and keys")
def test_what_is_sent_synchronously_is_pushed_with_its_tag_and_keys(pair: Pair, produce: Produce, topic: str) -> None:
    sent = produce("send", topic=topic, bodies=["s0", "ü1"], tag="red", key="k1")
    assert [each["status"] for each in sent] == ["SEND_OK", "SEND_OK"]
    assert all(each["offset"] == 0 for each in sent)
    name = _consume(pair, topic)
    received = pair.client.expect(name, 2)
    assert sorted(each["body"] for each in received) == ["s0", "ü1"]
    assert {each["tag"] for each in received} == {"red"} and {each["keys"] for each in received} == {"k1"}
    pair.close("push-close", name)


@on_pairs("java-4", "java-5", "go", "cpp")
@covers("asynchronous send", "one-way send")
def test_asynchronous_and_one_way_sends_arrive(pair: Pair, produce: Produce, topic: str) -> None:
    later = produce("async", topic=topic, bodies=["a0", "a1", "a2"])
    assert [each["status"] for each in later] == ["SEND_OK"] * 3
    produce("oneway", topic=topic, bodies=["o0", "o1"])
    name = _consume(pair, topic)
    assert sorted(each["body"] for each in pair.client.expect(name, 5)) == ["a0", "a1", "a2", "o0", "o1"]
    pair.close("push-close", name)


@on_pairs("java-4", "java-5", "go")
@covers("batch")
def test_a_batch_arrives_as_its_messages(pair: Pair, produce: Produce, topic: str) -> None:
    batch = produce("batch", topic=topic, bodies=["b0", "b1", "b2"])
    assert batch["status"] == "SEND_OK" and len(batch["offsetMsgId"].split(",")) == 3
    name = _consume(pair, topic)
    received = pair.client.expect(name, 3)
    assert sorted((each["offset"], each["body"]) for each in received) == [(0, "b0"), (1, "b1"), (2, "b2")]
    pair.close("push-close", name)


@on_pairs("cpp", stock=())
@covers("batch")
def test_a_batch_of_cpp_arrives_as_its_messages(pair: Pair, produce: Produce, topic: str) -> None:
    # It says "1" where others say "true"; a stock broker takes that for false and stores the batch as one message.
    assert produce("batch", topic=topic, bodies=["b0", "b1", "b2"])["status"] == "SEND_OK"
    name = _consume(pair, topic)
    assert sorted(each["body"] for each in pair.client.expect(name, 3)) == ["b0", "b1", "b2"]
    pair.close("push-close", name)


@on_pairs("java-4", "java-5", "go", "cpp")
@covers("ordered send", "push, orderly")
def test_an_ordered_consumer_sees_each_queue_in_order(pair: Pair, produce: Produce, topic: str) -> None:
    for shard in range(3):
        produce("send", topic=topic, shard=shard, bodies=[f"{shard}/{number}" for number in range(10)])
    name = _consume(pair, topic, orderly=True)
    received = pair.client.expect(name, 30)
    pair.close("push-close", name)
    for shard in range(3):
        mine = [each for each in received if each["body"].startswith(f"{shard}/")]
        assert [each["body"] for each in mine] == [f"{shard}/{number}" for number in range(10)]
        assert len({each["queue"] for each in mine}) == 1


@on_pairs("java-4", "java-5")
@covers("retry, orderly")
def test_an_ordered_consumer_that_fails_gets_the_message_again_before_the_next(
    pair: Pair, produce: Produce, topic: str
) -> None:
    produce("send", topic=topic, shard=1, bodies=[f"m{number}" for number in range(5)])
    name = _consume(pair, topic, orderly=True, failFirst=1)
    received = pair.client.expect(name, 10)
    pair.close("push-close", name)
    assert [each["body"] for each in received if each["reconsumeTimes"]] == [f"m{number}" for number in range(5)]


@on_pairs("node")
@covers("ordered send")
def test_messages_with_one_sharding_key_go_to_one_queue_in_order(pair: Pair, produce: Produce, topic: str) -> None:
    sent = produce("send", topic=topic, shard=7, bodies=[f"m{number}" for number in range(5)])
    assert len({each["queue"] for each in sent}) == 1
    assert [each["offset"] for each in sent] == list(range(5))


@on_pairs("java-4", "java-5", "go", "cpp")
@covers("push, broadcast")
def test_every_broadcast_consumer_gets_every_message(pair: Pair, produce: Produce, topic: str) -> None:
    group = pair.named("broadcast")
    names = [_consume(pair, topic, name=f"{group}_{number}", group=group, broadcast=True) for number in range(2)]
    _probe(pair, produce, topic, names)
    bodies = [f"m{number}" for number in range(12)]
    produce("send", topic=topic, bodies=bodies)
    for name in names:
        eventually(lambda name=name: set(bodies) <= pair.bodies(name), f"all messages at {name}")
        pair.close("push-close", name)


@on_pairs("java-4", "java-5", "go", "cpp")
@covers("group of several members")
def test_the_members_of_a_group_share_the_messages(pair: Pair, produce: Produce, topic: str) -> None:
    group = pair.named("cluster")
    names = [_consume(pair, topic, name=f"{group}_{number}", group=group) for number in range(2)]
    _probe(pair, produce, topic, names)
    bodies = [f"m{number}" for number in range(16)]
    produce("send", topic=topic, bodies=bodies)
    eventually(lambda: set(bodies) <= pair.bodies(*names), "the group has all")
    shares = [pair.bodies(name) & set(bodies) for name in names]
    assert all(shares) and not shares[0] & shares[1]
    for name in names:
        pair.close("push-close", name)


def _probe(pair: Pair, produce: Produce, topic: str, names: list[str]) -> None:
    def idle() -> list[str]:
        produce("send", topic=topic, bodies=["probe"] * 8)
        return [name for name in names if not pair.bodies(name)]

    eventually(lambda: not idle(), f"every one of {names} receives", timeout=60.0, pause=0.5)


@on_pairs(*ALL, stock=())  # test_retry.py has the stock brokers
@covers("retry, concurrent")
def test_a_failed_message_comes_again_with_its_count(pair: Pair, hasty: Target) -> None:
    pair = replace(pair, target=hasty)
    topic, producer = pair.new_topic(), pair.named("producer")
    pair.do("producer", name=producer, group=producer)
    pair.do("send", name=producer, topic=topic, bodies=["again"])
    pair.close("producer-close", producer)
    name = _consume(pair, topic, failFirst=1)
    received = pair.client.expect(name, 2, timeout=30.0)
    pair.close("push-close", name)
    assert [(each["body"], each["reconsumeTimes"]) for each in received] == [("again", 0), ("again", 1)]


@on_pairs(*ALL)
@covers("filter by tag")
def test_a_consumer_gets_only_the_tags_it_asked_for(pair: Pair, produce: Produce, topic: str) -> None:
    for tag in ("red", "green", "blue"):
        produce("send", topic=topic, bodies=[f"{tag}{number}" for number in range(3)], tag=tag)
    name = _consume(pair, topic, tags="red || blue")
    pair.client.expect(name, 6)
    produce("send", topic=topic, bodies=["last"] * 4, tag="red")
    eventually(lambda: "last" in pair.bodies(name), "the last message")
    pair.close("push-close", name)
    assert pair.bodies(name) == {f"{tag}{number}" for tag in ("red", "blue") for number in range(3)} | {"last"}


@on_pairs("java-4", "java-5")
@covers("filter by tag")
def test_a_tag_of_ten_thousand_characters_is_consumed(pair: Pair, produce: Produce, topic: str) -> None:
    """It is longer than an SQL92 expression may be."""
    tag = "x" * 10_240
    produce("send", topic=topic, bodies=["long"], tag=tag)
    name = _consume(pair, topic, tags=tag)
    pair.client.expect(name, 1)
    pair.close("push-close", name)
    assert pair.bodies(name) == {"long"}


@on_pairs("java-4", "java-5")
@covers("filter by tag")
def test_a_group_whose_tag_matches_nothing_new_has_no_lag(pair: Pair, produce: Produce, topic: str) -> None:
    """The client gets an offset behind what it does not want, goes on there, and says how far it is."""
    name = _consume(pair, topic, tags="red")
    produce("send", topic=topic, bodies=["first"] * 4, tag="red")
    eventually(lambda: "first" in pair.bodies(name), "it consumes")
    for number in range(8):
        produce("send", topic=topic, bodies=[f"blue{number}"], tag="blue", shard=number % 4)
    stored = pair.stored(topic)

    def offset(wire: Wire, queue_id: int) -> int:
        reply = wire.ask(QUERY_CONSUMER_OFFSET, {"consumerGroup": name, "topic": topic, "queueId": str(queue_id)})
        return int(reply.fields["offset"]) if reply is not None and reply.code == 0 else 0

    def consumed() -> int:
        with Wire(pair.target.broker_address) as wire:
            return sum(offset(wire, queue_id) for queue_id in range(4))

    eventually(lambda: consumed() == stored, lambda: f"{consumed()} of {stored} are behind the group")
    pair.close("push-close", name)


@on_pairs("cpp")
@covers("pull")
def test_the_pull_consumer_of_cpp_reads_every_queue(pair: Pair, produce: Produce, topic: str) -> None:
    produce("send", topic=topic, bodies=[f"m{number}" for number in range(9)])
    eventually(lambda: pair.stored(topic) == 9, "all can be consumed")
    found = pair.do("pull-all", name="", group=pair.named("pull"), topic=topic)
    assert sorted(each["body"] for each in found) == [f"m{number}" for number in range(9)]


@on_pairs("go")
@covers("pull")
def test_the_pull_consumer_of_go_reads_a_queue_from_an_offset(pair: Pair, produce: Produce, topic: str) -> None:
    produce("send", topic=topic, shard=0, bodies=["m0", "m1", "m2"])
    name = pair.named("pull")
    pulled = pair.do("pull-from", name=name, group=name, topic=topic, broker=pair.target.broker_name, queue=0, offset=1)
    assert [each["body"] for each in pulled["messages"]] == ["m1", "m2"]
    assert (pulled["next"], pulled["min"], pulled["max"]) == (3, 0, 3)


@on_pairs("go")
@covers("create and delete topics")
def test_the_admin_of_go_creates_and_deletes_a_topic(pair: Pair) -> None:
    name = pair.named("made")
    pair.do("create-topic", topic=name, broker=pair.target.broker_address)
    eventually(lambda: pair.has_route(name), "the topic has a route")
    pair.do("delete-topic", topic=name, broker=pair.target.broker_address)
    eventually(lambda: not pair.has_route(name), "the topic has no route")
