"""Sending: what `send` is, what it says when it fails, and what happens to sends in the background."""

import inspect
import pydoc
import types
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import shmq
from shmq.client.producers.producer import HOT
from shmq.testing import Broker, SharedBroker

Eventually = Callable[..., Any]


@pytest.fixture
def mq(shmq_shared_broker: SharedBroker) -> Iterator[shmq.Connection]:
    with shmq_shared_broker.connect() as connection:
        yield connection


@pytest.fixture
def topic(shmq_shared_broker: SharedBroker) -> str:
    return shmq_shared_broker.named("orders")


@pytest.mark.parametrize("name", HOT)
def test_between_the_caller_and_the_core_there_is_no_python_frame(mq: shmq.Connection, name: str) -> None:
    with mq.producer() as producer:
        for sender in (mq, producer):
            assert type(getattr(sender, name)) is types.BuiltinMethodType


@pytest.mark.parametrize("kind", [shmq.Connection, shmq.Producer])
def test_the_class_shows_what_its_instances_take(mq: shmq.Connection, kind: type) -> None:
    """Editors, `help()` and generators of documentation look at the class."""
    for name in HOT:
        shown, own = inspect.signature(getattr(kind, name)), inspect.signature(getattr(mq, name))
        taken = [name for name in own.parameters if name != "tag_code"]
        assert list(shown.parameters) == ["self", *taken] and inspect.getdoc(getattr(kind, name))
        for word in taken:
            assert shown.parameters[word].default == own.parameters[word].default, word
            assert shown.parameters[word].kind.name.startswith(("POSITIONAL", own.parameters[word].kind.name)), word
    assert "Store one message and return where" in pydoc.render_doc(kind.send)  # type: ignore[attr-defined]


def test_a_call_through_the_class_and_a_method_of_a_derived_one_are_sends(mq: shmq.Connection, topic: str) -> None:
    class Counted(shmq.Producer):
        count = 0

        def send(self, *arguments: Any, **named: Any) -> shmq.Receipt:
            Counted.count += 1
            return super().send(*arguments, **named)

    assert shmq.Connection.send(mq, topic, b"", tag="t", queue_id=1).queue_id == 1
    assert len(shmq.Connection.send_batch(mq, topic, [b"a", b"b"], queue_id=1)) == 2
    with mq.producer() as producer:
        producer.__class__ = Counted
        vars(producer).clear()
        producer._attach(mq._live().sends, mq._live().queues)
        assert producer.send(topic, b"c", queue_id=1, key="k").offset == 3
        assert Counted.count == 1 and producer.send_batch(topic, [b"d"], queue_id=1)[0].offset == 4


def test_a_receipt_says_where_the_message_is(mq: shmq.Connection, topic: str) -> None:
    receipt = mq.send(topic, b"42 apples", tag="fruit", key="o-42", properties={"region": "eu"}, queue_id=3)
    assert (receipt.topic, receipt.queue_id, receipt.offset) == (topic, 3, 0)
    with mq.pull_consumer(topic) as consumer:
        (message,) = consumer.poll(wait=60)
    assert message.message_id == receipt.message_id
    assert (message.body, message.tag, message.key, message.offset) == (b"42 apples", "fruit", "o-42", 0)
    assert message.properties["region"] == "eu"


def test_messages_of_one_message_group_are_in_one_queue_and_in_order(mq: shmq.Connection, topic: str) -> None:
    receipts = [mq.send(topic, b"%d" % number, message_group="o-42") for number in range(20)]
    assert len({receipt.queue_id for receipt in receipts}) == 1
    assert [receipt.offset for receipt in receipts] == list(range(20))


def test_without_a_message_group_messages_go_round_all_queues(mq: shmq.Connection, topic: str) -> None:
    assert {mq.send(topic, b"x").queue_id for _ in range(8)} == set(range(8))


def test_a_batch_is_stored_in_order_in_one_queue(mq: shmq.Connection, topic: str) -> None:
    receipts = mq.send_batch(topic, [b"a", b"b", b"c"], keys=["1", "2", "3"])
    assert len({receipt.queue_id for receipt in receipts}) == 1
    with mq.pull_consumer(topic) as consumer:
        assert [(message.body, message.key) for message in consumer.poll(10, wait=60)] == [
            (b"a", "1"),
            (b"b", "2"),
            (b"c", "3"),
        ]


def test_oneway_says_nothing_and_stores(mq: shmq.Connection, topic: str) -> None:
    assert mq.send_oneway(topic, b"tick") is None  # type: ignore[func-returns-value]
    with mq.pull_consumer(topic) as consumer:
        assert [message.body for message in consumer.poll(wait=60)] == [b"tick"]


@pytest.mark.parametrize("body", [b"bytes", bytearray(b"bytearray"), memoryview(b"view")])
def test_anything_with_a_buffer_is_a_body(mq: shmq.Connection, topic: str, body: Any) -> None:
    mq.send(topic, body)
    with mq.pull_consumer(topic) as consumer:
        assert consumer.poll(wait=60)[0].body == bytes(body)


