"""The asyncio twin: the same names, one await for each operation, the same outcomes."""

import asyncio
import contextlib
import gc
import inspect
import logging
import threading
from collections.abc import Callable, Coroutine
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

import shmq
import shmq.aio
from shmq.aio.sending import Sending
from shmq.client import options
from shmq.protocol.codes import Request
from shmq.shm.core import doubted
from shmq.testing import Broker, SharedBroker
from tests.deadline import attempts, eventually_async
from tests.tables.rows import every_row

TWINS = ["Connection", "Producer", "Subscription", "SimpleConsumer", "PullConsumer", "Topic", "Message", "Slot"]
TWINS += ["Admin", "Group", "DeadLetter", "Transaction"]


class Order(msgspec.Struct):
    id: str
    quantity: int


def names_of(kind: type) -> set[str]:
    return {name for name in dir(kind) if not name.startswith("_")}


def run(main: Coroutine[Any, Any, Any]) -> None:
    """Run a test's coroutine, and fail instead of hanging."""

    async def bounded() -> None:
        await asyncio.wait_for(main, 60)

    asyncio.run(bounded())


@every_row("name", TWINS)
def test_twins_have_the_same_names(name: str) -> None:
    sync, twin = getattr(shmq, name), getattr(shmq.aio, name)
    # What an object is given in __init__ is not in dir() of its class.
    given = {"topic", "group", "invisible", "name", "type", "codec", "place", "client_id", "message"}
    # Figures are properties in shared memory; where they have to be asked for, the twin has a coroutine for each.
    fetched = {name for name in names_of(twin) if name.startswith("fetch_")}
    assert {name.removeprefix("fetch_") for name in fetched} <= names_of(sync)
    assert names_of(sync) - given == names_of(twin) - given - fetched


@every_row("name", TWINS)
def test_twins_take_the_same_arguments(name: str) -> None:
    sync, twin = getattr(shmq, name), getattr(shmq.aio, name)
    for method in sorted(names_of(sync) & names_of(twin)):
        ours, theirs = getattr(sync, method), getattr(twin, method)
        if not inspect.isfunction(ours) or not inspect.isfunction(theirs):
            continue
        hot = any(
            parameter.kind is parameter.VAR_KEYWORD for parameter in inspect.signature(theirs).parameters.values()
        )
        if not hot:
            assert list(inspect.signature(ours).parameters) == list(inspect.signature(theirs).parameters), method


@every_row("name", ["subscribe", "simple_consumer", "pull_consumer", "producer", "listener", "replier"])
def test_a_twin_checks_and_shows_the_parameters_of_the_sync_method(name: str) -> None:
    sync, twin = inspect.signature(getattr(shmq.Connection, name)), getattr(shmq.aio.Connection, name)
    assert inspect.signature(twin).parameters == sync.parameters
    given = {"group": "billing"} if name == "producer" else {"topic": "orders", "group": "billing"}
    with pytest.raises(TypeError, match="nonsense"):
        twin(shmq.aio.connect("shmq://absent"), **given, nonsense=1)


def test_hello(shmq_shared_broker: SharedBroker) -> None:
    topic, group = shmq_shared_broker.named("orders"), shmq_shared_broker.named("billing")

    async def main() -> None:
        async with shmq.aio.connect(shmq_shared_broker.url) as mq:
            receipt = await mq.send(topic, b"42 apples", tag="fruit", key="o-42")
            async with asyncio.timeout(20), mq.subscribe(topic, group=group) as subscription:
                async for message in subscription:
                    assert (message.body, message.tag, message.key) == (b"42 apples", "fruit", "o-42")
                    assert message.offset == receipt.offset
                    await message.ack()
                    assert message.settled
                    break
            assert mq.admin.groups[group].lag.total == 0

    run(main())


def test_objects_open_with_await_and_on_first_use_too(shmq_shared_broker: SharedBroker) -> None:
    topic = shmq_shared_broker.named("orders")

    async def main() -> None:
        mq = await shmq.aio.connect(shmq_shared_broker.url)
        producer = mq.producer()
        await producer.send(topic, b"x")
        consumer = mq.pull_consumer(topic)
        assert [message.body for message in await consumer.poll(wait=60)] == [b"x"]
        await consumer.close()
        await mq.close()
        await mq.close()
        with pytest.raises(shmq.UsageError):
            await mq.send(topic, b"x")

    run(main())


