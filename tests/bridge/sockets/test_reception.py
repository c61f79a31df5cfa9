"""Places: in all, over TCP, and of each address; one is left as often as it was taken."""

import asyncio
import dataclasses
import socket
from collections.abc import Callable
from typing import Any, cast

import pytest

from shmq.daemon.bridge.connection import BridgeConnection
from shmq.daemon.bridge.limits import BridgeLimits, limits_of
from shmq.daemon.bridge.sockets.reception import Arrival, Reception
from shmq.errors import UsageError
from shmq.options.broker import Options
from tests.bridge.sockets.loops import LOOPS

LIMITS = BridgeLimits(connections_max=10, tcp_connections_max=8, address_connections_max=3, loopback_connections_max=5)


def test_one_address_cannot_take_the_places_of_others() -> None:
    reception = Reception(LIMITS, None)
    assert [reception.take(number, "10.0.0.1") for number in range(3)] == ["", "", ""]
    assert reception.take(4, "10.0.0.1") == "3 connections of 10.0.0.1 are open; ulimit -n allows more"
    assert reception.take(5, "10.0.0.2") == ""
    reception.leave(0)
    reception.leave(0)
    assert reception.take(6, "10.0.0.1") == ""
    assert reception.take(7, "10.0.0.1") != ""


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.8.8", "::1"])
def test_the_programs_of_this_host_share_a_larger_share(host: str) -> None:
    reception = Reception(LIMITS, None)
    assert [reception.take(number, host) for number in range(5)] == [""] * 5
    assert reception.take(5, host) == f"5 connections of {host} are open; ulimit -n allows more"


def test_tcp_takes_no_place_of_local_processes() -> None:
    reception = Reception(LIMITS, None)
    assert [reception.take(number, f"10.0.0.{number}") for number in range(8)] == [""] * 8
    assert reception.take(8, "10.0.0.9") == "8 TCP connections are open; ulimit -n allows more"
    assert [reception.take(number, None) for number in range(10, 20)] == [""] * 10
    assert reception.take(20, None) == "10 connections of local processes are open"
    reception.leave(10)
    assert reception.take(21, None) == ""


def test_refused_connections_have_places_of_their_own() -> None:
    reception = Reception(dataclasses.replace(LIMITS, refused_connections_max=2), None)
    assert [reception.refuse(number) for number in range(3)] == [True, True, False]
    reception.leave(0)
    assert reception.refuse(3)


def test_the_defaults_leave_room_for_the_host_and_for_other_hosts() -> None:
    limits = BridgeLimits()
    assert limits.tcp_connections_max < limits.connections_max == 1024
    assert limits.address_connections_max == 64
    assert limits.loopback_connections_max + limits.address_connections_max <= limits.tcp_connections_max
    assert dataclasses.asdict(limits)["unproven_bytes_max"] < limits.in_flight_bytes_max == 256 << 20


@pytest.fixture
def may_open(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Says how many files a process may open, at most."""

    def say(most: int) -> None:
        monkeypatch.setattr("shmq.daemon.bridge.limits.raise_descriptor_limit", lambda wanted: min(wanted, most))

    return say


@pytest.mark.parametrize(
    ("files", "options", "places", "of_one", "of_host"),
    [
        (20_000, {}, 9360, 780, 6240),
        (20_000, {"bridges": 3}, 4680, 390, 3120),
        (20_000, {"nameservers": "10.0.0.1:9876"}, 18_720, 1560, 12_480),
        (1024, {}, 256, 64, 170),
        (300, {}, 16, 16, 16),
        (20_000, {"tcp_connections_max": 600}, 600, 64, 400),
        (20_000, {"tcp_connections_max": 600, "address_connections_max": 600}, 600, 600, 600),
        (20_000, {"address_connections_max": 1 << 16}, 9360, 9360, 9360),
    ],
)
def test_places_follow_the_open_files_and_the_options(
    may_open: Callable[[int], None], files: int, options: dict[str, Any], places: int, of_one: int, of_host: int
) -> None:
    may_open(files)
    limits = limits_of(Options(**options))
    assert (limits.tcp_connections_max, limits.address_connections_max) == (places, of_one)
    assert limits.loopback_connections_max == of_host


def test_more_places_than_files_are_refused_with_what_to_type(may_open: Callable[[int], None]) -> None:
    may_open(20_000)
    with pytest.raises(UsageError, match="10000 TCP connections need 21280 open files, and a process may have 20000"):
        limits_of(Options(tcp_connections_max=10_000))


def test_a_refusal_names_the_limit_and_its_option(may_open: Callable[[int], None]) -> None:
    may_open(20_000)
    reception = Reception(limits_of(Options(tcp_connections_max=2)), None)
    assert [reception.take(number, "10.0.0.1") for number in range(2)] == ["", ""]
    assert reception.take(2, "10.0.0.1") == "2 TCP connections are open; --tcp-connections-max allows more"
    reception = Reception(limits_of(Options(address_connections_max=1)), None)
    assert reception.take(0, "10.0.0.1") == ""
    assert reception.take(1, "10.0.0.1") == "1 connections of 10.0.0.1 are open; --address-connections-max allows more"


class Opened(asyncio.Protocol):
    """A connection whose time to arrive is over just when it is there."""

    remote = None
    arrival: Arrival
    transport: asyncio.Transport | None = None
    is_cancelled = True

    @property
    def is_open(self) -> bool:
        return self.transport is not None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.is_cancelled = self.arrival.cancel()


@pytest.mark.parametrize("factory", LOOPS)
def test_who_has_arrived_is_not_cancelled_any_more(factory: Callable[[], asyncio.AbstractEventLoop]) -> None:
    """uvloop closes the transport of an opening that is cancelled then, and never says that the connection is lost."""

    async def scene() -> bytes:
        ours, theirs = socket.socketpair()
        with theirs:
            ours.setblocking(False)
            opened = Opened()
            opening = Reception(LIMITS, None).open(ours, lambda: opened, is_local=True, speaks=lambda: None)
            arrival = Arrival(cast(BridgeConnection, opened), until=0.0)
            opened.arrival, arrival.task = arrival, asyncio.get_running_loop().create_task(opening)
            await arrival.task
            assert not opened.is_cancelled and opened.transport is not None
            opened.transport.write(b"welcome")
            opened.transport.close()
            await asyncio.sleep(0)
            return theirs.recv(100)

    with asyncio.Runner(loop_factory=factory) as runner:
        assert runner.run(scene()) == b"welcome"
