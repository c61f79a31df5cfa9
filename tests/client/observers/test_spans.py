"""Spans of sends, receives and calls are those of the messaging conventions, on both transports, and hang together."""

from __future__ import annotations

import asyncio
import pickle
import subprocess
import sys
import threading
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
from shmq.client.observers import spans
from shmq.message import TRACE_TOPIC
from shmq.testing import Broker
from tests.deadline import eventually_async

Eventually = Callable[..., Any]


class Recorded:
    """A provider that keeps what it was given."""

    def __init__(self, eventually: Eventually) -> None:
        self.eventually = eventually
        self.exporter = InMemorySpanExporter()
        self.provider = TracerProvider()
        self.provider.add_span_processor(SimpleSpanProcessor(self.exporter))

    def named(self, name: str) -> list[ReadableSpan]:
        return [span for span in self.exporter.get_finished_spans() if span.name == name]

    def one(self, name: str) -> ReadableSpan:
        [span] = self.eventually(lambda: self.named(name))
        assert isinstance(span, ReadableSpan)
        return span


def attributes_of(span: ReadableSpan) -> dict[str, Any]:
    return dict(span.attributes or {})


def ids_of(span: ReadableSpan) -> tuple[int, int]:
    assert span.context is not None
    return span.context.trace_id, span.context.span_id


def parent_of(span: ReadableSpan) -> tuple[int, int] | None:
    return None if span.parent is None else (span.parent.trace_id, span.parent.span_id)


def links_of(span: ReadableSpan) -> list[tuple[int, int]]:
    return [(link.context.trace_id, link.context.span_id) for link in span.links]


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker(tcp=True) as running:
        yield running


@pytest.fixture
def recorded(eventually: Eventually) -> Recorded:
    return Recorded(eventually)


@pytest.fixture(params=["local", "tcp"])
def url(request: pytest.FixtureRequest, broker: Broker) -> str:
    return broker.url if request.param == "local" else f"rocketmq://{broker.name_server}"


@pytest.fixture
def mq(url: str, recorded: Recorded) -> Iterator[shmq.Connection]:
    with shmq.connect(url, spans=recorded.provider) as connection:
        yield connection


@pytest.fixture
def topic(request: pytest.FixtureRequest, broker: Broker) -> str:
    name = "".join(character if character.isalnum() else "-" for character in request.node.name)[-100:]
    with broker.connect() as mq:
        mq.admin.create_topic(name, queues=1)
    return name


def taken(mq: shmq.Connection, topic: str, count: int) -> list[shmq.Message]:
    """Take messages one after the other."""
    found = []
    with mq.subscribe(topic, group="taker") as consumer:
        for message in consumer:
            message.ack()
            found.append(message)
            if len(found) == count:
                break
    return found


def test_our_names_are_those_of_the_conventions() -> None:
    theirs = {value for name, value in vars(names).items() if name.startswith("MESSAGING_")}
    ours = {value for name, value in vars(spans).items() if name.isupper() and isinstance(value, str)}
    assert {name for name in ours if name.startswith("messaging.")} <= theirs
    assert len(ours) > 15


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
    assert attributes["server.address"] == "127.0.0.1" and attributes["server.port"] > 0
    [message] = taken(mq, topic, 1)
    assert message.properties["traceparent"].split("-")[1:3] == [f"{ids_of(span)[0]:032x}", f"{ids_of(span)[1]:016x}"]
    assert message.properties["region"] == "eu" and message.tag == "fruit"


