"""How long a send from an event loop may take, and which segments say that it is on disk."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest

import shmq.aio
from shmq.aio.sending import Sending
from shmq.client import refusals
from shmq.client.local_session import LocalSession
from shmq.testing import SharedBroker


class Segments:
    """Segments whose log ends somewhere and is on disk up to somewhere."""

    def __init__(self, log_end: int, safe_end: int) -> None:
        self.log_end, self.safe_end = log_end, safe_end
        self.waited: list[int] = []

    def wait_durable(self, position: int, timeout: float) -> None:
        self.waited.append(position)


@pytest.mark.parametrize("timeout", [3.0, None])
def test_the_time_of_a_send_runs_while_it_waits_for_a_thread(
    monkeypatch: pytest.MonkeyPatch, timeout: float | None
) -> None:
    now, given, all_wait = 1_000.0, list[float](), threading.Event()

    def send(topic: str, body: bytes, *, timeout: float = 3.0) -> None:
        nonlocal now
        assert all_wait.wait(60)
        given.append(timeout)
        now += timeout  # no leader takes it

    clock = SimpleNamespace(monotonic=lambda: now)
    monkeypatch.setattr(refusals, "time", clock)
    monkeypatch.setattr("shmq.aio.sending.time", clock, raising=False)
    link: Any = SimpleNamespace(_observer=None, is_remote=False, _session=None)
    sender: Any = SimpleNamespace(send=send)
    sending = Sending(sender, link, 3.0)

    async def main() -> None:
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(1))
        named = {} if timeout is None else {"timeout": timeout}
        tasks = [asyncio.create_task(sending.store("send", "orders", b"x", dict(named))) for _ in range(3)]
        await asyncio.sleep(0)
        all_wait.set()
        await asyncio.gather(*tasks)

    asyncio.run(main())
    assert given == [3.0, 0.0, 0.0]


def test_the_segments_that_took_a_message_say_that_it_is_on_disk() -> None:
    took, renewed = Segments(log_end=200, safe_end=100), Segments(log_end=900, safe_end=900)
    session: Any = LocalSession.__new__(LocalSession)
    session.wire = SimpleNamespace(store=took, wait_durable=True, says_on_disk=lambda topic: False)

    def send(topic: str, body: bytes) -> str:
        session.wire.store = renewed  # another thread's, after a switch
        return "receipt"

    producer = SimpleNamespace(send=send)
    session.sends = SimpleNamespace(is_here=True, core_producer=lambda *_, **__: producer)
    link: Any = SimpleNamespace(_observer=None, is_remote=False, _session=session)
    sender: Any = SimpleNamespace()
    sending = Sending(sender, link, 3.0)
    sending._known.add("orders")
    assert asyncio.run(sending.store("send", "orders", b"x", {})) == "receipt"
    assert (took.waited, renewed.waited) == ([200], [])


def test_a_topic_that_is_flushed_for_itself_takes_each_send(shmq_shared_broker: SharedBroker) -> None:
    topic = shmq_shared_broker.named("flushed")

    async def main() -> list[int]:
        async with shmq.aio.connect(shmq_shared_broker.url) as mq:
            await mq.admin.create_topic(topic, queues=1, flush="sync")
            return [(await mq.send(topic, b"x")).offset for _ in range(3)]

    assert asyncio.run(main()) == [0, 1, 2]
