"""Every number a user can give is taken or refused where it is given: alike on this host, over TCP and with asyncio.

    what is none        text, True, NaN, a complex number      refused
    other libraries'    Decimal, Fraction, NumPy's             taken, as Python's own are
    out of its range    negative, infinite, huge               refused, with the range

A time to wait is the exception: one that is over is "now", one that is infinite has no end. So is what a listener
raises: see the end of this file.
"""

import asyncio
import logging
from collections.abc import Callable, Iterator
from datetime import timedelta
from decimal import Decimal
from fractions import Fraction
from typing import Any, NamedTuple

import pytest

import shmq
import shmq.aio
from shmq.testing import Broker
from tests.conformance.conftest import PATIENCE, Named, url_of
from tests.deadline import eventually
from tests.tables.rows import every_row


class Whole:
    """An int of another library, as numpy.int64 is."""

    def __init__(self, value: int) -> None:
        self.value = value

    def __index__(self) -> int:
        return self.value


class Real:
    """A float of another library, as numpy.float32 is."""

    def __init__(self, value: float) -> None:
        self.value = value

    def __float__(self) -> float:
        return self.value


NAN, INF, HUGE = float("nan"), float("inf"), 10**400
NONE: tuple[Any, ...] = ("3", b"3", [], True, False, NAN, Decimal("NaN"), Decimal("sNaN"), 1j, object(), Real(NAN))
BELOW = (-1, -0.5, -INF, -1e18, -HUGE, Decimal(-1), Fraction(-1, 2), Real(-1.0), Whole(-1))
ABOVE = (INF, 1e18, 10**30, HUGE, Decimal("1e30"), Real(INF), Whole(10**30))
NO_WHOLE = (*NONE, 1.0, Decimal(1), Fraction(1, 2), Real(1.0), timedelta(1))
TIMES = (1, 0.5, Decimal("0.5"), Fraction(1, 2), Real(0.5), Whole(1))
ENDLESS = (*TIMES, INF, 1e18, 10**30, HUGE)
OVER = (0, -1, -0.5, -1e18, -HUGE, Decimal(-1), Whole(-1))
WHOLES = (1, Whole(1))
NO_COUNT = (*NO_WHOLE, -1, 0, 2**70, Whole(0))
NO_OFFSET = (*NO_WHOLE, -1, Whole(-1))

REFUSALS = shmq.UsageError | shmq.MessageTooLarge | shmq.OffsetOutOfRange
Pair = tuple[shmq.Connection, shmq.Connection]


class Number(NamedTuple):
    """One number: how it is given, and what it may be."""

    call: Callable[[Any, Any], object]
    refused: tuple[Any, ...]
    taken: tuple[Any, ...]


@pytest.fixture(scope="module")
def topic(broker: Broker) -> str:
    """A topic with one queue and a few messages."""
    with broker.connect() as mq:
        mq.admin.create_topic("numbers", queues=1)
        mq.send_batch("numbers", [b"x"] * 64)
    return "numbers"


@pytest.fixture(scope="module")
def connections(broker: Broker, topic: str) -> Iterator[Pair]:
    with broker.connect() as local, shmq.connect(url_of(broker, "tcp")) as remote:
        yield local, remote


def _closed(thing: Any, *given: Any) -> None:
    thing.close(*given)


def _written(mq: Any, size: Any, **named: Any) -> None:
    with mq.reserve("numbers", size, **named) as slot:
        slot.view[:] = bytes(len(slot.view))


def _shortened(mq: Any, size: Any) -> None:
    with mq.reserve("numbers", 8) as slot:
        slot.size = size


def _begun(mq: Any, **named: Any) -> None:
    with mq.producer(group="shop") as producer:
        producer.transaction("numbers", b"x", **named).rollback()


def _listened(mq: Any, make: str, **named: Any) -> None:
    try:
        getattr(mq, make)("numbers", group="l", **named)(print)
    finally:
        mq._listeners = None


