"""Queues and exchanges of kombu over shmq: what is published comes once, and what is in hand is hidden from others."""

from __future__ import annotations

import gc
import itertools
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from kombu import Connection, Consumer, Exchange, Queue

import shmq
import shmq.contrib.kombu
from shmq.contrib.kombu.transport import Transport, _shared, url_of
from shmq.testing import Broker
from tests.client.lives.thread_limit import REFUSED, no_thread_starts
from tests.deadline import eventually
from tests.interruption import interrupted_everywhere

URL = "shmq://"
_serial = itertools.count(1)


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker() as running:
        yield running


@pytest.fixture
def work() -> str:
    """The name of a queue and of its exchange, which no other test has."""
    return f"work-{next(_serial)}"


@pytest.fixture
def connection(broker: Broker) -> Iterator[Any]:
    with Connection(URL, transport_options={"url": broker.url}) as made:
        yield made


@pytest.fixture
def another(broker: Broker) -> Iterator[Any]:
    with Connection(URL, transport_options={"url": broker.url}) as made:
        yield made


def consumed(connection: Any, queue: Any, count: int, *, prefetch: int = 0, **options: Any) -> list[Any]:
    """Messages of a queue, which are not settled."""
    channel = connection.channel()
    channel.basic_qos(0, prefetch, False)
    found: list[Any] = []
    consumer = Consumer(channel, [queue], on_message=found.append, **options)
    consumer.consume()
    while len(found) < count:
        connection.drain_events(timeout=20)
    return found


@pytest.mark.parametrize(
    ("address", "url"),
    [
        ("shmq://", None),
        ("shmq://orders", "shmq://orders"),
        ("shmq:///run/shmq/orders", "shmq:///run/shmq/orders"),
        ("shmq+rocketmq://host:9876", "rocketmq://host:9876"),
    ],
)
def test_an_address_is_that_of_connect(address: str, url: str | None) -> None:
    assert url_of(Connection(address)) == url


def test_the_option_goes_before_the_address() -> None:
    assert url_of(Connection("shmq://orders", transport_options={"url": "shmq://other"})) == "shmq://other"


def users_of(broker: Broker) -> int:
    """How many transports use the connection to a broker."""
    return sum(users for (_, url), (_, users) in list(_shared._open.items()) if url == broker.url)


def test_a_transport_may_be_collected_while_another_one_takes_the_connection(broker: Broker) -> None:
    client = SimpleNamespace(hostname=broker.url, transport_options={"url": broker.url})
    before = users_of(broker)
    dropped, taking = [Transport(client)], Transport(client)
    assert dropped[0].mq

    def collect() -> None:
        if dropped and _shared._lock.locked():
            dropped.clear()
            gc.collect()

    interrupted_everywhere(lambda: taking.mq, collect)
    assert not dropped
    eventually(lambda: users_of(broker) == before + 1, lambda: f"{users_of(broker)} use the connection")
    assert taking.mq.send("orders", b"x")
    taking.close_connection(None)
    assert users_of(broker) == before


def test_messages_come_once_and_in_order(connection: Any, work: str) -> None:
    queue = Queue(work, Exchange(work), work)
    producer = connection.Producer()
    for number in range(100):
        producer.publish({"n": number}, exchange=queue.exchange, routing_key=work, declare=[queue])
    messages = consumed(connection, queue, 100)
    for message in messages:
        message.ack()
    assert [message.payload["n"] for message in messages] == list(range(100))
    with pytest.raises(socket.timeout):
        connection.drain_events(timeout=0.2)


def test_text_and_bytes_come_back_as_they_were(connection: Any) -> None:
    queue = connection.SimpleQueue("any")
    queue.put("ä\n", serializer="json")
    queue.put(b"\x00\xff", serializer="raw")
    assert [queue.get(timeout=10).payload for _ in range(2)] == ["ä\n", b"\x00\xff"]


def test_no_more_than_the_prefetch_count_is_in_hand(connection: Any, another: Any, work: str) -> None:
    queue = Queue(work, Exchange(work), work)
    for number in range(10):
        connection.Producer().publish(number, exchange=queue.exchange, routing_key=work, declare=[queue])
    held = consumed(connection, queue, 3, prefetch=3)
    with pytest.raises(socket.timeout):
        connection.drain_events(timeout=0.3)
    assert len(consumed(another, queue, 7)) == 7  # the others are free
    held[0].ack()


def test_an_acknowledgement_makes_room_for_the_next(connection: Any, work: str) -> None:
    queue = Queue(work, Exchange(work), work)
    for number in range(5):
        connection.Producer().publish(number, exchange=queue.exchange, routing_key=work, declare=[queue])
    channel = connection.channel()
    channel.basic_qos(0, 1, False)
    found: list[int] = []

    def take(message: Any) -> None:
        found.append(message.payload)
        message.ack()

    Consumer(channel, [queue], on_message=take).consume()
    while len(found) < 5:
        connection.drain_events(timeout=20)
    assert sorted(found) == list(range(5))