def test_without_a_broker_the_error_is_the_same(tmp_path: Any) -> None:
    async def main() -> None:
        with pytest.raises(shmq.BrokerNotRunning):
            async with shmq.aio.connect(f"shmq://{tmp_path}/absent", timeout=0.2):
                pass

    run(main())


def test_every_way_to_send(shmq_shared_broker: SharedBroker) -> None:
    topic = shmq_shared_broker.named("orders")

    async def main() -> None:
        async with shmq.aio.connect(shmq_shared_broker.url) as mq, mq.producer(timeout=2.0) as producer:
            for sender in (mq, producer):
                for _ in range(2):  # first through a thread, then on the loop
                    assert (await sender.send(topic, b"a", queue_id=0)).queue_id == 0
                    await sender.send_oneway(topic, b"b", queue_id=0)
                    assert len(await sender.send_batch(topic, [b"c", b"d"], queue_id=0)) == 2
                async with sender.reserve(topic, 10, queue_id=0) as slot:
                    slot.view[:1] = b"e"
                    slot.size = 1
                    slot.properties["k"] = "v"
                assert slot.receipt is not None
            assert (await producer.send_nowait(topic, b"f", queue_id=0)).queue_id == 0
            async with mq.pull_consumer(topic) as consumer:
                bodies = b"".join(message.body for message in await consumer.poll(100, wait=60))
            assert bodies == b"abcdabcde" * 2 + b"f"

    run(main())


def test_a_send_that_cannot_go_at_once_goes_through_a_thread(shmq_shared_broker: SharedBroker) -> None:
    topic = shmq_shared_broker.named("orders")

    async def main() -> None:
        async with shmq.aio.connect(shmq_shared_broker.url) as mq:
            await mq.send(topic, b"known", queue_id=0)
            assert mq._sending is not None
            original, calls = mq._sending._sender, []

            class Counting:
                def send(self, *args: Any, **kwargs: Any) -> Any:
                    calls.append(threading.current_thread())
                    return original.send(*args, **kwargs)

            mq._sending._sender = Counting()  # type: ignore[assignment]
            await mq.send(topic, b"at once", queue_id=0)
            assert calls == []
            with original.reserve(topic, 10, queue_id=0) as slot:  # the log cannot grow behind it before it is given up
                await mq.send(topic, b"waited", queue_id=0)
                slot.size = 0
            assert calls and calls != [threading.current_thread()]
            async with mq.pull_consumer(topic) as consumer:
                bodies = [message.body for message in await consumer.poll(10, wait=60)]
            assert bodies == [b"known", b"at once", b"waited", b""]

    run(main())


def test_a_new_generation_of_segments_is_sent_to_at_once(shmq_shared_broker: SharedBroker) -> None:
    topic = shmq_shared_broker.named("orders")

    async def main() -> None:
        async with shmq.aio.connect(shmq_shared_broker.url) as mq:
            for _ in range(2):  # first through a thread, then on the loop
                await mq.send(topic, b"before")
            assert mq._sending is not None
            former = mq._sending._fast_for(topic)
            wire = mq._sending._link._local().wire
            before, wire.store = wire.store, wire._map()[0]  # as after a reconnection
            before.close()
            await mq.send(topic, b"after")
            assert mq._sending._fast_for(topic) is not former

    run(main())


class Fenced:
    """The try on the loop, at a log that is fenced: before the append, or between the append and the receipt."""

    def __init__(self, *, is_stored: bool) -> None:
        self.error: shmq.ShmqError = doubted("it is stored here") if is_stored else shmq.NotMaster("it leads no more")

    def send(self, topic: str, body: bytes, **arguments: Any) -> None:
        raise self.error


@every_row("is_stored", [False, True])
def test_what_the_try_on_the_loop_may_have_stored_is_not_sent_again(is_stored: bool) -> None:
    sent: list[bytes] = []
    sender: Any = SimpleNamespace(send=lambda topic, body, **arguments: sent.append(body))
    sending = Sending(sender, SimpleNamespace(_observer=None, is_remote=False), 1.0)  # type: ignore[arg-type]
    sending._fast_for = lambda topic: Fenced(is_stored=is_stored)  # type: ignore[assignment,method-assign,return-value]

    async def main() -> None:
        with pytest.raises(shmq.NotMaster) if is_stored else contextlib.nullcontext() as caught:
            await sending.store("send", "orders", b"x", {})
        assert sent == ([] if is_stored else [b"x"])
        assert caught is None or caught.value.maybe_stored

    run(main())


