"""A broker that registers with name servers elsewhere, over real sockets."""

from __future__ import annotations

import signal
import socket
import ssl
from contextlib import ExitStack
from pathlib import Path

import pytest

from shmq.exit_code import ExitCode
from shmq.protocol.acl import sign
from shmq.protocol.codes import Request
from shmq.shm.addresses import read_addresses
from tests.bridge.live_bridge import LiveBridge, running, wait_until
from tests.nameserver.live_nameserver import LiveNameServer, name_server
from tests.protocol.certificates import make_certificate

QUICK = {"tick_interval": 0.05}


def dead_port() -> int:
    """A port without a listener."""
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        port: int = closed.getsockname()[1]
        return port


def wait_for_route(server: LiveNameServer, expected: dict[str, dict[str, str]]) -> None:
    wait_until(lambda: server.brokers_of("orders") == expected, f"{expected} at {server.address}")


def test_a_broker_is_known_to_every_name_server_that_lives_and_leaves_them_when_it_stops() -> None:
    with ExitStack() as stack:
        servers = [stack.enter_context(name_server()) for _ in range(2)]
        # The one in the middle is dead; the broker neither waits for it nor fails because of it.
        named = f"{servers[0].address};127.0.0.1:{dead_port()};{servers[1].address}"
        bridge = stack.enter_context(running(tcp=True, nameservers=named, limits=QUICK))
        assert "nameserver" not in read_addresses(bridge.place.addresses_path)
        host, port = bridge.address
        client = bridge.connect("local")
        client.create_topic("orders", queues=2)
        for server in servers:
            wait_for_route(server, {"test": {"0": f"{host}:{port}"}})
        status, log = bridge.end()
        assert status == ExitCode.DONE and log.count("is not reached") == 1 and log.count("registered as") == 2
        for server in servers:
            wait_for_route(server, {})
            log = server.end()[1]
            assert "its connection closed" not in log
            assert f"broker test (0, {host}:{port}) of DefaultCluster has left" in log


def test_a_name_server_that_comes_back_gets_the_registration_again() -> None:
    with name_server() as first, running(tcp=True, nameservers=first.address, limits=QUICK) as bridge:
        bridge.connect("local").create_topic("orders", queues=2)
        expected = {"test": {"0": "{}:{}".format(*bridge.address)}}
        wait_for_route(first, expected)
        first.end(signal.SIGKILL)
        with name_server(listen=first.address) as second:
            wait_for_route(second, expected)


def test_listening_at_every_address_each_name_server_gets_the_one_it_sees() -> None:
    options = {"listen": "0.0.0.0:0", "insecure": True}
    with name_server() as server, running(tcp=True, nameservers=server.address, limits=QUICK, **options) as bridge:
        bridge.connect("local").create_topic("orders", queues=2)
        wait_for_route(server, {"test": {"0": f"127.0.0.1:{bridge.address[1]}"}})


ACCOUNTS = """
accounts:
- accessKey: operations
  secretKey: a-secret-text
  admin: true
"""


def test_a_name_server_with_accounts_takes_the_broker_that_signs_and_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "plain_acl.yml"
    path.write_text(ACCOUNTS)
    path.chmod(0o600)
    with ExitStack() as stack:
        server = stack.enter_context(name_server("--acl", str(path)))
        unsigned = stack.enter_context(running(tcp=True, nameservers=server.address, limits=QUICK))
        monkeypatch.setenv("SHMQ_ACCESS_KEY", "operations")
        monkeypatch.setenv("SHMQ_SECRET_KEY", "a-secret-text")
        signed = stack.enter_context(running(tcp=True, nameservers=server.address, limits=QUICK))
        peer = stack.enter_context(server.peer())
        asked = sign({"topic": "TBW102"}, b"", access_key="operations", secret_key="a-secret-text")
        host, port = signed.address

        def known() -> bytes:
            return peer.ask(Request.GET_ROUTEINFO_BY_TOPIC, asked).body

        wait_until(lambda: f"{host}:{port}".encode() in known(), "the broker that signs is known")
        assert str(unsigned.address[1]).encode() not in known()
        status, log = unsigned.end()
        assert status == ExitCode.DONE and "No accessKey is configured" in log
        status, log = signed.end()
        assert status == ExitCode.DONE and "registered as" in log and "a-secret-text" not in log


def test_a_broker_with_half_a_key_pair_does_not_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHMQ_ACCESS_KEY", "operations")
    bridge = LiveBridge(tcp=True, nameservers=f"127.0.0.1:{dead_port()}")
    try:
        with pytest.raises(AssertionError, match="SHMQ_SECRET_KEY"):
            bridge.start()
    finally:
        bridge.process = None
        bridge.close()


def test_over_tls_only_a_name_server_that_is_vouched_for_gets_the_registration(tmp_path: Path) -> None:
    (tmp_path / "ours").mkdir()
    (tmp_path / "other").mkdir()
    (certificate, key), (stranger, _) = (make_certificate(tmp_path / name) for name in ("ours", "other"))
    words = ("--tls-mode", "enforcing", "--tls-cert", str(certificate), "--tls-key", str(key))
    with ExitStack() as stack:
        server = stack.enter_context(name_server(*words))
        trusting = {"tcp": True, "nameservers": server.address, "limits": QUICK}
        deceived = stack.enter_context(running(**trusting, nameserver_ca=str(stranger)))
        plain = stack.enter_context(running(**trusting))
        broker = stack.enter_context(running(**trusting, nameserver_ca=str(certificate)))
        peer = stack.enter_context(server.peer())
        peer.socket = ssl.create_default_context(cafile=certificate).wrap_socket(
            peer.socket, server_hostname="localhost"
        )
        expected = f'"{broker.address[0]}:{broker.address[1]}"'.encode()

        def known() -> bytes:
            return peer.ask(Request.GET_ROUTEINFO_BY_TOPIC, {"topic": "TBW102"}).body

        wait_until(lambda: expected in known(), "the broker is known")
        assert not any(str(other.address[1]).encode() in known() for other in (deceived, plain))
        _, log = deceived.end()
        assert "CERTIFICATE_VERIFY_FAILED" in log and "registered as" not in log
        assert "registered as" not in plain.end()[1]
        assert "registered as" in broker.end()[1]


def test_certificates_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    bridge = LiveBridge(tcp=True, nameservers=f"127.0.0.1:{dead_port()}", nameserver_ca=str(tmp_path / "none.pem"))
    try:
        with pytest.raises(AssertionError, match=r"none\.pem"):
            bridge.start()
    finally:
        bridge.process = None
        bridge.close()
