"""Each feature between the official Java clients and Python, in both directions: one produces, the other consumes.

Only what no other file here has; requests, traces, delays, filters and lost commits have files of their own.
Python is a process of the broker's host ("local") or a TCP client ("tcp").
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

import shmq
from shmq.testing import Broker
from tests.deadline import eventually
from tests.interop.conftest import LONG
from tests.interop.peers.java import JavaClient

Named = Callable[[str], str]
LEVEL_1_MS, CLOCK_MS = 1000, 2  # the log's clock is a little behind the one that stamps births
PATIENCE = 60.0
QUEUES = 4

_PAIRS = [("4", "local"), ("5", "tcp"), *([("5", "local"), ("4", "tcp")] if LONG else [])]
java_lines = pytest.mark.parametrize(("java_version", "way"), _PAIRS)


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    """The broker of all tests of this file, for clients of both ways."""
    with Broker(tcp=True, timeout=90.0) as broker:
        yield broker


@pytest.fixture
def mq(broker: Broker, way: str) -> Iterator[shmq.Connection]:
    """Python's connection."""
    url = broker.url if way == "local" else f"rocketmq://{broker.name_server}"
    with shmq.connect(url, timeout=60.0) as connection:
        yield connection


@pytest.fixture
def topic(mq: shmq.Connection, named: Named) -> str:
    name = named("orders")
    mq.admin.create_topic(name, queues=QUEUES)
    return name


class Java:
    """Producers and consumers of one Java process, closed behind the test."""

    def __init__(self, client: JavaClient, name_server: str, named: Named) -> None:
        self.client = client
        self._name_server = name_server
        self._named = named
        self._opened: list[tuple[str, str]] = []

    def produce(self, verb: str = "send", **arguments: Any) -> Any:
        """Send as a producer of its own."""
        name = self._named("producer")
        self.client.do("producer", name=name, group=name, nameServer=self._name_server)
        self._opened.append(("producer-close", name))
        return self.client.do(verb, name=name, **arguments)

    def consume(self, **arguments: Any) -> str:
        """Start a push consumer and return its name."""
        name = self._named("push")
        arguments.setdefault("group", name)
        self.client.do("push", name=name, nameServer=self._name_server, **arguments)
        self._opened.append(("push-close", name))
        return name

    def close(self) -> None:
        for verb, name in self._opened:
            if self.client.is_alive:
                self.client.do(verb, name=name)


@pytest.fixture
def java(java_client: JavaClient, broker: Broker, named: Named) -> Iterator[Java]:
    made = Java(java_client, broker.name_server, named)
    yield made
    made.close()


def taken(consumer: Any, count: int) -> list[shmq.Message]:
    """So many messages, acknowledged."""
    found: list[shmq.Message] = []

    def enough() -> bool:
        for message in consumer.receive(32, 0.5):
            found.append(message)
            message.ack()
        return len(found) >= count

    eventually(enough, f"{count} messages", PATIENCE)
    return found


@java_lines
def test_order_of_java_holds_in_python_and_of_python_in_java(
    java: Java, mq: shmq.Connection, topic: str, named: Named
) -> None:
    """The consumer fails the second message of each queue twice: it is tried again where it is, nothing overtakes."""
    seen: list[tuple[int, str, int]] = []
    group = named("python")

    @mq.listener(topic, group=group, ordered=True, threads=2)
    def handle(message: shmq.Message) -> None:
        seen.append((message.queue_id, message.body.decode(), message.attempt))
        if message.body.endswith(b"-1") and message.attempt < 3:
            raise shmq.Retry(after=0.05)

    for shard in range(2):
        java.produce(topic=topic, shard=shard, bodies=[f"java-{shard}-{number}" for number in range(4)])
    mq.start()
    eventually(lambda: len(seen) >= 12, "the messages of Java", PATIENCE)
    mq.stop()
    for shard in range(2):
        mine = [(body, attempt) for queue, body, attempt in seen if queue == shard]
        wanted = [(0, 1), (1, 1), (1, 2), (1, 3), (2, 1), (3, 1)]
        assert mine == [(f"java-{shard}-{number}", attempt) for number, attempt in wanted]

    receipts = [mq.send(topic, b"python-%d" % number, message_group="o-42") for number in range(5)]
    name = java.consume(topic=topic, orderly=True)
    found = [each for each in java.client.expect(name, 13) if each["body"].startswith("python")]
    assert [each["body"] for each in found] == [f"python-{number}" for number in range(5)]
    assert {each["queue"] for each in found} == {receipts[0].queue_id}
    assert found[0]["properties"]["__SHARDINGKEY"] == "o-42"


