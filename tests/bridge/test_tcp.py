"""The same bridge over TCP: other limits, no private requests, ports that say who has them."""

import asyncio
import contextlib
import signal
import socket
import struct
from collections.abc import Iterable, Iterator

import pytest

from shmq.addresses import Address
from shmq.daemon.bridge.bridge import Bridge
from shmq.daemon.bridge.limits import BridgeLimits
from shmq.daemon.bridge.sockets.tcp_listener import VIP_DISTANCE, TcpListener, listen_with_vip
from shmq.daemon.logic.effects import Effect, Reply
from shmq.daemon.logic.requests import Peer
from shmq.errors import ConnectError, UsageError
from shmq.exit_code import ExitCode
from shmq.protocol.codes import Request, Response
from shmq.protocol.command import Command
from shmq.protocol.frame import FRAME_BYTES_MAX, STOCK_FRAME_BYTES_MAX
from shmq.protocol.header import encode_command
from shmq.shm.addresses import read_addresses
from tests.bridge.live_bridge import RawPeer, raw_peer, running, wait_until
from tests.bridge.quiet_logic import QuietLogic
from tests.interop.peers.wire import encode
from tests.ports import free_ports

QUICK = {"tick_interval": 0.02}


def test_a_tcp_peer_is_served_what_is_rocketmqs_and_nothing_private() -> None:
    with running(tcp=True) as bridge, raw_peer(bridge, tcp=True) as peer:
        assert peer.ask(Request.GET_ALL_TOPIC_CONFIG).code == Response.SUCCESS
        for code in (Request.ATTACH, Request.OFFSET_SLOTS, Request.STATUS, 30099):
            reply = peer.ask(code, {"clientId": "a", "role": "0"})
            assert reply.code == Response.REQUEST_CODE_NOT_SUPPORTED
        assert peer.ask(Request.STATUS).remark == f" request type {int(Request.STATUS)} not supported"


def test_a_tcp_peer_may_send_the_longest_frame_at_once_and_none_longer() -> None:
    with running(tcp=True) as bridge, raw_peer(bridge, tcp=True) as peer:
        head = len(encode_command(Command(code=9999, opaque=1))) - 4
        assert peer.ask(9999, body=bytes(FRAME_BYTES_MAX - head)).code == Response.REQUEST_CODE_NOT_SUPPORTED
        peer.send(_long_frame(9999, FRAME_BYTES_MAX + 1))
        assert peer.take() is None
    with running(tcp=True) as bridge, raw_peer(bridge, tcp=True) as peer:
        peer.send(struct.pack(">iI", STOCK_FRAME_BYTES_MAX + 1, 20))
        assert peer.take() is None


def _long_frame(code: int, frame_bytes: int) -> bytes:
    """The beginning of a frame of any length: its prefix and header."""
    frame = encode_command(Command(code=code, opaque=7, ext={"b": "t", "e": "0"}))
    return struct.pack(">i", frame_bytes) + frame[4:]


def test_a_send_above_the_frame_limit_is_answered_as_illegal_and_its_connection_goes_on() -> None:
    head = _long_frame(Request.SEND_MESSAGE_V2, 5 << 20)
    body_bytes = (5 << 20) + 4 - len(head)
    inner = encode_command(Command(code=9999, opaque=8))  # looks like a frame and is part of a body
    with running(tcp=True) as bridge, raw_peer(bridge, tcp=True) as peer:
        for _ in range(2):
            peer.send(head + inner + bytes(body_bytes - len(inner)))
            reply = peer.take()
            assert reply is not None and (reply.code, reply.opaque) == (Response.MESSAGE_ILLEGAL, 7)
            assert reply.ext["TRACE_ON"] == "true" and f"{body_bytes} bytes" in (reply.remark or "")
            assert peer.ask(9999).code == Response.REQUEST_CODE_NOT_SUPPORTED