SENDS: dict[str, Number] = {
    "timeout": Number(lambda mq, n: mq.send("numbers", b"x", timeout=n), (*NONE, *BELOW, timedelta(1)), ENDLESS),
    "batch timeout": Number(lambda mq, n: mq.send_batch("numbers", [b"x"], timeout=n), (*NONE, *BELOW), ENDLESS),
    "slot timeout": Number(lambda mq, n: _written(mq, 3, timeout=n), (*NONE, *BELOW), ENDLESS),
    "delay": Number(
        lambda mq, n: mq.send("numbers", b"x", delay=n), (*NONE, *BELOW, *ABOVE), (*TIMES, 0, timedelta(0, 1))
    ),
    "oneway delay": Number(lambda mq, n: mq.send_oneway("numbers", b"x", delay=n), (*NONE, *BELOW, *ABOVE), TIMES),
    "long timedelta": Number(lambda mq, n: mq.send("numbers", b"x", delay=n), (timedelta.max, timedelta(-1)), ()),
    "delay_level": Number(
        lambda mq, n: mq.send("numbers", b"x", delay_level=n), (*NO_WHOLE, -1, 2**31, 10**30), (0, 1, Whole(1))
    ),
    "deliver_at": Number(
        lambda mq, n: mq.send("numbers", b"x", deliver_at=n), (*NONE[1:], *BELOW, *ABOVE), (*TIMES, 0)
    ),
    "queue_id": Number(lambda mq, n: mq.send("numbers", b"x", queue_id=n), (*NO_OFFSET, 99, 10**30), (0, Whole(0))),
    "batch queue_id": Number(
        lambda mq, n: mq.send_batch("numbers", [b"x"], queue_id=n), (*NO_OFFSET, 10**30), (0, Whole(0))
    ),
    "flag": Number(
        lambda mq, n: mq.send("numbers", b"x", flag=n), (*NO_WHOLE, 2**32, -(2**31) - 1), (-1, 0, 2**31, Whole(1))
    ),
    "size": Number(lambda mq, n: _written(mq, n), (*NO_OFFSET, 10**30), (0, 3, Whole(3))),
    "check_after": Number(lambda mq, n: _begun(mq, check_after=n), (*NONE, *BELOW, *ABOVE), (*TIMES, 0)),
    "transaction timeout": Number(lambda mq, n: _begun(mq, timeout=n), (*NONE, *BELOW), ENDLESS),
    "producer timeout": Number(lambda mq, n: _closed(mq.producer(timeout=n)), (*NONE, *BELOW), ENDLESS),
    "request timeout": Number(lambda mq, n: mq.request("numbers", b"x", timeout=n), (*NONE, *BELOW), ()),
}
READS: dict[str, Number] = {
    "limit": Number(lambda mq, n: mq.browse("numbers", limit=n), NO_COUNT, WHOLES),
    "browse queue_id": Number(lambda mq, n: mq.browse("numbers", queue_id=n), (*NO_OFFSET, 99, 10**30), (0, Whole(0))),
    "browse offset": Number(
        lambda mq, n: mq.browse("numbers", queue_id=0, offset=n), (*NO_OFFSET, 10**30), (0, Whole(0))
    ),
    "start": Number(
        lambda mq, n: _closed(mq.pull_consumer("numbers", start=n)),
        (*NO_OFFSET[1:], "-3", "", "-1e400h", "-nanh"),
        (0, Whole(1), "1", 10**30, HUGE, "9" * 5000, "0" * 5000),
    ),
    "attempts_max": Number(lambda mq, n: _listened(mq, "listener", attempts_max=n), NO_COUNT, WHOLES),
    "threads": Number(lambda mq, n: _listened(mq, "listener", threads=n), NO_COUNT, WHOLES),
    "replier threads": Number(lambda mq, n: _listened(mq, "replier", threads=n), NO_COUNT, WHOLES),
    "invisible": Number(
        lambda mq, n: _closed(mq.simple_consumer("numbers", group="s", invisible=n)), (*NONE, *BELOW, *ABOVE, 0), TIMES
    ),
    "seek queue": Number(lambda mq, n: _pulled(mq).seek(n, "begin"), (*NO_OFFSET, 99, HUGE), (0, Whole(0))),
    "seek offset": Number(lambda mq, n: _pulled(mq).seek(0, offset=n), (*NO_OFFSET[1:], "x", 10**30), (0, Whole(1))),
    "commit offset": Number(
        lambda mq, n: _pulled(mq).commit("audit", offsets={0: n}), (*NO_OFFSET, 10**30), (0, Whole(1))
    ),
    "commit queue": Number(
        lambda mq, n: _pulled(mq).commit("audit", offsets={n: 0}), ("0", b"0", True, NAN, 0.5, -1, 99, HUGE), (0,)
    ),
    "queues": Number(lambda mq, n: mq.admin.create_topic("numbers", queues=n), NO_COUNT, WHOLES),
    "read_queues": Number(lambda mq, n: mq.admin.update_topic("numbers", read_queues=n), NO_COUNT, WHOLES),
    "dead letters": Number(lambda mq, n: mq.admin.dlq("audit", limit=n), NO_COUNT, WHOLES),
    "connect timeout": Number(
        lambda mq, n: _closed(shmq.connect(mq.url, timeout=n)), (*NONE, *BELOW, *ABOVE, 0), TIMES
    ),
    "close timeout": Number(lambda mq, n: _closed(mq.producer(), n), (*NONE, None, *BELOW), ENDLESS),
    "stop timeout": Number(lambda mq, n: mq.stop(n), (*NONE, None, *BELOW), ENDLESS),
    "max": Number(lambda mq, n: _pulled(mq).poll(max=n, wait=0), NO_COUNT, WHOLES),
    "wait": Number(lambda mq, n: _from_begin(mq).poll(max=1, wait=n), (*NONE, None, timedelta(1)), (*ENDLESS, *OVER)),
}


