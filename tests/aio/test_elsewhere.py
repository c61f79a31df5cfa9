"""The event loop goes on while what a task has asked for waits for a broker, be that the leader on another host."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest

import shmq
import shmq.aio
from shmq.aio.message import Message
from shmq.client.consumers.listener import PushConsumer
from shmq.client.leader import Leader
from shmq.client.redelivery.redelivery import Redelivery
from shmq.errors import BrokerNotRunning
from shmq.shm.core import READ_ONLY_FOLLOWER
from shmq.testing import SharedBroker

PATIENCE_SECONDS = 5.0  # of a broker whose answer another task of the loop brings


class Silent:
    """A broker that answers once another task of the loop has had its turn."""

    def __init__(self) -> None:
        self.has_gone_on = threading.Event()
        self.asked = self.answered = 0

    def __call__(self, *_: object, **__: object) -> None:
        self.asked += 1
        assert self.has_gone_on.wait(PATIENCE_SECONDS), "the loop stands"
        self.answered += 1

    async def during(self, call: Callable[[], Any]) -> Any:
        """Return what a call returns, while another task goes on."""
        task = asyncio.create_task(call())
        await asyncio.sleep(0)  # the call asks
        self.has_gone_on.set()
        return await task


@pytest.mark.parametrize("name", ["nack", "extend"])
def test_the_loop_goes_on_while_a_message_is_given_back_or_kept_hidden(name: str) -> None:
    silent = Silent()
    sync: Any = SimpleNamespace(nack=silent, extend=silent)
    asyncio.run(silent.during(lambda: getattr(Message(sync), name)(3.0)))
    assert silent.asked == 1


def test_the_loop_goes_on_while_a_block_that_fails_gives_its_message_back() -> None:
    silent = Silent()
    sync: Any = SimpleNamespace(__enter__=lambda: None, __exit__=silent)

    async def block() -> None:
        async with Message(sync):
            raise ValueError

    with pytest.raises(ValueError):
        asyncio.run(silent.during(block))
    assert silent.answered == 1


def test_a_block_that_ends_well_acknowledges_its_message_without_a_thread() -> None:
    threads: list[int] = []
    sync: Any = SimpleNamespace(__enter__=lambda: None, __exit__=lambda *_: threads.append(threading.get_ident()))

    async def main() -> None:
        async with Message(sync):
            pass

    asyncio.run(main())
    assert threads == [threading.get_ident()]


def test_a_message_is_given_back_though_its_task_is_cancelled() -> None:
    silent = Silent()
    sync: Any = SimpleNamespace(nack=silent)

    async def main() -> None:
        loop, threads = asyncio.get_running_loop(), ThreadPoolExecutor(1)
        loop.set_default_executor(threads)
        busy = threads.submit(silent.has_gone_on.wait, PATIENCE_SECONDS)  # a call that has begun cannot be cancelled
        task = asyncio.create_task(Message(sync).nack())
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        silent.has_gone_on.set()
        assert busy.result(PATIENCE_SECONDS)

    asyncio.run(main())
    assert silent.answered == 1


def test_the_loop_goes_on_while_a_message_is_rejected(shmq_shared_broker: SharedBroker) -> None:
    silent, topic = Silent(), shmq_shared_broker.named("orders")

    async def main() -> None:
        async with shmq.aio.connect(shmq_shared_broker.url) as mq:
            await mq.send(topic, b"x")
            async with mq.subscribe(topic, group=shmq_shared_broker.named("billing")) as subscription:
                (message,) = await subscription.receive(wait=60)
                assert subscription._made is not None
                subscription._made._hider = SimpleNamespace(dead_letter=silent)  # type: ignore[assignment]
                await silent.during(lambda: subscription.reject(message, "enough"))

    asyncio.run(main())
    assert silent.asked == 1


@pytest.mark.parametrize("outcome", [shmq.Action.RECONSUME_LATER, shmq.Retry(after=5)])
def test_the_loop_goes_on_while_a_listener_gives_a_message_back(
    shmq_shared_broker: SharedBroker, monkeypatch: pytest.MonkeyPatch, outcome: Any
) -> None:
    silent, topic = Silent(), shmq_shared_broker.named("orders")
    monkeypatch.setattr(Redelivery, "nack", silent)

    async def main() -> None:
        async with shmq.aio.connect(shmq_shared_broker.url) as mq:

            @mq.listener(topic, group=shmq_shared_broker.named("billing"))
            async def handle(message: Message) -> Any:
                asyncio.get_running_loop().call_soon(silent.has_gone_on.set)
                if isinstance(outcome, BaseException):
                    raise outcome
                return outcome

            await mq.start()
            await mq.send(topic, b"x")
            async with asyncio.timeout(60):
                while not silent.asked:
                    await asyncio.sleep(0)
            await mq.stop()

    asyncio.run(main())
    assert silent.answered == 1


def test_the_loop_goes_on_while_a_listener_that_is_cancelled_gives_its_message_back(
    shmq_shared_broker: SharedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    silent, topic = Silent(), shmq_shared_broker.named("orders")
    monkeypatch.setattr(Redelivery, "nack", silent)

    async def main() -> None:
        started = asyncio.Event()
        async with shmq.aio.connect(shmq_shared_broker.url) as mq:

            @mq.listener(topic, group=shmq_shared_broker.named("billing"))
            async def handle(message: Message) -> None:
                started.set()
                try:
                    await asyncio.Event().wait()
                finally:
                    asyncio.get_running_loop().call_soon(silent.has_gone_on.set)

            await mq.start()
            await mq.send(topic, b"x")
            await asyncio.wait_for(started.wait(), 60)
            await mq.stop(0.0)

    asyncio.run(main())
    assert silent.answered == 1


@pytest.mark.parametrize("is_failed", [False, True])
def test_a_listener_leaves_its_group_when_what_it_gives_back_is_given_back(
    shmq_shared_broker: SharedBroker, monkeypatch: pytest.MonkeyPatch, is_failed: bool
) -> None:
    """Else the broker gets the copy that is sent back, and close() lets the message itself come again, too."""
    topic, events, goes_on = shmq_shared_broker.named("orders"), list[str](), threading.Event()
    close = PushConsumer.close

    def nack(*_: object) -> bool:
        events.append("asked")
        assert goes_on.wait(PATIENCE_SECONDS)
        events.append("given back")
        return True

    def closing(consumer: PushConsumer) -> None:
        events.append("left")
        goes_on.set()
        close(consumer)

    async def turn() -> None:
        for _ in range(1_000):  # in which a listener that does not wait leaves
            await asyncio.sleep(0)
        goes_on.set()

    monkeypatch.setattr(Redelivery, "nack", nack)
    monkeypatch.setattr(PushConsumer, "close", closing)

    async def main() -> None:
        started = asyncio.Event()
        async with shmq.aio.connect(shmq_shared_broker.url) as mq:

            @mq.listener(topic, group=shmq_shared_broker.named("billing"))
            async def handle(message: Message) -> None:
                started.set()
                if is_failed:
                    raise ValueError
                await asyncio.Event().wait()

            await mq.start()
            await mq.send(topic, b"x")
            await asyncio.wait_for(started.wait(), 60)
            while is_failed and not events:
                await asyncio.sleep(0)
            await asyncio.gather(mq.stop(0.0), turn())

    asyncio.run(main())
    assert events == ["asked", "given back", "left"]


class Replies:
    """The requests of a session with a leader: all are answered at once."""

    def begin(self, topic: str, body: bytes, timeout: float, **arguments: Any) -> Any:
        from concurrent.futures import Future

        reply: Future[Any] = Future()
        reply.set_result(SimpleNamespace(body=b"pong"))
        return reply

    def request(self, topic: str, body: bytes, timeout: float, **arguments: Any) -> Any:
        return self.begin(topic, body, timeout).result()


@pytest.fixture
def segments() -> Any:
    return SimpleNamespace(standing=READ_ONLY_FOLLOWER, leader="h:1")


def asking(url: str, segments: Any, opening: Callable[[str], Any], silent: Silent) -> bytes:
    """Return the answer to a request of a host that follows, whose topic is known."""
    leader = Leader(lambda: segments, broker="b", cluster="c", client_id="i", timeout=60.0)
    leader._open = opening  # type: ignore[method-assign]

    async def main() -> bytes:
        async with shmq.aio.connect(url) as mq:
            session: Any = (await mq._open())._live()
            own, session.leader, session._requests = (session.leader, session._requests), leader, Replies()
            mq._asked.add("orders")
            try:
                reply = await silent.during(lambda: mq.request("orders", b"ping", timeout=60))
            finally:
                session.leader, session._requests = own
            return bytes(reply.body)

    return asyncio.run(main())


def test_the_loop_goes_on_while_a_request_waits_for_the_leader(shmq_shared_broker: SharedBroker, segments: Any) -> None:
    silent = Silent()

    def opening(address: str) -> Any:
        silent()
        return SimpleNamespace(requests=Replies(), close=lambda: None)

    assert asking(shmq_shared_broker.url, segments, opening, silent) == b"pong"


def test_a_request_whose_leader_is_gone_waits_for_the_next_one(shmq_shared_broker: SharedBroker, segments: Any) -> None:
    def opening(address: str) -> Any:
        segments.standing, segments.leader = 0, ""  # this host leads from now on
        raise BrokerNotRunning("nothing listens there")

    assert asking(shmq_shared_broker.url, segments, opening, Silent()) == b"pong"
