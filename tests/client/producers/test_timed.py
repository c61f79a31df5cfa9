"""delay=, deliver_at= and recall(): the same over shared memory, TCP and asyncio."""

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

import shmq
import shmq.aio
from shmq.client.keywords import delay_properties, take_special, time_properties
from shmq.testing import Broker
from shmq.timing import DELAY_MS, DELIVER_MS, TIMER_TOPIC, RecallHandle
from tests.deadline import eventually


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    """The broker of this file: nothing but `advance` moves its clock."""
    with Broker(tcp=True, clock="frozen") as running:
        with running.connect() as mq:
            mq.admin.create_topic("orders", queues=4)
        yield running


@pytest.fixture(params=["shm", "tcp"])
def mq(broker: Broker, request: pytest.FixtureRequest) -> Iterator[shmq.Connection]:
    url = broker.url if request.param == "shm" else f"rocketmq://{broker.name_server}"
    with ExitStack() as stack:
        yield stack.enter_context(shmq.connect(url))


def taken(broker: Broker, *wanted: bytes) -> dict[bytes, shmq.Message]:
    """Wait until these bodies have come; others may be between them."""
    found: dict[bytes, shmq.Message] = {}

    def have_come() -> bool:
        nonlocal found
        with broker.connect() as reader, reader.pull_consumer("orders") as consumer:
            found = {bytes(message.body): message for message in consumer.poll(10_000, wait=0.05)}
        return set(wanted) <= found.keys()

    eventually(have_come, lambda: f"{wanted} come; {found.keys()} came")
    return found


DELAY = timedelta(milliseconds=250)
DELAYS: list[tuple[str, Callable[[float], Any]]] = [
    ("delay", lambda now: 0.25),
    ("delay", lambda now: DELAY),
    ("deliver_at", lambda now: datetime.fromtimestamp(now, UTC) + DELAY),
    ("deliver_at", lambda now: (datetime.fromtimestamp(now, timezone(timedelta(hours=5))) + DELAY).isoformat()),
    ("deliver_at", lambda now: (datetime.fromtimestamp(now) + DELAY).isoformat()),
    ("deliver_at", lambda now: now + 0.25),
]


@pytest.mark.parametrize(("keyword", "value"), DELAYS)
def test_a_message_comes_when_it_was_asked_for_and_not_before(
    broker: Broker, mq: shmq.Connection, keyword: str, value: Callable[[float], Any]
) -> None:
    body = b"%d" % time.time_ns()
    asked = broker.time()
    receipt = mq.send("orders", body, tag="t", key="k", properties={"a": "b"}, queue_id=2, **{keyword: value(asked)})
    assert (receipt.topic, receipt.queue_id) == ("orders", 2)
    mq.send("orders", body + b" before", delay=0.2)
    broker.advance(0.245)
    assert body not in taken(broker, body + b" before")
    broker.advance(0.01)
    message = taken(broker, body)[body]
    assert message.store_ms / 1000 >= asked + 0.249
    assert (message.queue_id, message.tag, message.key) == (2, "t", "k")
    assert message.properties["a"] == "b"


def test_asyncio_takes_the_same_arguments(broker: Broker) -> None:
    async def main() -> None:
        async with shmq.aio.connect(broker.url) as mq:
            await mq.send("orders", b"warm")
            receipt = await mq.send("orders", b"aio", delay=0.1)
            never = await mq.send("orders", b"aio never", delay=0.8)
            await mq.recall(never)
            async with mq.producer() as producer:
                await producer.recall((await producer.send("orders", b"aio never", delay=0.8)).recall_handle or "")
                await producer.send("orders", b"aio last", delay=0.9)
            assert receipt.topic == "orders"

    asyncio.run(main())
    broker.advance(1)
    found = taken(broker, b"aio", b"aio last")
    assert b"aio never" not in found


def test_a_recalled_message_never_comes(broker: Broker, mq: shmq.Connection) -> None:
    mark = b"%d" % time.time_ns()
    keep = mq.send("orders", mark + b"keep", delay=1.0)
    drop = mq.send("orders", mark + b"drop", delay=1.0)
    mq.recall(drop)
    mq.send("orders", mark + b"last", delay=1.3)
    broker.advance(2)
    found = taken(broker, mark + b"keep", mark + b"last")
    assert mark + b"drop" not in found
    for receipt in (keep, drop):
        with pytest.raises(shmq.UsageError, match="timestamp invalid"):
            mq.recall(receipt)


