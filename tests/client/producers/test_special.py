"""Sends with keywords the core does not know: the same over shared memory, TCP and asyncio; the hot path stays out."""

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

import shmq
import shmq.aio
from shmq.bindings import _core
from shmq.client.keywords import take_special
from shmq.delay_levels import SCHEDULE_TOPIC
from shmq.testing import Broker
from tests.bindings.live_store import LiveStore
from tests.supervisor.stopped import stopped

Send = Callable[..., Any]


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker(tcp=True) as running:
        with running.connect() as mq:
            mq.admin.create_topic("orders", queues=4)
        yield running


@pytest.fixture
def stored(broker: Broker) -> Iterator[Callable[[int], list[shmq.Message]]]:
    """Return what was stored in a queue of the schedule topic since the test began."""
    with broker.connect() as mq:
        session: Any = mq._live()
        if session.wire.store.topic_find(SCHEDULE_TOPIC) < 0:
            session.queues.put_topic(SCHEDULE_TOPIC, queues=1, only_if_missing=True)
        queues = session.wire.store.topic(session.wire.store.topic_find(SCHEDULE_TOPIC))["queues"]
        ends = {queue: session.wire.store.queue(index)[1] for queue, index in enumerate(queues)}

        def read(queue: int) -> list[shmq.Message]:
            with mq.pull_consumer(SCHEDULE_TOPIC) as consumer:
                return [
                    message
                    for message in consumer.poll(10_000, wait=60)
                    if message.queue_id == queue and message.offset >= ends[queue]
                ]

        yield read


@pytest.fixture(params=["shm", "tcp", "aio", "aio tcp"])
def send(broker: Broker, request: pytest.FixtureRequest) -> Iterator[Send]:
    """Return `send` of a connection over each transport."""
    url = f"rocketmq://{broker.name_server}" if "tcp" in request.param else broker.url
    with ExitStack() as stack:
        if "aio" not in request.param:
            yield stack.enter_context(shmq.connect(url)).send
            return

        def send(*positional: Any, **named: Any) -> Any:
            async def once() -> Any:
                async with shmq.aio.connect(url) as mq:
                    await mq.send("warm", b"")  # the second send to a topic is tried on the loop
                    await mq.send(positional[0], b"")
                    return await mq.send(*positional, **named)

            return asyncio.run(once())

        yield send


def test_a_delay_level_stores_in_the_schedule_topic_and_names_the_real_one(send: Send, stored: Any) -> None:
    receipt = send("orders", b"x", delay_level=18, tag="t", key="k", properties={"a": "b"}, queue_id=3)
    assert receipt.topic == "orders"
    (message,) = stored(17)
    assert (message.body, message.tag, message.key) == (b"x", "t", "k")
    expected = {"DELAY": "18", "REAL_TOPIC": "orders", "REAL_QID": "3", "TAGS": "t", "KEYS": "k", "a": "b"}
    assert expected.items() <= message.properties.items()


@pytest.mark.parametrize(("level", "queue"), [(3, 2), (18, 17), (19, 17), (1 << 30, 17)])
def test_a_level_above_the_highest_is_the_highest(send: Send, stored: Any, level: int, queue: int) -> None:
    send("orders", b"x", delay_level=level)
    assert [message.properties["DELAY"] for message in stored(queue)] == [str(queue + 1)]


def test_level_0_and_none_are_no_delay(broker: Broker, send: Send, stored: Any) -> None:
    for level in (0, None):
        receipt = send("orders", b"now", delay_level=level)
        assert receipt.topic == "orders"
        with broker.connect() as mq, mq.pull_consumer("orders") as consumer:
            assert b"now" in [message.body for message in consumer.poll(10_000, wait=60)]
    assert stored(0) == []


@pytest.mark.parametrize("wrong", [-1, "3", 1.5, True])
def test_what_is_no_level_is_refused_and_nothing_stored(send: Send, stored: Any, wrong: Any) -> None:
    with pytest.raises(shmq.UsageError, match="delay_level"):
        send("orders", b"x", delay_level=wrong)
    assert stored(0) == stored(2) == []


def test_an_unknown_keyword_is_a_type_error_everywhere(send: Send) -> None:
    with pytest.raises(TypeError, match="unexpected keyword argument 'delayed'"):
        send("orders", b"x", delayed=3)


def test_the_unit_of_a_local_send_says_when_it_is_due(broker: Broker) -> None:
    with broker.connect() as mq:
        receipt = mq.send("orders", b"x", delay_level=18)
        session: Any = mq._live()
        store = session.wire.store
        queue = store.topic(store.topic_find(SCHEDULE_TOPIC))["queues"][17]
        unit = store.units_stored(queue, receipt.offset, 1)
    assert int.from_bytes(unit[12:], "big") == receipt.store_ms + 7_200_000


def test_the_queue_is_chosen_as_the_core_chooses(broker: Broker) -> None:
    with broker.connect() as mq:
        plain = mq.send("orders", b"x", message_group="o-42").queue_id
        assert mq.send("orders", b"x", message_group="o-42", delay_level=18).queue_id == plain
        assert {mq.send("orders", b"x", delay_level=18).queue_id for _ in range(8)} == {0, 1, 2, 3}
        with pytest.raises(shmq.UsageError, match="0 to 3"):
            mq.send("orders", b"x", delay_level=18, queue_id=4)


@pytest.mark.parametrize("properties", [{"TAGS": "x"}, {"REAL_TOPIC": "other"}])
def test_reserved_properties_stay_reserved(broker: Broker, properties: dict[str, str]) -> None:
    with broker.connect() as mq, pytest.raises(shmq.UsageError, match="reserved"):
        mq.send("orders", b"x", delay_level=1, properties=properties)