def test_text_is_refused_with_what_was_meant(mq: shmq.Connection, topic: str) -> None:
    with pytest.raises(TypeError, match=r"text\.encode\(\)"):
        mq.send(topic, "text")


def test_a_long_body_goes_in_and_a_longer_one_is_refused_with_the_limit(mq: shmq.Connection, topic: str) -> None:
    mq.send(topic, b"x" * (1 << 20))
    with pytest.raises(shmq.MessageTooLarge, match="4194304") as caught:
        mq.send(topic, b"x" * ((4 << 20) + 1))
    assert isinstance(caught.value, ValueError)
    assert not caught.value.retryable


def test_a_reserved_slot_is_published_at_the_end_of_its_block(mq: shmq.Connection, topic: str) -> None:
    with mq.reserve(topic, 100, tag="frame") as slot:
        slot.view[:5] = b"hello"
        slot.size = 5
        slot.properties["camera"] = "left"
    assert slot.receipt is not None
    with mq.pull_consumer(topic) as consumer:
        (message,) = consumer.poll(wait=60)
    assert (message.body, message.tag, message.properties["camera"]) == (b"hello", "frame", "left")


def test_a_slot_whose_block_failed_is_not_published(mq: shmq.Connection, topic: str) -> None:
    mq.send(topic, b"before")
    with pytest.raises(ZeroDivisionError), mq.reserve(topic, 100):
        raise ZeroDivisionError
    mq.send(topic, b"after")
    with mq.pull_consumer(topic) as consumer:
        assert sorted(message.body for message in consumer.poll(10, wait=60)) == [b"after", b"before"]


def test_futures_of_one_producer_are_stored_in_order(mq: shmq.Connection, topic: str) -> None:
    with mq.producer() as producer:
        futures = [producer.send_nowait(topic, b"%d" % number, queue_id=0) for number in range(300)]
        assert [future.result(60).offset for future in futures] == list(range(300))


def test_closing_a_producer_stores_what_was_sent_in_the_background(mq: shmq.Connection, topic: str) -> None:
    with mq.producer() as producer:
        futures = [producer.send_nowait(topic, b"x") for _ in range(300)]
    assert all(future.done() and future.exception() is None for future in futures)


def test_a_body_that_changes_after_send_nowait_is_stored_as_it_was(mq: shmq.Connection, topic: str) -> None:
    body = bytearray(b"before")
    with mq.producer() as producer:
        future = producer.send_nowait(topic, body)
        body[:] = b"after!"
        future.result(60)
    with mq.pull_consumer(topic) as consumer:
        assert consumer.poll(wait=60)[0].body == b"before"


def test_an_error_of_send_nowait_is_in_its_future(mq: shmq.Connection, topic: str) -> None:
    with mq.producer() as producer, pytest.raises(TypeError):
        producer.send_nowait(topic, "text").result(60)


def test_a_closed_producer_says_so_and_leaves_the_connection_open(mq: shmq.Connection, topic: str) -> None:
    producer = mq.producer()
    producer.close()
    producer.close()
    for call in (producer.send, producer.send_oneway, producer.send_nowait):
        with pytest.raises(shmq.UsageError, match="closed"):
            call(topic, b"x")
    mq.send(topic, b"x")


def test_a_producer_group_is_shown_while_the_producer_lives(mq: shmq.Connection, eventually: Eventually) -> None:
    with mq.producer(group="shop-7"):
        assert mq.client_id in mq.admin.status()["producerGroups"]["shop-7"]


def test_names_that_no_topic_can_have_are_refused(mq: shmq.Connection) -> None:
    with pytest.raises(shmq.InvalidName):
        mq.send("no blanks please", b"x")


def test_without_auto_create_the_error_names_the_nearest_topic(shmq_broker_factory: Callable[..., Broker]) -> None:
    broker = shmq_broker_factory(auto_create=False)
    with broker.connect() as mq:
        mq.admin.create_topic("orders", queues=2)
        with pytest.raises(shmq.TopicNotFound) as caught:
            mq.send("ordres", b"x")
        assert isinstance(caught.value, LookupError)
        assert "ordres" in str(caught.value)
        assert broker.name in str(caught.value)
        assert '"orders"' in caught.value.hint
        assert "shmq topic create ordres" in caught.value.hint
        with pytest.raises(shmq.TopicNotFound):
            mq.subscribe("ordres", group="g")


def test_a_broker_with_synchronous_flush_answers_when_it_is_on_disk(shmq_broker_factory: Callable[..., Broker]) -> None:
    broker = shmq_broker_factory(flush="sync")
    with broker.connect() as mq:
        receipt = mq.send("orders", b"x")
        store = mq._live().wire.store
        assert store.durable_end > receipt.log_position
        assert [message.body for message in broker.expect("orders", timeout=60)] == [b"x"]
