"""Where no thread can be started, as at a process's end or limit, a call says so, leaves nothing, and works later."""

import asyncio
import contextlib
import threading
from collections.abc import Callable
from typing import Any

import pytest

import shmq
import shmq.aio
from tests.client.lives.thread_limit import REFUSED, no_thread_starts
from tests.conformance.conftest import PATIENCE, Named
from tests.tables.rows import every_row

Refusal = contextlib.AbstractContextManager[object]


def is_said() -> Refusal:
    return pytest.raises(shmq.ConnectError, match=REFUSED)


def reads(consumer: Any) -> bytes:
    [message] = consumer.receive(1, PATIENCE)
    message.ack()
    return bytes(message.body)


MEMBERS: dict[str, Callable[[shmq.Connection, str], bytes]] = {
    "subscribe": lambda mq, topic: reads(mq.subscribe(topic, group=topic, start="begin")),
    "simple": lambda mq, topic: reads(mq.simple_consumer(topic, group=topic, start="begin")),
    "broadcast": lambda mq, topic: reads(mq.subscribe(topic, model="broadcasting", start="begin")),
}
LISTENERS: dict[str, dict[str, Any]] = {"one": {}, "several": {"threads": 3}, "ordered": {"ordered": True}}


@every_row("member", MEMBERS)
def test_a_member_is_refused_and_can_be_one_later(
    connect: Callable[..., shmq.Connection], named: Named, member: str
) -> None:
    mq, topic = connect(), named(f"no-thread-{member}")
    mq.send(topic, b"x")
    with no_thread_starts(), is_said():
        MEMBERS[member](mq, topic)
    assert MEMBERS[member](mq, topic) == b"x"


@every_row("listener", LISTENERS)
@pytest.mark.parametrize("is_first", [True, False], ids=["first", "beside another member"])
def test_a_listener_is_refused_and_runs_later(
    connect: Callable[..., shmq.Connection], named: Named, listener: str, is_first: bool
) -> None:
    mq, topic, got = connect(), named(f"no-thread-{listener}-{is_first}"), threading.Event()
    if not is_first:  # which has started what all members share
        mq.subscribe(topic, group=named("first"))
    mq.listener(topic, group=topic, start="begin", **LISTENERS[listener])(lambda message: got.set())
    mq.send(topic, b"x")
    for begin in (mq.start, mq.run):
        with no_thread_starts(), is_said():
            begin()
    mq.start()
    assert got.wait(PATIENCE)
    mq.stop()


def test_a_send_in_the_background_is_refused_and_the_next_one_sent(mq: shmq.Connection, named: Named) -> None:
    topic = named("no-thread-sent")
    with mq.producer() as producer:
        with no_thread_starts(), is_said():
            producer.send_nowait(topic, b"refused")
        producer.send_nowait(topic, b"x").result(PATIENCE)
    assert [message.body for message in mq.browse(topic)] == [b"x"]


def test_a_request_that_no_thread_waits_for_is_refused_and_not_sent(mq: shmq.Connection, named: Named) -> None:
    topic = named("no-thread-asked")
    mq.send(topic, b"x")
    with no_thread_starts(), is_said():
        mq._live().requests.begin(topic, b"q", PATIENCE)
    assert [message.body for message in mq.browse(topic)] == [b"x"]
    mq._live().requests.begin(topic, b"q", PATIENCE).cancel()


def test_what_cannot_be_traced_is_done(connect: Callable[..., shmq.Connection], named: Named) -> None:
    mq = connect(trace=True)
    with no_thread_starts():
        assert mq.send(named("no-thread-traced"), b"x").message_id


def test_asyncio_is_refused_and_works_later(url: str, named: Named) -> None:
    topic = named("no-thread-awaited")

    async def main() -> None:
        async with shmq.aio.connect(url, timeout=PATIENCE) as mq, mq.subscribe(topic, group=topic) as consumer:
            with no_thread_starts(), is_said():
                await consumer.receive(1, PATIENCE)
            await mq.send(topic, b"x")
            [message] = await consumer.receive(1, PATIENCE)
            await message.ack()

    asyncio.run(main())
