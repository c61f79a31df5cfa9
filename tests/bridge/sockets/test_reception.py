"""Places: in all, over TCP, and of each address; one is left as often as it was taken."""

import dataclasses

import pytest

from shmq.daemon.bridge.limits import BridgeLimits
from shmq.daemon.bridge.sockets.reception import Reception

LIMITS = BridgeLimits(connections_max=10, tcp_connections_max=8, address_connections_max=3, loopback_connections_max=5)


def test_one_address_cannot_take_the_places_of_others() -> None:
    reception = Reception(LIMITS, None)
    assert [reception.take(number, "10.0.0.1") for number in range(3)] == ["", "", ""]
    assert reception.take(4, "10.0.0.1") == "3 connections of 10.0.0.1 are open"
    assert reception.take(5, "10.0.0.2") == ""
    reception.leave(0)
    reception.leave(0)
    assert reception.take(6, "10.0.0.1") == ""
    assert reception.take(7, "10.0.0.1") != ""


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.8.8", "::1"])
def test_the_programs_of_this_host_share_a_larger_share(host: str) -> None:
    reception = Reception(LIMITS, None)
    assert [reception.take(number, host) for number in range(5)] == [""] * 5
    assert reception.take(5, host) == f"5 connections of {host} are open"


def test_tcp_takes_no_place_of_local_processes() -> None:
    reception = Reception(LIMITS, None)
    assert [reception.take(number, f"10.0.0.{number}") for number in range(8)] == [""] * 8
    assert reception.take(8, "10.0.0.9") == "8 TCP connections are open"
    assert [reception.take(number, None) for number in range(10, 20)] == [""] * 10
    assert reception.take(20, None) == "10 connections of local processes are open"
    reception.leave(10)
    assert reception.take(21, None) == ""


def test_those_who_are_told_that_there_is_no_room_have_places_of_their_own() -> None:
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
