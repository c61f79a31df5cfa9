"""A message group over TCP keeps its queue while one of several brokers has no master; what has no order goes on."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from shmq.addresses import Address
from shmq.client.remote import sender as sending
from shmq.client.remote.queues import TcpQueues
from shmq.client.remote.send_policy import QueueChoice
from shmq.client.remote.sender import TcpSender
from shmq.client.requests.replier import Replier
from shmq.client.wire_tcp.name_service import SWITCH_FOR, NameService
from shmq.client.wire_tcp.route import QueueNumbers
from shmq.errors import BrokerNotRunning, UsageError
from shmq.protocol.codes import Request, Response
from shmq.protocol.command import Command
from shmq.protocol.message_id import UniqueIds
from shmq.protocol.route import BrokerData, QueueData, TopicRoute, encode_route
from shmq.shm.core import tag_hash
from tests.client.remote.test_sender import BEFORE, SECONDS, SERVER, SWITCHES, Group, Moment

QUEUES = 4
GROUPS = [f"o-{number}" for number in range(12)]
GONE = [Moment(9.0, None, "")]  # both hosts of the broker, and none of them comes back
AWAY = {**SWITCHES, "leaves at once": [*GONE, Moment(12.0, {0: "h2", 1: "h1"}, "h2")]}


def home_of(message_group: str) -> tuple[str, int]:
    """The queue of a group: "b" has several hosts, and changes its master, "a" has one."""
    broker, queue_id = divmod((tag_hash(message_group) & 0x7FFFFFFF) % (2 * QUEUES), QUEUES)
    return "ab"[broker], queue_id


class Cluster(Group):
    """The broker of several hosts beside one that stays as it is, at "h9"; notes what is stored where, and when."""

    def __init__(self, *moments: Moment) -> None:
        super().__init__(BEFORE, *moments)
        self.places: list[tuple[str, int, float]] = []
        self.names = NameService(self.network, [SERVER], lambda route: None, timeout=SECONDS)
        self.numbers = QueueNumbers()
        self.numbers.learn("ab")
        self.wire: Any = SimpleNamespace(
            network=self.network,
            names=self.names,
            numbers=self.numbers,
            now_ms=lambda: 1,
            timeout=SECONDS,
            call=lambda work: asyncio.run(work),
            address=lambda broker: str(self.names.known_master(broker) or ""),
        )

    async def request(self, address: Address, command: Command, seconds: float) -> Command:
        if address.host == "h9":
            reply = Command(code=Response.SUCCESS, ext={"msgId": "", "queueId": "0", "queueOffset": "7"})
        else:
            reply = await super().request(address, command, seconds)
        if address != SERVER and reply.code == Response.SUCCESS:
            self.places.append((command.ext["n"], int(command.ext["e"]), self.now))
        return reply

    def route(self, command: Command) -> Command:
        hosts = self.moment.registered
        if command.code == Request.GET_BROKER_CLUSTER_INFO or command.ext.get("topic") != "orders":
            return super().route(command)
        known = [BrokerData("a", {0: "h9:10911"}, "c")]
        if hosts == {}:
            return Command(code=Response.TOPIC_NOT_EXIST)
        if hosts is not None:
            known.append(BrokerData("b", {key: f"{host}:10911" for key, host in hosts.items()}, "c"))
        queues = [QueueData(each.brokerName, QUEUES, QUEUES) for each in known]
        return Command(code=Response.SUCCESS, body=encode_route(TopicRoute(known, queues), standard=True))

    def meet(self, now: float) -> None:
        """Ask for the route at a time."""
        self.now = now
        self.names.routes.forget("orders")
        asyncio.run(self.names.route("orders"))

    def send(self, now: float, **arguments: Any) -> tuple[str, int, float]:
        """Send a message at a time; return its broker, its queue there, and when it was stored."""
        self.now = now
        sender = TcpSender(self.wire, QueueChoice(None), UniqueIds("127.0.0.1"), SECONDS, "", "none")
        message, timeout, place = sender._message("orders", b"x", **arguments)
        asyncio.run(sender._send_one(message, place, timeout))
        return self.places[-1]


Made = Callable[..., Cluster]


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> Made:
    """Return what makes a cluster, whose time passes where a send waits for a master."""

    def make(*moments: Moment) -> Cluster:
        cluster = Cluster(*moments)
        monkeypatch.setattr(sending, "asyncio", SimpleNamespace(sleep=cluster.sleep))
        return cluster

    return make


@pytest.mark.parametrize("refreshed", [False, True])
@pytest.mark.parametrize("switch", AWAY)
def test_a_message_group_keeps_its_queue_while_its_broker_or_another_one_changes_its_master(
    made: Made, switch: str, refreshed: bool
) -> None:
    for message_group in GROUPS:
        cluster = made(*AWAY[switch])
        first = cluster.send(0.0, message_group=message_group)
        if refreshed:
            cluster.meet(9.2)
        then = cluster.send(10.0, message_group=message_group)
        last = cluster.send(13.0, message_group=message_group)
        assert {place[:2] for place in (first, then, last)} == {home_of(message_group)}
        assert then[2] == 10.0 if then[0] == "a" else 12.0 <= then[2] <= 12.2
    assert {home_of(message_group)[0] for message_group in GROUPS} == {"a", "b"}


@pytest.mark.parametrize("switch", AWAY)
def test_a_queue_whose_broker_has_no_master_now_is_waited_for(made: Made, switch: str) -> None:
    cluster = made(*AWAY[switch])
    cluster.meet(0.0)
    cluster.meet(9.2)
    broker, queue_id, when = cluster.send(10.0, queue_id=(1 << 16) + 2)
    assert (broker, queue_id) == ("b", 2) and 12.0 <= when <= 12.2
    with pytest.raises(UsageError, match="no queue 7 that may be written"):
        cluster.send(13.0, queue_id=7)


@pytest.mark.parametrize("switch", [name for name in AWAY if name.startswith("leaves")])
def test_what_has_no_order_goes_to_a_broker_that_has_a_master(made: Made, switch: str) -> None:
    cluster = made(*AWAY[switch])
    cluster.meet(0.0)
    cluster.meet(9.2)
    assert {cluster.send(10.0)[0::2] for _ in range(2 * QUEUES)} == {("a", 10.0)}
    assert Replier(cluster.wire, TcpQueues(cluster.wire, None))._queue("orders", _from("b")).brokerName == "a"  # type: ignore[arg-type]


def _from(broker: str) -> Any:
    return SimpleNamespace(topic="orders", queue_id="ab".index(broker) << 16)


@pytest.mark.parametrize("switch", AWAY)
def test_a_selector_chooses_among_the_same_queues_while_a_broker_has_no_master(made: Made, switch: str) -> None:
    cluster = made(*AWAY[switch])
    queues = TcpQueues(cluster.wire, None)  # type: ignore[arg-type]
    chosen = []
    for now in (0.0, 9.2, 11.5, 13.0):
        cluster.meet(now)
        chosen.append(queues.write_queues("orders"))
    assert chosen == [[*range(QUEUES), *range(1 << 16, (1 << 16) + QUEUES)]] * 4


def test_queues_come_in_the_order_of_the_brokers_names_also_where_these_were_met_in_another_one(made: Made) -> None:
    cluster = made()
    cluster.wire.numbers = QueueNumbers()
    cluster.wire.numbers.learn("b")
    cluster.wire.numbers.learn("a")
    queues = TcpQueues(cluster.wire, None).write_queues("orders")  # type: ignore[arg-type]
    assert [cluster.wire.numbers.queue("orders", each).brokerName for each in queues] == ["a"] * 4 + ["b"] * 4


def test_a_message_group_keeps_its_queue_when_name_servers_knew_no_topic_for_a_moment(made: Made) -> None:
    """They begin with empty tables, and one broker registers before the other one."""
    for message_group in GROUPS:
        cluster = made(Moment(8.0, {}, "h1"), *GONE, Moment(12.0, {0: "h1", 1: "h2"}, "h1"))
        places = [cluster.send(0.0, message_group=message_group)]
        cluster.meet(8.5)
        cluster.meet(9.2)
        places += [cluster.send(now, message_group=message_group) for now in (10.0, 13.0)]
        assert {place[:2] for place in places} == {home_of(message_group)}


def test_a_broker_that_is_gone_for_good_counts_no_more_after_the_time_of_a_switch(made: Made) -> None:
    message_group = next(each for each in GROUPS if home_of(each)[0] == "b")
    cluster = made(*GONE)
    cluster.send(0.0, message_group=message_group)
    cluster.meet(8.0)
    with pytest.raises(BrokerNotRunning, match="broker b has no master now"):
        cluster.send(10.0, message_group=message_group)
    assert cluster.now == pytest.approx(10.0 + SECONDS)
    cluster.meet(8.0 + SWITCH_FOR)
    assert cluster.send(9.0 + SWITCH_FOR, message_group=message_group)[0] == "a"


def test_a_broker_of_one_host_that_leaves_counts_no_more_at_once(made: Made) -> None:
    cluster = made(*GONE)
    cluster.moments = (Moment(0.0, {0: "h1"}, "h1"), *GONE)
    for message_group in GROUPS:
        cluster.meet(0.0)
        assert cluster.send(0.0, message_group=message_group)[:2] == home_of(message_group)
        cluster.meet(9.2)
        assert cluster.send(10.0, message_group=message_group)[0] == "a"