def test_what_is_given_back_comes_again_and_says_so(connection: Any, work: str) -> None:
    queue = connection.SimpleQueue(work)
    queue.put("x")
    first = queue.get(timeout=10)
    assert "redelivered" not in first.delivery_info
    first.requeue()
    again = queue.get(timeout=10)
    assert (again.payload, again.delivery_info["redelivered"]) == ("x", True)
    again.reject()
    with pytest.raises(queue.Empty):
        queue.get(timeout=0.2)


def test_what_a_closed_channel_had_in_hand_is_another_ones(connection: Any, another: Any, work: str) -> None:
    queue = Queue(work, Exchange(work), work)
    connection.Producer().publish("x", exchange=queue.exchange, routing_key=work, declare=[queue])
    consumed(connection, queue, 1)
    connection.close()
    assert [message.payload for message in consumed(another, queue, 1)] == ["x"]


@pytest.mark.timed
def test_a_message_in_hand_stays_hidden_for_longer_than_its_time(broker: Broker, work: str) -> None:
    options = {"url": broker.url, "visibility_timeout": 1.5}
    queue = Queue(work, Exchange(work), work)
    with Connection(URL, transport_options=options) as holder, Connection(URL, transport_options=options) as other:
        holder.Producer().publish("x", exchange=queue.exchange, routing_key=work, declare=[queue])
        [message] = consumed(holder, queue, 1)
        bound = queue(other.channel())
        Consumer(other.default_channel, [bound], on_message=lambda _: None).consume()
        with pytest.raises(socket.timeout):
            other.drain_events(timeout=4.0)
        message.ack()


@pytest.mark.timed
def test_what_was_fetched_and_not_delivered_yet_stays_hidden_too(broker: Broker, work: str) -> None:
    options = {"url": broker.url, "visibility_timeout": 1.5}
    queue = Queue(work, Exchange(work), work)
    with Connection(URL, transport_options=options) as holder, Connection(URL, transport_options=options) as other:
        for number in range(4):
            holder.Producer().publish(number, exchange=queue.exchange, routing_key=work, declare=[queue])
        consumed(holder, queue, 1, prefetch=4)  # the others wait while this one is worked on
        Consumer(other.default_channel, [queue(other.channel())], on_message=lambda _: None).consume()
        with pytest.raises(socket.timeout):
            other.drain_events(timeout=4.0)


def test_what_is_not_consumed_any_more_is_another_ones_and_is_given_back_once(
    connection: Any, another: Any, work: str
) -> None:
    queue = Queue(work, Exchange(work), work)
    channel = connection.channel()
    found: list[Any] = []
    consumer = Consumer(channel, [queue], on_message=found.append)
    consumer.consume()
    for number in range(20):
        connection.Producer().publish(number, exchange=queue.exchange, routing_key=work)
    while not found:
        connection.drain_events(timeout=20)
    consumer.cancel()
    with pytest.raises(socket.timeout):
        connection.drain_events(timeout=1.0)
    others = consumed(another, queue, 20 - len(found))
    assert sorted(message.payload for message in found + others) == list(range(20))


def test_a_queue_that_was_cancelled_is_consumed_again(connection: Any, work: str) -> None:
    queue = Queue(work, Exchange(work), work)
    found: list[Any] = []
    consumer = Consumer(connection.channel(), [queue], on_message=found.append, no_ack=True)
    for number in range(3):
        consumer.consume()
        connection.Producer().publish(number, exchange=queue.exchange, routing_key=work)
        while len(found) <= number:
            connection.drain_events(timeout=20)
        consumer.cancel()
    assert [message.payload for message in found] == [0, 1, 2]


def test_priorities_are_not_kept_and_that_is_said_once(
    connection: Any, caplog: pytest.LogCaptureFixture, work: str
) -> None:
    assert not connection.transport.implements.priorities
    queue = Queue(work, Exchange(work), work, max_priority=9)
    for _ in range(2):
        connection.Producer().publish(1, exchange=queue.exchange, routing_key=work, priority=5, declare=[queue])
    assert caplog.text.count("which shmq does not keep") == 1
    assert len(consumed(connection, queue, 2)) == 2


def test_every_transient_queue_has_what_a_fanout_exchange_gets_after_its_binding(connection: Any, another: Any) -> None:
    news = Exchange("news", "fanout")
    connection.Producer().publish("before", exchange=news, declare=[news])
    found: list[list[Any]] = [[], []]
    for made, into in zip((connection, another), found, strict=True):
        queue = Queue(f"reader-{id(into)}", news, auto_delete=True)
        Consumer(made.channel(), [queue], on_message=lambda m, into=into: into.append(m.payload), no_ack=True).consume()
    connection.Producer().publish("after", exchange=news, declare=[news])
    for made in (connection, another):
        made.drain_events(timeout=20)
    assert found == [["after"], ["after"]]


def test_a_transient_queue_of_a_topic_exchange_has_what_its_pattern_names(connection: Any, another: Any) -> None:
    events = Exchange("events", "topic")
    queue = Queue("watcher", events, "task.#", auto_delete=True, durable=False)
    found: list[Any] = []
    Consumer(another.channel(), [queue], on_message=lambda m: found.append(m.payload), no_ack=True).consume()
    for key in ("worker.online", "task.sent", "task.done.ok"):
        connection.Producer().publish(key, exchange=events, routing_key=key, declare=[events])
    while len(found) < 2:
        another.drain_events(timeout=20)
    assert found == ["task.sent", "task.done.ok"]