def test_a_local_message_is_delivered_when_due_with_oneway_and_nowait(broker: Broker) -> None:
    with broker.connect() as mq, mq.producer() as producer:
        mq.send_oneway("due", b"oneway", delay_level=1)
        producer.send_nowait("due", b"nowait", delay_level=1).result(60)
        receipt = mq.send("due", b"send", delay_level=1)
        found = broker.expect("due", n=3, timeout=60)
    assert {message.body for message in found} == {b"oneway", b"nowait", b"send"}
    (message,) = [message for message in found if message.body == b"send"]
    assert message.store_ms >= receipt.store_ms + 1000
    assert message.queue_id == receipt.queue_id


def test_a_one_way_message_does_not_wait_for_the_disk_because_it_is_delayed() -> None:
    with Broker(flush="sync") as broker, broker.connect() as mq:
        for delay in ({"delay_level": 18}, {"delay": 3600}, {"deliver_at": time.time() + 3600}):
            mq.send("orders", b"the topics are there now", **delay)
        session: Any = mq._live()
        with stopped(broker, "keeper"):  # now only a sender that waits for the disk flushes
            for delay in ({"delay_level": 18}, {"delay": 3600}, {"deliver_at": time.time() + 3600}):
                mq.send_oneway("orders", b"x", **delay)
                assert session.wire.store.durable_end < session.wire.store.log_end


def test_a_broker_without_the_schedule_topic_makes_it_for_a_local_producer() -> None:
    with Broker() as broker, broker.connect() as mq:
        session: Any = mq._live()
        assert session.wire.store.topic_find(SCHEDULE_TOPIC) < 0
        mq.send("orders", b"x", delay_level=1)
        assert session.wire.store.topic(session.wire.store.topic_find(SCHEDULE_TOPIC))["write_queues"] == 18
        assert broker.expect("orders", timeout=60)[0].body == b"x"


# ---- the hook itself ---------------------------------------------------------------------------------------------


def test_only_a_keyword_that_is_not_the_cores_calls_the_special_callable() -> None:
    calls: list[Any] = []

    def special(topic: str, body: Any, arguments: dict[str, Any], is_oneway: bool) -> str:
        calls.append((topic, body, arguments, is_oneway))
        return "taken"

    with LiveStore() as live:
        live.topic()
        producer = _core.Producer(live.store, resolve=live.store.topic_find, special=special)
        producer.send("orders", b"x", tag="t", queue_id=1)
        assert calls == []
        assert producer.send("orders", b"x", tag="t", later=7) == "taken"  # type: ignore[comparison-overlap]
        assert producer.send(body=b"y", later=8, topic="other") == "taken"  # type: ignore[comparison-overlap]
        assert producer.send_oneway("orders", b"x", later=9) is None  # type: ignore[func-returns-value]
        assert calls == [
            ("orders", b"x", {"tag": "t", "later": 7}, False),
            ("other", b"y", {"later": 8}, False),
            ("orders", b"x", {"later": 9}, True),
        ]


def test_the_hook_keeps_the_words_of_python_for_wrong_calls() -> None:
    def special(topic: str, body: Any, arguments: dict[str, Any], is_oneway: bool) -> None:
        raise LookupError(topic)

    with LiveStore() as live:
        live.topic()
        producer = _core.Producer(live.store, resolve=live.store.topic_find, special=special)
        with pytest.raises(LookupError, match="orders"):
            producer.send("orders", b"x", later=1)
        with pytest.raises(TypeError, match="multiple values for argument 'topic'"):
            producer.send("orders", b"x", topic="y", later=1)  # type: ignore[misc]
        with pytest.raises(TypeError, match="missing required argument 'body'"):
            producer.send("orders", later=1)  # type: ignore[call-arg]
        with pytest.raises(TypeError, match="unexpected keyword argument 'later'"):
            producer.send_batch("orders", [b"x"], later=1)  # type: ignore[call-arg]
        with pytest.raises(TypeError, match="callable"):
            _core.Producer(live.store, resolve=live.store.topic_find, special=7)  # type: ignore[arg-type]
        plain = _core.Producer(live.store, resolve=live.store.topic_find)
        with pytest.raises(TypeError, match="unexpected keyword argument 'later'"):
            plain.send("orders", b"x", later=1)


def test_what_is_taken_leaves_the_rest_of_the_arguments() -> None:
    arguments = {"tag": "t", "delay_level": 3, "timeout": 1.0}
    assert take_special(arguments) == {"DELAY": "3"}
    assert arguments == {"tag": "t", "timeout": 1.0}


@pytest.mark.slow
def test_the_levels_are_the_brokers_over_both_transports_and_may_grow() -> None:
    with Broker(tcp=True, delay_levels="1s 1h") as broker:
        for url in (broker.url, f"rocketmq://{broker.name_server}"):
            with shmq.connect(url) as mq:
                mq.send("orders", b"x", delay_level=9)
                mq.send("orders", b"soon", delay_level=1)
        assert [message.body for message in broker.expect("orders", n=2, timeout=60)] == [b"soon", b"soon"]
        with broker.connect() as mq, mq.pull_consumer(SCHEDULE_TOPIC) as consumer:
            waiting = [message for message in consumer.poll(100, wait=60) if message.body == b"x"]
        assert [(message.queue_id, message.properties["DELAY"]) for message in waiting] == [(1, "2"), (1, "2")]
        broker._settings["delay_levels"] = "1s 1h 1s"
        broker.restart()
        with broker.connect() as mq:
            assert mq.send("orders", b"third", delay_level=3).topic == "orders"
        assert broker.expect("orders", timeout=60)[0].body in (b"soon", b"third")
