"""Message traces of both transports: every send and every call of a listener, in the background."""

import asyncio
import os
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import shmq
import shmq.aio
from shmq.client.observers.trace import BATCH_MAX, QUEUE_MAX, Tracer
from shmq.errors import StoreError
from shmq.message import TRACE_TOPIC
from shmq.protocol.system_topics.trace import PUB, SUB_AFTER, SUB_BEFORE, ContextCode, MessageType, Trace, decode_traces
from shmq.testing import Broker

Eventually = Callable[..., Any]
WAYS = ["local", "tcp"]


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker(tcp=True) as broker:
        yield broker


def url_of(broker: Broker, way: str) -> str:
    return broker.url if way == "local" else f"rocketmq://{broker.name_server}"


def traces(broker: Broker) -> list[Trace]:
    with broker.connect() as mq:
        try:
            consumer = mq.pull_consumer(TRACE_TOPIC)
        except shmq.TopicNotFound:
            return []
        messages: list[shmq.Message] = []
        while found := consumer.poll(100, 0.0):
            messages += found
        for message in messages:
            assert set(message.keys) >= {trace.message_id for trace in decode_traces(message.body.decode())} - {""}
        return [trace for message in messages for trace in decode_traces(message.body.decode())]


def of_group(broker: Broker, *groups: str) -> list[Trace]:
    return [trace for trace in traces(broker) if trace.group in groups]


@pytest.mark.parametrize("way", WAYS)
def test_a_send_and_what_a_listener_did_with_it_are_traced(broker: Broker, eventually: Eventually, way: str) -> None:
    topic, shop, billing = f"orders-{way}", f"shop-{way}", f"billing-{way}"
    with broker.connect() as mq:
        mq.admin.create_topic(topic, queues=1)
    with shmq.connect(url_of(broker, way), trace=True) as mq:
        seen: list[int] = []

        @mq.listener(topic, group=billing)
        def bill(message: shmq.Message) -> None:
            seen.append(message.attempt)
            if message.body == b"bad":
                raise shmq.Reject("never")

        mq.start()
        with mq.producer(group=shop) as producer:
            receipt = producer.send(topic, b"42 apples", tag="fruit", key="o-1", keys=["o-2"])
            bad = producer.send(topic, b"bad", message_group="g")
            batch = producer.send_batch(topic, [b"a", b"bc"], keys=["k-1", "k-2"])
            producer.send_oneway(topic, b"outcome unknown")
        eventually(lambda: len(seen) >= 5)
        mq.stop()
    found = of_group(broker, shop, billing)
    sent = {trace.message_id: trace for trace in found if trace.kind == PUB}
    assert sent.keys() == {receipt.message_id, bad.message_id, *(each.message_id for each in batch)}
    first = sent[receipt.message_id]
    assert (first.topic, first.tags, first.keys, first.body_bytes, first.succeeded) == (
        *(topic, "fruit", "o-1 o-2", 9, True),
    )
    assert first.store_host == broker.broker_address and first.message_type == MessageType.NORMAL
    assert sent[bad.message_id].message_type == MessageType.ORDER
    assert [sent[each.message_id].keys for each in batch] == ["k-1", "k-2"]
    before = [trace for trace in found if trace.kind == SUB_BEFORE and trace.message_id == receipt.message_id]
    after = {trace.message_id: trace for trace in found if trace.kind == SUB_AFTER}
    assert [trace.keys for trace in before] == ["o-1 o-2"]
    assert after[receipt.message_id].request_id == before[0].request_id and after[receipt.message_id].succeeded
    # Rejected is settled for ever, so it counts as consumed; only what comes again does not.
    assert after[bad.message_id].context_code in (0, 4)


@pytest.mark.parametrize("way", WAYS)
def test_a_send_that_failed_is_traced_as_such(broker: Broker, way: str) -> None:
    group = f"failing-{way}"
    with (
        shmq.connect(url_of(broker, way), trace=True) as mq,
        mq.producer(group=group) as producer,
        pytest.raises(shmq.ShmqError),
    ):
        producer.send(f"orders-{way}", b"x", queue_id=999)
    (trace,) = of_group(broker, group)
    assert (trace.kind, trace.succeeded, trace.message_id, trace.body_bytes) == (PUB, False, "", 1)


@pytest.mark.parametrize("way", WAYS)
def test_asyncio_twins_trace_as_well(broker: Broker, way: str) -> None:
    group = f"aio-{way}"

    async def main() -> list[str]:
        async with shmq.aio.connect(url_of(broker, way), trace=True) as mq, mq.producer(group=group) as producer:
            return [(await producer.send(f"orders-{way}", b"x")).message_id for _ in range(3)]

    ids = asyncio.run(asyncio.wait_for(main(), 60))
    assert [trace.message_id for trace in of_group(broker, group)] == ids


