"""`TestShmqBroker`: handlers are called without a broker, as the real one would call them."""

import asyncio

import pytest
from faststream.exceptions import SubscriberNotFound
from pydantic import ValidationError

from shmq.contrib.faststream import ShmqBroker, TestShmqBroker

NOWHERE = "shmq:///nonexistent/none"


@pytest.fixture
def broker() -> ShmqBroker:
    return ShmqBroker(NOWHERE)


def test_a_published_message_reaches_its_handler_and_what_that_publishes(broker: ShmqBroker) -> None:
    publisher = broker.publisher("bills")

    @broker.subscriber("orders", group="billing")
    @publisher
    async def bill(quantity: int) -> dict[str, int]:
        return {"price": 2 * quantity}

    async def main() -> None:
        async with TestShmqBroker(broker) as tested:
            await tested.publish(21, "orders", key="o-42", headers={"h": 1})
            bill.mock.assert_called_once_with(21)
            publisher.mock.assert_called_once_with({"price": 42})

    asyncio.run(main())


def test_one_handler_of_each_group_gets_a_message(broker: ShmqBroker) -> None:
    got = []

    @broker.subscriber("t", group="h")
    @broker.subscriber("t", group="g")
    @broker.subscriber("t", group="g")
    async def handle(text: str) -> None:
        got.append(text)

    async def main() -> None:
        async with TestShmqBroker(broker) as tested:
            await tested.publish("x", "t")

    asyncio.run(main())
    assert got == ["x", "x"]


def test_tags_select(broker: ShmqBroker) -> None:
    @broker.subscriber("t", group="g", tags=["a", "b"])
    async def handle(text: str) -> None: ...

    async def main() -> None:
        async with TestShmqBroker(broker) as tested:
            await tested.publish("no", "t", tag="c")
            await tested.publish("no", "t")
            await tested.publish_batch("yes", "too", topic="t", tag="a")
            assert [call.args[0] for call in handle.mock.call_args_list] == ["yes", "too"]

    asyncio.run(main())


def test_a_request_returns_the_reply_or_says_that_there_is_no_replier(broker: ShmqBroker) -> None:
    @broker.subscriber("ask", group="g")
    async def answer(text: str) -> str:
        return text.upper()

    async def main() -> None:
        async with TestShmqBroker(broker) as tested:
            assert await (await tested.request("a", "ask")).decode() == "A"
            with pytest.raises(SubscriberNotFound):
                await tested.request("a", "elsewhere")

    asyncio.run(main())


def test_what_a_handler_raises_is_seen_by_the_test(broker: ShmqBroker) -> None:
    @broker.subscriber("t", group="g")
    async def handle(quantity: int) -> None: ...

    async def main() -> None:
        async with TestShmqBroker(broker) as tested:
            with pytest.raises(ValidationError):
                await tested.publish("many", "t")

    asyncio.run(main())
