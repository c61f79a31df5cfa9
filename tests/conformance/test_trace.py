"""Message traces: a record of what was sent and consumed, in RocketMQ's own form, on both transports."""

from collections.abc import Callable
from typing import Any

import pytest

import shmq
from shmq.message import TRACE_TOPIC
from shmq.protocol.system_topics.trace import END_TRANSACTION, PUB, SUB_AFTER, SUB_BEFORE, Trace, decode_traces
from shmq.testing import Broker
from tests.conformance.conftest import Named

Eventually = Callable[..., Any]


def traces_of(broker: Broker, message_id: str) -> dict[int, Trace]:
    """The traces of one message by their kind."""
    with broker.connect() as local:
        try:
            messages = local.browse(TRACE_TOPIC, key=message_id)
        except shmq.TopicNotFound:  # the first trace makes it
            return {}
        traces = [trace for message in messages for trace in decode_traces(message.body.decode())]
        return {trace.kind: trace for trace in traces if trace.message_id == message_id}


def test_a_send_and_its_consumption_are_traced(
    broker: Broker, connect: Callable[..., shmq.Connection], topic: str, named: Named, eventually: Eventually
) -> None:
    mq, shop, billing = connect(trace=True), named("shop"), named("billing")
    mq.listener(topic, group=billing)(lambda message: None)
    mq.start()
    with mq.producer(group=shop) as producer:
        receipt = producer.send(topic, b"42 apples", tag="fruit", key="o-1")
    found = eventually(lambda: len(found := traces_of(broker, receipt.message_id)) == 3 and found)
    sent, before, after = (found[kind] for kind in (PUB, SUB_BEFORE, SUB_AFTER))
    assert (sent.group, sent.topic, sent.tags, sent.keys) == (shop, topic, "fruit", "o-1")
    assert sent.succeeded and sent.body_bytes == 9
    assert (before.group, before.keys) == (billing, "o-1")
    assert after.succeeded and after.request_id == before.request_id


def test_a_consumer_that_fails_is_traced_as_that(
    broker: Broker, connect: Callable[..., shmq.Connection], topic: str, named: Named, eventually: Eventually
) -> None:
    mq = connect(trace=True)

    @mq.listener(topic, group=named("billing"))
    def handle(message: shmq.Message) -> None:
        raise shmq.Retry(after=3600)

    receipt = mq.send(topic, b"x")
    mq.start()
    found = eventually(lambda: (found := traces_of(broker, receipt.message_id)) and SUB_AFTER in found and found)
    assert not found[SUB_AFTER].succeeded


@pytest.mark.parametrize("make", ["subscribe", "simple_consumer"])
@pytest.mark.parametrize("iterates", [True, False])
def test_what_is_received_is_traced(
    broker: Broker,
    connect: Callable[..., shmq.Connection],
    topic: str,
    named: Named,
    make: str,
    iterates: bool,
    eventually: Eventually,
) -> None:
    mq, group = connect(trace=True), named("billing")
    receipt = mq.send(topic, b"x", key="o-1")
    with getattr(mq, make)(topic, group=group) as consumer:
        if iterates and make == "subscribe":
            message = next(iter(consumer))
        else:
            (message,) = eventually(lambda: consumer.receive(1, 0.5))
        message.ack()
    found = eventually(lambda: len(found := traces_of(broker, receipt.message_id)) == 3 and found)
    before, after = found[SUB_BEFORE], found[SUB_AFTER]
    assert (before.group, before.keys, after.succeeded) == (group, "o-1", True)
    assert after.request_id == before.request_id


@pytest.mark.parametrize(("ends", "state"), [("commit", "COMMIT_MESSAGE"), ("rollback", "ROLLBACK_MESSAGE")])
def test_a_transaction_is_traced_with_its_end(
    broker: Broker,
    connect: Callable[..., shmq.Connection],
    topic: str,
    named: Named,
    ends: str,
    state: str,
    eventually: Eventually,
) -> None:
    mq, shop = connect(trace=True), named("shop")
    with mq.producer(group=shop) as producer:
        tx = producer.transaction(topic, b"paid", tag="fruit", key="o-1")
        getattr(tx, ends)()
    found = eventually(lambda: len(found := traces_of(broker, tx.id)) == 2 and found)
    half, end = found[PUB], found[END_TRANSACTION]
    assert (half.message_type, half.group, half.body_bytes, half.succeeded) == (1, shop, 4, True)
    assert (end.transaction_state, end.transaction_id, end.is_from_check) == (state, tx.id, False)
    assert (end.group, end.topic, end.tags, end.keys) == (shop, topic, "fruit", "o-1")


def test_who_does_not_trace_leaves_no_trace(broker: Broker, mq: shmq.Connection, topic: str) -> None:
    assert traces_of(broker, mq.send(topic, b"x").message_id) == {}
