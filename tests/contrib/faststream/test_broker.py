"""The broker of FastStream over a real broker of shmq: what is published, consumed, settled, answered and stopped."""

import asyncio
import json
from collections.abc import Coroutine, Iterator
from typing import Annotated, Any

import pytest
from faststream import AckPolicy, Context, FastStream
from faststream.exceptions import NackMessage, RejectMessage, StopConsume
from faststream.specification import AsyncAPI
from pydantic import BaseModel

import shmq
from shmq.contrib.faststream import ShmqBroker, ShmqMessage, ShmqResponse, ShmqRouter
from shmq.contrib.faststream.message import Delivery
from shmq.errors import RequestTimeout, ShmqError, UsageError
from shmq.testing import Broker, SharedBroker
from tests.deadline import DEADLINE_SECONDS, eventually

Received = Annotated[ShmqMessage, Context("message")]


class Order(BaseModel):
    id: str
    quantity: int


class Inbox:
    """What handlers got, awaited."""

    def __init__(self) -> None:
        self._items: asyncio.Queue[Any] = asyncio.Queue()

    def put(self, item: Any) -> None:
        self._items.put_nowait(item)

    async def get(self) -> Any:
        return await asyncio.wait_for(self._items.get(), DEADLINE_SECONDS)


def run(main: Coroutine[Any, Any, Any]) -> None:
    """Run a test's coroutine, and fail instead of hanging."""

    async def bounded() -> None:
        await asyncio.wait_for(main, 2 * DEADLINE_SECONDS)

    asyncio.run(bounded())


@pytest.fixture
def shared(shmq_shared_broker: SharedBroker) -> SharedBroker:
    return shmq_shared_broker


@pytest.fixture(scope="module")
def tcp_broker() -> Iterator[Broker]:
    with Broker(tcp=True) as broker:
        yield broker


@pytest.fixture(params=["local", "tcp"])
def url(request: pytest.FixtureRequest, tcp_broker: Broker) -> str:
    return tcp_broker.url if request.param == "local" else f"rocketmq://{tcp_broker.name_server}"


def test_a_message_keeps_its_body_headers_and_ids(url: str) -> None:
    async def main() -> None:
        broker, inbox = ShmqBroker(url), Inbox()
        topic = f"orders-{url.partition(':')[0]}"

        @broker.subscriber(topic, group="billing")
        async def handle(order: Order, message: Received) -> None:
            inbox.put((order, message.headers["region"], message.correlation_id, message.raw_message.message))

        async with broker:
            await broker.start()
            order = Order(id="o-42", quantity=3)
            headers = {"region": "eu"}
            receipt = await broker.publish(order, topic, headers=headers, correlation_id="c-1", key="o-42", tag="fruit")
            got, region, correlation_id, message = await inbox.get()
        assert (got, region, correlation_id) == (order, "eu", "c-1")
        assert (message.key, message.tag, message.queue_id) == ("o-42", "fruit", receipt.queue_id)

    run(main())


def test_a_request_is_answered_by_what_the_handler_returns(url: str) -> None:
    async def main() -> None:
        broker = ShmqBroker(url)
        topic = f"questions-{url.partition(':')[0]}"

        @broker.subscriber(topic, group="answers", max_workers=4)
        async def answer(order: Order) -> dict[str, int]:
            return {"price": order.quantity * 2}

        async with broker:
            await broker.start()
            order = Order(id="a", quantity=21)
            reply = await broker.request(order, topic, timeout=DEADLINE_SECONDS, correlation_id="c-7")
            assert await reply.decode() == {"price": 42}
            assert reply.correlation_id == "c-7"

    run(main())


@pytest.mark.parametrize("body", ["grüße", b"\xff\x00", {"a": [1, None]}, ""])
def test_a_reply_is_json_text_or_bytes(shared: SharedBroker, body: Any) -> None:
    async def main() -> None:
        broker = ShmqBroker(shared.url)

        @broker.subscriber(shared.named("echo"), group=shared.named("echo"))
        async def answer(question: str) -> Any:
            return body

        async with broker:
            await broker.start()
            reply = await broker.request("?", shared.named("echo"), timeout=DEADLINE_SECONDS)
            assert await reply.decode() == body

    run(main())


