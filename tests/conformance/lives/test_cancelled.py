"""Every door of the asyncio client, cancelled while its thread is held: nothing is left behind, and later uses work."""

import asyncio
import contextlib
import functools
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from typing import Any

import pytest

import shmq
import shmq.aio
from shmq.client.connection import Connection
from shmq.client.consumers.consumer import Consumer
from shmq.client.consumers.pull import PullConsumer
from shmq.client.link import Link, live_connections
from shmq.client.producers.producer import Producer
from shmq.client.transactions.transaction import Transaction
from tests.conformance.conftest import Named
from tests.deadline import eventually_async
from tests.tables.rows import every_row

Open = Callable[[shmq.aio.Connection, str, str], Awaitable[Any]]


class Held:
    """A method of a synchronous class whose first call stands in its thread: before it does anything, or behind it."""

    def __init__(self, kind: type, name: str, *, behind: bool = False) -> None:
        self.entered, self.release, self.calls = threading.Event(), threading.Event(), 0
        self._kind, self._name, self._behind, self._call = kind, name, behind, getattr(kind, name)

    def __enter__(self) -> "Held":
        @functools.wraps(self._call)
        def held(*given: Any, **named: Any) -> Any:
            self.calls += 1
            is_first = self.calls == 1
            if is_first and not self._behind:
                self._stand()
            made = self._call(*given, **named)
            if is_first and self._behind:
                self._stand()
            return made

        setattr(self._kind, self._name, held)
        return self

    def __exit__(self, *_: object) -> None:
        self.release.set()
        setattr(self._kind, self._name, self._call)

    def _stand(self) -> None:
        self.entered.set()
        assert self.release.wait(60)

    async def cancel(self, work: Coroutine[Any, Any, Any]) -> None:
        """Cancel what waits for the thread, as `asyncio.wait_for` does when its time is over."""
        task = asyncio.ensure_future(work)
        await eventually_async(lambda: self.entered.is_set() or task.done())
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task


def both(test: Callable[..., None]) -> Callable[..., None]:
    return every_row("behind", [False, True])(test)


@contextlib.asynccontextmanager
async def connected(url: str) -> AsyncIterator[shmq.aio.Connection]:
    async with asyncio.timeout(120), shmq.aio.connect(url, timeout=10.0) as mq:
        yield mq


def sync_of(mq: shmq.aio.Connection) -> Connection:
    assert mq._made is not None
    return mq._made


READERS: dict[str, tuple[str, Callable[..., Any]]] = {
    "subscription": ("subscribe", lambda mq, topic, group: mq.subscribe(topic, group=group)),
    "simple": ("simple_consumer", lambda mq, topic, group: mq.simple_consumer(topic, group=group)),
    "pull": ("pull_consumer", lambda mq, topic, group: mq.pull_consumer(topic, group=group)),
}


async def bodies(reader: Any) -> list[bytes]:
    take = reader.poll if isinstance(reader, shmq.aio.PullConsumer) else reader.receive
    return [message.body for message in await take(wait=60)]


@both
@every_row("kind", READERS)
def test_a_reader_whose_opening_is_cancelled_leaves_and_later_ones_read(
    url: str, named: Named, kind: str, behind: bool
) -> None:
    topic = group = named(f"{kind}-{behind}")
    method, make = READERS[kind]

    async def main() -> None:
        async with connected(url) as mq:
            await mq.send(topic, b"x")
            with Held(Connection, method, behind=behind) as held:
                first, other = make(mq, topic, group), make(mq, topic, group)
                await held.cancel(bodies(first))
                held.release.set()
                await eventually_async(lambda: not sync_of(mq)._membership.consumers and first._opening.ended.done())
            async with other:
                assert await bodies(other) == [b"x"]
            assert await bodies(first) == [b"x"]
            await first.close()
            assert not sync_of(mq)._membership.consumers

    asyncio.run(main())