def test_an_iterator_is_sent_whole_at_the_first_try_and_at_the_second(shmq_shared_broker: SharedBroker) -> None:
    topic = shmq_shared_broker.named("iterators")

    async def main() -> None:
        async with shmq.aio.connect(shmq_shared_broker.url) as mq:
            await mq.admin.create_topic(topic, queues=1)
            for _ in range(2):
                await mq.send_batch(topic, iter([b"a", b"b"]), keys=iter(["k", "l"]))
            async with mq.reserve(topic, 4) as slot:  # keeps the log from other senders
                sending = asyncio.create_task(mq.send(topic, b"x", keys=iter(["k", "l"])))
                await asyncio.sleep(0)
                slot.view[:] = b"slot"
            await sending
            found = {bytes(each.body): each.keys for each in await mq.browse(topic)}
        assert found == {b"a": ["k"], b"b": ["l"], b"slot": [], b"x": ["k", "l"]}

    run(main())


def test_synchronous_flush_is_awaited(shmq_broker_factory: Callable[..., Broker]) -> None:
    broker = shmq_broker_factory(flush="sync")

    async def main() -> None:
        async with shmq.aio.connect(broker.url) as mq:
            for _ in range(3):
                receipt = await mq.send("orders", b"x")
                assert mq._made is not None
                assert mq._made._live().wire.store.durable_end > receipt.log_position

    run(main())


def test_errors_are_the_same(shmq_shared_broker: SharedBroker) -> None:
    topic = shmq_shared_broker.named("orders")

    async def main() -> None:
        async with shmq.aio.connect(shmq_shared_broker.url) as mq:
            await mq.send(topic, b"x")
            with pytest.raises(TypeError, match="encode"):
                await mq.send(topic, "text")
            with pytest.raises(shmq.MessageTooLarge):
                await mq.send(topic, b"x" * ((4 << 20) + 1))
            with pytest.raises(shmq.UsageError):
                mq.producer().send_nowait(topic, b"x")
            with pytest.raises(shmq.UsageError):
                await mq.subscribe(topic)

    run(main())


def test_a_waiting_iteration_does_not_hold_up_the_loop(shmq_shared_broker: SharedBroker) -> None:
    topic, group = shmq_shared_broker.named("orders"), shmq_shared_broker.named("billing")

    async def main() -> None:
        async with shmq.aio.connect(shmq_shared_broker.url) as mq, mq.subscribe(topic, group=group) as subscription:
            got: list[bytes] = []

            async def consume() -> None:
                async for message in subscription:
                    got.append(message.body)
                    await message.ack()

            task = asyncio.create_task(consume())
            await asyncio.sleep(0)
            for number in range(20):
                await mq.send(topic, b"%d" % number)
                await eventually_async(lambda: len(got) == number + 1)  # noqa: B023
            subscription.stop()
            await task
            assert sorted(got, key=int) == [b"%d" % number for number in range(20)]

    run(main())


def test_a_cancelled_wait_loses_no_message(shmq_shared_broker: SharedBroker) -> None:
    topic, group = shmq_shared_broker.named("orders"), shmq_shared_broker.named("billing")

    async def main() -> None:
        async with shmq.aio.connect(shmq_shared_broker.url) as mq, mq.subscribe(topic, group=group) as subscription:
            got: list[int] = []
            for number in range(50):
                task = asyncio.create_task(subscription.receive(wait=60))
                await asyncio.sleep(0)
                await mq.send(topic, b"%d" % number)
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    got += [int(message.body) for message in await task]
            while len(got) < 50:
                messages = await subscription.receive(wait=60)
                assert messages
                got += [int(message.body) for message in messages]
            assert sorted(got) == list(range(50))

    run(main())