def test_a_listener_s_call_is_a_child_of_the_send_and_the_poll_links_to_it(
    mq: shmq.Connection, recorded: Recorded, topic: str
) -> None:
    inside: list[tuple[int, int]] = []

    @mq.listener(topic, group="billing")
    def on_order(message: shmq.Message) -> None:
        context = trace.get_current_span().get_span_context()
        inside.append((context.trace_id, context.span_id))

    mq.start()
    mq.send(topic, b"42 apples", tag="fruit")
    process, sent = recorded.one(f"process {topic}"), recorded.one(f"send {topic}")
    assert process.kind is SpanKind.CONSUMER and parent_of(process) == ids_of(sent)
    assert links_of(process) == [ids_of(sent)] and inside == [ids_of(process)]
    attributes = attributes_of(process)
    assert attributes[names.MESSAGING_OPERATION_TYPE] == "process"
    assert attributes[names.MESSAGING_CONSUMER_GROUP_NAME] == "billing"
    assert attributes[names.MESSAGING_ROCKETMQ_MESSAGE_TAG] == "fruit"
    assert attributes[names.MESSAGING_MESSAGE_BODY_SIZE] == 9
    receive = recorded.one(f"receive {topic}")
    assert receive.kind is SpanKind.CLIENT and links_of(receive) == [ids_of(sent)]
    assert attributes_of(receive)[names.MESSAGING_BATCH_MESSAGE_COUNT] == 1
    assert attributes_of(receive)[names.MESSAGING_CONSUMER_GROUP_NAME] == "billing"


@pytest.mark.parametrize(
    ("error", "kind"), [(shmq.Retry("no stock", after=600), "Retry"), (ValueError("bad"), "Value")]
)
def test_a_call_that_fails_is_an_error_of_its_kind(
    mq: shmq.Connection, recorded: Recorded, topic: str, error: Exception, kind: str
) -> None:
    @mq.listener(topic, group=f"failing-{kind}")
    def on_order(message: shmq.Message) -> None:
        raise error

    mq.start()
    mq.send(topic, b"x")
    process = recorded.eventually(lambda: recorded.named(f"process {topic}"))[0]
    assert process.status.status_code is StatusCode.ERROR and kind in attributes_of(process)["error.type"]
    assert process.events[0].name == "exception"


def test_a_call_that_puts_its_message_off_is_an_error_without_an_exception(
    mq: shmq.Connection, recorded: Recorded, topic: str
) -> None:
    @mq.listener(topic, group="later")
    def on_order(message: shmq.Message) -> shmq.Action:
        return shmq.Action.RECONSUME_LATER

    mq.start()
    mq.send(topic, b"x")
    process = recorded.eventually(lambda: recorded.named(f"process {topic}"))[0]
    assert process.status.status_code is StatusCode.ERROR and not process.events
    assert attributes_of(process)["error.type"] == "not_consumed"


def test_a_send_that_fails_is_an_error_and_raises_as_ever(mq: shmq.Connection, recorded: Recorded, topic: str) -> None:
    with pytest.raises(shmq.errors.ShmqError):
        mq.send(topic, b"x" * (5 << 20))
    span = recorded.one(f"send {topic}")
    assert span.status.status_code is StatusCode.ERROR and span.events[0].name == "exception"
    assert attributes_of(span)["error.type"].startswith("shmq.errors.")


@pytest.mark.parametrize("wrong", [{"keys": 5}, {"delay": "soon"}, {"colour": "red"}])
def test_a_wrong_argument_is_refused_as_without_spans(
    mq: shmq.Connection, url: str, topic: str, wrong: dict[str, Any]
) -> None:
    with shmq.connect(url) as plain, pytest.raises((TypeError, shmq.UsageError)) as expected:
        plain.send(topic, b"x", **wrong)
    with pytest.raises(type(expected.value)) as refused:
        mq.send(topic, b"x", **wrong)
    assert str(refused.value) == str(expected.value)


