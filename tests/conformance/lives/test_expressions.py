"""What is made of a connection keeps it for the call, `connect(…).send(…)`; what is dropped is closed."""

import asyncio
import contextlib
import gc
import threading
import warnings
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import pytest

import shmq
import shmq.aio
from shmq.client.link import live_connections
from tests.conformance.conftest import Named
from tests.tables.rows import every_row

Eventually = Callable[..., Any]


def filled(sender: Any, topic: str) -> None:
    with sender.reserve(topic, 1) as slot:
        slot.view[:] = b"x"


def acked(messages: list[shmq.Message]) -> list[bytes]:
    for message in messages:
        message.ack()
    return [message.body for message in messages]


def first(iterator: Iterator[shmq.Message]) -> list[bytes]:
    for message in iterator:
        return acked([message])
    return []


SENDING: dict[str, Callable[[Any, str], Any]] = {
    "send": lambda connect, topic: connect().send(topic, b"x"),
    "oneway": lambda connect, topic: connect().send_oneway(topic, b"x"),
    "batch": lambda connect, topic: connect().send_batch(topic, [b"x"]),
    "delay": lambda connect, topic: connect().send(topic, b"x", delay=0.0),
    "reserve": lambda connect, topic: filled(connect(), topic),
    "slot": lambda connect, topic: connect().reserve(topic, 1).commit(),
    "copied": lambda connect, topic: [send(topic, b"x") for send in [connect().send]],
    "producer": lambda connect, topic: connect().producer().send(topic, b"x"),
    "packing": lambda connect, topic: connect().producer(compression="zlib").send(topic, b"x"),
    "selecting": lambda connect, topic: connect().producer(queue_selector="key").send(topic, b"x", key="k"),
    "producer's room": lambda connect, topic: filled(connect().producer(), topic),
    "nowait": lambda connect, topic: connect().producer().send_nowait(topic, b"x").result(60),
    "transaction": lambda connect, topic: connect().producer(group=topic).transaction(topic, b"x").commit(),
    "topic": lambda connect, topic: connect().topic(topic, str).send("x"),
    "admin": lambda connect, topic: connect().admin._send(topic, b"x"),
}
READING: dict[str, Callable[[Any, str, str], Any]] = {
    "receive": lambda connect, topic, group: acked(connect().subscribe(topic, group=group).receive(wait=60)),
    "iterate": lambda connect, topic, group: first(iter(connect().subscribe(topic, group=group))),
    "simple": lambda connect, topic, group: acked(connect().simple_consumer(topic, group=group).receive(wait=60)),
    "pull": lambda connect, topic, group: acked(connect().pull_consumer(topic).poll(wait=60)),
    "typed": lambda connect, topic, group: acked(connect().topic(topic, str).subscribe(group=group).receive(wait=60)),
    "browse": lambda connect, topic, group: [message.body for message in connect().browse(topic)],
    "topics": lambda connect, topic, group: [b"x"] if topic in connect().admin.topics else [],
    "lag": lambda connect, topic, group: [b"x"] if connect().admin.groups is not None else [],
}


def ours() -> set[str]:
    return {link.client_id for link in live_connections() if link._held}


@contextlib.contextmanager
def nothing_left(eventually: Eventually, collect: Callable[[], object]) -> Iterator[None]:
    """Every connection and thread that the block makes is gone behind it, without `close()`."""
    gc.collect()
    connections, threads = ours(), set(threading.enumerate())

    def left() -> set[object]:
        collect()  # at each look: a thread may hold for a moment what lies in a cycle when it lets go
        named = (thread for thread in threading.enumerate() if thread.name[:4] == "shmq")
        return (ours() - connections) | (set(named) - threads)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        yield
        eventually(lambda: not left(), lambda: f"{left()}")


@pytest.fixture
def leaves_nothing(eventually: Eventually) -> Iterator[None]:
    """A connection and its readers hold each other, so the collector ends them."""
    with nothing_left(eventually, gc.collect):
        yield


@pytest.fixture
def goes_at_once(eventually: Eventually) -> Iterator[None]:
    """What only sends lies in no cycle: it goes when it is dropped, with no collector."""
    gc.disable()
    try:
        with nothing_left(eventually, bool):
            yield
    finally:
        gc.enable()


@every_row("way", SENDING)
def test_one_expression_sends_and_leaves_nothing(
    mq: shmq.Connection, url: str, named: Named, goes_at_once: None, eventually: Eventually, way: str
) -> None:
    topic = named(f"sent-{way.replace(' ', '-').replace(chr(39), '')}")
    mq.admin.create_topic(topic)
    for _ in range(3):  # a thread that closes early loses a race, not every time
        SENDING[way](lambda **given: shmq.connect(url, timeout=10.0, **given), topic)
    eventually(lambda: len(mq.browse(topic)) == 3, lambda: f"{mq.browse(topic)}")