def test_a_cancelled_wait_whose_consumer_is_closed_meanwhile_is_not_reported(
    shmq_shared_broker: SharedBroker,
) -> None:
    topic, group = shmq_shared_broker.named("orders"), shmq_shared_broker.named("billing")
    reported: list[dict[str, Any]] = []

    async def main() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.append(context))
        async with shmq.aio.connect(shmq_shared_broker.url) as mq:
            subscription = await mq.subscribe(topic, group=group)
            receiving, is_closed = await subscription._receiver(), threading.Event()
            receiving._waiter.submit(is_closed.wait)  # the thread comes to the wait only when it is over
            task = asyncio.create_task(subscription.receive(wait=60))
            while receiving._pending is None:
                await asyncio.sleep(0)
            task.cancel()
            await asyncio.wait({task})
            await subscription.close()
            pending = receiving._pending
            is_closed.set()
            await asyncio.to_thread(pending.exception)
            await asyncio.sleep(0)  # the loop hears of it
            del pending, receiving, task
            gc.collect()

    run(main())
    assert reported == []


def test_a_cancelled_poll_moves_no_position(shmq_shared_broker: SharedBroker) -> None:
    topic = shmq_shared_broker.named("orders")

    async def main() -> None:
        async with shmq.aio.connect(shmq_shared_broker.url) as mq, mq.pull_consumer(topic) as consumer:
            got: list[int] = []
            for number in range(50):
                task = asyncio.create_task(consumer.poll(wait=60))
                await asyncio.sleep(0)
                await mq.send(topic, b"%d" % number, queue_id=0)
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    got += [int(message.body) for message in await task]
                assert (await consumer.positions())[0] == len(got)
            while len(got) < 50:
                got += [int(message.body) for message in await consumer.poll(wait=60)]
            assert got == list(range(50))

    run(main())


def test_giving_back_extending_and_rejecting(shmq_broker: Broker) -> None:
    topic, group = "orders", "billing"  # a broker of its own: its clock is moved

    async def main() -> None:
        async with shmq.aio.connect(shmq_broker.url) as mq:
            await mq.send(topic, b"x")
            async with mq.simple_consumer(topic, group=group, invisible=30) as consumer:
                (message,) = await consumer.receive(wait=60)
                await message.extend(60)
                await message.nack(after=0)
                (message,) = await consumer.receive(wait=60)
                assert message.attempt == 2
                shmq_broker.advance(30)
                (message,) = await consumer.receive(wait=60)
                assert message.attempt == 3
                await consumer.reject(message, "enough")
                assert await consumer.lag() == 0
            (letter,) = await mq.admin.dlq(group)
            assert letter.reason == "enough"
            await letter.resend()
            async with mq.subscribe(topic, group=group) as subscription:
                (message,) = await subscription.receive(wait=60)
                async with message:
                    assert message.body == b"x"
                assert message.settled

    run(main())


def test_listeners_are_coroutines_with_the_same_outcomes(shmq_broker: Broker, caplog: pytest.LogCaptureFixture) -> None:
    topic, group = "orders", "billing"  # a broker of its own: its clock is moved

    async def main() -> None:
        async with shmq.aio.connect(shmq_broker.url) as mq:
            seen: list[tuple[bytes, int]] = []

            @mq.listener(topic, group=group, threads=3)
            async def on_order(message: shmq.aio.Message) -> None:
                seen.append((message.body, message.attempt))
                if message.body == b"retry" and message.attempt == 1:
                    raise shmq.Retry(after=0)
                if message.body == b"reject":
                    raise shmq.Reject("no")
                if message.body == b"fail" and message.attempt == 1:
                    raise ZeroDivisionError("on purpose")

            await mq.start()
            for body in (b"fine", b"retry", b"reject", b"fail"):
                await mq.send(topic, body)
            await eventually_async(lambda: len(seen) == 5)
            await eventually_async(lambda: "on purpose" in caplog.text)
            # It is given back a moment later.
            await eventually_async(lambda: shmq_broker.advance(options.retry_delay(1)) or (b"fail", 2) in seen)
            await eventually_async(lambda: mq.admin.groups[group].lag.total == 0)
            await mq.stop()
            assert [letter.reason for letter in await mq.admin.dlq(group)] == ["no"]

    with caplog.at_level(logging.ERROR, "shmq"):
        run(main())