def test_batches_oneway_sends_delays_and_slots_are_spans_too(
    mq: shmq.Connection, recorded: Recorded, topic: str
) -> None:
    mq.send_batch(topic, [b"a", b"b", b"c"], keys=["1", "2", "3"])
    mq.send_oneway(topic, b"d", keys=(word for word in ("k-1", "k-2")))
    mq.send(topic, b"e", delay_level=1)
    mq.send(topic, b"f", message_group="one")
    mq.send(topic, b"g", deliver_at=1.0)
    batch, oneway, delayed, ordered, timed = [attributes_of(span) for span in recorded.named(f"send {topic}")]
    assert batch[names.MESSAGING_BATCH_MESSAGE_COUNT] == 3 and names.MESSAGING_MESSAGE_ID not in oneway
    assert oneway[names.MESSAGING_ROCKETMQ_MESSAGE_KEYS] == ("k-1", "k-2")
    assert delayed[names.MESSAGING_ROCKETMQ_MESSAGE_TYPE] == timed[names.MESSAGING_ROCKETMQ_MESSAGE_TYPE] == "delay"
    assert delayed[names.MESSAGING_ROCKETMQ_MESSAGE_DELAY_TIME_LEVEL] == 1
    assert timed[names.MESSAGING_ROCKETMQ_MESSAGE_DELIVERY_TIMESTAMP] == 1000
    assert ordered[names.MESSAGING_ROCKETMQ_MESSAGE_TYPE] == "fifo"
    assert ordered[names.MESSAGING_ROCKETMQ_MESSAGE_GROUP] == "one"
    if not mq.is_remote:
        with mq.reserve(topic, 3) as slot:
            slot.view[:] = b"abc"
        assert recorded.one(f"create {topic}").kind is SpanKind.PRODUCER
    found = taken(mq, topic, 7 if mq.is_remote else 8)
    assert all("traceparent" in message.properties for message in found)
    assert {key for message in found for key in message.keys} >= {"1", "2", "3", "k-1", "k-2"}
    assert sum(len(span.links) for span in recorded.named(f"receive {topic}")) == len(found)


def test_an_application_s_own_context_is_kept_and_a_broken_one_is_none(
    mq: shmq.Connection, recorded: Recorded, topic: str
) -> None:
    own = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    mq.send(topic, b"x", properties={"traceparent": own, "tracestate": "a=1"})
    mq.send(topic, b"x", properties={"traceparent": "nonsense"})
    for message in taken(mq, topic, 2):
        with shmq.otel.processing(mq, message, group="g"):
            pass
    kept, none = recorded.named(f"process {topic}")
    assert parent_of(kept) == (0x0AF7651916CD43DD8448EB211C80319C, 0xB7AD6B7169203331)
    assert kept.context is not None and kept.context.trace_state.get("a") == "1"
    assert none.parent is None and not none.links


def test_a_transaction_a_request_and_a_background_send_belong_to_the_span_around_them(
    mq: shmq.Connection, recorded: Recorded, topic: str
) -> None:
    @mq.replier(topic, group="answering")
    def answer(message: shmq.Message) -> bytes | None:
        return b"yes" if message.body == b"asked" else None

    with recorded.provider.get_tracer("test").start_as_current_span("around") as around:
        with mq.producer(group="shop") as producer:
            with producer.transaction(topic, b"half", keys=(word for word in ("k",))) as transaction:
                pass
            receipt = producer.send_nowait(topic, b"later").result(60)
        mq.start()
        assert mq.request(topic, b"asked", timeout=60).body == b"yes"
    inside = around.get_span_context()
    sends = recorded.named(f"send {topic}")
    by_type = {attributes_of(span)[names.MESSAGING_ROCKETMQ_MESSAGE_TYPE]: span for span in sends}
    request = recorded.one(f"request {topic}")
    for span in (by_type["transaction"], by_type["normal"], request):
        assert parent_of(span) == (inside.trace_id, inside.span_id)
    assert attributes_of(by_type["transaction"])[names.MESSAGING_MESSAGE_ID] == transaction.id
    assert attributes_of(by_type["transaction"])[names.MESSAGING_ROCKETMQ_MESSAGE_KEYS] == ("k",)
    assert attributes_of(by_type["normal"])[names.MESSAGING_MESSAGE_ID] == receipt.message_id
    assert attributes_of(request)[names.MESSAGING_OPERATION_TYPE] == "send"
    processed = recorded.eventually(lambda: (found := recorded.named(f"process {topic}")) and len(found) == 3 and found)
    assert {parent_of(span) for span in processed} == {ids_of(span) for span in (*by_type.values(), request)}


