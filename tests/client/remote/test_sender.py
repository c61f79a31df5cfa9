"""Sends over TCP to a broker whose master changes: they wait for the next one, within their own time."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest

from shmq.addresses import Address
from shmq.client.remote import sender as sending
from shmq.client.remote.send_policy import QueueChoice
from shmq.client.remote.sender import TcpSender
from shmq.client.wire_tcp.name_service import NameService
from shmq.client.wire_tcp.route import QueueNumbers
from shmq.errors import BrokerNotRunning, NotMaster, ShmqError, TopicNotFound
from shmq.protocol.codes import Request, Response
from shmq.protocol.command import Command
from shmq.protocol.failure import failure_reply
from shmq.protocol.message_id import UniqueIds
from shmq.protocol.route import (
    MASTER_ID,
    BrokerData,
    ClusterInfo,
    QueueData,
    TopicRoute,
    encode_route,
    encode_standard,
)

SERVER = Address("names", 9876)
SECONDS = 3.0


class Moment(NamedTuple):
    """Who is who from a moment on: hosts by broker id at the name server, None without a topic; who takes messages."""

    at: float
    registered: dict[int, str] | None
    leads: str
    dead: str = ""
    renews: str = ""


class Group:
    """A broker of several hosts, and its name server; time passes while a send sleeps."""

    def __init__(self, *moments: Moment, others: bool = False) -> None:
        self.moments, self.others = moments, others
        self.now = 0.0
        self.answer_seconds = 0.0  # of the name server
        self.stored: list[str] = []
        self.asked = 0
        self.oneway_until = 0.0  # when the last oneway request gives up
        loop: Any = SimpleNamespace(time=lambda: self.now, create_task=lambda task: asyncio.ensure_future(task))
        self.network: Any = SimpleNamespace(loop=loop, request=self.request, notify=self.notify, submit=None)

    @property
    def moment(self) -> Moment:
        return [each for each in self.moments if each.at <= self.now][-1]

    async def sleep(self, seconds: float) -> None:
        self.now += seconds

    async def notify(self, address: Address, command: Command, seconds: float) -> None:
        self.oneway_until = self.now + seconds
        await self.request(address, command, seconds)

    async def request(self, address: Address, command: Command, seconds: float) -> Command:
        if address == SERVER:
            return self.route(command)
        self.asked += 1
        if address.host == self.moment.dead:
            raise BrokerNotRunning(f"nothing listens at {address}")
        if address.host == self.moment.renews:
            error = BrokerNotRunning("this generation of segments was given up")
            error.code = Response.SERVICE_NOT_AVAILABLE
            return failure_reply(command, error)
        if address.host != self.moment.leads:
            return failure_reply(command, NotMaster("it leads no more"))
        self.stored.append(address.host)
        return Command(code=Response.SUCCESS, ext={"msgId": "", "queueId": "0", "queueOffset": "7"})

    def route(self, command: Command) -> Command:
        self.now += self.answer_seconds
        hosts = self.moment.registered
        known = [] if hosts is None else [BrokerData("b", {key: f"{host}:10911" for key, host in hosts.items()}, "c")]
        if command.code == Request.GET_BROKER_CLUSTER_INFO:
            if self.others:
                known.append(BrokerData("b", {MASTER_ID: "h1:10911"}, "c"))
            return Command(
                code=Response.SUCCESS, body=encode_standard(ClusterInfo({each.brokerName: each for each in known}, {}))
            )
        if not known or command.ext.get("topic") != "orders":
            return Command(code=Response.TOPIC_NOT_EXIST)
        route = TopicRoute(known, [QueueData("b", 4, 4)])
        return Command(code=Response.SUCCESS, body=encode_route(route, standard=True))


def sent(group: Group, monkeypatch: pytest.MonkeyPatch, *, oneway: bool = False) -> None:
    """Send a message now, over a connection that has sent one at the time 0."""
    monkeypatch.setattr(sending, "asyncio", SimpleNamespace(sleep=group.sleep))

    async def main() -> None:
        names = NameService(group.network, [SERVER], lambda route: None, timeout=SECONDS)
        wire: Any = SimpleNamespace(network=group.network, names=names, numbers=QueueNumbers(), now_ms=lambda: 1)
        sender = TcpSender(wire, QueueChoice(None), UniqueIds("127.0.0.1"), SECONDS, "", "none")
        message, timeout, place = sender._message("orders", b"x")
        await sender._send_one(message, place, timeout)
        assert group.stored == ["h1"]
        group.now = 10.0
        group.asked = 0
        await (sender._send_oneway if oneway else sender._send_one)(message, place, timeout)

    asyncio.run(main())


BOTH, TURNED = {0: "h1", 1: "h2"}, {0: "h2", 1: "h1"}
BEFORE = Moment(0.0, BOTH, "h1")
SWITCHES = {
    "fenced, then the other one": [Moment(9.0, BOTH, ""), Moment(12.0, TURNED, "h2")],
    "fenced, and led again": [Moment(9.0, BOTH, ""), Moment(12.0, BOTH, "h1")],
    "leaves, follows, and the other one": [
        Moment(9.0, {1: "h2"}, ""),
        Moment(10.5, {1: "h1"}, ""),
        Moment(12.0, TURNED, "h2"),
    ],
    "leaves, then none is there": [Moment(9.0, {1: "h2"}, ""), Moment(11.0, None, ""), Moment(12.0, TURNED, "h2")],
    "the other one leaves first": [
        Moment(9.0, {0: "h1"}, ""),
        Moment(10.5, {1: "h1"}, ""),
        Moment(12.0, TURNED, "h2"),
    ],
    "dies": [Moment(9.0, BOTH, "", "h1"), Moment(12.0, {0: "h2"}, "h2", "h1")],
    "dies, and the name server has the old route": [
        Moment(9.0, BOTH, "h2", "h1"),
        Moment(12.0, {0: "h2"}, "h2", "h1"),
    ],
}


# What a host that leads no more thinks of a oneway message its sender does not know.
@pytest.mark.parametrize(
    ("switch", "oneway"),
    [*((name, False) for name in SWITCHES), *((name, True) for name in SWITCHES if "dies" in name)],
)
def test_a_send_waits_for_the_next_master(monkeypatch: pytest.MonkeyPatch, switch: str, oneway: bool) -> None:
    group = Group(BEFORE, *SWITCHES[switch])
    sent(group, monkeypatch, oneway=oneway)
    assert len(group.stored) == 2
    assert 12.0 <= group.now <= 12.2
    assert group.asked <= 33
    assert group.oneway_until <= 10.0 + SECONDS


@pytest.mark.parametrize("answer_seconds", [0.003, 0.01, 0.017, 0.03, 0.05])
def test_a_broker_that_comes_back_between_two_answers_has_its_topic(
    monkeypatch: pytest.MonkeyPatch, answer_seconds: float
) -> None:
    for number in range(40):
        at = 11.0 + number * 0.005
        group = Group(BEFORE, Moment(9.0, {1: "h2"}, ""), Moment(9.5, None, ""), Moment(at, TURNED, "h2"))
        group.answer_seconds = answer_seconds
        sent(group, monkeypatch)
        assert group.stored == ["h1", "h2"]


def test_no_send_waits_longer_than_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    for switch in SWITCHES.values():
        group = Group(BEFORE, switch[0])
        with pytest.raises(ShmqError):
            sent(group, monkeypatch)
        assert group.now == pytest.approx(10.0 + SECONDS)
        assert group.stored == ["h1"]


@pytest.mark.parametrize(
    "after",
    [Moment(9.0, {0: "h1"}, "", "h1"), Moment(9.0, {0: "h1"}, ""), Moment(9.0, {}, "")],
    ids=["dead", "fenced", "gone"],
)
def test_a_broker_of_one_host_is_not_waited_for(monkeypatch: pytest.MonkeyPatch, after: Moment) -> None:
    group = Group(Moment(0.0, {0: "h1"}, "h1"), after)
    with pytest.raises(ShmqError):
        sent(group, monkeypatch)
    assert group.now == 10.0


def test_a_broker_that_makes_new_segments_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    alone = {0: "h1"}
    group = Group(Moment(0.0, alone, "h1"), Moment(9.0, alone, "", renews="h1"), Moment(11.0, alone, "h1"))
    sent(group, monkeypatch)
    assert group.stored == ["h1", "h1"]
    assert 11.0 <= group.now <= 11.2


def test_a_topic_that_was_deleted_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    group = Group(BEFORE, Moment(9.0, {1: "h2"}, ""), Moment(9.05, None, ""), others=True)
    with pytest.raises(TopicNotFound):
        sent(group, monkeypatch)
    assert group.now <= 10.1  # a host that is asked first says that it leads no more
