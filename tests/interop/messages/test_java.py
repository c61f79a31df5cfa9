"""What only the Java client offers: lite pull, offsets, queries, and everything it may ask about a queue."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.deadline import eventually
from tests.interop.coverage import covers, on_pairs
from tests.interop.pair import Pair
from tests.interop.peers.java import ClientError

Produce = Callable[..., Any]
JAVA = ("java-4", "java-5")


@pytest.fixture
def topic(pair: Pair) -> str:
    """A topic of four queues that has a route."""
    return pair.new_topic()


@pytest.fixture
def produce(pair: Pair) -> Iterator[Produce]:
    """Call it with a verb and its arguments, as a producer of its own."""
    name = pair.named("producer")
    pair.do("producer", name=name, group=name)
    yield lambda verb, **arguments: pair.do(verb, name=name, **arguments)
    pair.close("producer-close", name)


@on_pairs(*JAVA)
@covers("create a topic by sending")
def test_a_send_to_an_unknown_topic_creates_it(pair: Pair, produce: Produce) -> None:
    name = pair.named("fresh")
    sent = produce("send", topic=name, bodies=["first"])[0]
    assert sent["status"] == "SEND_OK" and sent["broker"] == pair.target.broker_name
    assert sent["region"] == "DefaultRegion" and sent["traceOn"]
    eventually(lambda: pair.has_route(name), "the topic has a route")


@on_pairs(*JAVA)
@covers("large messages, compressed")
def test_a_large_body_is_compressed_on_the_way_and_comes_back_whole(pair: Pair, produce: Produce, topic: str) -> None:
    body = "0123456789" * 5000
    produce("send", topic=topic, bodies=[body], properties={"colour": "ü"})
    name = pair.named("consumer")
    pair.do("push", name=name, group=name, topic=topic)
    received = pair.client.expect(name, 1)[0]
    pair.close("push-close", name)
    assert received["body"] == body and received["sysFlag"] and received["properties"]["colour"] == "ü"


@on_pairs(*JAVA)
@covers("lite pull, by queue", "offsets")
def test_lite_pull_of_a_queue_polls_seeks_and_commits(pair: Pair, produce: Produce, topic: str) -> None:
    where = {"topic": topic, "broker": pair.target.broker_name, "queue": 1}
    produce("send", bodies=[f"m{number}" for number in range(5)], **where)
    end = produce("send", bodies=["last"], **where)[0]["offset"]
    name = pair.named("lite")
    pair.do("lite", name=name, group=name, topic=topic, assign=1)
    pair.do("lite-seek", name=name, offset=end - 1, **where)
    found = _poll_until(pair, name, "last")
    assert [each["body"] for each in found][-2:] == ["m4", "last"], "a poll may still return what came before the seek"

    def is_committed() -> bool:
        # What a poll returned may have been read before the seek; then the seek takes effect only now.
        pair.do("lite-poll", name=name, timeoutMs=100)
        pair.do("lite-commit", name=name)
        return bool(pair.do("lite-committed", name=name, **where) == end + 1)

    eventually(is_committed, "the offset is committed")
    assert pair.do("lite-offset-for", name=name, timestamp=found[-1]["storeTimestamp"] + 3_600_000, **where) >= end
    pair.close("lite-close", name)


@on_pairs(*JAVA)
@covers("lite pull, by subscription")
def test_lite_pull_of_a_subscription_gets_every_queue(pair: Pair, produce: Produce, topic: str) -> None:
    for shard in range(4):
        produce("send", topic=topic, shard=shard, bodies=[f"m{shard}"])
    name = pair.named("lite")
    pair.do("lite", name=name, group=name, topic=topic)
    eventually(lambda: len(pair.do("lite-assigned", name=name)) == 4, "all queues are assigned", timeout=60.0)
    found: set[str] = set()

    def all_came() -> bool:
        found.update(each["body"] for each in pair.do("lite-poll", name=name, timeoutMs=500))
        return len(found) == 4

    eventually(all_came, "a message of every queue")
    pair.close("lite-close", name)


def _poll_until(pair: Pair, name: str, body: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []

    def came() -> bool:
        found.extend(pair.do("lite-poll", name=name, timeoutMs=500))
        return any(each["body"] == body for each in found)

    eventually(came, f"the message {body}")
    return found


@on_pairs(*JAVA)
@covers("pull", "offsets")
def test_pull_and_offsets_agree_with_what_was_sent(pair: Pair, produce: Produce, topic: str) -> None:
    where = {"topic": topic, "broker": pair.target.broker_name, "queue": 2}
    produce("send", tag="a", bodies=["p0", "p1"], **where)
    produce("send", tag="b", bodies=["p2"], **where)
    name = pair.named("pull")
    pair.do("pull", name=name, group=name)
    queues = [f"{pair.target.broker_name}/{number}" for number in range(4)]
    assert pair.do("pull-queues", name=name, topic=topic) == queues
    offsets = pair.do("pull-offsets", name=name, timestamp=0, **where)
    assert (offsets["min"], offsets["max"], offsets["atTime"]) == (0, 3, 0) and offsets["earliest"] > 0
    pulled = pair.do("pull-once", name=name, offset=0, **where)
    assert [each["body"] for each in pulled["messages"]] == ["p0", "p1", "p2"] and pulled["next"] == 3
    tagged = pair.do("pull-once", name=name, offset=0, tags="b", **where)
    assert [each["body"] for each in tagged["messages"]] == ["p2"]
    assert pair.do("pull-once", name=name, offset=3, **where)["status"] == "NO_NEW_MSG"
    far = pair.do("pull-once", name=name, offset=900, **where)
    # A member of ours that is beyond the end begins where its group is, else at the first message (`broker/pulls`);
    # the client is one from its first heartbeat on, which 5 sends at once.
    assert far["status"] == "OFFSET_ILLEGAL" and far["next"] in ((0, 3) if pair.target.is_ours else (3,))
    pair.do("pull-commit", name=name, offset=2, **where)
    assert pair.do("pull-offsets", name=name, timestamp=0, **where)["committed"] == 2
    pair.close("pull-close", name)


@on_pairs(*JAVA)
@covers("query by id, key and unique key")
def test_messages_are_found_by_id_and_by_key(pair: Pair, produce: Produce, topic: str) -> None:
    sent = produce("send", topic=topic, bodies=["wanted"], key="order-42")[0]
    name = pair.named("admin")
    pair.do("admin", name=name)
    assert pair.do("view", name=name, topic=topic, msgId=sent["offsetMsgId"])["body"] == "wanted"

    def found(key: str) -> list[str]:
        try:
            return [each["body"] for each in pair.do("query", name=name, topic=topic, key=key)]
        except ClientError:
            return []

    eventually(lambda: found("order-42") == ["wanted"], "the index has the key")
    assert pair.do("view", name=name, topic=topic, msgId=sent["msgId"])["body"] == "wanted", "by its unique key"
    pair.close("admin-close", name)


@on_pairs(*JAVA)
def test_a_send_to_a_topic_of_the_system_is_refused(pair: Pair, produce: Produce) -> None:
    with pytest.raises(ClientError, match=r"(?i)topic"):
        produce("send", topic="SCHEDULE_TOPIC_XXXX", bodies=["x"])