def test_pull_and_simple_consumers_link_to_what_they_were_given(
    mq: shmq.Connection, recorded: Recorded, topic: str
) -> None:
    for body in (b"a", b"b"):
        mq.send(topic, body)
    sent = [ids_of(span) for span in recorded.named(f"send {topic}")]
    with mq.pull_consumer(topic) as consumer:
        assert recorded.eventually(lambda: consumer.poll(10, 1.0))
    pulled = [link for span in recorded.named(f"receive {topic}") for link in links_of(span)]
    assert pulled and pulled == sent[: len(pulled)]
    recorded.exporter.clear()
    with mq.simple_consumer(topic, group="simple") as simple:
        for message in recorded.eventually(lambda: simple.receive(1, wait=60)):
            message.ack()
    [receive] = recorded.named(f"receive {topic}")
    assert links_of(receive) == sent[:1] and attributes_of(receive)[names.MESSAGING_CONSUMER_GROUP_NAME] == "simple"


@pytest.mark.parametrize("way", ["iterate", "receive", "poll"])
def test_a_damaged_message_is_a_span_that_failed_and_reading_goes_on(recorded: Recorded, way: str) -> None:
    with Broker(flush="sync") as broker, shmq.connect(broker.url, spans=recorded.provider) as mq:
        receipts = [mq.send("orders", body, queue_id=0) for body in (b"before", b"damaged", b"behind")]
        path = broker.store / "commitlog" / f"{0:020d}"
        with path.open("r+b") as file:
            file.seek(receipts[1].log_position + 88)
            file.write(b"D")
        consumer = mq.pull_consumer("orders") if way == "poll" else mq.subscribe("orders", group="billing")
        bodies: list[bytes] = []
        with consumer, pytest.raises(shmq.DamagedMessage) as caught:
            messages = iter(consumer) if isinstance(consumer, shmq.Subscription) else iter(())
            while len(bodies) < 2:
                if way == "iterate":
                    bodies.append(next(messages).body)
                elif isinstance(consumer, shmq.Subscription):
                    bodies += [message.body for message in consumer.receive(10, 0.5)]
                else:
                    bodies += [message.body for message in consumer.poll(10, 0.5)]
        assert (caught.value.offset, bodies) == (1, [b"before"])
    failed = [span for span in recorded.named("receive orders") if not span.status.is_ok and span.status.description]
    [attributes] = [attributes_of(span) for span in failed]
    assert attributes["messaging.destination.partition.id"] == "0" and attributes["shmq.queue.offset"] == 1
    assert attributes["shmq.log.position"] == receipts[1].log_position
    assert attributes["error.type"].endswith("DamagedMessage") and attributes["messaging.batch.message_count"] == 0


def test_the_noted_iterator_goes_on_behind_damage(recorded: Recorded) -> None:
    with Broker(flush="sync") as broker, shmq.connect(broker.url, spans=recorded.provider) as mq:
        receipts = [mq.send("orders", body, queue_id=0) for body in (b"before", b"damaged", b"behind")]
        with (broker.store / "commitlog" / f"{0:020d}").open("r+b") as file:
            file.seek(receipts[1].log_position + 88)
            file.write(b"D")
        with mq.subscribe("orders", group="billing") as consumer:
            messages = iter(consumer)
            assert next(messages).body == b"before"
            with pytest.raises(shmq.DamagedMessage):
                next(messages)
            assert next(messages).body == b"behind"