@java_lines
def test_broadcasts_reach_every_member_of_both(java: Java, mq: shmq.Connection, topic: str, named: Named) -> None:
    group = named("watchers")
    with mq.subscribe(topic, group=group, model="broadcasting") as python:
        names = [java.consume(topic=topic, group=group, broadcast=True) for _ in range(2)]
        eventually(lambda: len(python.queues) == QUEUES, "all queues", PATIENCE)
        java.produce(topic=topic, bodies=["java"])
        mq.send(topic, b"python")
        assert {message.body for message in taken(python, 2)} == {b"java", b"python"}
        for name in names:
            assert {each["body"] for each in java.client.expect(name, 2)} == {"java", "python"}


@java_lines
def test_what_one_gives_up_the_other_finds_among_the_dead_letters(
    java: Java, mq: shmq.Connection, topic: str, named: Named
) -> None:
    group = named("python")
    (sent,) = java.produce(topic=topic, bodies=["of-java"], tag="red", key="k-1", properties={"region": "eu"})
    with mq.subscribe(topic, group=group, attempts_max=2) as subscription:
        (first,) = eventually(lambda: subscription.receive(1, 0.5), "the message of Java", PATIENCE)
        assert first.message_id == sent["msgId"]
        first.nack(after=0)
        (again,) = eventually(lambda: subscription.receive(1, 0.5), "it comes again", PATIENCE)
        assert (again.attempt, again.message_id, again.topic) == (2, sent["msgId"], topic)
        again.nack()
        (letter,) = eventually(lambda: mq.admin.dlq(group), "the dead letter", PATIENCE)
    name = java.consume(topic=f"%DLQ%{group}")
    (read,) = java.client.expect(name, 1)
    assert (read["body"], read["tag"], read["keys"]) == ("of-java", "red", "k-1")
    assert (read["properties"]["RETRY_TOPIC"], read["properties"]["region"]) == (topic, "eu")

    other = mq.send(topic, b"of-python", tag="blue", key="k-2", properties={"region": "us"})
    name = java.consume(topic=topic, tags="blue", failFirst=99, maxReconsume=1)
    assert [each["reconsumeTimes"] for each in java.client.expect(name, 2)] == [0, 1]
    (letter,) = eventually(lambda: mq.admin.dlq(name), "the dead letter of Java", PATIENCE)
    assert (letter.body, letter.origin_topic) == (b"of-python", topic)
    assert other.message_id in (letter.message.message_id, letter.origin_message_id)
    letter.resend()
    assert mq.browse(topic)[-1].properties["region"] == "us"


@java_lines
def test_a_transaction_of_python_reaches_java_once_it_is_committed(
    java: Java, mq: shmq.Connection, topic: str, named: Named
) -> None:
    name = java.consume(topic=topic)
    with mq.producer(group=named("shop")) as producer:
        with pytest.raises(ZeroDivisionError), producer.transaction(topic, b"never"):
            raise ZeroDivisionError
        with producer.transaction(topic, b"paid", tag="red", key="o-1") as tx:
            pass
    (found,) = java.client.expect(name, 1)
    assert (found["body"], found["tag"], found["keys"], found["msgId"]) == ("paid", "red", "o-1", tx.id)
    mq.send(topic, b"last")
    assert [each["body"] for each in java.client.expect(name, 2)] == ["paid", "last"]