def test_an_idle_tcp_peer_is_closed_and_one_that_talks_is_not() -> None:
    with (
        running(tcp=True, clock="frozen", limits=QUICK) as bridge,
        raw_peer(bridge, tcp=True) as busy,
        raw_peer(bridge, tcp=True) as idle,
    ):
        assert idle.ask(9999).code == Response.REQUEST_CODE_NOT_SUPPORTED
        for _ in range(2):
            bridge.advance(100)
            assert busy.ask(9999).code == Response.REQUEST_CODE_NOT_SUPPORTED
        assert idle.take() is None
        assert busy.ask(9999).code == Response.REQUEST_CODE_NOT_SUPPORTED


def test_a_tcp_peer_may_be_silent_before_its_first_byte_and_not_within_a_frame() -> None:
    """Stock clients open connections that they need much later."""
    with running(tcp=True, clock="frozen", limits=QUICK) as bridge, raw_peer(bridge, tcp=True) as silent:
        with raw_peer(bridge, tcp=True) as slow:  # it came later, and is cut for what it began
            assert slow.ask(9999).code == Response.REQUEST_CODE_NOT_SUPPORTED
            slow.send(encode_command(Command(code=9999)) + encode_command(Command(code=9999))[:10])
            assert slow.take() is not None  # what came with it was read
            bridge.advance(10)
            assert slow.take() is None
        assert silent.ask(9999).code == Response.REQUEST_CODE_NOT_SUPPORTED


def test_a_tcp_peer_that_never_speaks_is_closed_in_the_end() -> None:
    with (
        running(tcp=True, clock="frozen", limits=QUICK) as bridge,
        raw_peer(bridge, tcp=True) as silent,
        raw_peer(bridge, tcp=True) as later,
    ):
        assert later.ask(9999).code == Response.REQUEST_CODE_NOT_SUPPORTED  # so the one before is accepted, too
        bridge.advance(121)
        assert silent.take() is None
        assert "idle for 120 s" in bridge.end()[1]


@pytest.mark.parametrize(
    "fields",
    [
        {"i": "x" * (300 << 10)},
        {"i": "x" * (3 << 20)},
        {"subscription": "x" * 40_000},
        {f"field{number}": "x" for number in range(200)},
    ],
    ids=["a header", "a very long header", "a value", "fields"],
)
@pytest.mark.parametrize("code", [Request.SEND_MESSAGE_V2, Request.PULL_MESSAGE])
def test_what_is_too_large_for_a_header_is_answered_and_its_connection_goes_on(
    code: int, fields: dict[str, str]
) -> None:
    with running(tcp=True) as bridge, raw_peer(bridge, tcp=True) as peer:
        peer.send(encode_json_frame(code, fields))
        reply = peer.take()
        assert reply is not None and (reply.code, reply.opaque) == (Response.MESSAGE_ILLEGAL, 7)
        assert "allowed" in (reply.remark or "") or "longer than" in (reply.remark or "")
        assert peer.ask(9999).code == Response.REQUEST_CODE_NOT_SUPPORTED


def encode_json_frame(code: int, fields: dict[str, str]) -> bytes:
    """A frame as Java writes it, with whatever is in its fields."""
    return encode(code, 7, fields, b"m")


def test_a_slow_tcp_peer_is_cut_off() -> None:
    with running(tcp=True, clock="frozen", limits=QUICK) as bridge, raw_peer(bridge, tcp=True) as slow:
        slow.send(encode_command(Command(code=9999)) + encode_command(Command(code=9999))[:10])
        assert slow.take() is not None
        bridge.advance(10)
        assert slow.take() is None


def test_the_vip_port_serves_everything_but_pulls() -> None:
    port = free_ports(-VIP_DISTANCE)
    with running(tcp=True, listen=f"127.0.0.1:{port}") as bridge:
        assert bridge.address == ("127.0.0.1", port)
        vip = RawPeer(("127.0.0.1", port - 2))
        try:
            assert vip.ask(Request.GET_ALL_TOPIC_CONFIG).code == Response.SUCCESS
            for code in (Request.PULL_MESSAGE, Request.LITE_PULL_MESSAGE):
                reply = vip.ask(code)
                assert (reply.code, reply.remark) == (3, f" request type {int(code)} not supported")
        finally:
            vip.close()