def test_a_request_without_an_answer_ends_with_an_error(shared: SharedBroker) -> None:
    async def main() -> None:
        async with ShmqBroker(shared.url) as broker:
            with pytest.raises(RequestTimeout, match="no reply"):
                await broker.request("?", shared.named("silence"), timeout=0.05)

    run(main())


def test_a_plain_client_of_shmq_and_faststream_read_each_other(shared: SharedBroker) -> None:
    async def main() -> None:
        broker, inbox = ShmqBroker(shared.url), Inbox()

        @broker.subscriber(shared.named("in"), group=shared.named("g"))
        @broker.publisher(shared.named("out"), key="k-1", headers={"by": "faststream"})
        async def handle(message: dict[str, int]) -> dict[str, int]:
            return {"sum": message["a"] + message["b"]}

        async with broker, shmq.aio.connect(shared.url) as mq:
            await broker.start()
            await mq.send(shared.named("in"), b'{"a": 1, "b": 2}')
            async with mq.subscribe(shared.named("out"), group=shared.named("plain")) as messages:
                [message] = await messages.receive(1, wait=DEADLINE_SECONDS)
                inbox.put(message)
        message = await inbox.get()
        assert json.loads(message.body) == {"sum": 3}
        assert (message.key, message.properties["by"]) == ("k-1", "faststream")
        assert message.properties["content-type"] == "application/json"

    run(main())


def test_a_failed_message_comes_again(shared: SharedBroker) -> None:
    async def main() -> None:
        broker, inbox = ShmqBroker(shared.url, logger=None), Inbox()

        @broker.subscriber(shared.named("t"), group=shared.named("g"))
        async def handle(text: str, message: Received) -> None:
            attempt = message.raw_message.message.attempt
            inbox.put((text, attempt))
            if attempt == 1:
                raise NackMessage(after=0.01)

        async with broker:
            await broker.start()
            await broker.publish("again", shared.named("t"))
            assert [await inbox.get(), await inbox.get()] == [("again", 1), ("again", 2)]

    run(main())


@pytest.mark.parametrize("how", ["policy", "raised", "called"])
def test_a_rejected_message_becomes_a_dead_letter(shared: SharedBroker, how: str) -> None:
    group = shared.named(f"g-{how}")

    async def main() -> None:
        broker, inbox = ShmqBroker(shared.url, logger=None), Inbox()

        @broker.subscriber(shared.named("t"), group=group, ack_policy=AckPolicy.REJECT_ON_ERROR)
        async def handle(text: str, message: Received) -> None:
            inbox.put(text)
            if how == "called":
                await message.reject("no such order")
            elif how == "raised":
                raise RejectMessage(reason="no such order")
            else:
                raise ValueError(text)

        async with broker:
            await broker.start()
            await broker.publish("never", shared.named("t"))
            await inbox.get()

    run(main())
    [letter] = shared.dlq(group, 1, DEADLINE_SECONDS)
    assert letter.message.body == b"never"


@pytest.mark.parametrize("policy", [AckPolicy.ACK, AckPolicy.ACK_FIRST])
def test_these_policies_consume_a_message_whose_handler_failed(shared: SharedBroker, policy: AckPolicy) -> None:
    topic, group = shared.named("t"), shared.named("g")

    async def main() -> None:
        broker, inbox = ShmqBroker(shared.url, logger=None, ack_policy=policy), Inbox()

        @broker.subscriber(topic, group=group)
        async def handle(text: str) -> None:
            inbox.put(text)
            raise ValueError(text)

        async with broker:
            await broker.start()
            await broker.publish("once", topic)
            await inbox.get()

    run(main())
    with shared.connect() as mq:
        assert int(mq.admin.groups[group].lag) == 0


@pytest.mark.parametrize("decided", ["nothing", "nack"])
def test_what_was_not_settled_is_given_back(decided: str) -> None:
    async def main() -> None:
        delivery = Delivery(None)  # type: ignore[arg-type]
        if decided == "nack":
            await delivery.fail(shmq.Retry(after=3.0))
            await delivery.fail(shmq.Reject("too late: the first decision counts"))
        with pytest.raises(shmq.Retry) as raised:
            delivery.end()
        assert raised.value.after == (3.0 if decided == "nack" else None)

    run(main())


