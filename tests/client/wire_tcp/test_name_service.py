"""What name servers answer, and what answers in their place."""

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from shmq.addresses import Address
from shmq.client.wire_tcp.name_service import NameService
from shmq.errors import BrokerNotRunning, TopicNotFound, UsageError
from shmq.protocol.codes import Response
from shmq.protocol.command import Command
from shmq.protocol.route import DEFAULT_TOPIC, BrokerData, QueueData, TopicRoute, encode_route

Answer = Callable[[str], int]


def service_of(queues_of: Answer) -> NameService:
    """What asks a name server for routes, of topics that have so many queues on one broker, 0: that do not exist."""

    async def request(address: Address, command: Command, seconds: float) -> Command:
        if (queues := queues_of(command.ext.get("topic", ""))) == 0:
            return Command(code=Response.TOPIC_NOT_EXIST)
        brokers = [BrokerData("b", {0: "127.0.0.1:10911"}, "c")]
        route = TopicRoute(brokers, [QueueData("b", queues, queues)])
        return Command(code=Response.SUCCESS, body=encode_route(route, standard=True))

    network: Any = SimpleNamespace(loop=asyncio.get_running_loop(), request=request)
    return NameService(network, [Address("h", 9876)], lambda route: None, timeout=1.0)


async def queues_to_write(service: NameService, topic: str) -> int:
    return len((await service.writable_route(topic, timeout=1.0)).writable)


def test_a_broker_in_place_of_a_name_server_is_an_error_with_the_cure() -> None:
    async def ask() -> None:
        async def request(address: Address, command: Command, seconds: float) -> Command:
            return Command(
                code=Response.REQUEST_CODE_NOT_SUPPORTED, remark=f"request type {command.code} not supported"
            )

        network: Any = SimpleNamespace(loop=asyncio.get_running_loop(), request=request)
        service = NameService(network, [Address("h", 10911)], lambda route: None, timeout=1.0)
        assert await service.route("orders") is None

    with pytest.raises(UsageError, match="h:10911 is no name server") as caught:
        asyncio.run(ask())
    assert "rocketmq://HOST:9876" in caught.value.hint


@pytest.mark.parametrize("registered_at", range(7))
def test_a_topic_whose_broker_comes_back_just_now_is_written_with_the_queues_it_has(registered_at: int) -> None:
    """The broker is gone from the name server, and comes back between two questions, whichever these are."""

    async def ask() -> None:
        asked: list[str] = []

        def queues_of(topic: str) -> int:
            asked.append(topic)
            return 8 if len(asked) > registered_at else 0

        service = service_of(queues_of)
        for _ in range(registered_at + 1):
            try:
                assert await queues_to_write(service, "orders") == 8, asked
                break
            except (BrokerNotRunning, TopicNotFound):
                service.routes.forget("orders")
        else:
            raise AssertionError(f"it was not found: {asked}")

    asyncio.run(ask())


def test_a_default_topic_that_was_there_before_does_not_stand_for_a_topic_that_is_known_nowhere_now() -> None:
    async def ask() -> None:
        is_there = True

        def queues_of(topic: str) -> int:
            return 8 * (is_there and topic in (DEFAULT_TOPIC, "orders"))

        service = service_of(queues_of)
        assert await queues_to_write(service, "fresh") == 4
        is_there = False
        with pytest.raises((BrokerNotRunning, TopicNotFound)):
            await queues_to_write(service, "orders")

    asyncio.run(ask())