@every_row("kind", READERS)
def test_a_reader_that_is_used_while_its_cancelled_opening_goes_on_takes_it_over(
    url: str, named: Named, kind: str
) -> None:
    topic = group = named(f"again-{kind}")
    method, make = READERS[kind]

    async def main() -> None:
        async with connected(url) as mq:
            await mq.send(topic, b"x")
            with Held(Connection, method) as held:
                reader = make(mq, topic, group)
                await held.cancel(bodies(reader))
                later = asyncio.create_task(bodies(reader))
                await asyncio.sleep(0)
                held.release.set()
                assert await later == [b"x"]
                assert held.calls == 1
            await reader.close()

    asyncio.run(main())


@every_row("kind", READERS)
def test_another_reader_opens_behind_a_cancelled_one_that_still_opens(url: str, named: Named, kind: str) -> None:
    topic = group = named(f"behind-{kind}")
    method, make = READERS[kind]

    async def main() -> None:
        async with connected(url) as mq:
            await mq.send(topic, b"x")
            with Held(Connection, method, behind=True) as held:
                await held.cancel(bodies(make(mq, topic, group)))
                other = make(mq, topic, group)
                later = asyncio.create_task(bodies(other))
                await asyncio.sleep(0)
                held.release.set()
                assert await later == [b"x"]
            await other.close()
            # No other pull consumer waits for the end of a cancelled one.
            await eventually_async(lambda: not sync_of(mq)._membership.consumers)

    asyncio.run(main())


@every_row("kind", READERS)
def test_a_reader_that_is_closed_while_it_opens_is_closed(url: str, named: Named, kind: str) -> None:
    topic = group = named(f"closed-{kind}")
    method, make = READERS[kind]

    async def main() -> None:
        async with connected(url) as mq:
            await mq.send(topic, b"x")
            with Held(Connection, method, behind=True) as held:
                reader = make(mq, topic, group)
                opening = asyncio.create_task(bodies(reader))
                await eventually_async(held.entered.is_set)
                closing = asyncio.create_task(reader.close())
                await asyncio.sleep(0)
                held.release.set()
                await closing
                with pytest.raises(shmq.UsageError, match="closed"):
                    await opening
            assert not sync_of(mq)._membership.consumers
            with pytest.raises(shmq.UsageError, match="closed"):
                await bodies(reader)

    asyncio.run(main())


@both
def test_a_connection_whose_opening_is_cancelled_is_closed_and_opens_later(
    url: str, named: Named, behind: bool
) -> None:
    topic = named(f"connection-{behind}")
    ours: list[Link] = []

    async def main() -> None:
        mq = shmq.aio.connect(url, timeout=10.0)
        before = {id(link) for link in live_connections()}
        with Held(Connection, "_open_session", behind=behind) as held:
            await held.cancel(mq.send(topic, b"never"))
            ours.extend(link for link in live_connections() if id(link) not in before)
            held.release.set()
            await eventually_async(lambda: mq._opening is not None and mq._opening.ended.done())
        ours.extend(link for link in live_connections() if id(link) not in before)
        assert all(link._closed for link in ours)
        await mq.send(topic, b"x")
        assert [message.body for message in await mq.browse(topic)] == [b"x"]
        await mq.close()

    asyncio.run(main())


def test_a_connection_that_is_closed_while_it_opens_is_closed(url: str) -> None:
    async def main() -> None:
        mq = shmq.aio.connect(url, timeout=10.0)
        with Held(Connection, "_open_session", behind=True) as held:
            opening = asyncio.ensure_future(mq._open())
            await eventually_async(held.entered.is_set)
            closing = asyncio.create_task(mq.close())
            await asyncio.sleep(0)
            held.release.set()
            await closing
            with pytest.raises(shmq.UsageError, match="closed"):
                await opening
        with pytest.raises(shmq.UsageError, match="closed"):
            await mq.send("orders", b"x")

    asyncio.run(main())


