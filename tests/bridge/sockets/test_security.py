"""Accounts, TLS and the rule about listening, at a real bridge with real sockets."""

import contextlib
import os
import shutil
import socket
import ssl
import subprocess
from pathlib import Path
from typing import Any

import msgspec
import pytest

from shmq.daemon.bridge.sockets.security import Security, is_loopback, open_security
from shmq.errors import UsageError
from shmq.exit_code import ExitCode
from shmq.options.broker import Options
from shmq.protocol.acl import sign
from shmq.protocol.codes import Request, Response
from shmq.protocol.command import Command
from shmq.protocol.header import encode_command
from shmq.waits import is_ready
from tests.bridge.live_bridge import DEADLINE, LiveBridge, RawPeer, raw_peer, running, wait_until
from tests.protocol import certificates
from tests.protocol.certificates import DAY

QUICK = {"tick_interval": 0.02, "close_timeout": 0.1}
ACL = """
accounts:
- accessKey: administrator
  secretKey: {secret}
  admin: true
"""
KEYS = {"access_key": "administrator", "secret_key": "secret-one"}


def no_log(event: str, **values: Any) -> None:
    """Nothing is kept."""


def access_file(directory: Path, secret: str = "secret-one") -> Path:
    path = directory / f"{secret}.yml"
    path.write_text(ACL.format(secret=secret))
    path.chmod(0o600)
    return path


