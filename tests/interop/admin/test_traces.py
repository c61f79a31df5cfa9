"""Message traces: tools of RocketMQ read ours, we read those of the Java clients."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

import shmq
from shmq.message import TRACE_TOPIC
from shmq.protocol.system_topics.trace import PUB, SUB_AFTER, SUB_BEFORE, Trace, decode_traces
from shmq.testing import Broker
from tests.deadline import eventually
from tests.interop.peers.java import JavaClient

Named = Callable[[str], str]
PATIENCE = 60.0
JAVA = pytest.mark.parametrize("java_version", ["4", "5"])


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker(tcp=True) as broker:
        yield broker


def traces_of(mq: shmq.Connection, message_id: str) -> list[Trace]:
    try:
        opened = mq.pull_consumer(TRACE_TOPIC)
    except shmq.TopicNotFound:  # the first trace makes it
        return []
    with opened as consumer:
        messages = []
        while found := consumer.poll(100, 0.0):
            messages += [message for message in found if message_id in message.keys]
    traces = [trace for message in messages for trace in decode_traces(message.body.decode())]
    return [trace for trace in traces if trace.message_id == message_id]


@JAVA
@pytest.mark.parametrize("way", ["local", "tcp"])
def test_mqadmin_reads_our_traces(
    broker: Broker, java_client: JavaClient, named: Named, way: str, java_version: str
) -> None:
    topic, shop, billing = named("orders"), named("shop"), named("billing")
    seen: list[shmq.Message] = []
    with broker.connect() as mq:
        mq.admin.create_topic(topic, queues=1)
    url = broker.url if way == "local" else f"rocketmq://{broker.name_server}"
    with shmq.connect(url, trace=True) as mq:
        mq.listener(topic, group=billing)(seen.append)
        mq.start()
        with mq.producer(group=shop) as producer:
            receipt = producer.send(topic, b"42 apples", tag="fruit", key="o-1")
        eventually(lambda: seen, "the message")
    said = eventually(
        lambda: _said(java_client, broker, receipt.message_id, billing), "mqadmin prints the trace", PATIENCE
    )
    rows = [line.split() for line in said.splitlines() if line.startswith(("Pub", "Sub"))]
    assert [(row[0], row[1], row[-1]) for row in rows] == [("Pub", shop, "success"), ("Sub", billing, "success")], said


def _said(client: JavaClient, broker: Broker, message_id: str, group: str) -> str:
    # The key index follows the log by a moment.
    said = client.mqadmin("queryMsgTraceById", "-n", broker.name_server, "-i", message_id)
    return said if group in said else ""


@JAVA
def test_we_read_the_traces_of_java_clients(broker: Broker, java_client: JavaClient, named: Named) -> None:
    topic, name, group = named("orders"), named("producer"), named("billing")
    arguments = {"nameServer": broker.name_server, "trace": True}
    # A consumer of 5.3.3 traces only messages with a region, which a broker of the 4.9 line, as we are, does not add.
    wanted = {PUB, SUB_BEFORE, SUB_AFTER} if java_client.version == "4" else {PUB}
    with broker.connect() as mq:
        mq.admin.create_topic(topic, queues=1)
        java_client.do("producer", name=name, group=name, **arguments)
        java_client.do("push", name=group, group=group, topic=topic, **arguments)
        try:
            (sent,) = java_client.do("send", name=name, topic=topic, bodies=["hello"], key="k-1", tag="t")
            java_client.expect(group, 1)
            eventually(lambda: {each.kind for each in traces_of(mq, sent["msgId"])} >= wanted, "the traces", PATIENCE)
            by_kind = {trace.kind: trace for trace in traces_of(mq, sent["msgId"])}
        finally:
            java_client.do("producer-close", name=name)
            java_client.do("push-close", name=group)
    published = by_kind[PUB]
    assert (published.group, published.topic, published.tags, published.keys) == (name, topic, "t", "k-1")
    assert (published.body_bytes, published.succeeded, published.offset_message_id) == (5, True, sent["offsetMsgId"])
    if SUB_AFTER in wanted:
        assert (by_kind[SUB_BEFORE].group, by_kind[SUB_BEFORE].keys) == (group, "k-1")
        assert by_kind[SUB_AFTER].request_id == by_kind[SUB_BEFORE].request_id and by_kind[SUB_AFTER].succeeded