def test_a_message_that_names_a_topic_is_answered_there(shared: SharedBroker) -> None:
    async def main() -> None:
        broker, inbox = ShmqBroker(shared.url), Inbox()

        @broker.subscriber(shared.named("ask"), group=shared.named("g"))
        async def answer(text: str) -> ShmqResponse:
            return ShmqResponse(text.upper(), headers={"asked": text}, key="k-1")

        @broker.subscriber(shared.named("answers"), group=shared.named("h"))
        async def collect(text: str, message: Received) -> None:
            inbox.put((text, message.headers["asked"], message.correlation_id, message.raw_message.message.key))

        async with broker:
            await broker.start()
            await broker.publish("a", shared.named("ask"), reply_to=shared.named("answers"), correlation_id="c-9")
            assert await inbox.get() == ("A", "a", "c-9", "k-1")

    run(main())


def test_a_router_adds_its_prefix(shared: SharedBroker) -> None:
    async def main() -> None:
        router, inbox = ShmqRouter(shared.named("eu-")), Inbox()

        @router.subscriber("orders", group=shared.named("g"))
        @router.publisher("bills")
        async def handle(text: str) -> str:
            return f"bill of {text}"

        @router.subscriber("bills", group=shared.named("h"))
        async def collect(text: str) -> None:
            inbox.put(text)

        broker = ShmqBroker(shared.url, routers=[router])
        async with broker:
            await broker.start()
            await broker.publish("a", shared.named("eu-") + "orders")
            assert await inbox.get() == "bill of a"

    run(main())


def test_a_batch_is_stored_in_order_in_one_queue(shared: SharedBroker) -> None:
    async def main() -> None:
        async with ShmqBroker(shared.url) as broker:
            receipts = await broker.publish_batch({"n": 1}, {"n": 2}, topic=shared.named("t"), headers={"h": "1"})
            assert len({receipt.queue_id for receipt in receipts}) == 1
            assert await broker.publish_batch(topic=shared.named("t")) == []
            with pytest.raises(UsageError, match="more than one content type"):
                await broker.publish_batch({"n": 1}, "text", topic=shared.named("t"))

    run(main())
    assert [message.body for message in shared.expect(shared.named("t"), 2)] == [b'{"n":1}', b'{"n":2}']


def test_an_option_that_no_send_has_is_refused_with_those_that_there_are(shared: SharedBroker) -> None:
    async def main() -> None:
        broker = ShmqBroker(shared.url)
        with pytest.raises(UsageError, match="colour") as raised:
            broker.publisher("t", colour="red")
        assert "message_group" in (raised.value.hint or "")
        with pytest.raises(UsageError, match="not connected"):
            await broker.publish("a", "t")

    run(main())


def test_stopping_waits_for_handlers_and_leaves_the_rest(shared: SharedBroker) -> None:
    topic, group = shared.named("t"), shared.named("g")

    async def main() -> None:
        broker, begun, go_on, done = ShmqBroker(shared.url), Inbox(), asyncio.Event(), []

        @broker.subscriber(topic, group=group)
        async def handle(text: str) -> None:
            begun.put(text)
            await go_on.wait()
            done.append(text)

        await broker.start()
        await broker.publish("a", topic, message_group="one")
        await broker.publish("b", topic, message_group="one")
        assert await begun.get() == "a"
        stopping = asyncio.create_task(broker.stop())
        await asyncio.sleep(0)
        assert not stopping.done()
        go_on.set()
        await stopping
        await broker.stop()
        assert done == ["a"]
        await asyncio.to_thread(shared.broker.advance, 10.0)  # what was given back waits as long
        await broker.start()
        assert await begun.get() == "b"
        await broker.stop()

    run(main())


