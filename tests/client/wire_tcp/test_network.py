"""The I/O thread with real sockets: dead, silent, hostile and encrypted peers, and what is left after the end."""

import asyncio
import contextlib
import gc
import re
import socket
import ssl
import subprocess
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError
from pathlib import Path
from typing import Any

import pytest

import shmq
from shmq.addresses import Address
from shmq.client.place import RemoteOptions
from shmq.client.wire_tcp import network as network_module
from shmq.client.wire_tcp.channel import _HOLDING, _HOLDING_CODES, AnotherLeads
from shmq.client.wire_tcp.network import Network
from shmq.client.wire_tcp.tls import tls_context
from shmq.errors import BrokerNotRunning, PermissionDenied, ProtocolError, RequestTimeout, ShmqError, UsageError
from shmq.protocol.acl import is_signed
from shmq.protocol.codes import Request
from shmq.protocol.command import Command
from shmq.protocol.header import CommandDecoder, encode_command
from shmq.protocol.request_table import REQUESTS
from tests.deadline import eventually
from tests.protocol.certificates import DAY, make_certificate

Serve = Callable[..., Address]


@pytest.fixture
def serve() -> Iterator[Serve]:
    """Listen on loopback, and call `talk(socket)` for each connection."""
    listeners: list[socket.socket] = []

    def start(talk: Callable[[socket.socket], None], context: ssl.SSLContext | None = None) -> Address:
        listener = socket.create_server(("127.0.0.1", 0))
        listeners.append(listener)

        def accept() -> None:
            while True:
                try:
                    connected, _ = listener.accept()
                except OSError:
                    return
                threading.Thread(target=serve_one, args=(connected,), daemon=True).start()

        def serve_one(connected: socket.socket) -> None:
            try:
                talk(context.wrap_socket(connected, server_side=True) if context else connected)
            except OSError:
                connected.close()

        threading.Thread(target=accept, daemon=True).start()
        return Address("127.0.0.1", listener.getsockname()[1])

    yield start
    for listener in listeners:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()


@pytest.fixture
def network() -> Iterator[Callable[..., Network]]:
    made: list[Network] = []

    def make(*, connect_timeout: float = 5.0, **options: Any) -> Network:
        ignored: dict[str, Any] = {"on_request": lambda *_: None, "on_reconnect": lambda _: None}
        made.append(Network(RemoteOptions(**options), connect_timeout=connect_timeout, **ignored))
        return made[-1]

    yield make
    for each in made:
        each.stop(5.0)
        assert not each._thread.is_alive()


def echo(connected: socket.socket) -> None:
    """Answer every request with its own fields and body."""
    decoder = CommandDecoder()
    while data := connected.recv(1 << 16):
        decoder.feed(data)
        while (command := decoder.take()) is not None:
            connected.sendall(encode_command(command.reply(ext=command.ext, body=command.body)))


def ask(network: Network, address: Address, timeout: float = 5.0) -> Command:
    command = Command(code=105, ext={"topic": "T"}, body=b"body")
    return network.call(network.request(address, command, timeout), timeout)


def test_answers_find_their_requests_over_one_connection(serve: Serve, network: Callable[..., Network]) -> None:
    net, address = network(), serve(echo)
    futures = [net.submit(net.request(address, Command(code=1, body=b"%d" % number), 10.0)) for number in range(100)]
    assert [future.result(60).body for future in futures] == [b"%d" % number for number in range(100)]
    assert net.connected() == [address]


class OfTheProgram(asyncio.DefaultEventLoopPolicy):
    """A policy as uvloop's is: its loops have transports of other classes. Here nothing of them can be used."""

    def new_event_loop(self) -> asyncio.AbstractEventLoop:
        raise AssertionError("a thread of the client asked for a loop of the program's")

    set_event_loop = get_event_loop = new_event_loop  # type: ignore[assignment]


def test_it_does_not_depend_on_the_event_loops_that_the_program_makes(
    serve: Serve, network: Callable[..., Network]
) -> None:
    address = serve(echo)
    asyncio.set_event_loop_policy(OfTheProgram())
    try:
        assert ask(network(), address).body == b"body"
    finally:
        asyncio.set_event_loop_policy(None)