@both
def test_a_producer_whose_opening_is_cancelled_is_closed_and_sends_later(url: str, named: Named, behind: bool) -> None:
    topic = named(f"producer-{behind}")

    async def main() -> None:
        async with connected(url) as mq:
            with Held(Connection, "producer", behind=behind) as held:
                producer = mq.producer(group=topic)
                await held.cancel(producer.send(topic, b"never"))
                held.release.set()
                await eventually_async(lambda: producer._opening is not None and producer._opening.ended.done())
            assert not sync_of(mq)._producers
            await producer.send(topic, b"x")
            assert [message.body for message in await mq.browse(topic)] == [b"x"]
            await producer.close()

    asyncio.run(main())


@both
def test_a_transaction_whose_beginning_is_cancelled_is_rolled_back(url: str, named: Named, behind: bool) -> None:
    topic = named(f"transaction-{behind}")
    ended: list[int] = []

    end = Link._end_half

    def noted(self: Link, half: Any, state: Any, timeout: float) -> Any:
        ended.append(int(state))
        return end(self, half, state, timeout)

    async def main() -> None:
        async with connected(url) as mq, mq.producer(group=topic) as producer:
            with Held(Producer, "transaction", behind=behind) as held:
                await held.cancel(producer.transaction(topic, b"never").__aenter__())
                held.release.set()
                await eventually_async(lambda: ended == [shmq.ROLLBACK])
            async with producer.transaction(topic, b"x"):
                pass
            assert [message.body for message in await mq.browse(topic)] == [b"x"]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Link, "_end_half", noted)
        asyncio.run(main())


@every_row("name", ["commit", "rollback"])
def test_the_end_of_a_transaction_is_carried_out_though_its_task_is_cancelled(
    url: str, named: Named, name: str
) -> None:
    topic = named(name)

    async def main() -> None:
        async with connected(url) as mq, mq.producer(group=topic) as producer:
            tx = await producer.transaction(topic, b"x")
            with Held(Transaction, name) as held:
                await held.cancel(getattr(tx, name)())
                held.release.set()
                await eventually_async(lambda: tx.state != shmq.UNKNOWN)
            assert tx.state == (shmq.COMMIT if name == "commit" else shmq.ROLLBACK)

    asyncio.run(main())


@both
def test_room_in_the_log_whose_reservation_is_cancelled_is_given_back(url: str, named: Named, behind: bool) -> None:
    topic = named(f"slot-{behind}")

    async def main() -> None:
        async with connected(url) as mq:
            await mq.send(topic, b"first")
            slot = mq.reserve(topic, 100)
            reserve, aborted = slot._reserve, threading.Event()
            holder = type("Holder", (), {"reserve": staticmethod(lambda: Aborting(reserve(), aborted))})
            with Held(holder, "reserve", behind=behind) as held:
                slot._reserve = lambda: holder.reserve()  # type: ignore[attr-defined]
                await held.cancel(slot.__aenter__())
                held.release.set()
                await eventually_async(aborted.is_set)
            async with mq.reserve(topic, 1) as later:
                later.view[:1] = b"x"
            assert [message.body for message in await mq.browse(topic)] == [b"first", b"x"]

    asyncio.run(main())


class Aborting:
    """A slot that notes when it is given back."""

    def __init__(self, slot: Any, aborted: threading.Event) -> None:
        self._slot, self._aborted = slot, aborted

    def abort(self) -> None:
        self._slot.abort()
        self._aborted.set()


CLOSED: dict[str, tuple[type, str]] = {
    "subscription": (Consumer, "close"),
    "simple": (Consumer, "close"),
    "pull": (PullConsumer, "close"),
}


