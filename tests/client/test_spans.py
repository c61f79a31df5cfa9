"""Spans of sends, receives and calls are those of the messaging conventions, on both transports, and hang together."""

from __future__ import annotations

import asyncio
import pickle
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.semconv._incubating.attributes import messaging_attributes as names
from opentelemetry.trace import SpanKind, StatusCode

import shmq
import shmq.aio
import shmq.otel
from shmq.testing import Broker

DEADLINE_SECONDS = 30.0


def eventually(condition: Callable[[], Any], what: str) -> Any:
    until = time.monotonic() + DEADLINE_SECONDS
    while not (value := condition()):
        assert time.monotonic() < until, what
        time.sleep(0.02)
    return value


class Recorded:
    """A provider that keeps what it was given."""

    def __init__(self) -> None:
        self.exporter = InMemorySpanExporter()
        self.provider = TracerProvider()
        self.provider.add_span_processor(SimpleSpanProcessor(self.exporter))

    def named(self, name: str) -> list[ReadableSpan]:
        return [span for span in self.exporter.get_finished_spans() if span.name == name]

    def one(self, name: str) -> ReadableSpan:
        [span] = eventually(lambda: self.named(name), f"there is a span {name!r}")
        return span


def attributes_of(span: ReadableSpan) -> dict[str, Any]:
    return dict(span.attributes or {})


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker(tcp=True) as running:
        yield running


@pytest.fixture
def recorded() -> Recorded:
    return Recorded()


@pytest.fixture(params=["shm", "tcp"])
def mq(request: pytest.FixtureRequest, broker: Broker, recorded: Recorded) -> Iterator[shmq.Connection]:
    url = broker.url if request.param == "shm" else f"rocketmq://{broker.name_server}"
    with shmq.connect(url, spans=recorded.provider) as connection:
        yield connection


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> str:
    return "".join(character if character.isalnum() else "-" for character in request.node.name)[-100:]


def test_a_send_is_a_producer_span_whose_context_travels_with_the_message(
    mq: shmq.Connection, recorded: Recorded, topic: str
) -> None:
    receipt = mq.send(topic, b"42 apples", tag="fruit", key="order-42", properties={"region": "eu"})
    span = recorded.one(f"send {topic}")
    attributes = attributes_of(span)
    assert span.kind is SpanKind.PRODUCER and span.status.status_code is not StatusCode.ERROR
    assert attributes[names.MESSAGING_SYSTEM] == "rocketmq"
    assert attributes[names.MESSAGING_OPERATION_NAME] == attributes[names.MESSAGING_OPERATION_TYPE] == "send"
    assert attributes[names.MESSAGING_DESTINATION_NAME] == topic
    assert attributes[names.MESSAGING_DESTINATION_PARTITION_ID] == str(receipt.queue_id)
    assert attributes[names.MESSAGING_MESSAGE_ID] == receipt.message_id
    assert attributes[names.MESSAGING_MESSAGE_BODY_SIZE] == 9
    assert attributes[names.MESSAGING_ROCKETMQ_MESSAGE_TAG] == "fruit"
    assert attributes[names.MESSAGING_ROCKETMQ_MESSAGE_KEYS] == ("order-42",)
    assert attributes[names.MESSAGING_ROCKETMQ_MESSAGE_TYPE] == "normal"
    assert attributes[names.MESSAGING_ROCKETMQ_NAMESPACE] == ""
    for message in mq.subscribe(topic, group=f"g-{topic}"[:100]):
        assert span.context is not None
        assert message.properties["traceparent"].split("-")[1] == f"{span.context.trace_id:032x}"
        assert message.properties["region"] == "eu" and message.tag == "fruit"
        message.ack()
        break


def test_a_listener_s_call_is_a_child_of_the_send_and_the_poll_links_to_it(
    mq: shmq.Connection, recorded: Recorded, topic: str
) -> None:
    inside: list[int] = []

    @mq.listener(topic, group=f"g-{topic}"[:100])
    def on_order(message: shmq.Message) -> None:
        inside.append(trace.get_current_span().get_span_context().trace_id)

    mq.start()
    mq.send(topic, b"42 apples", tag="fruit")
    process = recorded.one(f"process {topic}")
    sent = recorded.one(f"send {topic}")
    assert sent.context is not None and process.context is not None and process.parent is not None
    assert process.kind is SpanKind.CONSUMER and process.parent.span_id == sent.context.span_id
    assert inside == [sent.context.trace_id]
    attributes = attributes_of(process)
    assert attributes[names.MESSAGING_OPERATION_TYPE] == "process"
    assert attributes[names.MESSAGING_CONSUMER_GROUP_NAME] == f"g-{topic}"[:100]
    assert attributes[names.MESSAGING_ROCKETMQ_MESSAGE_TAG] == "fruit"
    receive = recorded.one(f"receive {topic}")
    assert receive.kind is SpanKind.CLIENT
    assert [link.context.span_id for link in receive.links] == [sent.context.span_id]
    assert attributes_of(receive)[names.MESSAGING_BATCH_MESSAGE_COUNT] == 1