def test_the_addresses_are_written_for_others_and_removed_in_the_end() -> None:
    with running(tcp=True) as bridge:
        host, port = bridge.address
        assert (host, port > 0) == ("127.0.0.1", True)
        assert bridge.end()[0] == ExitCode.DONE
        assert read_addresses(bridge.place.addresses_path) == {}


def test_a_port_that_the_kernel_chose_is_taken_again_after_a_kill() -> None:
    with running(tcp=True) as bridge:
        before = bridge.address
        bridge.end(signal.SIGKILL)
        bridge.start()
        assert bridge.address == before
        with raw_peer(bridge, tcp=True) as peer:
            assert peer.ask(9999).code == Response.REQUEST_CODE_NOT_SUPPORTED


def test_a_taken_port_is_named_with_what_to_do_and_the_other_one_is_free_again() -> None:
    port = free_ports(-VIP_DISTANCE)
    with socket.create_server(("127.0.0.1", port - 2)):
        with pytest.raises(ConnectError, match=f"port {port - 2} of 127.0.0.1 is in use") as caught:
            listen_with_vip("127.0.0.1", port)
        assert "--listen" in caught.value.hint and "--no-tcp" in caught.value.hint
    for listener in listen_with_vip("127.0.0.1", port):
        listener.close()


def test_a_host_that_is_not_ours_is_refused() -> None:
    with pytest.raises(UsageError, match=r"192\.0\.2\.1"):
        TcpListener("192.0.2.1", 0)


class Echo(QuietLogic):
    """Answers a request when the next one comes, or when the log moves, over whatever connection."""

    def __init__(self) -> None:
        self.ends: list[tuple[Address | None, Address | None]] = []
        self.held: list[Reply] = []

    def connected(
        self,
        connection_id: int,
        peer: Peer | None,
        now_ms: int,
        *,
        remote: Address | None = None,
        local: Address | None = None,
    ) -> None:
        self.ends.append((remote, local))

    def handle(self, connection_id: int, command: Command, now_ms: int) -> Iterable[Effect]:
        held, self.held = self.held, [Reply(connection_id, command.reply())]
        return held

    def disconnected(self, connection_id: int, now_ms: int) -> Iterable[Effect]:
        return ()

    def tick(self, now_ms: int) -> Iterable[Effect]:
        return ()

    def flushed(self, durable_end: int, now_ms: int) -> Iterable[Effect]:
        held, self.held = self.held, []
        return held


@contextlib.contextmanager
def listening() -> Iterator[TcpListener]:
    listener = TcpListener("127.0.0.1", 0)
    try:
        yield listener
    finally:
        listener.close()


def test_any_logic_is_hosted_and_a_held_reply_reaches_its_own_connection() -> None:
    logic = Echo()

    def talk(bridge: Bridge, loop: asyncio.AbstractEventLoop, address: Address) -> None:
        first, second = RawPeer(tuple(address)), RawPeer(tuple(address))
        first.send(encode_command(Command(code=1, opaque=11)))
        wait_until(lambda: logic.held, "the first request is held")
        second.send(encode_command(Command(code=1, opaque=22)))
        answer = first.take()
        assert answer is not None and answer.opaque == 11
        loop.call_soon_threadsafe(bridge.flushed, 0)
        answer = second.take()
        assert answer is not None and answer.opaque == 22
        ours = [(Address(*peer.socket.getsockname()), address) for peer in (first, second)]
        assert sorted(logic.ends, key=str) == sorted(ours, key=str)
        first.close()
        second.close()

    async def scene(listener: TcpListener) -> None:
        bridge = Bridge(logic, lambda *_, **__: None, limits=BridgeLimits())
        bridge.listen(listener.socket)
        await asyncio.to_thread(talk, bridge, asyncio.get_running_loop(), listener.address)
        bridge.close()

    with listening() as listener:
        asyncio.run(scene(listener))
