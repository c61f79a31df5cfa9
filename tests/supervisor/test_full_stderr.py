"""A stderr that takes nothing more delays nothing: neither senders, nor new clients, nor SIGTERM."""

from __future__ import annotations

import contextlib
import http.client
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest

import shmq
from shmq.addresses import parse_address
from shmq.figures.verdict import Verdict
from shmq.protocol.codes import Request, Response
from shmq.shm.addresses import read_addresses
from shmq.shm.liveness import is_alive
from tests.bridge.live_bridge import RawPeer
from tests.deadline import eventually
from tests.ha.pair import assert_equal, send
from tests.ports import free_ports
from tests.supervisor.unread_output import KINDS, UnreadBroker, unread_output
from tests.tools.health.situations import of, reported

BROKEN_FRAME = b"\xff\xff\xff\xff" * 4
Unread = tuple[UnreadBroker, int]


@pytest.fixture(scope="module", params=KINDS)
def unread(request: pytest.FixtureRequest) -> Iterator[Unread]:
    """A broker, and where its output can be read."""
    with (
        unread_output(request.param) as (writing, reading),
        UnreadBroker(writing, tcp=True, metrics="127.0.0.1:0", ha_listen="127.0.0.1:0") as broker,
    ):
        assert os.get_blocking(writing)  # the open file is that of the process that started it
        yield broker, reading


def break_off(address: str) -> None:
    """Have the bridge say that it closed a connection."""
    with socket.create_connection(parse_address(address), 60.0) as peer:
        peer.sendall(BROKEN_FRAME)
        while peer.recv(4096):
            pass


def served(broker: UnreadBroker) -> None:
    """Every way into a broker leads there: new clients send and read, and its metrics are served."""
    with broker.connect() as mq, shmq.connect(f"rocketmq://{broker.name_server}") as remote:
        for sender in (mq, remote):
            sender.send("orders", b"x")
    connection = http.client.HTTPConnection(*parse_address(read_addresses(broker.place.metrics_path)["metrics"]), 60.0)
    with closing(connection):
        connection.request("GET", "/metrics")
        assert connection.getresponse().status == 200


def as_slave_of(master: UnreadBroker) -> dict[str, Any]:
    """The settings of a slave."""
    ha = read_addresses(master.place.ha_path)["ha"]
    return {"name": master.name, "tcp": True, "role": "slave", "master": master.broker_address, "master_ha": ha}


def test_clients_are_served_and_health_says_what_is_lost(unread: Unread) -> None:
    broker, _ = unread
    for _ in range(3):
        break_off(broker.broker_address)
    served(broker)
    finding, _ = reported(broker.url, of("daemon", Verdict.WARNING, "could not be written"))
    assert finding.subject == "stderr" and finding.measures["log_lines_dropped"].value >= 1


@pytest.mark.parametrize("role", ["keeper", "bridge"])
def test_a_process_that_crashes_with_a_dump_ends_and_the_next_one_serves(unread: Unread, role: str) -> None:
    broker, _ = unread
    before = broker.processes[role]
    os.kill(before.pid, signal.SIGSEGV)
    eventually(lambda: not is_alive(before), "its last words hold it")
    eventually(lambda: broker.processes.get(role) not in (None, before), "there is another")
    served(broker)


def test_what_was_dropped_is_said_when_there_is_room_again() -> None:
    with unread_output("pipe") as (writing, reading), UnreadBroker(writing, tcp=True) as broker:
        break_off(broker.broker_address)
        reported(broker.url, of("daemon", Verdict.WARNING, "could not be written"))
        os.set_blocking(reading, False)
        said = b""

        def read() -> bool:
            nonlocal said
            with contextlib.suppress(BlockingIOError):
                said += os.read(reading, 65536)
            return b"bridge log.dropped dropped=" in said

        eventually(read)


@pytest.mark.parametrize("kind", KINDS)
def test_a_broker_with_its_slave_stops_on_sigterm(kind: str) -> None:
    with (
        unread_output(kind) as (writing, _),
        UnreadBroker(writing, tcp=True, metrics="127.0.0.1:0", ha_listen="127.0.0.1:0") as master,
        UnreadBroker(writing, **as_slave_of(master)) as slave,
    ):
        send(master, range(10))
        assert_equal(master, slave)
        assert (slave.ended(), master.ended()) == (0, 0)


@pytest.mark.parametrize("kind", KINDS)
def test_a_name_server_serves_and_stops(kind: str) -> None:
    address = f"127.0.0.1:{free_ports()}"
    with unread_output(kind) as (writing, _):
        command = [sys.executable, "-P", "-m", "shmq", "nameserver", "--listen", address]
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=writing, stderr=writing)
        try:
            eventually(lambda: _listens(address) or process.poll() is not None)
            for _ in range(3):
                break_off(address)
            with closing(RawPeer(parse_address(address))) as peer:
                assert peer.ask(Request.GET_ALL_TOPIC_LIST_FROM_NAMESERVER).code == Response.SUCCESS
            process.terminate()
            assert process.wait(60.0) == 0
        finally:
            process.kill()
            process.wait()


def _listens(address: str) -> bool:
    try:
        socket.create_connection(parse_address(address), 60.0).close()
    except OSError:
        return False
    return True