def test_work_that_takes_longer_than_its_time_is_not_taken_for_a_thread_that_is_stuck(
    network: Callable[..., Network], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def asks_too_often() -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(network_module, "_MARGIN_SECONDS", 0.0)
    monkeypatch.setattr(network_module, "_ROUND_SECONDS", 60.0)
    with pytest.raises(RequestTimeout, match="not all answers came within 0 s") as caught:
        network().call(asks_too_often(), 0.0)
    assert caught.value.maybe_stored


def test_a_thread_that_is_stuck_is_said_to_be(network: Callable[..., Network], monkeypatch: pytest.MonkeyPatch) -> None:
    began, end, net = threading.Event(), threading.Event(), network()

    async def blocks() -> None:
        began.set()
        end.wait()

    for name in ("_MARGIN_SECONDS", "_ROUND_SECONDS"):
        monkeypatch.setattr(network_module, name, 0.0)
    blocking = net.submit(blocks())
    try:
        assert began.wait(60)
        with pytest.raises(BrokerNotRunning, match="thread does not run"):
            net.call(asyncio.sleep(0), 0.0)
    finally:
        end.set()
        blocking.result(60)


HOLDING = {spec.code for spec in REQUESTS.values() if {each.name for each in spec.fields} & {*_HOLDING}}


def test_the_requests_that_a_peer_may_hold_are_those_with_a_field_for_it() -> None:
    assert HOLDING == _HOLDING_CODES and {Request.PULL_MESSAGE, Request.POP_MESSAGE} <= HOLDING


@pytest.mark.parametrize("code", sorted(HOLDING))
def test_what_a_peer_may_hold_is_given_up_and_nothing_else(
    serve: Serve, network: Callable[..., Network], code: int
) -> None:
    net, heard = network(), threading.Event()

    def silent(connected: socket.socket) -> None:
        decoder, count = CommandDecoder(), 0
        while count < 3 and (data := connected.recv(1 << 16)):
            decoder.feed(data)
            while decoder.take() is not None:
                count += 1
        heard.set()
        connected.recv(1)

    address = serve(silent)
    commands = Command(code=code, ext={_HOLDING[0]: "15000"}), Command(code=code), Command(code=Request.SEND_MESSAGE_V2)
    given_up, *going_on = [net.submit(net.request(address, command, 60.0)) for command in commands]
    assert heard.wait(60)
    net.soon(lambda: net.give_up_held(address))
    with pytest.raises(AnotherLeads, match="another host leads"):
        given_up.result(60)
    assert not any(future.done() for future in going_on)


def test_a_silent_peer_costs_the_timeout_and_not_more(serve: Serve, network: Callable[..., Network]) -> None:
    def silent(connected: socket.socket) -> None:
        while connected.recv(1 << 16):
            pass

    address = serve(silent)
    with pytest.raises(RequestTimeout, match=str(address)) as caught:
        ask(network(), address, 0.2)
    assert caught.value.hint


def test_a_request_whose_connection_is_closed_meanwhile_fails_and_may_have_been_heard(
    serve: Serve, network: Callable[..., Network]
) -> None:
    net, asked, failed = network(), threading.Event(), []

    def silent(connected: socket.socket) -> None:
        while connected.recv(1 << 16):
            asked.set()

    def wait_for_an_answer(address: Address) -> None:
        try:
            ask(net, address, 60.0)
        except BaseException as error:
            failed.append(error)

    waiting = threading.Thread(target=wait_for_an_answer, args=(serve(silent),))
    waiting.start()
    assert asked.wait(60)
    net.stop(5.0)
    waiting.join(60)
    [error] = failed
    assert isinstance(error, BrokerNotRunning) and error.maybe_stored and error.hint


class Deaf:
    """A peer that accepts one connection and reads nothing before `listen`; little fits between it and the client.

    Attributes:
        received: bytes, in the end.
        is_reset: the connection ended without a proper end.
    """

    def __init__(self) -> None:
        self._listener = socket.socket()
        self._listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        self._listener.bind(("127.0.0.1", 0))
        self._listener.listen()
        self.address = Address("127.0.0.1", self._listener.getsockname()[1])
        self.received, self.is_reset = 0, False

    def listen(self) -> None:
        """Read until the end."""
        connected, _ = self._listener.accept()
        with self._listener, connected:
            try:
                while data := connected.recv(1 << 16):
                    self.received += len(data)
            except ConnectionResetError:
                self.is_reset = True


SEND = Command(code=Request.SEND_MESSAGE_V2, body=bytes(40_000))


def test_a_send_that_was_given_up_is_not_sent_after_its_connection_is_closed(network: Callable[..., Network]) -> None:
    peer, net = Deaf(), network()
    with pytest.raises(RequestTimeout):
        net.call(net.request(peer.address, SEND, 0.1), 60.0)
    net.stop(60.0)
    peer.listen()
    assert peer.received < len(SEND.body) and peer.is_reset


def test_a_send_that_waits_when_its_connection_is_closed_is_not_sent_after_that(
    network: Callable[..., Network],
) -> None:
    peer, net = Deaf(), network()
    channel = net.call(net.channel(peer.address, 60.0), 60.0)
    sending = net.submit(channel.request(SEND, 60.0))
    eventually(lambda: channel._waiting)
    net.stop(60.0)
    peer.listen()
    assert peer.received < len(SEND.body) and peer.is_reset
    with pytest.raises((ShmqError, CancelledError)):
        sending.result(60.0)


def test_what_has_no_answer_is_sent_after_its_connection_is_closed(network: Callable[..., Network]) -> None:
    peer, net = Deaf(), network()
    net.call(net.notify(peer.address, SEND, 60.0), 60.0)
    net.stop(0.0)
    peer.listen()
    net._thread.join(60.0)
    assert peer.received > len(SEND.body) and not peer.is_reset


def test_a_question_that_was_given_up_costs_no_message_that_has_no_answer(
    serve: Serve, network: Callable[..., Network]
) -> None:
    received, ended = bytearray(), threading.Event()

    def silent(connected: socket.socket) -> None:
        while data := connected.recv(1 << 16):  # a reset would be an error
            received.extend(data)
        ended.set()

    address, net = serve(silent), network()
    with pytest.raises(RequestTimeout):
        net.call(net.request(address, Command(code=Request.PULL_MESSAGE), 0.1), 60.0)
    net.call(net.notify(address, SEND, 60.0), 60.0)
    net.stop(60.0)
    assert ended.wait(60) and len(received) > len(SEND.body)


def test_a_late_answer_ends_the_doubt_about_a_send(serve: Serve, network: Callable[..., Network]) -> None:
    may_answer, ended = threading.Event(), threading.Event()

    def late(connected: socket.socket) -> None:
        decoder = CommandDecoder()
        while (request := decoder.take()) is None:
            decoder.feed(connected.recv(1 << 16))
        assert may_answer.wait(60)
        connected.sendall(encode_command(request.reply()))
        while connected.recv(1 << 16):  # a reset would be an error
            pass
        ended.set()

    address, net = serve(late), network()
    with pytest.raises(RequestTimeout):
        net.call(net.request(address, SEND, 0.1), 60.0)
    channel = net.call(net.channel(address, 60.0), 60.0)
    may_answer.set()
    eventually(lambda: not channel._given_up)
    net.stop(60.0)
    assert ended.wait(60)


def test_a_connection_that_fails_after_every_caller_gave_up_is_not_reported(
    network: Callable[..., Network],
) -> None:
    reported: list[dict[str, Any]] = []
    net = network(connect_timeout=0.5)
    net.loop.call_soon_threadsafe(net.loop.set_exception_handler, lambda _, context: reported.append(context))
    with socket.create_server(("127.0.0.1", 0), backlog=0) as full:
        address = Address(*full.getsockname())
        with socket.create_connection(address):  # takes the only place: who comes now is not answered
            with pytest.raises(BrokerNotRunning, match="no connection within"):
                net.call(net.channel(address, 0.05), 5.0)
            eventually(lambda: not net._dialling)

    async def collect() -> None:
        gc.collect()

    net.call(collect(), 5.0)
    assert reported == []


@pytest.mark.parametrize(
    "garbage", [b"\xff" * 64, b"\0\0\0\x08\0\0\0\x04{]{]", b"HTTP/1.1 400 Bad Request\r\n\r\n" * 9]
)
def test_a_peer_that_speaks_something_else_is_disconnected(
    serve: Serve, network: Callable[..., Network], garbage: bytes
) -> None:
    def talk(connected: socket.socket) -> None:
        connected.recv(1 << 16)
        connected.sendall(garbage)
        connected.recv(1 << 16)

    with pytest.raises(BrokerNotRunning, match="no RocketMQ"):
        ask(network(), serve(talk))


def test_a_peer_that_hangs_up_is_dialled_again(serve: Serve, network: Callable[..., Network]) -> None:
    first = threading.Event()

    def talk(connected: socket.socket) -> None:
        if not first.is_set():
            first.set()
            connected.recv(1 << 16)
            connected.close()
            return
        with contextlib.suppress(ProtocolError):  # the client looks whether TLS is spoken here
            echo(connected)
        connected.close()

    net, address = network(), serve(talk)
    with pytest.raises(BrokerNotRunning, match="is gone"):
        ask(net, address)
    assert ask(net, address).body == b"body"


def test_an_address_without_a_server_is_an_error_at_once(network: Callable[..., Network]) -> None:
    with pytest.raises(BrokerNotRunning, match=r"127\.0\.0\.1:1"):
        ask(network(), Address("127.0.0.1", 1))


def test_with_keys_every_request_is_signed(serve: Serve, network: Callable[..., Network]) -> None:
    reply = ask(network(access_key="rocketmq2", secret_key="12345678", security_token="tt"), serve(echo))
    assert reply.ext["AccessKey"] == "rocketmq2" and reply.ext["SecurityToken"] == "tt"
    assert is_signed(reply.ext, reply.body, secret_key="12345678")
    assert not is_signed(reply.ext, reply.body, secret_key="other")


def test_after_the_end_everything_is_refused(serve: Serve, network: Callable[..., Network]) -> None:
    net, address = network(), serve(echo)
    ask(net, address)
    net.stop(5.0)
    with pytest.raises(UsageError, match="closed"):
        ask(net, address)


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A certificate for 127.0.0.1 and its key, in one file."""
    directory = tmp_path_factory.mktemp("tls")
    words = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", "-subj", "/CN=localhost"]
    words += ["-addext", "subjectAltName=IP:127.0.0.1"]
    words += ["-keyout", str(directory / "key.pem"), "-out", str(directory / "cert.pem")]
    try:
        subprocess.run(words, check=True, capture_output=True)
    except FileNotFoundError:
        pytest.skip("openssl is not installed")
    both = directory / "both.pem"
    both.write_text((directory / "key.pem").read_text() + (directory / "cert.pem").read_text())
    return both


def server_context(certificate: Path) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    return context


def test_tls_is_verified_unless_an_option_forbids_it(
    serve: Serve, network: Callable[..., Network], certificate: Path
) -> None:
    address = serve(echo, server_context(certificate))
    with pytest.raises(PermissionDenied, match="TLS") as caught:
        ask(network(tls=True), address)
    assert "tls_ca" in caught.value.hint
    assert ask(network(tls=True, tls_ca=str(certificate)), address).body == b"body"
    assert ask(network(tls=True, tls_verify=False), address).body == b"body"


WRONG = [
    ({"ends_in": -DAY, "begins_in": -2 * DAY}, "its certificate expired on 20", "clock"),
    ({"begins_in": DAY, "ends_in": 2 * DAY}, "its certificate is not valid before 20", "clock"),
    (
        {"names": "DNS:broker.example,IP:10.0.0.4"},
        'not for "127.0.0.1" but for broker.example, 10.0.0.4',
        "--advertise",
    ),
]


@pytest.mark.parametrize(("changes", "text", "hint"), WRONG, ids=["expired", "early", "other host"])
def test_what_is_wrong_with_a_certificate_is_said(
    serve: Serve, network: Callable[..., Network], tmp_path: Path, changes: dict[str, Any], text: str, hint: str
) -> None:
    cert, key = make_certificate(tmp_path, **changes)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(cert, key)
    with pytest.raises(PermissionDenied, match=re.escape(text)) as caught:
        ask(network(tls=True, tls_ca=str(cert)), serve(echo, context))
    assert hint in caught.value.hint


def test_the_error_says_which_side_alone_speaks_tls(
    serve: Serve, network: Callable[..., Network], certificate: Path
) -> None:
    with pytest.raises(PermissionDenied, match="takes no connection without TLS") as caught:
        ask(network(), serve(echo, server_context(certificate)))
    assert caught.value.hint == "tls=true"

    def hang_up(connected: socket.socket) -> None:
        connected.recv(1 << 16)
        connected.close()

    for talk in (hang_up, lambda connected: connected.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")):
        with pytest.raises(PermissionDenied, match="does not answer a handshake") as caught:
            ask(network(tls=True), serve(talk))
        assert caught.value.hint.startswith("tls=false")


def test_a_peer_without_tls_is_not_talked_to_in_the_clear(serve: Serve, network: Callable[..., Network]) -> None:
    seen: list[bytes] = []

    def talk(connected: socket.socket) -> None:
        seen.append(connected.recv(1 << 16))
        connected.sendall(b"\0" * 64)
        connected.close()

    with pytest.raises((PermissionDenied, BrokerNotRunning)):
        ask(network(tls=True), serve(talk))
    assert seen and seen[0][:1] == b"\x16" and b"topic" not in seen[0]


def test_a_certificate_that_cannot_be_used_is_a_usage_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot be set up"):
        tls_context(RemoteOptions(tls=True, tls_ca=str(tmp_path / "missing.pem")))


def test_a_connection_that_cannot_be_made_leaves_no_thread() -> None:
    before = set(threading.enumerate())
    with pytest.raises(shmq.BrokerNotRunning):
        shmq.connect("rocketmq://127.0.0.1:1", timeout=1.0)
    assert not [thread for thread in {*threading.enumerate()} - before if thread.name == "shmq-remote"]