@pytest.fixture(scope="session")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A certificate for localhost and its key."""
    return certificates.make_certificate(tmp_path_factory.mktemp("tls"))


def tls_peer(bridge: LiveBridge, cert: Path, *, version: ssl.TLSVersion | None = None) -> RawPeer:
    context = ssl.create_default_context(cafile=str(cert))
    if version is not None:
        context.minimum_version = context.maximum_version = version
        context.set_ciphers("ALL:@SECLEVEL=0")
    peer = RawPeer(bridge.address)
    try:
        peer.socket = context.wrap_socket(peer.socket, server_hostname="localhost")
    except BaseException:
        peer.close()
        raise
    return peer


# -- accounts


def test_with_accounts_a_signed_request_is_served_and_an_unsigned_one_is_refused(tmp_path: Path) -> None:
    with running(tcp=True, acl=str(access_file(tmp_path))) as bridge, raw_peer(bridge, tcp=True) as peer:
        refused = peer.ask(Request.GET_ALL_TOPIC_CONFIG)
        assert (refused.code, refused.remark) == (Response.SYSTEM_ERROR, "No accessKey is configured")
        assert peer.ask(Request.GET_ALL_TOPIC_CONFIG, sign({}, b"", **KEYS)).code == Response.SUCCESS
        assert peer.ask(Request.GET_ALL_TOPIC_CONFIG).code == Response.SYSTEM_ERROR
        with raw_peer(bridge) as local:
            assert local.ask(Request.GET_ALL_TOPIC_CONFIG).code == Response.SUCCESS


def test_a_changed_file_counts_at_once_and_a_wrong_one_changes_nothing(tmp_path: Path) -> None:
    path = access_file(tmp_path)
    new_keys = KEYS | {"secret_key": "secret-two"}
    limits = QUICK | {"first_frame_timeout": 0.5}  # of what `wait_ticks` begins
    with running(tcp=True, acl=str(path), limits=limits) as bridge, raw_peer(bridge, tcp=True) as peer:

        def works(keys: dict[str, str]) -> bool:
            return peer.ask(Request.GET_ALL_TOPIC_CONFIG, sign({}, b"", **keys)).code == Response.SUCCESS

        assert works(KEYS) and not works(new_keys)
        os.replace(access_file(tmp_path, "secret-two"), path)
        wait_until(lambda: works(new_keys), "the new accounts are in force")
        assert not works(KEYS)
        path.write_text("accounts: nonsense")
        path.unlink()
        assert works(new_keys)
        access_file(tmp_path).chmod(0o644)
        os.replace(tmp_path / "secret-one.yml", path)
        wait_ticks(bridge)
        assert works(new_keys) and not works(KEYS)
        status, log = bridge.end()
        assert status == ExitCode.DONE and "access.changed" in log and "security.kept" in log and "chmod 600" in log
        assert "secret-one" not in log.replace("secret-one.yml", "") and "secret-two" not in log


def wait_ticks(bridge: LiveBridge) -> None:
    """Until the bridge has looked at its clock: a peer that begins a frame now is cut off by a later tick."""
    with raw_peer(bridge, tcp=True) as slow:
        slow.send(b"\0")
        assert slow.take() is None


def test_a_bridge_does_not_start_with_accounts_it_cannot_read(tmp_path: Path) -> None:
    path = access_file(tmp_path)
    path.chmod(0o644)
    with pytest.raises(UsageError, match="mode 0644"):
        Security(acl=str(path))
    path.chmod(0o600)
    path.write_text("accounts:\n- accessKey: administrator\n  secretKey: short")
    with pytest.raises(UsageError, match=r"account 1: secretKey") as caught:
        Security(acl=str(path))
    assert "short" not in str(caught.value) + caught.value.hint
    path.write_bytes(b"\xff")
    with pytest.raises(UsageError, match="not UTF-8"):
        Security(acl=str(path))


# -- where it listens


@pytest.mark.parametrize(
    ("host", "local"),
    [("127.0.0.1", True), ("127.1.2.3", True), ("::1", True), ("localhost", True), ("0.0.0.0", False), ("::", False),
     ("", False), ("192.0.2.1", False), ("no-such-host.invalid", False)],
)  # fmt: skip
def test_only_what_leads_nowhere_else_is_loopback(host: str, local: bool) -> None:
    assert is_loopback(host) is local


def test_listening_for_others_needs_accounts_or_a_word(tmp_path: Path) -> None:
    plain, guarded = Security(), Security(acl=str(access_file(tmp_path)))
    plain.check_exposure(["127.0.0.1", "::1"], no_log, insecure=False)
    for host in ("0.0.0.0", "192.0.2.1"):
        with pytest.raises(UsageError, match="without accounts") as caught:
            plain.check_exposure(["127.0.0.1", host], no_log, insecure=False)
        assert "--acl" in caught.value.hint and "--insecure" in caught.value.hint
    events: list[str] = []
    plain.check_exposure(["0.0.0.0"], lambda event, **_: events.append(event), insecure=True)
    assert events == ["security.insecure", "security.plain"]
    events.clear()
    guarded.check_exposure(["0.0.0.0"], lambda event, **_: events.append(event), insecure=False)
    assert events == ["security.plain"]


def test_a_bridge_that_would_be_reachable_without_accounts_does_not_start() -> None:
    for option in ("listen", "nameserver_listen"):
        bridge = LiveBridge(tcp=True, **{option: "0.0.0.0:0"})
        try:
            with pytest.raises(AssertionError, match="without accounts"):
                bridge.start()
            assert not bridge.place.socket_path.exists()
        finally:
            bridge.process = None
            bridge.close()


def test_a_default_bridge_listens_on_loopback_only() -> None:
    with running(tcp=True) as bridge:
        assert bridge.process is not None
        listening = {
            socket.inet_ntoa(bytes.fromhex(line.split()[1].split(":")[0])[::-1])
            for line in Path(f"/proc/{bridge.process.pid}/net/tcp").read_text().splitlines()[1:]
            if line.split()[3] == "0A" and line.split()[9] in sockets_of(bridge.process.pid)
        }
        assert listening == {"127.0.0.1"}


def sockets_of(pid: int) -> set[str]:
    links = []
    for entry in os.scandir(f"/proc/{pid}/fd"):
        with contextlib.suppress(FileNotFoundError):  # closed since it was listed
            links.append(os.readlink(entry.path))
    return {link[8:-1] for link in links if link.startswith("socket:[")}


# -- TLS


def test_permissive_takes_both_on_one_port(certificate: tuple[Path, Path]) -> None:
    cert, key = certificate
    with running(tcp=True, tls_mode="permissive", tls_cert=str(cert), tls_key=str(key)) as bridge:
        with raw_peer(bridge, tcp=True) as plain:
            assert plain.ask(Request.GET_ALL_TOPIC_CONFIG).code == Response.SUCCESS
        peer = tls_peer(bridge, cert)
        assert peer.ask(Request.GET_ALL_TOPIC_CONFIG).code == Response.SUCCESS
        assert isinstance(peer.socket, ssl.SSLSocket) and peer.socket.version() == "TLSv1.3"
        peer.close()
        with raw_peer(bridge) as local:
            assert local.ask(Request.STATUS).code == Response.SUCCESS


def test_a_large_frame_passes_through_tls_in_both_directions(certificate: tuple[Path, Path]) -> None:
    cert, key = certificate
    with running(tcp=True, tls_mode="enforcing", tls_cert=str(cert), tls_key=str(key)) as bridge:
        peer = tls_peer(bridge, cert)
        peer.send(encode_command(Command(code=9999, opaque=1, body=bytes(4 << 20))))
        reply = peer.take()
        assert reply is not None and reply.opaque == 1
        peer.close()


def test_enforcing_closes_a_plain_connection_and_disabled_closes_tls(certificate: tuple[Path, Path]) -> None:
    cert, key = certificate
    with running(tcp=True, tls_mode="enforcing", tls_cert=str(cert), tls_key=str(key)) as bridge:
        with raw_peer(bridge, tcp=True) as plain:
            plain.send(encode_command(Command(code=Request.GET_ALL_TOPIC_CONFIG)))
            assert plain.take() is None
        peer = tls_peer(bridge, cert)
        assert peer.ask(Request.GET_ALL_TOPIC_CONFIG).code == Response.SUCCESS
        peer.close()
    with running(tcp=True) as bridge:
        with pytest.raises((ssl.SSLError, ConnectionError)):
            tls_peer(bridge, cert)
        with raw_peer(bridge, tcp=True) as plain:
            assert plain.ask(Request.GET_ALL_TOPIC_CONFIG).code == Response.SUCCESS


@pytest.mark.filterwarnings("ignore:ssl.TLSVersion:DeprecationWarning")
def test_versions_before_1_2_are_refused(certificate: tuple[Path, Path]) -> None:
    cert, key = certificate
    with running(tcp=True, tls_mode="permissive", tls_cert=str(cert), tls_key=str(key)) as bridge:
        for version in (ssl.TLSVersion.TLSv1, ssl.TLSVersion.TLSv1_1):
            with pytest.raises((ssl.SSLError, ConnectionError)):
                tls_peer(bridge, cert, version=version)
        peer = tls_peer(bridge, cert, version=ssl.TLSVersion.TLSv1_2)
        assert peer.ask(Request.GET_ALL_TOPIC_CONFIG).code == Response.SUCCESS
        peer.close()


def test_peers_that_never_finish_the_handshake_are_cut_off_and_delay_no_other(certificate: tuple[Path, Path]) -> None:
    cert, key = certificate
    tls = {"tls_mode": "permissive", "tls_cert": str(cert), "tls_key": str(key)}
    with running(tcp=True, clock="frozen", limits=QUICK, **tls) as bridge:
        peers = [RawPeer(bridge.address) for _ in range(12)]
        for number, peer in enumerate(peers):
            peer.send((b"", b"\x16", b"\x16\x03\x01\x40\x00", b"\x16" + bytes(40))[number % 4])
        good = tls_peer(bridge, cert)
        assert good.ask(Request.GET_ALL_TOPIC_CONFIG).code == Response.SUCCESS
        for peer in peers:
            wait_until(lambda peer=peer: bridge.advance(121) or is_ready(peer.socket.fileno(), 0))  # type: ignore[misc]
            with_reply = peer.socket.recv(100)
            assert with_reply == b"" or with_reply[0] == 0x15  # closed, at most with a TLS alert before
            peer.close()
        good.close()
        status, log = bridge.end()
        assert status == ExitCode.DONE and "Traceback" not in log and "loop.error" not in log


def test_silent_peers_make_room_while_tls_waits_for_their_first_byte(certificate: tuple[Path, Path]) -> None:
    cert, key = certificate
    tls = {"tls_mode": "enforcing", "tls_cert": str(cert), "tls_key": str(key)}
    limits = QUICK | {"loopback_connections_max": 4, "refused_connections_max": 1, "idle_kept": 0.05}
    with running(tcp=True, limits=limits, **tls) as bridge, contextlib.ExitStack() as peers:
        silent = [peers.enter_context(raw_peer(bridge, tcp=True)) for _ in range(4)]

        def is_served() -> bool:
            with contextlib.suppress(OSError), contextlib.closing(tls_peer(bridge, cert)) as good:
                return good.ask(Request.GET_ALL_TOPIC_CONFIG).code == Response.SUCCESS
            return False

        wait_until(is_served, "a silent one has made room")
        assert silent[0].take() is None


def test_a_renewed_certificate_is_used_for_new_connections(tmp_path: Path) -> None:
    cert, key = certificates.make_certificate(tmp_path)
    tls = {"tls_mode": "enforcing", "tls_cert": str(cert), "tls_key": str(key)}
    with running(tcp=True, limits=QUICK, **tls) as bridge:
        old = tls_peer(bridge, cert)
        (tmp_path / "new").mkdir()
        new_cert, new_key = certificates.make_certificate(tmp_path / "new")
        wanted = new_cert.read_bytes()
        os.replace(new_key, key)
        os.replace(new_cert, cert)

        def presented() -> bytes:
            return ssl.get_server_certificate(bridge.address).encode()

        wait_until(lambda: presented() == wanted, "the new certificate is presented")
        assert old.ask(Request.GET_ALL_TOPIC_CONFIG).code == Response.SUCCESS
        old.close()


class Events:
    """The lines of a log."""

    def __init__(self) -> None:
        self.lines: list[tuple[str, str]] = []

    def __call__(self, event: str, **values: Any) -> None:
        self.lines.append((event, str(values.get("reason", ""))))

    def take(self) -> list[tuple[str, str]]:
        lines, self.lines = self.lines, []
        return lines


def test_the_end_of_a_certificate_is_reported_and_one_that_is_not_valid_takes_no_place(tmp_path: Path) -> None:
    cert, key = certificates.make_certificate(tmp_path, ends_in=13.2 * DAY)
    log, security = Events(), Security(tls_mode="enforcing", tls_cert=str(cert), tls_key=str(key))
    for _ in range(2):
        security.tick(log)
    [(event, reason)] = log.take()
    assert event == "tls.notice" and "expires on" in reason and "in 13 days" in reason
    for name, text, begins, ends in (
        ("old", "expired on", -3 * DAY, -DAY),
        ("early", "is not valid before", DAY, 2 * DAY),
    ):
        before, new = security.state, certificates.make_certificate(tmp_path / name, begins_in=begins, ends_in=ends)
        for made, path in zip(new, (cert, key), strict=True):
            os.replace(made, path)
        for _ in range(2):
            security.tick(log)
        [(event, reason)] = log.take()
        assert event == "security.kept" and f"{cert} {text}" in reason
        assert security.state == msgspec.structs.replace(before, kept=reason)
    for made, path in zip(certificates.make_certificate(tmp_path / "good", ends_in=90 * DAY), (cert, key), strict=True):
        os.replace(made, path)
    security.tick(log)
    assert log.take() == [("tls.changed", "")] and security.state.kept == ""


def test_a_certificate_that_is_over_is_reported_at_the_start_and_taken(tmp_path: Path) -> None:
    cert, key = certificates.make_certificate(tmp_path, begins_in=-3 * DAY, ends_in=-DAY)
    log, options = Events(), Options(tcp=True, tls_mode="permissive", tls_cert=str(cert), tls_key=str(key))
    open_security(options, log)
    [(event, reason)] = log.take()
    assert event == "tls.notice" and reason.startswith("expired on")


@pytest.mark.parametrize("which", ["accounts", "certificate", "key"])
def test_a_file_that_is_removed_is_reported_once_and_what_it_said_stays(
    tmp_path: Path, certificate: tuple[Path, Path], which: str
) -> None:
    cert, key = (Path(shutil.copy2(path, tmp_path / path.name)) for path in certificate)
    acl = access_file(tmp_path)
    log = Events()
    security = Security(acl=str(acl), tls_mode="enforcing", tls_cert=str(cert), tls_key=str(key))
    security.tick(log)
    rules, tls, _ = security.admission.rules, security.tls and security.tls.context, log.take()
    path = {"accounts": acl, "certificate": cert, "key": key}[which]
    path.rename(path.with_suffix(".away"))
    for _ in range(2):
        security.tick(log)
    [(event, reason)] = log.take()
    assert event == "security.kept" and f"{path} cannot be looked at" in reason and security.state.kept == reason
    assert security.admission.rules is rules and security.tls is not None and security.tls.context is tls
    path.with_suffix(".away").rename(path)
    security.tick(log)
    assert [event for event, _ in log.take()] == ["access.changed" if which == "accounts" else "tls.changed"]
    assert security.state.kept == ""


@pytest.mark.parametrize("wrong", ["mode", "pair", "text", "password"])
def test_a_certificate_that_cannot_be_used_is_refused_at_the_start(
    tmp_path: Path, certificate: tuple[Path, Path], wrong: str
) -> None:
    cert, key = certificates.make_certificate(tmp_path)
    if wrong == "mode":
        key.chmod(0o640)
    elif wrong == "pair":
        cert = certificate[0]
    elif wrong == "text":
        cert.write_text("no certificate")
    else:
        locked = tmp_path / "locked.pem"
        subprocess.run(
            ["openssl", "ec", "-in", key, "-aes256", "-passout", "pass:x", "-out", locked],
            check=True, capture_output=True, timeout=DEADLINE,
        )  # fmt: skip
        locked.chmod(0o600)
        key = locked
    with pytest.raises(UsageError) as caught:
        Security(tls_mode="enforcing", tls_cert=str(cert), tls_key=str(key))
    assert caught.value.hint
