"""A real broker ships its log over its replication port; the slave here is our follower over a plain socket."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import signal
import socket
import time
from collections.abc import Callable, Iterator
from ipaddress import ip_network
from typing import Any, cast

import pytest
from psutil import CONN_LISTEN, Process

from shmq.addresses import parse_address
from shmq.daemon.ha.growth import Growth
from shmq.daemon.ha.leader import LogSpan
from shmq.daemon.ha.log_file import LogFile
from shmq.daemon.ha.meeting import Side
from shmq.daemon.ha.shipping import Shipping
from shmq.daemon.ha.slave.follower import FollowerLink
from shmq.daemon.ha.stream import HEADER_BYTES, pack_header, pack_report
from shmq.daemon.ha.switching import ask_side
from shmq.daemon.ha.trust import WITHOUT_SECRET, Trust, is_allowed
from shmq.errors import BrokerNotRunning, ProtocolError, StoreError, UsageError
from shmq.options.broker import Options
from shmq.shm.addresses import read_addresses
from shmq.testing import Broker
from tests.bindings.live_store import LiveStore
from tests.deadline import eventually
from tests.keeper.conftest import Events
from tests.tables.rows import every_row

FILE_BYTES = 4 << 20


def ha_address(broker: Broker) -> tuple[str, int]:
    return parse_address(read_addresses(broker.place.ha_path)["ha"])


class Slave:
    """Keeps what the master ships as one string of bytes that begins at `begin`."""

    def __init__(self, broker: Broker, begin: int = 0, *, greets: bool = False) -> None:
        self.socket = socket.create_connection(ha_address(broker), 30.0)
        self.link = FollowerLink(begin, now_ms(), is_empty=begin == 0, greets=greets)
        self.begin = begin
        self.data = bytearray()

    def receive(self, enough: Callable[[], bool]) -> bytes:
        """Take everything until there is enough, or the master hangs up."""
        while not enough():
            self.socket.sendall(self.link.take())
            data = self.socket.recv(1 << 16)
            if not data:
                break
            self.link.feed(data, now_ms())
            assert not self.link.closed, self.link.closed
            _, pending = self.link.pending()
            with pending:
                self.data += pending
            self.link.applied(self.begin + len(self.data), now_ms())
        return bytes(self.data)


def now_ms() -> int:
    return time.monotonic_ns() // 1_000_000


def log_of(broker: Broker, end: int) -> bytes:
    """The log from its first file on."""
    files = sorted((broker.store / "commitlog").iterdir())
    return b"".join(path.read_bytes() for path in files if path.name.isdecimal())[:end]


def log_end(broker: Broker) -> int:
    with broker.connect() as mq:
        receipt = mq.producer().send("end", b"here")
    return int(receipt.log_position) + 1


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker(ha_listen="127.0.0.1:0", file_bytes=FILE_BYTES) as running:
        with running.connect() as mq:
            producer = mq.producer()
            for number in range(60):
                producer.send("orders", bytes(100_000), key=str(number))
        yield running


def test_a_slave_gets_the_whole_log_byte_for_byte(broker: Broker) -> None:
    end = log_end(broker)
    assert end > FILE_BYTES
    slave = Slave(broker, greets=True)
    got = slave.receive(lambda: len(slave.data) >= end)
    assert got[:end] == log_of(broker, end)


def test_a_stock_slave_that_reports_zero_gets_the_last_file(broker: Broker) -> None:
    end = log_end(broker)
    with socket.create_connection(ha_address(broker), 30.0) as slave:
        slave.sendall(pack_report(0))
        header = slave.recv(HEADER_BYTES, socket.MSG_WAITALL)
    assert header[:8] == pack_header(end - end % FILE_BYTES, 0)[:8]


def test_a_slave_goes_on_where_it_was_after_the_process_was_killed(broker: Broker) -> None:
    slave = Slave(broker, greets=True)
    slave.receive(lambda: len(slave.data) >= 1_000_000)
    before = broker.processes["replication"]
    os.kill(before.pid, signal.SIGKILL)
    with broker.connect() as mq:
        mq.producer().send("orders", b"meanwhile")
    eventually(lambda: broker.processes.get("replication", before) != before)
    end = log_end(broker)

    def again() -> Slave | None:
        try:
            return Slave(broker, begin=len(slave.data))
        except ConnectionRefusedError:
            return None

    connected = eventually(again)
    rest = connected.receive(lambda: connected.begin + len(connected.data) >= end)
    assert (bytes(slave.data) + rest)[:end] == log_of(broker, end)


def test_a_slave_ahead_of_the_master_is_turned_away(broker: Broker) -> None:
    with socket.create_connection(ha_address(broker), 30.0) as slave:
        slave.sendall(pack_report(1 << 40))
        assert slave.recv(1) == b""
    eventually(lambda: "they are not of one log" in broker.log)


@every_row(
    ("trust", "answers"),
    [(WITHOUT_SECRET, 0), (Trust(secret=b"of both hosts"), 0), (Trust(secret=b"of both hosts"), 1)],
)
def test_a_disk_that_does_not_say_who_the_master_is_costs_one_connection_and_not_all(
    trust: Trust, answers: int
) -> None:
    with LiveStore() as live:
        asyncio.run(_served_again(live, trust, answers))


async def _served_again(live: LiveStore, trust: Trust, answers: int) -> None:
    """Slaves come while the disk fails after so many answers, and one comes after that."""
    side, failing, events = Side(store="1" * 32), list[Exception | None](), Events()

    def me() -> Side:
        if failing and (failure := failing.pop(0)) is not None:
            raise failure
        return side

    growth, span = Growth(live.store), LogSpan(0, live.store.log_end, live.sizes["file_bytes"], 0)
    shipping = Shipping(lambda: span, growth, lambda: LogFile(live.store), trust, cast(Any, events), me=me)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.setblocking(False)
        serving = asyncio.create_task(shipping.serve(listener))
        for failure in (StoreError("it cannot be read"), OSError(errno.EIO, "the disk fails")):
            failing += [None] * answers + [failure]
            with pytest.raises((ProtocolError, OSError)):
                await asyncio.to_thread(ask_side, listener.getsockname(), trust, Side(store="2" * 32))
            assert str(failure) in events.named("ha.slave_refused")[-1]["reason"] and not failing
        found = await asyncio.to_thread(ask_side, listener.getsockname(), trust, Side(store="2" * 32))
        assert found is not None and found.store == side.store
        serving.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await serving
    growth.close()


def test_hostile_bytes_end_only_their_connection(broker: Broker) -> None:
    for data in (b"\xff" * 8, os.urandom(4096), b"GET / HTTP/1.1\r\n\r\n"):
        with socket.create_connection(ha_address(broker), 30.0) as slave:
            slave.sendall(data)
    end = log_end(broker)
    slave_again = Slave(broker, greets=True)
    assert len(slave_again.receive(lambda: len(slave_again.data) >= end)) >= end


def test_a_broker_without_the_option_has_no_such_process_and_no_port_for_slaves() -> None:
    with Broker(tcp=True) as quiet:
        assert "replication" not in quiet.processes and not quiet.place.ha_path.exists()
        ports = {parse_address(address)[1] for address in (quiet.broker_address, quiet.name_server)}
        connections = [each for mark in quiet.processes.values() for each in Process(mark.pid).net_connections("inet")]
        listening = {each.laddr.port for each in connections if each.status == CONN_LISTEN}
        assert ports <= listening <= ports | {port - 2 for port in ports}, "the VIP channel is two below"


@every_row(
    ("host", "allowed"),
    [
        ("127.0.0.1", True),
        ("::1", True),
        ("10.1.0.7", True),
        ("10.2.0.7", False),
        ("192.0.2.1", False),
        ("fe80::1%eth0", False),
        ("fd00::5", True),
        ("", False),
    ],
)
def test_only_named_addresses_and_loopback_may_have_the_log(host: str, allowed: bool) -> None:
    assert is_allowed(host, [ip_network("10.1.0.0/24"), ip_network("fd00::/64")]) is allowed


def test_options_that_make_no_sense_are_refused() -> None:
    with pytest.raises(UsageError, match="none can connect"):
        Options(ha_allow="10.0.0.0/8")
    with pytest.raises(UsageError, match="has host bits set"):
        Options(ha_listen="127.0.0.1:10912", ha_allow="10.0.0.1/8")
    with pytest.raises(UsageError, match="HOST:PORT"):
        Options(ha_listen="nonsense")


def test_a_port_in_use_is_refused_before_anything_is_made(broker: Broker) -> None:
    host, port = ha_address(broker)
    with pytest.raises(BrokerNotRunning, match=f"port {port} of {host} is in use"), Broker(ha_listen=f"{host}:{port}"):
        raise AssertionError("it started")