def _pulled(mq: shmq.Connection) -> shmq.PullConsumer:
    """A pull consumer that is let go with the connection's other ones."""
    return mq.pull_consumer("numbers")


def _from_begin(mq: shmq.Connection) -> shmq.PullConsumer:
    consumer = _pulled(mq)
    consumer.seek(0, "begin")
    return consumer


def _check(connections: Pair, number: Number) -> None:
    for bad in number.refused:
        for mq in connections:
            with pytest.raises(shmq.ShmqError) as caught:
                number.call(mq, bad)
            assert caught.value.hint and isinstance(caught.value, REFUSALS), bad
    for good in number.taken:
        for mq in connections:
            number.call(mq, good)


@every_row("name", SENDS)
def test_a_number_of_a_send_is_taken_or_refused_with_its_cure(connections: Pair, name: str) -> None:
    _check(connections, SENDS[name])


@every_row("name", READS)
def test_a_number_of_a_read_is_taken_or_refused_with_its_cure(connections: Pair, name: str) -> None:
    _check(connections, READS[name])


# ---- calls on a message in hand --------------------------------------------------------------------------------------


def _taken(mq: shmq.Connection, kind: str) -> Any:
    if kind == "subscribe":
        return mq.subscribe("numbers", group=f"in-hand-{kind}", start="begin")
    return mq.simple_consumer("numbers", group=f"in-hand-{kind}", hidden_by=kind, start="begin")  # type: ignore[arg-type]


@every_row("kind", ["subscribe", "broker", "process"])
def test_the_numbers_of_a_consumer_and_of_its_messages(connections: Pair, kind: str) -> None:
    for mq in connections:
        with _taken(mq, kind) as consumer:
            for bad in NO_COUNT:
                with pytest.raises(shmq.UsageError, match="asks for no message"):
                    consumer.receive(max=bad)
            for bad in (*NONE, None, timedelta(1)):
                with pytest.raises(shmq.UsageError, match="is no time to wait"):
                    consumer.receive(wait=bad)
            for good in (*ENDLESS, *OVER):
                consumer.receive(max=Whole(1), wait=good)
            [message] = consumer.receive(1, PATIENCE)
            for bad in (*NONE, *BELOW, *ABOVE, timedelta(1)):
                for settle in (message.nack, message.extend, lambda bad, message=message: message.nack(after=bad)):
                    with pytest.raises(shmq.UsageError) as caught:
                        settle(bad)
                    assert caught.value.hint, bad
            for good in (60, 60.5, Decimal(60), Fraction(60), Real(60.0), Whole(60)):
                message.extend(good)
            assert not message.settled
            for again in (None, 60, 60.5, Decimal(60), Fraction(60), Real(60.0), Whole(60)):
                message.nack(again)
                [message] = consumer.receive(1, PATIENCE)


