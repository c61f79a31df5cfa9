"""A client knows the next master of a topic at once, and is known to it before what it asks about, or replies to."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from shmq.client.remote.registration import Registration
from shmq.client.wire_tcp.name_service import NameService
from shmq.errors import BrokerNotRunning
from tests.client.remote.test_sender import BOTH, SECONDS, SERVER, TURNED, Group, Moment


def test_a_route_without_a_master_is_asked_for_anew_at_the_next_use() -> None:
    group = Group(Moment(0.0, {1: "h1"}, ""), Moment(9.0, TURNED, "h2"))

    async def main() -> None:
        names = NameService(group.network, [SERVER], lambda route: None, timeout=SECONDS)
        with pytest.raises(BrokerNotRunning, match="no master now"):
            await names.writable_route("orders", timeout=SECONDS)
        group.now = 9.1
        route = await names.writable_route("orders", timeout=SECONDS)
        assert str(route.master("b")) == "h2:10911"

    asyncio.run(main())


def test_the_next_master_of_a_topic_hears_of_a_producer_before_it_is_sent_to() -> None:
    group = Group(Moment(0.0, BOTH, "h1"), Moment(9.0, TURNED, "h2"))

    async def main() -> None:
        names = NameService(group.network, [SERVER], lambda route: None, timeout=SECONDS)
        wire: Any = SimpleNamespace(
            network=group.network, names=names, client_id="c", now_ms=lambda: 1, timeout=SECONDS
        )
        registration = Registration(wire)
        registration.set(["shop"], [])
        for _ in range(2):
            await registration.introduce("orders", SECONDS)
            assert group.stored == ["h1"]
        group.now = 10.0
        names.routes.forget("orders")
        await registration.introduce("orders", SECONDS)
        assert group.stored == ["h1", "h2"]

    asyncio.run(main())
