"""Real brokers that ask for a secret: a peer that proves it is served and followed, any other gets the reason."""

from __future__ import annotations

import contextlib
import secrets
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from shmq.daemon.ha.handshake import NONCE_BYTES, SlaveHandshake
from shmq.daemon.ha.meeting import Side, side_bytes
from shmq.daemon.ha.shipping import STRANGERS_OF_ADDRESS_MAX
from shmq.daemon.ha.stream import AUTHENTICATION, GREETING, pack_header, pack_hello, pack_progress, pack_report
from shmq.daemon.ha.trust import Trust, is_open_unproven
from shmq.errors import UsageError
from shmq.options.broker import Options, parse_networks
from shmq.store.lineage.epochs import Epoch
from shmq.testing import Broker
from tests.bridge.sockets.test_security import access_file
from tests.deadline import eventually
from tests.ha.pair import assert_equal, send, settled_end, slave_of
from tests.ha.seen import replication_of, until_told
from tests.ha.test_shipping import ha_address
from tests.ha.test_switch import cluster, demote, fixed, follows, ha_of, is_writable, promote, read
from tests.shm.looking import looking


def secret_file(path: Path, mode: int = 0o600) -> str:
    path.write_text(secrets.token_hex(32) + "\n")
    path.chmod(mode)
    return str(path)


@pytest.fixture(scope="module")
def secret(tmp_path_factory: pytest.TempPathFactory) -> str:
    return secret_file(tmp_path_factory.mktemp("secret") / "link")


@pytest.fixture(scope="module")
def master(secret: str) -> Iterator[Broker]:
    with Broker(tcp=True, ha_listen="127.0.0.1:0", ha_secret_file=secret) as broker:
        send(broker, range(50))
        yield broker


@pytest.mark.slow
def test_a_pair_with_a_secret_copies_and_switches(secret: str) -> None:
    both: dict[str, Any] = {"ha_secret_file": secret}
    with Broker(**fixed(), **both) as first:
        place = {"role": "slave", "master": first.broker_address, "master_ha": ha_of(first)}
        with Broker(name=first.name, **place, **fixed(), **both) as second:
            send(first, range(20))
            assert_equal(first, second)
            demote(first, second)
            eventually(lambda: follows(first), lambda: first.log[-2000:])
            settled_end(first, second)
            until_told(first, lambda told: told.standing == "follows")
            promote(second)
            send(second, range(20, 40))
            assert_equal(second, first)
            assert read(first, 40, "readers") == list(range(40))


def test_another_secret_is_refused_and_both_sides_say_why(master: Broker, tmp_path: Path) -> None:
    why = "the slave does not know this host's secret"
    with slave_of(master, ha_secret_file=secret_file(tmp_path / "other")) as slave:
        until_told(slave, lambda told: told.master is not None and why in told.master.error)
        until_told(master, lambda told: any(why in lost.reason for lost in told.refused))
        eventually(lambda: why in str(cluster(slave, "status")) and why in str(cluster(master, "status")))
        eventually(lambda: "ha.slave_refused" in master.log and "ha.master_lost" in slave.log)
        with looking(slave) as store:
            assert store.log_end == 0 and store.topic_find("orders") < 0  # nor was it asked for its tables


@pytest.mark.slow
def test_a_slave_without_a_secret_and_a_master_without_one_are_refused(master: Broker, secret: str) -> None:
    with slave_of(master) as slave:
        until_told(slave, lambda told: told.master is not None and "proves no secret" in told.master.error)
    with (
        Broker(tcp=True, ha_listen="127.0.0.1:0") as open_master,
        slave_of(open_master, ha_secret_file=secret) as slave,
    ):
        until_told(slave, lambda told: told.master is not None and "this master has none" in told.master.error)
        with looking(slave) as store:
            assert store.log_end == 0


@pytest.mark.slow
def test_a_stock_slave_is_served_only_where_it_is_named(master: Broker, secret: str) -> None:
    with socket.create_connection(ha_address(master), 30.0) as stock:
        stock.sendall(pack_report(0))
        while stock.recv(4096):
            pass
    until_told(master, lambda told: any("is a stock peer" in lost.reason for lost in told.refused))
    with Broker(ha_listen="127.0.0.1:0", ha_secret_file=secret, ha_allow="127.0.0.0/8") as naming:
        with naming.connect() as mq:
            mq.producer().send("orders", b"for every named peer")
        with socket.create_connection(ha_address(naming), 30.0) as stock:
            stock.sendall(pack_report(0))
            assert stock.recv(8, socket.MSG_WAITALL) == pack_header(0, 0)[:8]


