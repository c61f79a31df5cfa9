"""Waits in C where threads are greenlets: cut into slices, with a turn for the others between two of them."""

from __future__ import annotations

import asyncio
import os
import select
import sys
import threading
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace

import pytest

import shmq
import shmq.aio
from shmq.testing import Broker
from shmq.waits import GREENLET_SLICE, check_patches, greenlet_library, is_ready, slice_seconds
from tests.tables.rows import every_row

ASKED = {"gevent": ("gevent.monkey", "is_module_patched"), "eventlet": ("eventlet.patcher", "is_monkey_patched")}


def pretend(
    patch: pytest.MonkeyPatch, library: str, *patched: str, sleep: Callable[[float], None] = time.sleep
) -> None:
    """Let a library say what it has replaced."""
    module, asked = ASKED[library]
    patch.setitem(sys.modules, library, SimpleNamespace(sleep=sleep))
    patch.setitem(sys.modules, module, SimpleNamespace(**{asked: lambda name: name in patched}))


@every_row("library", ASKED)
def test_who_replaced_the_threads_is_asked_by_both_names_of_them(library: str) -> None:
    with pytest.MonkeyPatch.context() as patch:
        for patched in ("thread", "threading"):
            pretend(patch, library, patched)
            assert greenlet_library() == library
            assert (slice_seconds(0.2), slice_seconds(0.001)) == (GREENLET_SLICE, 0.001)
        pretend(patch, library, "socket")
        assert greenlet_library() == "" and slice_seconds(0.2) == 0.2


@every_row(
    ("library", "patched", "module", "is_refused"),
    [
        ("gevent", (), "select", False),
        ("gevent", ("thread", "select", "queue"), "select", False),
        ("gevent", ("thread",), "select", True),
        ("gevent", ("select", "queue"), "select", True),
        ("gevent", ("thread", "select", "queue"), "queue", False),
        ("gevent", ("thread", "select"), "queue", True),
        ("gevent", ("select", "queue"), "queue", True),
        ("eventlet", ("thread", "select"), "select", False),
        ("eventlet", ("thread",), "select", True),
        ("eventlet", ("select",), "select", False),
        ("eventlet", ("thread",), "queue", False),
    ],
)
def test_what_waits_in_a_module_is_refused_where_only_that_or_only_threads_were_replaced(
    library: str, patched: tuple[str, ...], module: str, is_refused: bool
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        pretend(patch, library, *patched)
        if not is_refused:
            check_patches(module, "a test")
            return
        with pytest.raises(shmq.UsageError, match=f"{library} .* where a test would wait for ever") as caught:
            check_patches(module, "a test")
        assert "thread=False" in str(caught.value.hint)


@pytest.fixture(params=["poll", "select"])
def pipe(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[int, int]]:
    """Both ends of a pipe; without `select.poll` too, which eventlet takes away."""
    if request.param == "select":
        monkeypatch.delattr(select, "poll")
    ends = os.pipe()
    yield ends
    for end in ends:
        os.close(end)


def test_a_descriptor_is_ready_when_it_can_be_read_from_or_written_to(pipe: tuple[int, int]) -> None:
    reading, writing = pipe
    for seconds in (0.0, -1.0, 0.001):
        assert not is_ready(reading, seconds)
    assert is_ready(writing, None, writes=True) and is_ready(writing, 1e12, writes=True)
    os.write(writing, b"x")
    assert is_ready(reading, None) and is_ready(reading, 0.0)


def test_on_this_host_each_wait_for_a_message_gives_the_others_their_turn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    turns = threading.Event()

    def turn(_seconds: float) -> None:
        turns.set()

    pretend(monkeypatch, "gevent", "thread", "queue", "select", sleep=turn)
    with Broker() as broker, broker.connect() as mq:
        reader = mq.subscribe("orders", group="billing")
        assert reader.receive(1, 0.0) == []  # joins
        pulls = mq.pull_consumer("orders")
        pulls.poll()

        def iterate() -> None:
            other = mq.subscribe("payments", group="billing")
            stop = threading.Thread(target=lambda: (turns.wait(), other.stop()))
            stop.start()
            assert list(other) == []
            stop.join()
            other.close()

        def request() -> None:
            with pytest.raises(shmq.RequestTimeout):
                mq.request("questions", b"x", timeout=4 * GREENLET_SLICE)

        def listen() -> None:
            mq.listener("orders", group="listening", threads=2)(lambda message: None)
            mq.start()
            turns.wait()
            mq.stop()

        for wait in (
            lambda: reader.receive(1, 4 * GREENLET_SLICE),
            lambda: pulls.poll(1, 4 * GREENLET_SLICE),
            iterate,
            request,
            listen,
        ):
            turns.clear()
            wait()
            assert turns.is_set()


def test_a_second_event_loop_in_a_real_thread_is_refused_where_threads_are_greenlets(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with Broker(tcp=True) as broker:
        url = f"rocketmq://{broker.name_server}"

        async def scene() -> None:
            with shmq.connect(url):  # real threads
                pass
            pretend(monkeypatch, "gevent", "thread")
            for each in (url, broker.url):
                with pytest.raises(shmq.UsageError, match="left select as it is"):
                    shmq.connect(each)
            pretend(monkeypatch, "gevent")
            pretend(monkeypatch, "eventlet", "thread", "select")
            with pytest.raises(shmq.UsageError, match="eventlet has made greenlets") as caught:
                shmq.connect(url)
            assert "thread=False" in str(caught.value.hint)
            async with shmq.aio.connect(broker.url) as mq:
                assert (await mq.send("orders", b"x")).offset == 0
                reader = mq.subscribe("orders", group="billing")
                (message,) = await reader.receive(1, 60.0)
                assert message.body == b"x"
                assert await reader.receive(1, 4 * GREENLET_SLICE) == []
                await reader.close()

        asyncio.run(scene())
        with shmq.connect(url):  # no loop runs in this thread
            pass