def test_ordered_listeners_keep_the_order_of_each_queue(shmq_shared_broker: SharedBroker) -> None:
    topic, group = shmq_shared_broker.named("orders"), shmq_shared_broker.named("billing")

    async def main() -> None:
        async with shmq.aio.connect(shmq_shared_broker.url) as mq:
            seen: dict[int, list[int]] = {0: [], 1: []}
            running = {0: 0, 1: 0}
            failed = False

            @mq.listener(topic, group=group, threads=4, ordered=True)
            async def apply(message: shmq.aio.Message) -> None:
                nonlocal failed
                running[message.queue_id] += 1
                assert running[message.queue_id] == 1
                await asyncio.sleep(0)
                running[message.queue_id] -= 1
                if message.body == b"10" and not failed:
                    failed = True
                    raise shmq.Retry(after=0)
                seen[message.queue_id].append(int(message.body))

            for number in range(100):
                await mq.send(topic, b"%d" % number, queue_id=number % 2)
            await mq.start()
            await eventually_async(lambda: len(seen[0]) + len(seen[1]) == 100)
            assert seen == {0: list(range(0, 100, 2)), 1: list(range(1, 100, 2))}

    run(main())


def test_an_ordered_message_that_takes_long_holds_up_its_own_queue_alone(shmq_shared_broker: SharedBroker) -> None:
    topic, group = shmq_shared_broker.named("orders"), shmq_shared_broker.named("billing")

    async def main() -> None:
        async with shmq.aio.connect(shmq_shared_broker.url) as mq:
            await mq.admin.create_topic(topic, queues=2)
            other_is_done = asyncio.Event()
            seen: dict[int, list[int]] = {0: [], 1: []}

            @mq.listener(topic, group=group, threads=2, ordered=True)
            async def apply(message: shmq.aio.Message) -> None:
                if message.queue_id == 0 and message.offset == 0:
                    await other_is_done.wait()
                seen[message.queue_id].append(int(message.body))

            for queue_id in seen:
                await mq.send_batch(topic, [b"%d" % number for number in range(200)], queue_id=queue_id)
            await mq.start()
            await eventually_async(lambda: len(seen[1]) == 200)
            other_is_done.set()
            await eventually_async(lambda: len(seen[0]) == 200)
            assert seen == {0: list(range(200)), 1: list(range(200))}

    run(main())


def test_cancelling_run_drains_the_running_calls(shmq_shared_broker: SharedBroker) -> None:
    topic, group = shmq_shared_broker.named("orders"), shmq_shared_broker.named("billing")

    async def main() -> None:
        async with shmq.aio.connect(shmq_shared_broker.url) as mq:
            entered, leave, finished = asyncio.Event(), asyncio.Event(), []

            @mq.listener(topic, group=group)
            async def on_order(message: shmq.aio.Message) -> None:
                entered.set()
                await leave.wait()
                finished.append(message.body)

            await mq.send(topic, b"x")
            task = asyncio.create_task(mq.run())
            await entered.wait()
            task.cancel()
            await asyncio.sleep(0)
            leave.set()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert finished == [b"x"]
            assert mq.admin.groups[group].lag.total == 0

    run(main())


def test_a_plain_function_is_no_listener_here(shmq_shared_broker: SharedBroker) -> None:
    async def main() -> None:
        async with shmq.aio.connect(shmq_shared_broker.url) as mq:
            with pytest.raises(shmq.UsageError, match="coroutine"):
                mq.listener("orders", group="billing")(lambda message: None)
            with pytest.raises(shmq.UsageError, match="no listener"):
                await mq.run()

    run(main())


def test_typed_topics(shmq_shared_broker: SharedBroker) -> None:
    topic, group = shmq_shared_broker.named("orders"), shmq_shared_broker.named("billing")

    async def main() -> None:
        async with shmq.aio.connect(shmq_shared_broker.url) as mq:
            orders = mq.topic(topic, Order)
            await orders.send(Order("o-42", 3), tag="fruit")
            await orders.send_batch([Order("o-43", 1)])
            async with orders.subscribe(group=group) as subscription:
                values = []
                async for message in subscription:
                    values.append(message.value)
                    await message.ack()
                    if len(values) == 2:
                        break
            assert sorted(order.id for order in values) == ["o-42", "o-43"]

    run(main())


