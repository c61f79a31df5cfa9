"""What a listener, replier or checker raises: a failure of its message, or the end of the program; never a silent end.

A failure at the message's last attempt is a dead letter, so that it was given back and counted shows without a wait.
"""

import asyncio
import concurrent.futures
import logging
from collections.abc import Callable
from typing import Any, TypeVar

import pytest

import shmq
import shmq.aio
from shmq.compat import rocketmq
from tests.conformance.conftest import Named
from tests.deadline import eventually_async
from tests.tables.rows import every_row

Eventually = Callable[..., Any]
FunctionT = TypeVar("FunctionT", bound=Callable[..., Any])


class Unheard(BaseException):
    """One that no library knows."""


FAILURES: dict[bytes, BaseException] = {
    b"cancelled": asyncio.CancelledError(),
    b"cancelled future": concurrent.futures.CancelledError(),
    b"timeout": TimeoutError(),
    b"generator": GeneratorExit(),
    b"group": BaseExceptionGroup("several", [asyncio.CancelledError(), ValueError()]),
    b"unheard": Unheard(),
}
ENDS = (SystemExit(3), KeyboardInterrupt())
FORMS: dict[str, dict[str, Any]] = {
    "one thread": {},
    "threads": {"threads": 2},
    "ordered": {"ordered": True},
    "ordered threads": {"ordered": True, "threads": 2},
    "replier": {},
}


def decorator(mq: Any, form: str, topic: str, group: str, **more: Any) -> Callable[[FunctionT], FunctionT]:
    decorate: Callable[[FunctionT], FunctionT]
    decorate = (mq.replier if form == "replier" else mq.listener)(topic, group=group, **FORMS[form], **more)
    return decorate


@every_row("form", FORMS)
def test_what_a_listener_raises_fails_its_message_alone(
    connect: Callable[..., shmq.Connection],
    named: Named,
    eventually: Eventually,
    caplog: pytest.LogCaptureFixture,
    form: str,
) -> None:
    topic = group = named(form.replace(" ", "-"))
    seen: list[bytes] = []
    caplog.clear()
    with connect() as mq:

        @decorator(mq, form, topic, group, attempts_max=1)
        def on_order(message: shmq.Message) -> None:
            if message.body in FAILURES:
                raise FAILURES[message.body]
            seen.append(message.body)

        mq.admin.create_topic(topic, queues=1)
        for body in (*FAILURES, b"fine"):
            mq.send(topic, body)
        mq.start()
        eventually(lambda: seen == [b"fine"], lambda: f"{form}: {seen}")
        dead = eventually(lambda: len(letters := mq.admin.dlq(group)) == len(FAILURES) and letters)
        assert {letter.body for letter in dead} == set(FAILURES)
        logged = [record.exc_info[1] for record in caplog.records if record.exc_info]
        assert sorted(map(repr, logged)) == sorted(map(repr, FAILURES.values()))


@every_row("form", FORMS)
def test_what_a_coroutine_listener_raises_fails_its_message_alone(url: str, named: Named, form: str) -> None:
    topic = group = named(f"aio-{form.replace(' ', '-')}")
    more = {b"its own task": None, b"what it waits for": None}
    seen: list[bytes] = []

    async def main() -> None:
        async with shmq.aio.connect(url, timeout=10.0) as mq:

            @decorator(mq, form, topic, group, attempts_max=1)
            async def on_order(message: shmq.aio.Message) -> None:
                task = asyncio.current_task()
                assert task is not None
                if message.body == b"its own task":
                    task.cancel()
                    await asyncio.sleep(0)
                if message.body == b"what it waits for":
                    waited = asyncio.get_running_loop().create_future()
                    waited.cancel()
                    await waited
                if message.body in FAILURES:
                    raise FAILURES[message.body]
                seen.append(message.body)

            await mq.admin.create_topic(topic, queues=1)
            for body in (*FAILURES, *more, b"fine"):
                await mq.send(topic, body)
            running = asyncio.create_task(mq.run())
            await eventually_async(lambda: seen == [b"fine"], lambda: f"{form}: {seen} {running}")
            dead: set[bytes] = set()
            while len(dead) < len(FAILURES) + len(more):
                dead = {letter.body for letter in await mq.admin.dlq(group)}
            assert dead == {*FAILURES, *more}
            assert not running.done()
            running.cancel()
            with pytest.raises(asyncio.CancelledError):
                await running

    asyncio.run(main())


@every_row("form", FORMS)
def test_what_ends_a_program_ends_run_and_gives_the_message_back(
    connect: Callable[..., shmq.Connection], named: Named, form: str
) -> None:
    for end in ENDS:
        topic = group = named(f"{type(end).__name__}-{form.replace(' ', '-')}")
        with connect() as mq:

            @decorator(mq, form, topic, group)
            def on_order(message: shmq.Message, end: BaseException = end) -> None:
                raise end

            mq.send(topic, b"x")
            if isinstance(end, SystemExit):
                with pytest.raises(SystemExit) as caught:
                    mq.run()
                assert caught.value.code == 3
            else:
                mq.run()
            with mq.subscribe(topic, group=group) as subscription:
                assert [message.body for message in subscription.receive(wait=60)] == [b"x"]