@pytest.mark.slow
def test_a_stock_master_is_followed_only_where_it_is_named(secret: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as stock, Broker(tcp=True, ha_listen="127.0.0.1:0") as tables:
        stock.settimeout(60.0)
        place = {"role": "slave", "master": tables.broker_address, "master_ha": f"127.0.0.1:{stock.getsockname()[1]}"}
        for allow in ("", "127.0.0.1/32"):
            with Broker(name=tables.name, tcp=True, ha_secret_file=secret, ha_allow=allow, **place) as slave:
                with stock.accept()[0] as link:
                    assert link.recv(8, socket.MSG_WAITALL) == pack_report(AUTHENTICATION)
                    link.sendall(pack_header(AUTHENTICATION, 0))  # as RocketMQ answers a position below 0
                    assert not link.recv(1)
                if not allow:
                    until_told(slave, lambda told: told.master is not None and "is a stock peer" in told.master.error)
                with stock.accept()[0] as link:
                    first = link.recv(8, socket.MSG_WAITALL)
                    assert first == pack_report(0 if allow else AUTHENTICATION)


@pytest.mark.parametrize("words", [b"", pack_report(AUTHENTICATION) + b"\0\0"], ids=["nothing", "half"])
@pytest.mark.slow
def test_a_stranger_that_says_nothing_or_half_is_dropped_and_takes_no_place(master: Broker, words: bytes) -> None:
    with socket.create_connection(ha_address(master), 60.0) as stranger:
        stranger.sendall(words)
        while stranger.recv(4096):
            assert not replication_of(master).replicas
    until_told(master, lambda told: any("has not proven in time" in lost.reason for lost in told.refused))


def test_strangers_of_one_address_are_bounded(master: Broker) -> None:
    strangers = [socket.create_connection(ha_address(master), 60.0) for _ in range(STRANGERS_OF_ADDRESS_MAX)]
    try:
        with socket.create_connection(ha_address(master), 60.0) as one_more:
            assert b"too many connections" in one_more.recv(4096)
    finally:
        for stranger in strangers:
            stranger.close()


def test_no_unproven_peer_makes_a_master_believe_that_it_was_replaced(master: Broker) -> None:
    newer = Side("DefaultCluster", master.name, "forged", epochs=(Epoch(1, 0), Epoch(99, 1)))
    hello = pack_hello(side_bytes(newer)) + pack_progress(0, 0)
    with socket.create_connection(ha_address(master), 60.0) as forger:
        forger.sendall(pack_report(GREETING) + hello)
        while forger.recv(4096):
            pass
    shake = SlaveHandshake(b"a secret that is guessed", newer, bytes(NONCE_BYTES), 1, None)
    with socket.create_connection(ha_address(master), 60.0) as forger:
        forger.sendall(shake.take())
        while not shake.is_over:
            shake.feed(forger.recv(4096))
            forger.sendall(shake.take())
    assert "does not know this host's secret" in shake.closed
    assert is_writable(master) and "ha.replaced" not in master.log
    send(master, range(50, 51))


def test_with_accounts_a_user_of_this_host_neither_reads_the_log_nor_stops_the_master_unproven(tmp_path: Path) -> None:
    accounts = str(access_file(tmp_path))
    with Broker(tcp=True, acl=accounts, ha_listen="127.0.0.1:0") as guarded:
        newer = Side("DefaultCluster", guarded.name, "forged", epochs=(Epoch(0, 0), Epoch(99, 1)))
        for words in (pack_report(GREETING) + pack_hello(side_bytes(newer)) + pack_progress(0, 0), pack_report(0)):
            with socket.create_connection(ha_address(guarded), 60.0) as local:
                with contextlib.suppress(ConnectionError):  # it may have been refused before it has spoken
                    local.sendall(words)
                assert b"--ha-secret-file" in local.recv(4096)
        until_told(guarded, lambda told: any("--acl" in lost.reason for lost in told.refused))
        assert is_writable(guarded) and "ha.replaced" not in guarded.log
    with Broker(tcp=True, acl=accounts, ha_listen="127.0.0.1:0", ha_allow="127.0.0.1") as naming:
        with naming.connect() as mq:
            mq.producer().send("orders", b"for every named peer")
        with socket.create_connection(ha_address(naming), 60.0) as local:
            local.sendall(pack_report(0))
            assert local.recv(8, socket.MSG_WAITALL) == pack_header(0, 0)[:8]


def test_a_secret_that_others_can_read_or_that_is_short_is_refused(tmp_path: Path) -> None:
    short = tmp_path / "short"
    short.write_text("too short\n")
    short.chmod(0o600)
    readable = secret_file(tmp_path / "readable", 0o644)
    for path, why, cure in (
        (readable, "mode 0644", f"chmod 600 {readable}"),
        (str(short), "9 bytes", "openssl rand -hex 32"),
        (str(tmp_path / "none"), "does not exist", "chmod 600"),
    ):
        with pytest.raises(Exception, match=why) as refused, Broker(ha_listen="127.0.0.1:0", ha_secret_file=path):
            raise AssertionError("it started")
        assert cure in str(getattr(refused.value, "hint", "")) or cure in str(refused.value)
    with pytest.raises(UsageError, match="absolute path"):
        Options(ha_listen="127.0.0.1:0", ha_secret_file="link")


def test_whom_a_secret_and_a_list_let_in() -> None:
    named = parse_networks("10.1.0.0/24")
    assert (
        Trust(named).refuses("10.2.0.1") and not Trust(named).refuses("10.1.0.1") and not Trust().refuses("127.0.0.1")
    )
    assert not Trust((), b"s").refuses("10.2.0.1") and Trust((), b"s").refuses_plain("127.0.0.1")
    assert not Trust(named, b"s").refuses_plain("10.1.0.1") and Trust(named, b"s").refuses_plain("127.0.0.1")
    assert Trust(named, has_accounts=True).refuses("127.0.0.1") and Trust((), b"", True).refuses("::1")
    assert not Trust(parse_networks("127.0.0.1"), has_accounts=True).refuses("127.0.0.1")
    assert not Trust((), b"s", has_accounts=True).refuses("127.0.0.1")
    assert is_open_unproven(Options(ha_listen="0.0.0.0:10912"))
    assert not is_open_unproven(Options(ha_listen="127.0.0.1:10912"))
    assert not is_open_unproven(Options(ha_listen="0.0.0.0:10912", ha_secret_file="/s"))
