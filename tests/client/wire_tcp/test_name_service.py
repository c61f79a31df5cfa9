"""What name servers answer, and what answers in their place."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from shmq.addresses import Address
from shmq.client.wire_tcp.name_service import NameService
from shmq.errors import UsageError
from shmq.protocol.codes import Response
from shmq.protocol.command import Command


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