@every_row("kind", CLOSED)
def test_closing_a_reader_is_carried_out_though_its_task_is_cancelled(url: str, named: Named, kind: str) -> None:
    topic = group = named(f"closing-{kind}")

    async def main() -> None:
        async with connected(url) as mq:
            await mq.send(topic, b"x")
            reader = await READERS[kind][1](mq, topic, group)
            with Held(*CLOSED[kind]) as held:
                await held.cancel(reader.close())
                held.release.set()
                await eventually_async(lambda: not sync_of(mq)._membership.consumers)
            await reader.close()

    asyncio.run(main())


@every_row("kind", ["subscription", "simple"])
@every_row("closes_again", [True, False])
def test_a_reader_that_is_just_being_closed_keeps_no_later_one_from_opening(
    url: str, named: Named, kind: str, closes_again: bool
) -> None:
    topic, group = named(f"orders-{kind}-{closes_again}"), named(f"billing-{kind}-{closes_again}")
    _, open_reader = READERS[kind]

    async def tried() -> None:
        async with connected(url) as mq:
            await mq.send(topic, b"x")
            reader = await open_reader(mq, topic, group)
            with Held(Consumer, "close") as held:
                await held.cancel(reader.close())
                asyncio.get_running_loop().call_later(0.05, held.release.set)
                if closes_again:
                    await reader.close()
                    assert all(each._closed for each in sync_of(mq)._membership.consumers)
                async with open_reader(mq, topic, group) as later:
                    assert await bodies(later) == [b"x"]

    asyncio.run(tried())


@every_row("kind", ["connection", "producer"])
def test_closing_a_connection_or_producer_is_carried_out_though_its_task_is_cancelled(url: str, kind: str) -> None:
    async def main() -> None:
        async with connected(url) as mq:
            closed: Any = mq if kind == "connection" else await mq.producer()
            with Held(Connection if kind == "connection" else Producer, "close") as held:
                await held.cancel(closed.close())
                held.release.set()
                await eventually_async(lambda: closed._made._closed)
            await closed.close()

    asyncio.run(main())


@every_row("door", ["start", "stop"])
def test_a_listener_that_is_stopped_while_it_joins_or_leaves_runs_again(url: str, named: Named, door: str) -> None:
    topic = group = named(f"listener-{door}")
    seen: list[bytes] = []

    async def main() -> None:
        async with connected(url) as mq:

            @mq.listener(topic, group=group)
            async def on_order(message: shmq.aio.Message) -> None:
                seen.append(message.body)

            await mq
            if door == "start":
                with Held(Connection, "_add_consumer", behind=True) as held:
                    running = asyncio.create_task(mq.run())
                    await eventually_async(held.entered.is_set)
                    running.cancel()
                    await asyncio.sleep(0)
                    held.release.set()
                    with pytest.raises(asyncio.CancelledError):
                        await running
            else:
                await mq.start()
                await eventually_async(lambda: mq._listeners._listeners[0]._receiving is not None)
                with Held(Consumer, "close") as held:
                    await held.cancel(mq.stop())
                    starting = asyncio.create_task(mq.start())
                    await asyncio.sleep(0)
                    held.release.set()
                    await starting
            assert door == "stop" or not sync_of(mq)._membership.consumers
            await mq.start()
            await mq.send(topic, b"x")
            await eventually_async(lambda: seen == [b"x"])

    asyncio.run(main())


@both
def test_a_poll_whose_thread_is_held_moves_no_position_when_it_is_cancelled(
    url: str, named: Named, behind: bool
) -> None:
    topic = named(f"poll-{behind}")

    async def main() -> None:
        async with connected(url) as mq:
            await mq.admin.create_topic(topic, queues=1)
            async with mq.pull_consumer(topic) as consumer:
                with Held(PullConsumer, "_poll_once", behind=behind) as held:
                    poll = held.cancel(consumer._wait(await consumer._open(), 10, 60.0))
                    await mq.send(topic, b"x")
                    await poll
                    held.release.set()
                    assert await consumer.positions() == {0: 0}
                    assert await bodies(consumer) == [b"x"]
                    assert await consumer.positions() == {0: 1}

    asyncio.run(main())