# ---- asyncio ---------------------------------------------------------------------------------------------------------


async def _aio_pull(mq: shmq.aio.Connection, **named: Any) -> None:
    async with mq.pull_consumer("numbers") as consumer:
        await consumer.poll(**{"max": 1, "wait": 0} | named)


async def _aio_receive(mq: shmq.aio.Connection, make: str, **named: Any) -> None:
    async with getattr(mq, make)("numbers", group=f"aio-{make}", start="begin") as consumer:
        messages = await consumer.receive(**{"max": 1, "wait": 0} | named)
        for message in messages:
            await message.nack(0)


async def _aio_listener(mq: shmq.aio.Connection, make: str, **named: Any) -> None:
    async def handle(message: object) -> None: ...

    getattr(mq, make)("numbers", group="l", **named)(handle)
    mq._listeners._listeners.clear()


async def _aio_producer(mq: shmq.aio.Connection, **named: Any) -> None:
    async with mq.producer(**named) as producer:
        await producer.send("numbers", b"x")


async def _aio_slot(mq: shmq.aio.Connection, size: Any) -> None:
    async with mq.reserve("numbers", size) as slot:
        await slot.abort()


async def _aio_nack(mq: shmq.aio.Connection, number: Any) -> None:
    async with mq.subscribe("numbers", group="aio-nack", start="begin") as consumer:
        [message] = await consumer.receive(1, PATIENCE)
        await message.extend(number)
        await message.nack(number)


AIO: dict[str, Number] = {
    "timeout": Number(lambda mq, n: mq.send("numbers", b"x", timeout=n), (*NONE, *BELOW, timedelta(1)), ENDLESS),
    "delay": Number(lambda mq, n: mq.send("numbers", b"x", delay=n), (*NONE, *BELOW, *ABOVE), (*TIMES, 0)),
    "queue_id": Number(lambda mq, n: mq.send("numbers", b"x", queue_id=n), (*NO_OFFSET, 99, 10**30), (0, Whole(0))),
    "size": Number(_aio_slot, (*NO_OFFSET, 10**30), (1, Whole(3))),
    "request timeout": Number(lambda mq, n: mq.request("numbers", b"x", timeout=n), (*NONE, *BELOW), ()),
    "producer timeout": Number(lambda mq, n: _aio_producer(mq, timeout=n), (*NONE, *BELOW), ENDLESS),
    "limit": Number(lambda mq, n: mq.browse("numbers", limit=n), NO_COUNT, WHOLES),
    "poll max": Number(lambda mq, n: _aio_pull(mq, max=n), NO_COUNT, WHOLES),
    "poll wait": Number(lambda mq, n: _aio_pull(mq, wait=n), (*NONE, None), (*ENDLESS, *OVER)),
    "receive max": Number(lambda mq, n: _aio_receive(mq, "subscribe", max=n), NO_COUNT, WHOLES),
    "receive wait": Number(lambda mq, n: _aio_receive(mq, "subscribe", wait=n), (*NONE, None), (*ENDLESS, *OVER)),
    "take wait": Number(lambda mq, n: _aio_receive(mq, "simple_consumer", wait=n), (*NONE, None), (*ENDLESS, *OVER)),
    "take invisible": Number(
        lambda mq, n: _aio_receive(mq, "simple_consumer", invisible=n, wait=PATIENCE), (*NONE, *BELOW, *ABOVE, 0), TIMES
    ),
    "threads": Number(lambda mq, n: _aio_listener(mq, "listener", threads=n), NO_COUNT, WHOLES),
    "replier threads": Number(lambda mq, n: _aio_listener(mq, "replier", threads=n), NO_COUNT, WHOLES),
    "attempts_max": Number(lambda mq, n: _aio_listener(mq, "listener", attempts_max=n), NO_COUNT, WHOLES),
    "stop timeout": Number(lambda mq, n: mq.stop(n), (*NONE, None, *BELOW), ENDLESS),
    "nack and extend": Number(_aio_nack, (*NONE, *BELOW, *ABOVE), TIMES),
}