def test_a_call_that_fails_is_an_error(mq: shmq.Connection, recorded: Recorded, topic: str) -> None:
    @mq.listener(topic, group=f"g-{topic}"[:100])
    def on_order(message: shmq.Message) -> None:
        raise shmq.Retry("no stock", after=600)

    mq.start()
    mq.send(topic, b"x")
    process = recorded.one(f"process {topic}")
    assert process.status.status_code is StatusCode.ERROR and attributes_of(process)["error.type"] == "not_consumed"


def test_a_send_that_fails_is_an_error_and_raises_as_ever(mq: shmq.Connection, recorded: Recorded, topic: str) -> None:
    with pytest.raises(shmq.errors.ShmqError):
        mq.send(topic, b"x" * (5 << 20))
    span = recorded.one(f"send {topic}")
    assert span.status.status_code is StatusCode.ERROR and span.events[0].name == "exception"


def test_batches_oneway_sends_and_delays_are_spans_too(mq: shmq.Connection, recorded: Recorded, topic: str) -> None:
    mq.send_batch(topic, [b"a", b"b", b"c"])
    mq.send_oneway(topic, b"d")
    mq.send(topic, b"e", delay_level=1)
    mq.send(topic, b"f", message_group="one")
    batch, oneway, delayed, ordered = [attributes_of(span) for span in recorded.named(f"send {topic}")]
    assert batch[names.MESSAGING_BATCH_MESSAGE_COUNT] == 3 and names.MESSAGING_MESSAGE_ID not in oneway
    assert delayed[names.MESSAGING_ROCKETMQ_MESSAGE_TYPE] == "delay"
    assert delayed[names.MESSAGING_ROCKETMQ_MESSAGE_DELAY_TIME_LEVEL] == 1
    assert ordered[names.MESSAGING_ROCKETMQ_MESSAGE_GROUP] == "one"
    for received, message in enumerate(mq.subscribe(topic, group=f"g-{topic}"[:100]), 1):
        assert "traceparent" in message.properties
        message.ack()
        if received == 5:
            break
    assert sum(len(span.links) for span in recorded.named(f"receive {topic}")) == 5


def test_an_application_s_own_context_is_kept_and_a_broken_one_is_none(
    mq: shmq.Connection, recorded: Recorded, topic: str
) -> None:
    own = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    mq.send(topic, b"x", message_group="one", properties={"traceparent": own})
    mq.send(topic, b"x", message_group="one", properties={"traceparent": "nonsense"})
    found = []
    for message in mq.subscribe(topic, group=f"g-{topic}"[:100]):
        with shmq.otel.processing(mq, message, group="g") as span:
            found.append(span)
        message.ack()
        if len(found) == 2:
            break
    assert f"{found[0].get_span_context().trace_id:032x}" == own.split("-")[1]
    assert found[1].get_span_context().is_valid and getattr(found[1], "parent", 1) is None


def test_an_asyncio_send_belongs_to_the_span_around_it(broker: Broker, recorded: Recorded) -> None:
    async def work() -> None:
        async with shmq.aio.connect(broker.url, spans=recorded.provider) as mq:
            with recorded.provider.get_tracer("test").start_as_current_span("around"):
                await mq.send("asynchronous", b"x")
            async for message in mq.subscribe("asynchronous", group="g"):
                with shmq.otel.processing(mq, message, group="g"):
                    await message.ack()
                break

    asyncio.run(work())
    around, sent, process = (recorded.one(name) for name in ("around", "send asynchronous", "process asynchronous"))
    assert around.context is not None and sent.parent is not None and process.parent is not None
    assert sent.parent.span_id == around.context.span_id
    assert process.parent.trace_id == around.context.trace_id


def test_spans_and_the_broker_s_own_trace_go_together(broker: Broker, recorded: Recorded) -> None:
    with broker.connect(spans=recorded.provider, trace=True) as mq:
        receipt = mq.send("both", b"x")
        recorded.one("send both")
        eventually(lambda: mq.admin.trace(receipt.message_id), "the trace is stored") if hasattr(
            mq.admin, "trace"
        ) else None
        copy = pickle.loads(pickle.dumps(mq))
        assert (type(copy._tracer), len(copy._tracer.observers)) == (type(mq._tracer), 2)
        copy.close()


def test_without_spans_the_core_s_own_methods_are_used_and_nothing_is_imported(broker: Broker) -> None:
    program = f"""
import sys, shmq
with shmq.connect({broker.url!r}) as mq:
    mq.send("plain", b"x")
    consumer = mq.subscribe("plain", group="plain")
    next(iter(consumer)).ack()
    assert type(mq.send).__name__ == "builtin_function_or_method", type(mq.send)
    assert mq._tracer is None
assert not [name for name in sys.modules if name.startswith("opentelemetry")]
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)


def test_a_connection_without_spans_says_so(broker: Broker) -> None:
    with broker.connect() as mq:
        mq.send("quiet", b"x")
        message = next(iter(mq.subscribe("quiet", group="g")))
        with pytest.raises(shmq.UsageError, match="makes no spans"), shmq.otel.processing(mq, message):
            pass