def test_asyncio_sends_requests_and_listeners_belong_to_the_spans_around_them(
    url: str, recorded: Recorded, topic: str
) -> None:
    async def work() -> None:
        inside: list[int] = []
        async with shmq.aio.connect(url, spans=recorded.provider) as mq:

            @mq.replier(topic, group="answering")
            async def answer(message: shmq.aio.Message) -> bytes:
                await asyncio.sleep(0)
                inside.append(trace.get_current_span().get_span_context().trace_id)
                return b"yes"

            with recorded.provider.get_tracer("test").start_as_current_span("around"):
                await mq.send(topic, b"x")
                running = asyncio.create_task(mq.run())
                reply = await mq.request(topic, b"asked", timeout=60)
            assert reply.body == b"yes"
            with shmq.otel.processing(mq, reply):
                pass
            await eventually_async(lambda: len(inside) == 2)
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
        assert set(inside) == {ids_of(recorded.one("around"))[0]}

    asyncio.run(asyncio.wait_for(work(), 60))
    around, sent, request = (recorded.one(name) for name in ("around", f"send {topic}", f"request {topic}"))
    assert parent_of(sent) == parent_of(request) == ids_of(around)
    assert {parent_of(span) for span in recorded.named(f"process {topic}")} == {ids_of(sent), ids_of(request)}


def test_many_threads_of_a_listener_keep_their_contexts_apart(
    broker: Broker, recorded: Recorded, topic: str, eventually: Eventually
) -> None:
    seen: dict[bytes, int] = {}
    together = threading.Barrier(4, timeout=60)
    with broker.connect(spans=recorded.provider) as mq:

        @mq.listener(topic, group="threads", threads=4)
        def on_order(message: shmq.Message) -> None:
            together.wait()
            seen[message.body] = trace.get_current_span().get_span_context().trace_id

        for number in range(4):
            mq.send(topic, b"%d" % number)
        mq.start()
        eventually(lambda: len(seen) == 4)
        sent = recorded.named(f"send {topic}")
    assert [seen[b"%d" % number] for number in range(4)] == [ids_of(span)[0] for span in sent]


def test_spans_and_the_broker_s_own_trace_go_together_and_into_a_spawned_process(
    broker: Broker, recorded: Recorded, topic: str, eventually: Eventually
) -> None:
    with broker.connect(spans=recorded.provider, trace=True) as mq:
        done = threading.Event()

        @mq.listener(topic, group="both")
        def on_order(message: shmq.Message) -> None:
            done.set()

        mq.start()
        receipt = mq.send(topic, b"x")
        assert done.wait(60)
        assert parent_of(recorded.one(f"process {topic}")) == ids_of(recorded.one(f"send {topic}"))
        with pickle.loads(pickle.dumps(mq)) as copy:
            assert copy._observer is not None and copy._observer.traces and copy._observer.spans is not None
    with broker.connect() as mq, mq.pull_consumer(TRACE_TOPIC) as traces:
        eventually(lambda: any(receipt.message_id in message.keys for message in traces.poll(100, 0.5)))


def test_without_spans_the_core_s_own_methods_are_used_and_nothing_is_imported(broker: Broker) -> None:
    program = f"""
import sys, shmq
with shmq.connect({broker.url!r}) as mq, mq.producer() as producer:
    mq.send("plain", b"x")
    consumer = mq.subscribe("plain", group="plain")
    next(iter(consumer)).ack()
    for sender in (mq, producer):
        assert type(sender.send).__name__ == "builtin_function_or_method", type(sender.send)
    assert mq._observer is None
    assert type(iter(consumer)).__name__ == "chain", type(iter(consumer))
assert not [name for name in sys.modules if name.startswith("opentelemetry")]
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)


def test_without_opentelemetry_spans_say_what_to_install(broker: Broker) -> None:
    program = f"""
import sys
sys.modules["opentelemetry"] = None
import shmq
try:
    shmq.connect({broker.url!r}, spans=True)
except shmq.UsageError as error:
    print(error.hint)
"""
    said = subprocess.run([sys.executable, "-c", program], check=True, timeout=60, capture_output=True, text=True)
    assert said.stdout.strip() == "pip install 'shmq[otel]'"


def test_a_connection_without_spans_says_so(broker: Broker) -> None:
    with broker.connect() as mq:
        mq.send("quiet", b"x")
        message = next(iter(mq.subscribe("quiet", group="g")))
        with pytest.raises(shmq.UsageError, match="makes no spans"), shmq.otel.processing(mq, message):
            pass