def test_without_the_option_nothing_is_traced_and_send_is_the_cores_own(broker: Broker) -> None:
    with broker.connect() as mq, mq.producer(group="quiet") as producer:
        producer.send("orders-local", b"x")
        assert type(producer.send).__name__ == "builtin_function_or_method"
    assert not of_group(broker, "quiet")


def test_a_forked_child_traces_for_itself(broker: Broker) -> None:
    with shmq.connect(broker.url, trace=True) as mq:
        mq.send("orders-local", b"parent")
        child = os.fork()
        if child == 0:
            code = 1
            try:
                with mq.producer(group="child") as producer:
                    producer.send("orders-local", b"child")
                mq.close()
                code = 0
            finally:
                os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert len(of_group(broker, "child")) == 1


def test_a_broker_without_automatic_topics_has_the_trace_topic_from_its_start() -> None:
    with Broker(tcp=True, auto_create=False) as broker:
        with broker.connect() as mq:
            mq.admin.create_topic("orders", queues=1)
        with shmq.connect(f"rocketmq://{broker.name_server}", trace=True) as mq:
            mq.send("orders", b"x")
        assert len(traces(broker)) == 1


class Stored:
    """What a tracer hands over."""

    def __init__(self) -> None:
        self.batches: list[list[Trace]] = []
        self.gate = threading.Event()
        self.error: Exception | None = None
        self.gate.set()

    def __call__(self, body: bytes, keys: list[str]) -> None:
        self.gate.wait(60)
        if self.error is not None:
            raise self.error
        self.batches.append(decode_traces(body.decode()))


def test_traces_are_stored_in_batches_and_none_waits_for_long(eventually: Eventually) -> None:
    stored = Stored()
    tracer = Tracer(stored)
    for number in range(2 * BATCH_MAX + 1):
        tracer.add(Trace(PUB, f"ID{number}"))
    eventually(lambda: sum(map(len, stored.batches)) == 2 * BATCH_MAX + 1)
    assert max(map(len, stored.batches)) <= BATCH_MAX
    assert [trace.message_id for batch in stored.batches for trace in batch] == [
        f"ID{number}" for number in range(2 * BATCH_MAX + 1)
    ]
    tracer.close(20)


def test_long_keys_go_into_messages_of_their_own() -> None:
    stored = Stored()
    tracer = Tracer(stored)
    for number in range(5):
        tracer.add(Trace(PUB, f"ID{number}", keys="k" * 15_000))
    tracer.close(20)
    assert [len(batch) for batch in stored.batches] == [1] * 5


def test_tracing_never_waits_and_counts_what_it_drops(eventually: Eventually) -> None:
    stored = Stored()
    stored.gate.clear()
    tracer = Tracer(stored)
    tracer.add(Trace(PUB, "first"))
    eventually(lambda: tracer._busy)
    started = time.monotonic()
    for number in range(QUEUE_MAX + 3):
        tracer.add(Trace(PUB, f"ID{number}"))
    assert tracer.dropped == 3 and time.monotonic() - started < 20
    stored.error = StoreError("full")
    stored.gate.set()
    eventually(lambda: tracer.dropped == QUEUE_MAX + 4)
    tracer.close(20)
    tracer.add(Trace(PUB, "late"))
    assert tracer.dropped == QUEUE_MAX + 5


@pytest.mark.parametrize("way", ["listener", "iterate", "receive"])
def test_a_damaged_message_is_traced_as_consumed_in_vain(eventually: Eventually, way: str) -> None:
    with Broker(flush="sync") as broker:
        with broker.connect() as mq:
            mq.admin.create_topic("orders", queues=1)
            sent = [mq.send("orders", body, key=f"k-{body.decode()}") for body in (b"before", b"damaged", b"behind")]
        with (broker.store / "commitlog" / f"{0:020d}").open("r+b") as file:
            file.seek(sent[1].log_position + 88)
            file.write(b"D")
        with shmq.connect(broker.url, trace=True) as mq:
            bodies: list[bytes] = []
            if way == "listener":
                mq.listener("orders", group="billing")(lambda message: bodies.append(bytes(message.body)))
                mq.start()
                eventually(lambda: len(bodies) == 2, "reading goes on")
                mq.stop()
            else:
                with mq.subscribe("orders", group="billing") as consumer, pytest.raises(shmq.DamagedMessage):
                    while way == "receive":
                        consumer.receive(10, 0.5)
                    for _ in consumer:
                        pass
        pair = eventually(lambda: in_vain(broker), "traces are on disk a moment after the connection is closed")
        assert [trace.kind for trace in pair] == [SUB_BEFORE, SUB_AFTER]
        assert pair[1].context_code == ContextCode.EXCEPTION and not pair[1].succeeded
        for trace in pair:
            assert trace.message_id == sent[1].message_id and trace.keys.split() == ["k-damaged", "orders/0/1"]


def in_vain(broker: Broker) -> list[Trace]:
    """What is traced of the message that was damaged, once there is all of it."""
    found = [trace for trace in of_group(broker, "billing") if "orders/0/1" in trace.keys.split()]
    return found if len(found) == 2 else []
