"""The wire notices that a broker has another master by the routes of its topics."""

from __future__ import annotations

import socket
from collections.abc import Callable, Collection, Iterator, Mapping

import pytest

from shmq.client.place import remote_place
from shmq.client.wire_tcp.wire import TcpWire
from shmq.errors import BrokerNotRunning
from shmq.protocol.codes import Request, Response
from shmq.protocol.command import Command
from shmq.protocol.route import BrokerData, ClusterInfo, QueueData, TopicRoute, encode_route, encode_standard


class Names:
    """What name servers say: the hosts of broker "b" by their ids."""

    def __init__(self, hosts: dict[int, str]) -> None:
        self.hosts = hosts

    async def answer(self, code: int, ext: Mapping[str, str]) -> Command:
        broker = BrokerData("b", self.hosts, "c")
        if code == Request.GET_BROKER_CLUSTER_INFO:
            return Command(code=Response.SUCCESS, body=encode_standard(ClusterInfo({"b": broker}, {"c": ["b"]})))
        return Command(
            code=Response.SUCCESS, body=encode_route(TopicRoute([broker], [QueueData("b", 4, 4)]), standard=True)
        )


@pytest.fixture
def silent() -> Iterator[Callable[[], str]]:
    """Make peers that take connections and never answer; returns the address of each."""
    listeners: list[socket.socket] = []

    def make() -> str:
        listeners.append(socket.create_server(("127.0.0.1", 0)))
        return f"127.0.0.1:{listeners[-1].getsockname()[1]}"

    yield make
    for each in listeners:
        each.close()


@pytest.fixture
def wire_of() -> Iterator[Callable[[Names], TcpWire]]:
    wires: list[TcpWire] = []

    def make(names: Names) -> TcpWire:
        place = remote_place(f"rocketmq://{names.hosts[0]}")
        wires.append(TcpWire(place, client_id="c", timeout=60.0, answer=names.answer))
        return wires[-1]

    yield make
    for each in wires:
        each.close()


def test_another_master_is_noticed_once_and_no_route_of_before_is_believed(
    silent: Callable[[], str], wire_of: Callable[[Names], TcpWire]
) -> None:
    names = Names({0: silent(), 1: "127.0.0.1:1"})
    wire, seen = wire_of(names), list[Collection[str]]()
    wire.on_masters = seen.append
    for topic in ("orders", "bills"):
        wire.refresh(topic)
    names.hosts = {1: "127.0.0.1:1"}
    wire.refresh("orders")
    assert not seen, "none leads now"
    names.hosts = {0: "127.0.0.1:1"}
    wire.refresh("orders")
    assert seen == [{"b"}]
    route = wire.call(wire.names.route("bills"))
    assert route is not None and str(route.master("b")) == "127.0.0.1:1"
    assert seen == [{"b"}]


def test_what_a_master_of_before_holds_is_waited_for_no_more_and_other_requests_are(
    silent: Callable[[], str], wire_of: Callable[[Names], TcpWire]
) -> None:
    names = Names({0: silent(), 1: "127.0.0.1:1"})
    wire = wire_of(names)
    wire.refresh("orders")
    master = wire.names.known_master("b")
    assert master is not None
    ask = wire.network.request
    held = [
        wire.network.submit(ask(master, Command(code=code, ext={field: "15000"}), 60.0))
        for code, field in ((Request.PULL_MESSAGE, "suspendTimeoutMillis"), (Request.POP_MESSAGE, "pollTime"))
    ]
    sent = wire.network.submit(ask(master, Command(code=Request.SEND_MESSAGE_V2), 60.0))
    short = wire.network.submit(ask(master, Command(code=Request.POP_MESSAGE, ext={"pollTime": "0"}), 60.0))
    names.hosts = {0: "127.0.0.1:1"}
    wire.refresh("orders")
    for each in held:
        with pytest.raises(BrokerNotRunning, match=f"another host leads, and not {master}"):
            each.result(60)
    assert not sent.done() and not short.done()
