"""Name servers that are silent cost what knows its route a part of its time, and brokers go on being asked."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable
from types import SimpleNamespace
from typing import Any

import pytest

from shmq.addresses import Address
from shmq.client.remote.send_policy import QueueChoice
from shmq.client.remote.sender import TcpSender
from shmq.client.wire_tcp.name_service import REFRESH, NameService
from shmq.client.wire_tcp.route import QueueNumbers
from shmq.errors import BrokerNotRunning, RequestTimeout, ShmqError
from shmq.protocol.body import ConsumerList, encode_body
from shmq.protocol.codes import Request, Response
from shmq.protocol.command import Command
from shmq.protocol.message_id import UniqueIds
from shmq.protocol.route import BrokerData, QueueData, TopicRoute, encode_route
from tests.client.remote.standing_clock import later, on_a_standing_clock

SECONDS = 3.0
SERVERS = [Address("names", 9876), Address("others", 9876)]
OLD = 2 * REFRESH + 1


class Place:
    """Name servers and two brokers; the hosts named are silent: they take all the time they are given."""

    def __init__(
        self, topics: tuple[str, ...] = ("orders",), servers: list[Address] = SERVERS, timeout: float = SECONDS
    ) -> None:
        self.topics = topics
        self.connects = True
        self.silent: set[str] = set()
        self.silent_after = 1 << 30  # questions
        self.refusing: set[str] = set()
        self.asked: list[tuple[float, str, float]] = []  # when, which host, for how long
        loop = asyncio.get_running_loop()
        self.network: Any = SimpleNamespace(loop=loop, request=self.request, notify=self.request)
        self.names = NameService(self.network, servers, lambda route: None, timeout=timeout)
        self.wire: Any = SimpleNamespace(
            network=self.network,
            names=self.names,
            numbers=QueueNumbers(),
            now_ms=lambda: 1,
            timeout=SECONDS,
            client_id="me",
        )

    @property
    def now(self) -> float:
        return asyncio.get_running_loop().time()

    def hosts(self) -> list[str]:
        """The hosts that were asked since the last call."""
        hosts = [host for _, host, _ in self.asked]
        self.asked.clear()
        return hosts

    async def request(self, address: Address, command: Command, seconds: float) -> Command:
        self.asked.append((self.now, address.host, seconds))
        if address.host in self.refusing:
            raise BrokerNotRunning(f"{address} cannot be reached")
        if address.host in self.silent or len(self.asked) > self.silent_after:
            await later(seconds)
            if not self.connects:
                raise BrokerNotRunning(f"{address} cannot be reached: no connection within {seconds:g} s")
            late = RequestTimeout(f"{address} did not answer")
            late.maybe_stored = True
            raise late
        if command.code == Request.GET_ROUTEINFO_BY_TOPIC:
            if command.ext["topic"] not in self.topics:
                return Command(code=Response.TOPIC_NOT_EXIST)
            known = [BrokerData(name, {0: f"{name}:10911"}, "c") for name in ("a", "b")]
            route = TopicRoute(known, [QueueData("a", 4, 4), QueueData("b", 4, 4)])
            return Command(code=Response.SUCCESS, body=encode_route(route, standard=True))
        if command.code == Request.GET_CONSUMER_LIST_BY_GROUP:
            return Command(code=Response.SUCCESS, body=encode_body(ConsumerList(["me"])))
        return Command(code=Response.SUCCESS, ext={"msgId": "", "queueId": "0", "queueOffset": "7"})

    async def send(self, timeout: float = SECONDS, **arguments: Any) -> None:
        sender = TcpSender(self.wire, QueueChoice(None), UniqueIds("127.0.0.1"), SECONDS, "", "none")
        message, _, place = sender._message("orders", b"x", **arguments)
        await sender._send_one(message, place, timeout)

    async def takes(self, work: Awaitable[Any]) -> float:
        """How long something takes, whether it fails or not."""
        started = self.now
        with contextlib.suppress(ShmqError):
            await work
        return self.now - started


@pytest.mark.parametrize("old", ["for its age", "forgotten"])
@pytest.mark.parametrize("timeout", [0.03, 0.3, SECONDS, 60.0])
def test_a_send_leaves_most_of_its_time_to_the_broker_whose_route_is_known(old: str, timeout: float) -> None:
    async def main() -> None:
        place = Place()
        await place.send()
        await later(OLD if old == "for its age" else 2.0)
        if old == "forgotten":
            place.names.routes.forget("orders")
        place.silent = {"names", "others"}
        place.hosts()
        started = place.now
        await place.send(timeout, message_group="o-1")
        when, host, seconds = place.asked[-1]
        assert host in ("a", "b")
        assert when - started <= min(1.0, timeout / 3) + 1e-6
        assert seconds == pytest.approx(timeout - (when - started))

    on_a_standing_clock(main())


def test_silent_name_servers_are_asked_again_after_a_second_and_then_their_answer_counts() -> None:
    async def main() -> None:
        place = Place()
        await place.send()
        await later(OLD)
        place.silent = {"names", "others"}
        await place.send()
        place.hosts()
        assert await place.takes(place.send(message_group="o-1")) == 0.0
        assert not {"names", "others"} & set(place.hosts())
        place.silent.clear()
        await later(1.0)
        await place.send()
        assert place.hosts()[0] == "names"
        await place.send()
        assert not {"names", "others"} & set(place.hosts())

    on_a_standing_clock(main())


def test_name_servers_that_refuse_are_asked_again_at_each_use() -> None:
    async def main() -> None:
        place = Place()
        await place.send()
        place.refusing = {"names", "others"}
        for _ in range(3):
            place.names.routes.forget("orders")
            place.hosts()
            await place.send()
            assert place.hosts()[:2] == ["names", "others"]

    on_a_standing_clock(main())


@pytest.mark.parametrize(
    ("seconds", "is_refused", "asked_first"),
    [(0.1, False, "names"), (0.1, True, "others"), (SECONDS, False, "others"), (SECONDS, True, "others")],
)
@pytest.mark.parametrize("connects", [True, False])
def test_a_name_server_is_left_when_it_refuses_or_is_silent_for_longer_than_a_pause(
    seconds: float, is_refused: bool, asked_first: str, connects: bool
) -> None:
    """The other one may know less: it may be cut off from the brokers."""

    async def main() -> None:
        place = Place()
        place.connects = connects
        (place.refusing if is_refused else place.silent).add("names")
        await place.names.ask(Request.GET_BROKER_CLUSTER_INFO, timeout=seconds)
        assert place.hosts() == ["names", "others"]
        place.refusing.clear()
        place.silent.clear()
        await place.names.ask(Request.GET_BROKER_CLUSTER_INFO)
        assert place.hosts() == [asked_first]

    on_a_standing_clock(main())


def test_a_silent_name_server_is_left_also_by_a_connection_whose_timeout_is_short() -> None:
    async def main() -> None:
        place = Place(timeout=0.3)
        place.silent = {"names"}
        for hosts in (["names", "others"], ["others"]):
            await place.names.ask(Request.GET_BROKER_CLUSTER_INFO)
            assert place.hosts() == hosts

    on_a_standing_clock(main())


def test_a_question_that_is_on_its_way_for_longer_is_waited_for_as_long_as_another_one() -> None:
    async def main() -> None:
        place = Place()
        await place.send()
        await later(OLD)
        place.silent = {"names", "others"}
        refreshing = asyncio.ensure_future(place.names.refresh("orders"))
        await later(0.1)
        assert await place.takes(place.send()) <= 1.0 + 1e-6
        await refreshing
        place.names.routes._found.clear()
        asking = asyncio.ensure_future(place.names.refresh("orders"))
        await later(0.1)
        with pytest.raises(BrokerNotRunning, match="no name server answers"):
            await place.names.route("orders", timeout=0.5)
        assert await place.takes(place.names.route("orders", timeout=0.5)) <= 0.5 + 1e-6
        with pytest.raises(BrokerNotRunning):
            await asking

    on_a_standing_clock(main())


def test_a_question_that_had_less_time_than_one_that_joined_it_is_asked_again_and_a_refusal_is_not() -> None:
    async def main() -> None:
        place = Place()
        place.silent = {"names", "others"}
        first = asyncio.ensure_future(place.names.refresh("orders", timeout=0.1))
        joined = [asyncio.ensure_future(place.names.route("orders", timeout=SECONDS)) for _ in range(3)]
        await later(0.07)
        place.silent.clear()
        for each in joined:
            assert await each is not None
        with pytest.raises(BrokerNotRunning):
            await first
        assert len(place.hosts()) == 3, "two for the first one, and one for all others"
        place.names.routes._found.clear()
        place.refusing = {"names", "others"}
        asked = [asyncio.ensure_future(place.names.route("orders", timeout=SECONDS)) for _ in range(3)]
        assert all(isinstance(each, BrokerNotRunning) for each in await asyncio.gather(*asked, return_exceptions=True))
        assert len(place.hosts()) == 2

    on_a_standing_clock(main())