@every_row("form", FORMS)
def test_what_ends_a_program_leaves_the_event_loop_and_gives_the_message_back(
    url: str, connect: Callable[..., shmq.Connection], named: Named, form: str
) -> None:
    for end in ENDS:
        topic = group = named(f"aio-{type(end).__name__}-{form.replace(' ', '-')}")

        async def main(topic: str = topic, group: str = group, end: BaseException = end) -> None:
            async with shmq.aio.connect(url, timeout=10.0) as mq:

                @decorator(mq, form, topic, group)
                async def on_order(message: shmq.aio.Message) -> None:
                    raise end

                await mq.send(topic, b"x")
                await mq.run()

        with pytest.raises(type(end)):
            asyncio.run(main())
        with connect() as mq, mq.subscribe(topic, group=group) as subscription:
            assert [message.body for message in subscription.receive(wait=60)] == [b"x"]


@every_row("form", FORMS)
def test_a_listener_that_ends_in_the_background_says_so_and_leaves_its_group(
    connect: Callable[..., shmq.Connection],
    named: Named,
    eventually: Eventually,
    caplog: pytest.LogCaptureFixture,
    form: str,
) -> None:
    topic = group = named(f"background-{form.replace(' ', '-')}")
    caplog.clear()
    with connect() as mq, connect() as other:

        @decorator(mq, form, topic, group)
        def on_order(message: shmq.Message) -> None:
            raise SystemExit(3)

        mq.send(topic, b"x")
        mq.start()
        eventually(lambda: any("has ended" in record.message for record in caplog.records))
        with other.subscribe(topic, group=group) as subscription:
            assert [message.body for message in eventually(lambda: subscription.receive(wait=1))] == [b"x"]


def test_a_coroutine_listener_that_ends_in_the_background_says_so_and_leaves_its_group(
    url: str, connect: Callable[..., shmq.Connection], named: Named, caplog: pytest.LogCaptureFixture
) -> None:
    topic = group = named("aio-background")

    async def main() -> None:
        async with shmq.aio.connect(url, timeout=10.0) as mq:

            @mq.listener(topic, group=group)
            async def on_order(message: shmq.aio.Message) -> None:
                """Is called for the one that the wait brings."""

            await mq.start()
            (listener,) = mq._listeners._listeners
            await eventually_async(lambda: listener._receiving is not None)
            assert listener._receiving is not None
            listener._receiving.consumer._poll_once = _broken  # type: ignore[method-assign,assignment]
            await mq.send(topic, b"brought")
            await eventually_async(lambda: any("has ended" in record.message for record in caplog.records))
            await mq.send(topic, b"x")
            async with (
                shmq.aio.connect(url, timeout=10.0) as other,
                other.subscribe(topic, group=group) as subscription,
            ):
                found: list[bytes] = []
                while b"x" not in found:
                    found += [message.body for message in await subscription.receive(wait=60)]
                # The wait may end before it brings one; two of two queues come in any order.
                assert sorted(found) in ([b"x"], [b"brought", b"x"])

    asyncio.run(main())


def _broken(*_: Any) -> Any:
    raise ZeroDivisionError


@pytest.mark.parametrize("cancelled", ["run", "all"])
def test_a_call_that_is_cancelled_with_its_listener_is_given_back_and_no_failure(
    url: str,
    connect: Callable[..., shmq.Connection],
    named: Named,
    caplog: pytest.LogCaptureFixture,
    cancelled: str,
) -> None:
    topic = group = named(f"cancelled-{cancelled}")
    caplog.set_level(logging.ERROR)
    ended: list[BaseException] = []

    async def main() -> None:
        async with shmq.aio.connect(url, timeout=10.0) as mq:
            entered = asyncio.Event()

            @mq.listener(topic, group=group)
            async def on_order(message: shmq.aio.Message) -> None:
                entered.set()
                try:
                    await asyncio.Event().wait()
                except asyncio.CancelledError as error:
                    ended.append(error)
                    raise

            await mq.send(topic, b"x")
            running = asyncio.create_task(mq.run(timeout=0.0))
            await entered.wait()
            for task in asyncio.all_tasks() if cancelled == "all" else [running]:
                if task is not asyncio.current_task():
                    task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await running
            await eventually_async(lambda: ended)

    asyncio.run(main())
    assert not caplog.records
    with connect() as mq, mq.subscribe(topic, group=group) as subscription:
        assert [message.body for message in subscription.receive(wait=60)] == [b"x"]


def test_what_a_callback_of_the_old_client_raises_ends_no_broadcast(
    url: str, mq: shmq.Connection, topic: str, eventually: Eventually
) -> None:
    seen: list[bytes] = []

    def callback(message: rocketmq.RecvMessage) -> None:
        seen.append(message.body)
        if message.body in FAILURES:
            raise FAILURES[message.body]

    consumer = rocketmq.PushConsumer(topic)
    consumer.set_namesrv_addr(url.removeprefix("rocketmq://"))
    consumer.set_message_model(rocketmq.MessageModel.BROADCASTING)
    consumer.subscribe(topic, callback)
    consumer.start()
    try:
        # It reads from the end of its queues on, once it has them.
        eventually(lambda: seen or not mq.send(topic, b"probe", queue_id=0))
        for body in (*FAILURES, b"fine"):
            mq.send(topic, body, queue_id=0)
        eventually(lambda: b"fine" in seen, lambda: f"{seen}")
        assert [body for body in seen if body != b"probe"] == [*FAILURES, b"fine"]
    finally:
        consumer.shutdown()
