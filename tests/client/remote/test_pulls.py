"""Pulls that a broker holds, whose master stands still or is cut off, and says nothing while another one leads."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pytest

from shmq.addresses import Address
from shmq.client.remote.duties import Upkeep
from shmq.client.remote.groups import TcpGroups
from shmq.client.remote.questions import Pulled, PullQuestion
from shmq.client.spec import Wanted
from shmq.client.wire import ignore
from shmq.client.wire_tcp.name_service import NameService
from shmq.client.wire_tcp.route import decode_route
from shmq.protocol.codes import Response
from shmq.protocol.command import Command
from shmq.protocol.dialect import MessageQueue
from shmq.protocol.route import BrokerData, QueueData, TopicRoute, encode_route


class Silent:
    """Brokers that never answer a pull."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    async def pull(self, question: PullQuestion, broker_id: int, timeout: float) -> Pulled:
        self.asked.append(question.queue.brokerName)
        await asyncio.Event().wait()
        raise AssertionError("unreachable")


async def turns() -> None:
    """Let everything happen that waits for no answer."""
    for _ in range(20):
        await asyncio.sleep(0)


def test_a_pull_that_another_master_can_answer_is_asked_there_at_once() -> None:
    async def main() -> None:
        loop, brokers = asyncio.get_running_loop(), Silent()
        network = SimpleNamespace(loop=loop, soon=loop.call_soon, spawn=loop.create_task, submit=None)
        options = SimpleNamespace(allocation="average")
        wire: Any = SimpleNamespace(
            network=network, place=SimpleNamespace(options=options), client_id="c", timeout=3.0, on_masters=ignore
        )
        wire.serve, wire.now_ms = ignore, lambda: 1
        groups = TcpGroups(wire, brokers)  # type: ignore[arg-type]
        spec: Any = SimpleNamespace(group="g", topic="orders", model="clustering", ordered=False, tags=(), codec=None)
        spec.auto_ack, spec.wanted = False, Wanted()
        owner: Any = SimpleNamespace(keep_for=ignore)
        reader, _ = groups.open(owner, spec, ignore)
        for number, name in enumerate(("a", "b")):
            reader.open(await reader.made(MessageQueue(name, 0, "orders"), number, 10))
        await turns()
        assert brokers.asked == ["a", "b"]
        wire.on_masters({"b"})
        await turns()
        assert brokers.asked == ["a", "b", "b"]
        reader.close()
        await turns()

    asyncio.run(main())


HOSTS = {
    "alone": {0: "h1:10911"},
    "master and slave": {0: "h1:10911", 1: "h2:10911"},
    "without a master": {1: "h2:10911"},
}


@pytest.mark.parametrize(("hosts", "is_asked"), [("alone", 0), ("master and slave", 1), ("without a master", 1)])
def test_name_servers_are_asked_who_leads_once_for_all_topics_where_that_may_change(hosts: str, is_asked: int) -> None:
    asked: list[str] = []

    def body(topic: str) -> bytes:
        return encode_route(TopicRoute([BrokerData("b", HOSTS[hosts], "c")], [QueueData("b", 4, 4)]), standard=True)

    async def request(address: Address, command: Command, seconds: float) -> Command:
        fields: Mapping[str, str] = command.ext
        asked.append(fields["topic"])
        return Command(code=Response.SUCCESS, body=body(fields["topic"]))

    async def main() -> None:
        loop, unused = asyncio.get_running_loop(), None
        network: Any = SimpleNamespace(loop=loop, request=request)
        names = NameService(network, [Address("names", 9876)], ignore, timeout=3.0)
        for topic in ("orders", "bills"):
            names.routes.put(topic, decode_route(topic, body(topic)), loop.time())
        registration: Any = SimpleNamespace(topics=lambda: ["orders", "bills", "unknown"])
        wire: Any = SimpleNamespace(network=network, names=names)
        upkeep: Any = Upkeep(wire, unused, registration, list, list, ignore)  # type: ignore[arg-type]
        await upkeep._look_who_leads()

    asyncio.run(main())
    assert len(asked) == is_asked