def test_a_handler_may_stop_its_own_subscriber(shared: SharedBroker) -> None:
    async def main() -> None:
        broker, inbox = ShmqBroker(shared.url, logger=None), Inbox()

        @broker.subscriber(shared.named("t"), group=shared.named("g"))
        async def handle(text: str) -> None:
            inbox.put(text)
            raise StopConsume

        async with broker:
            await broker.start()
            await broker.publish("last", shared.named("t"))
            assert await inbox.get() == "last"
            [subscriber] = broker.subscribers
            await subscriber.stop()
            assert not subscriber.running

    run(main())


def test_a_subscriber_without_a_handler_is_read_by_hand(shared: SharedBroker) -> None:
    group = shared.named("g")

    async def main() -> None:
        async with ShmqBroker(shared.url) as broker:
            subscriber = broker.subscriber(shared.named("t"), group=group)
            await subscriber.start()
            for text in ("a", "b"):
                await broker.publish(text, shared.named("t"), message_group="one")
            first = await subscriber.get_one(timeout=DEADLINE_SECONDS)
            assert first is not None and await first.decode() == "a"
            await first.ack()
            async for second in subscriber:
                assert await second.decode() == "b"
                await second.reject("not wanted")
                break
            assert await subscriber.get_one(timeout=0.0) is None
            await subscriber.stop()

    run(main())
    [letter] = shared.dlq(group, 1, DEADLINE_SECONDS)
    assert letter.message.body == b"b"


def test_an_ordered_subscriber_handles_a_queue_one_after_the_other(shared: SharedBroker) -> None:
    async def main() -> None:
        broker, inbox = ShmqBroker(shared.url), Inbox()
        running = 0

        @broker.subscriber(shared.named("t"), group=shared.named("g"), ordered=True, max_workers=8)
        async def handle(number: int) -> None:
            nonlocal running
            running += 1
            await asyncio.sleep(0)
            inbox.put((number, running))
            running -= 1

        async with broker:
            await broker.start()
            await broker.publish_batch(*range(20), topic=shared.named("t"))
            assert [await inbox.get() for _ in range(20)] == [(number, 1) for number in range(20)]

    run(main())


def test_an_application_starts_and_stops_the_broker(shared: SharedBroker) -> None:
    async def main() -> None:
        broker = ShmqBroker(shared.url, name="billing")
        app = FastStream(broker)

        @broker.subscriber(shared.named("t"), group=shared.named("g"))
        async def handle(text: str) -> None:
            app.exit()

        @app.after_startup
        async def begin() -> None:
            await broker.publish("end", shared.named("t"))

        await app.run()
        assert not broker.running

    run(main())


def test_a_broker_that_is_not_there_is_an_error_of_the_start() -> None:
    async def main() -> None:
        broker = ShmqBroker("shmq:///nonexistent/none")
        assert await broker.ping(1.0) is False
        with pytest.raises(ShmqError):
            await broker.start()

    run(main())


def test_a_broker_that_is_there_answers_a_ping(shared: SharedBroker) -> None:
    async def main() -> None:
        assert await ShmqBroker(shared.url).ping(DEADLINE_SECONDS) is True

    run(main())


def test_asyncapi_names_the_topics() -> None:
    broker = ShmqBroker("shmq://")

    @broker.subscriber("orders", group="g")
    @broker.publisher("bills", schema=Order)
    async def handle(order: Order) -> None: ...

    channels = json.loads(AsyncAPI(broker).to_specification().to_json())["channels"]
    assert {channel["address"] for channel in channels.values()} == {"orders", "bills"}


def test_a_group_has_no_lag_after_its_handlers(shared: SharedBroker) -> None:
    topic, group = shared.named("t"), shared.named("g")

    async def main() -> None:
        broker, inbox = ShmqBroker(shared.url), Inbox()

        @broker.subscriber(topic, group=group, tags="a || b", max_workers=8)
        async def handle(text: str) -> None:
            inbox.put(text)

        async with broker:
            await broker.start()
            for tag in ("a", "b", "c"):
                await broker.publish(tag, topic, tag=tag)
            assert {await inbox.get(), await inbox.get()} == {"a", "b"}
            with shared.connect() as mq:
                await asyncio.to_thread(eventually, lambda: int(mq.admin.groups[group].lag) == 0)

    run(main())