def test_administration(shmq_shared_broker: SharedBroker) -> None:
    topic, group = shmq_shared_broker.named("orders"), shmq_shared_broker.named("billing")

    async def main() -> None:
        async with shmq.aio.connect(shmq_shared_broker.url) as mq:
            assert (await mq.admin.create_topic(topic, queues=2)).read_queues == 2
            await mq.send(topic, b"x", queue_id=0)
            async with mq.subscribe(topic, group=group) as subscription:
                for message in await subscription.receive(wait=60):
                    await message.ack()
                assert await mq.admin.groups[group].members() == [mq.client_id]
            steps = await mq.admin.groups[group].reset(topic, to="begin")
            assert [step.again for step in steps] == [1, 0]
            assert mq.admin.groups[group].lag.total == 1
            for _ in attempts():  # a keeper that has no time just now is not well
                health = await mq.admin.health()
                if health.verdict == "OK":
                    break
            assert health.verdict == "OK", health.checks
            assert (await mq.admin.status())["broker"]["name"] == mq.broker_name
            await mq.admin.groups[group].delete()
            await mq.admin.delete_topic(topic)
            assert topic not in mq.admin.topics

    run(main())


def test_several_subscriptions_of_one_connection_wait_at_once(shmq_shared_broker: SharedBroker) -> None:
    topics = [shmq_shared_broker.named(f"t{number}") for number in range(3)]

    async def main() -> None:
        async with shmq.aio.connect(shmq_shared_broker.url) as mq:

            async def first(topic: str) -> bytes:
                async with mq.subscribe(topic, group=f"g-{topic}") as subscription:
                    async for message in subscription:
                        return message.body
                raise AssertionError("ended without a message")

            tasks = [asyncio.create_task(first(topic)) for topic in topics]
            await eventually_async(lambda: {f"g-{topic}" for topic in topics} <= set(mq.admin.groups))
            for topic in reversed(topics):
                await mq.send(topic, topic.encode())
            assert await asyncio.gather(*tasks) == [topic.encode() for topic in topics]

    run(main())


def test_every_way_of_reading_takes_an_expression(shmq_shared_broker: SharedBroker) -> None:
    async def main() -> None:
        topic, group = shmq_shared_broker.named("orders"), shmq_shared_broker.named("eu")
        async with await shmq.aio.connect(shmq_shared_broker.url) as mq:
            for qty in (1, 7):
                await mq.send(topic, b"%d" % qty, properties={"qty": str(qty)})
            async with await mq.subscribe(topic, group=group, where="qty > 5") as subscription:
                assert [message.body for message in await subscription.receive(wait=60)] == [b"7"]
            assert [message.body for message in await mq.browse(topic, where="qty < 5")] == [b"1"]
            with pytest.raises(shmq.FilterSyntaxError):
                await mq.pull_consumer(topic, where="qty >")

    run(main())


def test_a_transaction_is_committed_rolled_back_and_asked_about(shmq_shared_broker: SharedBroker) -> None:
    topic, group = shmq_shared_broker.named("paid"), shmq_shared_broker.named("shop")

    async def main() -> None:
        mq = shmq.aio.connect(shmq_shared_broker.url)
        asked: list[bytes] = []

        @mq.transaction_checker(group)
        async def outcome(message: Any) -> shmq.TxState:
            await asyncio.sleep(0)
            asked.append(bytes(message.body))
            return shmq.COMMIT

        async with mq, mq.producer(group=group) as producer:
            async with producer.transaction(topic, b"left") as tx:
                assert tx.state is shmq.UNKNOWN and tx.receipt is None
            assert tx.state is shmq.COMMIT
            with pytest.raises(ZeroDivisionError):
                async with producer.transaction(topic, b"raised"):
                    raise ZeroDivisionError
            await (await producer.transaction(topic, b"by hand")).commit()
            await producer.transaction(topic, b"lost")
            assert mq._made is not None
            control = mq._made._local().wire.control
            offset = control.request(Request.TRANSACTIONS).body.split(b'"offset":')[1].split(b",")[0].decode()
            control.request(Request.CHECK_TRANSACTION, {"tranStateTableOffset": offset})
            await eventually_async(lambda: asked == [b"lost"])
            for _ in attempts():
                found = {bytes(message.body) for message in await mq.browse(topic)}
                if b"lost" in found:
                    break
            assert found == {b"left", b"by hand", b"lost"}

    run(main())


def test_where_no_loop_of_asyncio_runs_the_reason_is_said() -> None:
    for awaited in (shmq.aio.connect().send("orders", b"x"), shmq.aio.connect().__aenter__()):
        with pytest.raises(shmq.UsageError, match="needs an event loop of asyncio") as caught:
            awaited.send(None)  # as trio would
        assert "trio.to_thread.run_sync" in str(caught.value.hint)