@every_row("name", AIO)
def test_a_number_given_in_a_coroutine_is_taken_or_refused_with_its_cure(broker: Broker, topic: str, name: str) -> None:
    number = AIO[name]

    async def tried(url: str) -> None:
        async with shmq.aio.connect(url) as mq:
            for bad in number.refused:
                with pytest.raises(shmq.ShmqError) as caught:
                    await number.call(mq, bad)  # type: ignore[misc]
                assert caught.value.hint and isinstance(caught.value, REFUSALS), bad
            for good in number.taken:
                await number.call(mq, good)  # type: ignore[misc]

    for transport in ("shm", "tcp"):
        asyncio.run(tried(url_of(broker, transport)))


# ---- what a listener raises ------------------------------------------------------------------------------------------

NO_TIMES = (*NONE, INF, 1e18, HUGE, timedelta(1))


class Handler:
    """Fails each message once, with the time of its number."""

    def __init__(self, times: tuple[Any, ...]) -> None:
        self.times = times
        self.seen: list[int] = []

    def __call__(self, message: Any) -> None:
        number = int(message.body)
        self.seen.append(number)
        if self.seen.count(number) == 1:
            raise shmq.Retry(after=self.times[number])

    async def later(self, message: Any) -> None:
        self(message)


def _listen(url: str, topic: str, group: str, handler: Handler, **named: Any) -> Callable[[Callable[[], object]], None]:
    def waited(condition: Callable[[], object]) -> None:
        with shmq.connect(url) as mq:
            mq.listener(topic, group=group, **named)(handler)
            mq.start()
            eventually(condition, "the listener to go on")
            assert mq._listeners is not None and mq._listeners.stop(PATIENCE) == []

    return waited


def _listen_in_a_loop(url: str, topic: str, group: str, handler: Handler) -> Callable[[Callable[[], object]], None]:
    async def listened(condition: Callable[[], object]) -> None:
        async with shmq.aio.connect(url) as mq:
            mq.listener(topic, group=group, threads=2)(handler.later)
            await mq.start()
            await asyncio.to_thread(eventually, condition, "the listener to go on")
            assert await mq._listeners.stop(PATIENCE) == []

    return lambda condition: asyncio.run(listened(condition))


LISTENERS: dict[str, Callable[..., Callable[[Callable[[], object]], None]]] = {
    "one thread": _listen,
    "threads": lambda *given: _listen(*given, threads=4),
    "ordered": lambda *given: _listen(*given, ordered=True),
    "asyncio": _listen_in_a_loop,
}


@every_row("name", LISTENERS)
def test_a_retry_that_is_late_comes_at_once_and_its_listener_goes_on(
    mq: shmq.Connection, url: str, named: Named, name: str
) -> None:
    topic, handler = named(f"late-{name.replace(' ', '-')}"), Handler(OVER)
    mq.send_batch(topic, [b"%d" % number for number in range(len(OVER))])
    wait = LISTENERS[name](url, topic, named("late"), handler)
    wait(lambda: sorted(handler.seen) == sorted([*range(len(OVER))] * 2))


@every_row("name", [name for name in LISTENERS if name != "ordered"])
def test_a_retry_at_no_time_fails_its_message_alone_with_a_line_in_the_log(
    mq: shmq.Connection, url: str, named: Named, caplog: pytest.LogCaptureFixture, name: str
) -> None:
    caplog.clear()
    topic, handler = named(f"never-{name.replace(' ', '-')}"), Handler(NO_TIMES)
    mq.send_batch(topic, [b"%d" % number for number in range(len(NO_TIMES))])
    wait = LISTENERS[name](url, topic, named("never"), handler)

    def failures() -> list[logging.LogRecord]:
        return [record for record in caplog.records if "failed for message" in record.getMessage()]

    wait(lambda: sorted(handler.seen) == [*range(len(NO_TIMES))] and len(failures()) == len(NO_TIMES))
    for record in failures():
        assert record.exc_info is not None and isinstance(record.exc_info[1], shmq.UsageError)
        assert isinstance(record.exc_info[1].__context__, shmq.Retry), "the log shows where it was raised"
