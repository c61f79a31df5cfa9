"""A function that does not run when it is called is refused, and what is returned without having run is a failure."""

from __future__ import annotations

import functools
import gc
import warnings
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

import shmq
from shmq import aio
from shmq.compat import rocketmq
from shmq.errors import UsageError
from shmq.functions import check_coroutine_function, check_function, check_runnable, finished
from shmq.testing import Broker, SharedBroker

Eventually = Callable[..., Any]


async def coroutine(message: Any) -> None:
    """Never run by a synchronous connection."""


def generator(message: Any) -> Iterator[None]:
    yield


async def async_generator(message: Any) -> AsyncIterator[None]:
    yield


def plain(message: Any) -> None:
    """Runs when it is called."""


class Called:
    def __call__(self, message: Any) -> None:
        """Runs when it is called."""


class AsyncCalled:
    async def __call__(self, message: Any) -> None:
        """Never run by a synchronous connection."""

    async def method(self, message: Any) -> None:
        """Never run by a synchronous connection."""


NEVER_RUN = [
    coroutine,
    generator,
    async_generator,
    functools.partial(coroutine),
    functools.partial(generator),
    AsyncCalled(),
    AsyncCalled().method,
]


@pytest.fixture
def mq(shmq_shared_broker: SharedBroker) -> Iterator[shmq.Connection]:
    with shmq_shared_broker.connect() as connection:
        yield connection


@pytest.mark.parametrize("function", NEVER_RUN)
def test_a_synchronous_connection_takes_no_function_that_would_not_run(
    mq: shmq.Connection, function: Any, shmq_shared_broker: SharedBroker
) -> None:
    topic, group = shmq_shared_broker.named("orders"), shmq_shared_broker.named("billing")
    for decorate in (
        mq.listener(topic, group=group),
        mq.listener(topic, group=group, ordered=True, threads=4),
        mq.replier(topic, group=group),
        mq.transaction_checker(group),
        mq.topic(topic, dict).listener(group=group),
    ):
        with pytest.raises(UsageError) as caught:
            decorate(function)
        assert "shmq.aio" in str(caught.value.hint) or "yield" in str(caught.value.hint)
    with pytest.raises(UsageError, match="no listener"):
        mq.start()  # nothing was registered
    with pytest.raises(UsageError):
        rocketmq.PushConsumer(group).subscribe(topic, function)
    with pytest.raises(UsageError):
        rocketmq.TransactionMQProducer(group, function)


def test_an_asyncio_connection_takes_coroutine_functions_and_no_generators() -> None:
    connection = aio.connect("shmq:///nowhere")
    for function in (plain, generator, async_generator, Called()):
        for decorate in (connection.listener("orders", group="g"), connection.replier("orders", group="g")):
            with pytest.raises(UsageError):
                decorate(function)
    for function in (generator, async_generator):
        with pytest.raises(UsageError, match="yield"):
            connection.transaction_checker("g")(function)
    connection.transaction_checker("g")(plain)
    connection.transaction_checker("h")(coroutine)


def test_what_runs_is_taken() -> None:
    for function in (plain, Called(), functools.partial(plain), print, lambda message: None):
        check_function(function)
        check_runnable(function)
    check_coroutine_function(coroutine)
    for outcome in (None, 0, b"x", shmq.Action.RECONSUME_LATER, [1]):
        assert finished(outcome) is outcome


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker() as broker:
        yield broker


@pytest.mark.parametrize(
    ("made_by", "threads", "ordered"),
    [(coroutine, 1, False), (generator, 4, False), (async_generator, 4, True), (coroutine, 1, True)],
)
def test_a_message_whose_listener_returned_something_unfinished_comes_again(
    broker: Broker, eventually: Eventually, made_by: Callable[[Any], Any], threads: int, ordered: bool
) -> None:
    topic = f"{made_by.__name__}-{threads}-{ordered}"
    attempts: list[int] = []
    with broker.connect() as mq, warnings.catch_warnings():
        warnings.simplefilter("error")

        @mq.listener(topic, group=topic, threads=threads, ordered=ordered)
        def on_order(message: shmq.Message) -> Any:
            attempts.append(message.attempt)
            return made_by(message) if message.attempt == 1 else None

        mq.send(topic, b"1")
        mq.start()
        eventually(lambda: attempts == [1])
        eventually(lambda: broker.advance(5) or attempts == [1, 2], lambda: f"{attempts}")
        eventually(lambda: mq.admin.groups[topic].lag.total == 0)
        gc.collect()


def test_a_reply_that_is_not_finished_is_none(broker: Broker, eventually: Eventually) -> None:
    with broker.connect() as mq:
        attempts: list[int] = []

        @mq.replier("questions", group="repliers")
        def answer(message: shmq.Message) -> Any:
            attempts.append(message.attempt)
            return coroutine(message) if message.attempt == 1 else b"yes"

        mq.start()
        with ThreadPoolExecutor(1) as threads:
            # A question that is over when it comes again is not asked: the clock moves fast.
            threads.submit(mq.request, "questions", b"?", timeout=86_400)
            try:
                eventually(lambda: broker.advance(5) or len(attempts) > 1)
            finally:
                mq.close()
        assert attempts[:2] == [1, 2]


def test_what_was_not_run_is_closed() -> None:
    for made in (coroutine(None), generator(None), async_generator(None)):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            with pytest.raises(UsageError, match="never runs"):
                finished(made)
            del made
            gc.collect()
