"""Requests and replies with the official Java clients: asking and answering, at ours and at stock brokers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

import shmq
from shmq.testing import Broker
from tests.deadline import eventually
from tests.interop.peers.java import ClientError, JavaClient
from tests.interop.target import STOCK_4, STOCK_5, Target

Named = Callable[[str], str]
TIMEOUT = 20.0
JAVA = pytest.mark.parametrize("java_version", ["4", "5"])


def connect(target: Target) -> shmq.Connection:
    return shmq.connect(f"rocketmq://{target.name_server}", timeout=60.0)


def ask(client: JavaClient, name: str, topic: str, body: str) -> Any:
    """Ask with a Java producer.

    The waiting `request` of 5.3.3 gives up as soon as the request is sent, at a stock broker too: the send's callback
    ends the wait for the reply. So that client is asked to call back.
    """
    arguments = {"name": name, "topic": topic, "body": body, "timeoutMs": 20_000}
    return client.do("request", later=client.version == "5", **arguments)


@pytest.fixture
def asked(target: Target, named: Named) -> Iterator[str]:
    """A topic for requests."""
    with connect(target) as mq:
        name = named("prices")
        mq.admin.create_topic(name, queues=2)
        yield name


@pytest.fixture
def requester(target: Target, java_client: JavaClient, named: Named) -> Iterator[Callable[[str, str], Any]]:
    """Ask with a Java producer."""
    name = named("requester")
    java_client.do("producer", name=name, group=named("asking"), nameServer=target.name_server)
    yield lambda topic, body: ask(java_client, name, topic, body)
    java_client.do("producer-close", name=name)


@pytest.fixture
def java_replier(target: Target, java_client: JavaClient, named: Named, asked: str) -> Iterator[str]:
    """A Java consumer that answers, and its name."""
    name = named("replier")
    java_client.do("replier", name=name, group=named("answering"), topic=asked, nameServer=target.name_server)
    yield name
    java_client.do("replier-close", name=name)


@JAVA
def test_java_asks_and_python_answers_over_tcp(
    target: Target, asked: str, requester: Callable[[str, str], Any], named: Named
) -> None:
    with connect(target) as mq:
        mq.replier(asked, group=named("python"))(lambda message: b"re:" + message.body)
        mq.start()
        reply = requester(asked, "apple")
    assert reply["body"] == "re:apple" and reply["topic"] == "DefaultCluster_REPLY_TOPIC"
    assert reply["properties"]["MSG_TYPE"] == "reply"
    assert {"CORRELATION_ID", "REPLY_TO_CLIENT", "TTL", "PUSH_REPLY_TIME", "ARRIVE_TIME"} <= reply["properties"].keys()


@JAVA
def test_python_asks_over_tcp_and_java_answers(
    target: Target, asked: str, java_replier: str, java_client: JavaClient
) -> None:
    with connect(target) as mq:
        replies = [mq.request(asked, body, timeout=TIMEOUT) for body in (b"apple", b"pear")]
    assert [reply.body for reply in replies] == [b"re:apple", b"re:pear"]
    assert replies[0].properties["MSG_TYPE"] == "reply"
    said = java_client.expect(java_replier, 2)  # it says so when the broker has answered, which may be after our reply
    assert [each.get("status") for each in said] == ["SEND_OK", "SEND_OK"], said


@pytest.mark.parametrize("kind", [STOCK_4, STOCK_5])
def test_python_asks_and_answers_at_a_stock_broker(kind: str, request: pytest.FixtureRequest, named: Named) -> None:
    target: Target = request.getfixturevalue(kind.replace("-", "_"))
    name = named("prices")
    with connect(target) as mq, connect(target) as other:
        mq.admin.create_topic(name, queues=2)
        other.replier(name, group=named("python"))(lambda message: b"re:" + message.body)
        other.start()
        assert mq.request(name, b"apple", timeout=40.0).body == b"re:apple"


class Here:
    """A broker of this host, local connections to it, and its name server for others."""

    def __init__(self, bridges: int) -> None:
        self.broker = Broker(tcp=True, bridges=bridges)

    def target(self) -> Target:
        broker = self.broker
        return Target("ours", broker.name_server, broker.broker_address, broker.name)


@pytest.fixture(scope="module", params=[1, 3], ids=["one bridge", "three bridges"])
def here(request: pytest.FixtureRequest) -> Iterator[Here]:
    found = Here(request.param)
    with found.broker:
        yield found


@JAVA
def test_java_and_a_local_process_ask_and_answer_each_other(here: Here, java_client: JavaClient, named: Named) -> None:
    topic, back = named("prices"), named("offers")
    server = here.target().name_server
    asking, answering = named("asking"), named("answering")
    with here.broker.connect() as mq:
        for name in (topic, back):
            mq.admin.create_topic(name, queues=2)
        mq.replier(topic, group=named("local"))(lambda message: b"local:" + message.body)
        mq.start()
        java_client.do("producer", name=asking, group=asking, nameServer=server)
        java_client.do("replier", name=answering, group=answering, topic=back, nameServer=server)
        try:
            asked = [ask(java_client, asking, topic, body)["body"] for body in ("a", "b", "c")]
            assert asked == ["local:a", "local:b", "local:c"]
            assert [mq.request(back, body, timeout=TIMEOUT).body for body in (b"x", b"y")] == [b"re:x", b"re:y"]
        finally:
            java_client.do("producer-close", name=asking)
            java_client.do("replier-close", name=answering)


@pytest.mark.parametrize("java_version", ["4"])
def test_a_java_requester_without_an_answer_times_out(here: Here, java_client: JavaClient, named: Named) -> None:
    name = named("impatient")
    java_client.do("producer", name=name, group=name, nameServer=here.target().name_server)
    with here.broker.connect() as mq:
        topic = named("silence")
        mq.admin.create_topic(topic, queues=1)
        with pytest.raises(ClientError, match="timeout"):
            java_client.do("request", name=name, topic=topic, body="hello?", timeoutMs=500)
        with mq.pull_consumer(topic) as consumer:
            (message,) = eventually(lambda: consumer.poll(10, 1.0), "the request")
        # It is gone before the reply comes: the replier gets the error, and nothing else happens.
        java_client.do("producer-close", name=name)
        eventually(lambda: not mq._live().requests.reply(message, b"too late"), "the requester is gone")
