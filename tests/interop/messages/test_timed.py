"""Timed messages and levels between the Java clients, ours, and the stock broker of 5.3.3, which has them too."""

import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import shmq
from shmq.testing import Broker
from tests.interop.peers.java import ClientError, JavaClient
from tests.interop.target import STOCK_5, Target

CLOCK_STEP_MS = 1  # a broker may give a message the millisecond that has just ended
STOCK_PRECISION_MS = 1000
Java = Callable[[str], JavaClient]
Named = Callable[[str], str]
KEPT = {"TIMER_OUT_MS", "TIMER_ENQUEUE_MS", "TIMER_DEQUEUE_MS", "REAL_TOPIC", "REAL_QID"}


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    """Ours, for clients of this host and of TCP."""
    with Broker(tcp=True) as running:
        yield running


class Ends:
    """A producer and a push consumer of one Java client on one topic."""

    def __init__(self, java: JavaClient, name_server: str, named: Named) -> None:
        self.java = java
        self.topic, self.name = named("topic"), named("ends")
        java.do("producer", name=self.name, group=self.name, nameServer=name_server)
        java.do("send", name=self.name, topic=self.topic, bodies=["first"])
        java.do("push", name=self.name, group=f"{self.name}_c", topic=self.topic, nameServer=name_server)
        java.expect(self.name, 1)

    def send(self, **arguments: Any) -> dict[str, Any]:
        return dict(self.java.do("send-timed", name=self.name, topic=self.topic, **arguments))

    def received(self, count: int) -> dict[str, dict[str, Any]]:
        return {each["body"]: each for each in self.java.expect(self.name, count + 1)[1:]}

    def close(self) -> None:
        if self.java.is_alive:
            self.java.do("producer-close", name=self.name)
            self.java.do("push-close", name=self.name)


@pytest.fixture
def ends(java_client: JavaClient, target: Target, named: Named) -> Iterator[Ends]:
    made = Ends(java_client, target.name_server, named)
    yield made
    made.close()


def now_ms() -> int:
    return time.time_ns() // 1_000_000 - CLOCK_STEP_MS


@pytest.mark.parametrize("java_version", ["5"])
def test_a_timed_message_of_the_5x_client_comes_when_it_is_due_with_the_same_properties(
    ends: Ends, target: Target
) -> None:
    if target.kind == "stock-4":
        pytest.skip("a broker of the 4.9 line has no timed messages")
    begin = now_ms()
    ends.send(body="ms", setter="setDelayTimeMs", value=1700)
    ends.send(body="sec", setter="setDelayTimeSec", value=2)
    ends.send(body="at", setter="setDeliverTimeMs", value=begin + 2500)
    ends.send(body="over", setter="setDeliverTimeMs", value=begin - 2500)
    found = ends.received(4)
    asked = {"ms": 1700, "sec": 2000, "at": 2500}
    for body, delay_ms in asked.items():
        late_ms = found[body]["storeTimestamp"] - begin - delay_ms
        if target.is_ours:
            assert late_ms >= 0, body
        else:
            assert late_ms >= -STOCK_PRECISION_MS, body  # RocketMQ rounds to seconds
        properties = found[body]["properties"]
        assert properties.keys() >= KEPT
        assert int(properties["TIMER_OUT_MS"]) % 1000 == 0
        assert found[body]["topic"] == ends.topic
    assert not found["over"]["properties"].keys() & KEPT


@pytest.mark.parametrize("java_version", ["5"])
def test_what_is_farther_ahead_than_is_allowed_is_refused_in_the_same_words(ends: Ends, target: Target) -> None:
    if target.kind == "stock-4":
        pytest.skip("a broker of the 4.9 line has no timed messages")
    with pytest.raises(ClientError, match=r"CODE: 13 .*timer message illegal, the delay time should not be bigger"):
        ends.send(body="x", setter="setDelayTimeSec", value=3 * 86_400 + 5)