def test_a_producer_recalls_too(mq: shmq.Connection) -> None:
    with mq.producer(group="shop") as producer:
        receipt = producer.send("orders", b"never", delay=timedelta(hours=1))
        assert receipt.recall_handle is not None
        handle = RecallHandle.decode(receipt.recall_handle)
        assert handle.topic == "orders" and handle.deliver_ms > receipt.store_ms + 3_000_000
        producer.recall(receipt)


def test_what_was_not_sent_for_a_time_cannot_be_recalled(mq: shmq.Connection) -> None:
    for receipt in (mq.send("orders", b"x"), mq.send("orders", b"x", delay_level=18)):
        assert receipt.recall_handle is None
        with pytest.raises(shmq.UsageError, match="cannot be taken back"):
            mq.recall(receipt)
    with pytest.raises(shmq.UsageError, match="invalid"):
        mq.recall("nonsense")


@pytest.mark.parametrize("over", [{"delay": 0}, {"deliver_at": 1.0}, {"delay": None, "deliver_at": None}])
def test_a_time_that_is_over_is_no_delay(broker: Broker, mq: shmq.Connection, over: dict[str, Any]) -> None:
    body = b"%d" % time.time_ns()
    mq.send("orders", body, **over)
    with broker.connect() as reader, reader.pull_consumer("orders") as consumer:
        assert body in [message.body for message in consumer.poll(10_000, wait=60)]


@pytest.mark.parametrize(
    "wrong",
    [
        {"delay": -1},
        {"delay": "5"},
        {"delay": float("nan")},
        {"delay": float("inf")},
        {"delay": True},
        {"deliver_at": "tomorrow"},
        {"deliver_at": 1_795_178_336_448},
        {"deliver_at": -1},
        {"deliver_at": b"2026-12-01"},
        {"delay": 1, "deliver_at": 5},
        {"delay": 1, "delay_level": 3},
    ],
)
def test_what_is_no_delay_is_refused_with_what_to_type(mq: shmq.Connection, wrong: dict[str, Any]) -> None:
    with pytest.raises(shmq.UsageError) as caught:
        mq.send("orders", b"x", **wrong)
    assert caught.value.hint


def test_more_than_the_broker_allows_is_refused(mq: shmq.Connection) -> None:
    mq.send("orders", b"x", delay=3 * 86_400)
    with pytest.raises(shmq.ShmqError, match=r"259200|max delay"):
        mq.send("orders", b"x", delay=3 * 86_400 + 1)


def test_times_are_rounded_up_to_the_millisecond() -> None:
    assert delay_properties(0.0001) == {DELAY_MS: "1"}
    assert delay_properties(1.1) == {DELAY_MS: "1100"}
    assert delay_properties(0) == {}
    assert time_properties("2026-12-01T09:00:00Z") == {DELIVER_MS: "1796115600000"}
    assert time_properties("2026-12-01T09:00:00.0001Z") == {DELIVER_MS: "1796115600001"}
    assert take_special({"deliver_at": datetime(2026, 12, 1, 9, tzinfo=UTC)}) == {DELIVER_MS: "1796115600000"}


def test_a_broker_without_the_timer_topic_makes_it_for_a_local_producer_and_is_not_late() -> None:
    with Broker() as broker, broker.connect() as mq:
        session: Any = mq._live()
        assert session.wire.store.topic_find(TIMER_TOPIC) < 0
        mq.send("orders", b"x", delay=0.05)
        assert session.wire.store.topic(session.wire.store.topic_find(TIMER_TOPIC))["write_queues"] == 1
        assert broker.expect("orders", timeout=60)[0].body == b"x"


def test_the_longest_delay_is_the_brokers_setting() -> None:
    with Broker(tcp=True, timer_max_delay_seconds=10 * 86_400) as broker:
        for url in (broker.url, f"rocketmq://{broker.name_server}"):
            with shmq.connect(url) as mq:
                assert mq.send("orders", b"x", delay=timedelta(days=9)).recall_handle
                with pytest.raises(shmq.ShmqError, match="864000"):
                    mq.send("orders", b"x", delay=timedelta(days=11))