def test_an_answer_finds_a_queue_that_only_the_asker_knows(connection: Any, another: Any) -> None:
    replies = Exchange("replies", "direct", durable=False)
    queue = Queue("answers", replies, "to-me", auto_delete=True, exclusive=True)
    bound = queue(connection.default_channel)
    bound.declare()
    another.Producer().publish("42", exchange=replies, routing_key="to-me", declare=[replies])
    another.Producer().publish("no", exchange=replies, routing_key="to-you", declare=[replies])
    found: list[Any] = []
    Consumer(connection.channel(), [bound], on_message=lambda m: found.append(m.payload), no_ack=True).consume()
    connection.drain_events(timeout=20)
    with pytest.raises(socket.timeout):
        connection.drain_events(timeout=0.2)
    assert found == ["42"]


def test_a_queue_tells_how_many_wait_and_forgets_them(connection: Any, work: str) -> None:
    channel = connection.channel()
    queue = Queue(work, Exchange(work), work)(channel)
    for number in range(5):
        connection.Producer().publish(number, exchange=queue.exchange, routing_key=work, declare=[queue])
    assert queue.queue_declare().message_count == 5
    assert queue.purge() == 5
    assert queue.queue_declare().message_count == 0
    assert queue.get() is None


def test_a_deleted_queue_is_gone_with_what_it_held(connection: Any, broker: Broker, work: str) -> None:
    channel = connection.channel()
    queue = Queue(work, Exchange(work), work)(channel)
    connection.Producer().publish("x", exchange=queue.exchange, routing_key=work, declare=[queue])
    with shmq.connect(broker.url) as mq:
        assert f"kombu-{work}" in mq.admin.topics
        queue.delete()
        assert f"kombu-{work}" not in mq.admin.topics


def test_names_of_queues_may_hold_anything(connection: Any, broker: Broker) -> None:
    queue = connection.SimpleQueue("mail@host.de/ä")
    queue.put("x")
    message = queue.get(timeout=10)
    message.ack()
    assert message.payload == "x"
    with shmq.connect(broker.url) as mq:
        assert "kombu-mail%40host%2Ede%2F%C3%A4" in mq.admin.topics


def test_a_queue_whose_messages_no_worker_could_take_is_refused_where_it_is_named(
    connection: Any, broker: Broker
) -> None:
    channel = connection.channel()
    for name, more in (("q" * 54, 1), ("ä" * 10, 7)):
        for use in (
            lambda name=name: channel.queue_declare(name),
            lambda name=name: connection.SimpleQueue(name),
            lambda name=name: channel.basic_publish(channel.prepare_message("x"), exchange="", routing_key=name),
        ):
            with pytest.raises(shmq.InvalidName, match="59 are allowed") as refused:
                use()
            assert refused.value.hint == f"shorten the queue's name, or option topic_prefix, by {more}"
    queue = connection.SimpleQueue("q" * 53)
    queue.put("x")
    message = queue.get(timeout=10)
    message.ack()
    assert message.payload == "x"
    with shmq.connect(broker.url) as mq:
        assert not [topic for topic in mq.admin.topics if len(topic) > 59]


@pytest.mark.parametrize("task_id", ["a b", "a\nb", "\x00", "a\ud800", "", "x" * 129, "\x85", 7])
def test_an_id_that_is_no_key_keeps_no_task_from_its_worker(connection: Any, work: str, task_id: Any) -> None:
    queue = connection.SimpleQueue(work)
    queue.put("x", headers={"id": task_id})
    message = queue.get(timeout=10)
    message.ack()
    assert (message.payload, message.headers["id"]) == ("x", task_id)


def test_what_no_broker_hears_says_what_to_type(tmp_path: Path) -> None:
    with Connection(f"shmq://{tmp_path}/none") as made, pytest.raises(shmq.ShmqError, match="shmq serve"):
        made.ensure_connection(max_retries=0, reraise_as_library_errors=False)


def test_the_name_is_known_once_the_module_is_imported() -> None:
    program = "from kombu import Connection; import shmq.contrib.kombu; print(Connection('shmq://').transport_cls)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "shmq\n"


def test_where_no_thread_starts_a_queue_is_refused_and_consumed_later(
    broker: Broker, connection: Any, work: str
) -> None:
    queue = Queue(work, Exchange(work), routing_key=work)
    connection.Producer().publish({"n": 1}, exchange=queue.exchange, routing_key=work, declare=[queue])
    with broker.connect() as mq:
        for consume in (lambda: consumed(connection, queue, 1), lambda: queue(connection.channel()).get()):
            with no_thread_starts("shmq-kombu"), pytest.raises(connection.connection_errors, match=REFUSED):
                consume()
            assert not any(group.members for group in mq.admin.groups.values() if group.name.endswith(work))
    [message] = consumed(connection, queue, 1)
    message.ack()