def test_properties_set_by_hand_in_a_4x_client_work_too(broker: Broker, java: Java, named: Named) -> None:
    ends = Ends(java("4"), broker.name_server, named)
    begin = now_ms()
    ends.send(body="x", property="TIMER_DELAY_MS", value="600")
    assert ends.received(1)["x"]["storeTimestamp"] >= begin + 600
    ends.close()


@pytest.mark.parametrize("version", ["4", "5"])
def test_what_a_python_client_sends_later_java_gets_later_and_back(
    broker: Broker, java: Java, named: Named, version: str
) -> None:
    ends = Ends(java(version), broker.name_server, named)
    begin = now_ms()
    with broker.connect() as local, shmq.connect(f"rocketmq://{broker.name_server}") as remote:
        for name, mq in (("local", local), ("remote", remote)):
            mq.send(ends.topic, f"{name} timed".encode(), delay=1.2, tag="t", key="k")
            mq.send(ends.topic, f"{name} level".encode(), delay_level=1, tag="t", key="k")
        found = ends.received(4)
        for name in ("local", "remote"):
            assert found[f"{name} timed"]["storeTimestamp"] >= begin + 1200
            assert found[f"{name} level"]["storeTimestamp"] >= begin + 1000
            assert found[f"{name} level"]["properties"]["DELAY"] == "1"
            for kind in ("timed", "level"):
                assert (found[f"{name} {kind}"]["tag"], found[f"{name} {kind}"]["keys"]) == ("t", "k")
        begin = now_ms()
        ends.java.do("send", name=ends.name, topic=ends.topic, bodies=["java level"], delayLevel=1)
        ends.send(body="java timed", property="TIMER_DELAY_MS", value="700")
        seen: dict[bytes, int] = {}
        deadline = time.monotonic() + 30
        while not {b"java level", b"java timed"} <= seen.keys() and time.monotonic() < deadline:
            with local.pull_consumer(ends.topic) as consumer:
                seen = {bytes(message.body): message.store_ms for message in consumer.poll(1000, 0.1)}
        assert seen[b"java level"] >= begin + 1000 and seen[b"java timed"] >= begin + 700
    ends.close()


def test_either_side_takes_back_what_the_other_sent(broker: Broker, java: Java, named: Named) -> None:
    ends = Ends(java("5"), broker.name_server, named)
    first = ends.send(body="java dropped by python", setter="setDelayTimeMs", value=2000)
    second = ends.send(body="java dropped by java", setter="setDelayTimeMs", value=2000)
    with broker.connect() as local, shmq.connect(f"rocketmq://{broker.name_server}") as remote:
        third = local.send(ends.topic, b"python dropped by java", delay=2.0)
        local.recall(first["handle"])
        assert ends.java.do("recall", name=ends.name, topic=ends.topic, handle=second["handle"]) == second["msgId"]
        ends.java.do("recall", name=ends.name, topic=ends.topic, handle=third.recall_handle)
        remote.send(ends.topic, b"last", delay=2.3)
    assert ends.received(1).keys() == {"last"}
    with pytest.raises(ClientError, match="recall handle is invalid"):
        ends.java.do("recall", name=ends.name, topic=ends.topic, handle="nonsense")
    ends.close()


@pytest.mark.parametrize("java_version", ["5"])
def test_our_client_delays_at_a_stock_broker_of_5x(ends: Ends, target: Target) -> None:
    if target.kind != STOCK_5:
        pytest.skip("ours is in the other tests, and 4.9 has no timed messages")
    begin = now_ms()
    with shmq.connect(f"rocketmq://{target.name_server}") as mq:
        mq.send(ends.topic, b"delay", delay=2.5)
        mq.send(ends.topic, b"level", delay_level=1)
    found = ends.received(2)
    assert found["delay"]["storeTimestamp"] >= begin + 2500 - STOCK_PRECISION_MS
    assert found["level"]["storeTimestamp"] >= begin + 1000