@every_row("way", READING)
def test_one_expression_reads_and_leaves_nothing(
    mq: shmq.Connection, url: str, named: Named, leaves_nothing: None, eventually: Eventually, way: str
) -> None:
    topic = group = named(f"read-{way}")
    mq.send(topic, b"x")
    assert READING[way](lambda: shmq.connect(url, timeout=10.0), topic, group) == [b"x"]
    gc.collect()
    if group in dict(mq.admin.groups):  # what was acknowledged counts
        eventually(lambda: mq.admin.groups[group].lag.total == 0, timeout=60.0)


async def filled_soon(sender: Any, topic: str) -> None:
    async with sender.reserve(topic, 1) as slot:
        slot.view[:] = b"x"


async def first_soon(messages: Any) -> list[bytes]:
    async for message in messages:
        return await acked_soon([message])
    return []


async def acked_soon(messages: list[Any]) -> list[bytes]:
    for message in messages:
        await message.ack()
    return [message.body for message in messages]


ASYNC: dict[str, Callable[[Any, str], Coroutine[Any, Any, Any]]] = {
    "send": lambda connect, topic: connect().send(topic, b"x"),
    "oneway": lambda connect, topic: connect().send_oneway(topic, b"x"),
    "batch": lambda connect, topic: connect().send_batch(topic, [b"x"]),
    "producer": lambda connect, topic: connect().producer().send(topic, b"x"),
    "topic": lambda connect, topic: connect().topic(topic, str).send("x"),
    "browse": lambda connect, topic: connect().browse(topic),
}
ASYNC_READING: dict[str, Callable[[Any, str, str], Coroutine[Any, Any, Any]]] = {
    "receive": lambda connect, topic, group: connect().subscribe(topic, group=group).receive(wait=60),
    "simple": lambda connect, topic, group: connect().simple_consumer(topic, group=group).receive(wait=60),
    "pull": lambda connect, topic, group: connect().pull_consumer(topic).poll(wait=60),
}


@every_row("way", ASYNC)
def test_one_awaited_expression_sends_and_leaves_nothing(
    mq: shmq.Connection, url: str, named: Named, goes_at_once: None, way: str
) -> None:
    topic = named(f"aio-sent-{way}")
    mq.admin.create_topic(topic)

    async def main() -> None:
        for _ in range(3):
            await ASYNC[way](lambda: shmq.aio.connect(url, timeout=10.0), topic)
        mq_here = shmq.aio.connect(url, timeout=10.0)
        await filled_soon(await mq_here, topic)
        async with (await mq_here.producer(group=topic)).transaction(topic, b"x"):
            pass
        assert topic in await (await shmq.aio.connect(url)).admin.fetch_topics()

    asyncio.run(main())


@every_row("way", ASYNC_READING)
def test_one_awaited_expression_reads_and_leaves_nothing(
    mq: shmq.Connection, url: str, named: Named, leaves_nothing: None, way: str
) -> None:
    topic = group = named(f"aio-read-{way}")
    mq.send(topic, b"x")

    async def main() -> None:
        got = await ASYNC_READING[way](lambda: shmq.aio.connect(url, timeout=10.0), topic, group)
        assert await acked_soon(got) == [b"x"]
        del got
        again = first_soon(shmq.aio.connect(url, timeout=10.0).subscribe(topic, group=f"{group}-iterated"))
        assert await again == [b"x"]

    asyncio.run(main())


LATER: dict[str, Callable[[Any, str], list[shmq.Message]]] = {
    "subscribe": lambda mq, topic: mq.subscribe(topic, group=topic).receive(wait=60),
    "iterate": lambda mq, topic: [next(iter(mq.subscribe(topic, group=topic)))],
    "simple": lambda mq, topic: mq.simple_consumer(topic, group=topic, start="begin").receive(wait=60),
    "hidden by the process": lambda mq, topic: mq.simple_consumer(
        topic, group=topic, start="begin", hidden_by="process"
    ).receive(wait=60),
    "typed": lambda mq, topic: mq.topic(topic, bytes, codec=Bytes()).subscribe(group=topic).receive(wait=60),
}


class Bytes:
    """A codec that leaves a body as it is."""

    def encode(self, value: bytes) -> bytes:
        return value

    def decode(self, body: bytes) -> bytes:
        return body


@every_row("way", LATER)
def test_a_message_that_outlives_all_else_is_settled_later(
    mq: shmq.Connection, url: str, named: Named, leaves_nothing: None, eventually: Eventually, way: str
) -> None:
    topic = named(f"later-{way.replace(' ', '-')}")
    mq.send(topic, b"x")
    before = ours()
    [message] = LATER[way](shmq.connect(url, timeout=10.0), topic)
    gc.collect()
    assert ours() - before  # only the message has a hold on its connection now
    assert acked([message]) == [b"x"]
    del message
    gc.collect()
    eventually(lambda: mq.admin.groups[topic].lag.total == 0)


def test_messages_keep_what_settles_them(
    mq: shmq.Connection, url: str, named: Named, leaves_nothing: None, eventually: Eventually
) -> None:
    topic = group = named("kept")
    mq.send(topic, b"x")
    messages = shmq.connect(url, timeout=10.0).subscribe(topic, group=group).receive(wait=60)
    assert acked(messages) == [b"x"]
    del messages
    gc.collect()
    eventually(lambda: mq.admin.groups[group].lag.total == 0)