@java_lines
def test_a_delay_level_of_one_is_waited_for_before_the_other_gets_the_message(
    java: Java, mq: shmq.Connection, topic: str
) -> None:
    java.produce(topic=topic, bodies=["of java"], delayLevel=1)
    with mq.pull_consumer(topic) as consumer:
        (message,) = eventually(lambda: consumer.poll(1, 1.0), "the message of Java", PATIENCE)
    assert message.body == b"of java" and message.store_ms - message.born_ms >= LEVEL_1_MS - CLOCK_MS
    name = java.consume(topic=topic)
    mq.send(topic, b"of python", delay_level=1)
    found = {each["body"]: each for each in java.client.expect(name, 2)}["of python"]
    assert found["storeTimestamp"] - found["bornTimestamp"] >= LEVEL_1_MS - CLOCK_MS


@java_lines
def test_batches_packed_bodies_and_keys_are_the_same_in_both_directions(
    java: Java, mq: shmq.Connection, topic: str
) -> None:
    body = "0123456789" * 2000
    java.produce("batch", topic=topic, bodies=["a", "b"], tag="t", key="k")
    java.produce(topic=topic, bodies=[body], tag="t", key="k", properties={"größe": "ü"})
    with mq.pull_consumer(topic) as consumer:
        found = {}
        while len(found) < 3:
            polled = eventually(lambda: consumer.poll(32, 1.0), "the messages of Java", PATIENCE)
            found |= {message.body: message for message in polled}
    assert found.keys() == {b"a", b"b", body.encode()}
    assert {(message.tag, message.key) for message in found.values()} == {("t", "k")}
    assert found[body.encode()].properties["größe"] == "ü" and found[body.encode()].verify()

    name = java.consume(topic=topic, tags="python")
    receipts = mq.send_batch(topic, [b"c", b"d"], tag="python", keys=["1", "2"], properties={"größe": "ü"})
    with mq.producer(compression="zlib") as producer:
        packed = producer.send(topic, body.encode(), tag="python", key="3")
    got = {each["body"]: each for each in java.client.expect(name, 3)}
    assert {text: got[text]["keys"] for text in ("c", "d", body)} == {"c": "1", "d": "2", body: "3"}
    assert got["c"]["properties"]["größe"] == "ü"
    assert {got["c"]["msgId"], got[body]["msgId"]} == {receipts[0].message_id, packed.message_id}


@pytest.mark.parametrize(("java_version", "way"), [("5", "local")])
def test_a_group_that_pops_is_shared_by_java_and_python(
    java: Java, broker: Broker, mq: shmq.Connection, topic: str, named: Named
) -> None:
    """Java and Python's simple consumer take the messages of one group from the broker, each once."""
    group = named("popping")
    words = ("-n", broker.name_server, "-b", broker.broker_address)
    java.client.mqadmin("updateSubGroup", *words, "-g", group)
    said = java.client.mqadmin("setConsumeMode", *words, "-t", topic, "-g", group, "-m", "POP", "-q", "0")
    assert "success" in said, said
    with (
        shmq.connect(f"rocketmq://{broker.name_server}") as remote,
        remote.simple_consumer(topic, group=group, invisible=60) as consumer,
    ):
        sent = [mq.send(topic, b"p%d" % number).message_id for number in range(10)]
        sent += [each["msgId"] for each in java.produce(topic=topic, bodies=[f"j{number}" for number in range(10)])]
        mine = [message.message_id for message in taken(consumer, 5)]
        name = java.consume(topic=topic, group=group, pop=True)
        eventually(
            lambda: len(mine) + len(java.client.received(name)) >= len(sent) or _take(consumer, mine),
            "all messages",
            PATIENCE,
        )
    theirs = [each["msgId"] for each in java.client.received(name)]
    assert sorted(mine + theirs) == sorted(sent)


def _take(consumer: Any, mine: list[str]) -> bool:
    for message in consumer.receive(1, 0.1):
        mine.append(message.message_id)
        message.ack()
    return False
