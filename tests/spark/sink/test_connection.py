"""Ways to the broker of a sink: the one the driver found is the one workers take, or an error says why not."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from shmq.errors import BrokerNotRunning, ConnectError, UsageError
from shmq.spark.access.way import open_access
from shmq.spark.options import parse_options
from shmq.spark.sink.connection import connection, find_broker
from shmq.spark.sink.options import parse_sink_options


@pytest.fixture(scope="module")
def both_ways() -> Iterator[Any]:
    from shmq.testing import Broker

    with Broker(tcp=True) as running:
        yield running


def test_memory_is_taken_where_the_store_is_and_tcp_elsewhere(both_ways: Any) -> None:
    found, way = find_broker(parse_sink_options({"store": both_ways.url, "topic": "t"}))
    assert not found.is_remote and connection(way) is found
    elsewhere = connection(replace(way, identity="the broker of another host"))
    assert elsewhere.is_remote and elsewhere.url == f"rocketmq://{both_ways.name_server}"
    nowhere = replace(way, store="shmq:///tmp/shmq-no-such-place")
    assert connection(nowhere).is_remote


def test_a_broker_of_the_same_name_on_another_host_is_never_written_to(both_ways: Any) -> None:
    _, way = find_broker(parse_sink_options({"store": both_ways.url, "topic": "t", "access": "shm"}))
    with pytest.raises(BrokerNotRunning, match=r"not the broker that the driver saw.*nameserver"):
        connection(replace(way, identity="another"))


def test_remote_is_tcp_even_beside_the_store(both_ways: Any) -> None:
    found, way = find_broker(parse_sink_options({"store": both_ways.url, "access": "remote", "topic": "t"}))
    assert found.is_remote and way.store is None


def test_a_missing_broker_names_option_and_cure(both_ways: Any) -> None:
    for options, words in (
        ({"store": "absent"}, ["option store", "shmq serve --name absent", "nameserver"]),
        ({"store": "rocketmq://127.0.0.1:1"}, ["option store", "127.0.0.1:1"]),
        ({"store": "absent", "nameserver": "127.0.0.1:1"}, ["option nameserver", "127.0.0.1:1"]),
    ):
        with pytest.raises(ConnectError) as caught:
            find_broker(parse_sink_options({"topic": "t", **options}))
        assert all(word in str(caught.value) for word in words), str(caught.value)
    with pytest.raises(UsageError, match="is unknown"):
        find_broker(parse_sink_options({"topic": "t", "store": "absent", "access": "remote"}))


@pytest.mark.skipif(os.geteuid() != 0, reason="another user's store: needs two users")
@pytest.mark.parametrize("side", ["sink", "source"])
def test_another_users_store_is_refused_with_option_and_cure(both_ways: Any, side: str) -> None:
    """As a user who is in no group of the broker's: in a child that gives root up."""
    options = {"topic": "t", "store": both_ways.url, "access": "shm"}

    def ask() -> None:
        if side == "sink":
            find_broker(parse_sink_options(options))
        else:
            open_access(parse_options(options))

    read_end, write_end = os.pipe()
    child = os.fork()
    if child == 0:
        said = "nothing was refused"
        try:
            os.setgroups([])
            os.setgid(65534)
            os.setuid(65534)
            ask()
        except ConnectError as error:
            said = str(error)
        except BaseException as error:
            said = repr(error)
        os.write(write_end, said.encode()[:4000])
        os._exit(0)
    os.close(write_end)
    said = os.read(read_end, 4096).decode()
    os.close(read_end)
    os.waitpid(child, 0)
    assert "option store" in said and "usermod" in said, said
