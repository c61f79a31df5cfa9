"""Connections that are slow, silent, half open, hostile or many disturb no other: a good client is answered.

Each scene drives a real bridge; a good client asks all the while. Replies are counted, nothing is timed.
"""

import contextlib
import fcntl
import json
import random
import resource
import socket
import struct
import sys
import termios
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from shmq.exit_code import ExitCode
from shmq.protocol.acl import sign
from shmq.protocol.codes import Codec, Request, Response
from shmq.protocol.command import Command
from shmq.protocol.frame import FRAME_BYTES_MAX, encode_frame
from shmq.protocol.header import encode_command
from tests.bridge.live_bridge import LiveBridge, RawPeer, running, wait_until
from tests.deadline import eventually
from tests.seed import SEED

QUICK = {"tick_interval": 0.02, "close_timeout": 0.1}
TCP_ESTABLISHED = 1
LIST_TOPICS = encode_command(Command(code=Request.GET_ALL_TOPIC_CONFIG, opaque=1))


class Good:
    """A client that asks and is answered; `answered` counts."""

    def __init__(self, bridge: LiveBridge) -> None:
        self._peer = RawPeer(bridge.address)
        self.asked = self.answered = 0

    def ask(self, times: int = 1) -> None:
        for _ in range(times):
            self.asked += 1
            reply = self._peer.ask(Request.GET_ALL_TOPIC_CONFIG, opaque=self.asked)
            self.answered += reply.code == Response.SUCCESS

    def close(self) -> None:
        self._peer.close()


@contextlib.contextmanager
def scene(**limits: object) -> Iterator[tuple[LiveBridge, Good, Callable[[], RawPeer]]]:
    """A bridge, a good client, and a maker of bad ones; in the end the good one has had every answer.

    Limits of connections pass when the scene moves the clock.
    """
    with running(tcp=True, clock="frozen", limits={**QUICK, **limits}) as bridge, contextlib.ExitStack() as peers:
        good = Good(bridge)
        peers.callback(good.close)

        def bad() -> RawPeer:
            peer = RawPeer(bridge.address)
            peers.callback(peer.close)
            return peer

        good.ask()
        yield bridge, good, bad
        good.ask()
        assert good.answered == good.asked
        peers.close()
        status, log = bridge.end()
        assert status == ExitCode.DONE
        assert "Traceback" not in log and "internal.error" not in log and "loop.error" not in log


def is_closed(peer: RawPeer) -> bool:
    """Wait for the end of a connection, whatever comes before it."""
    with contextlib.suppress(ConnectionError):
        while peer.socket.recv(1 << 16):
            pass
    return True


def resident_bytes(bridge: LiveBridge) -> int:
    assert bridge.process is not None
    pages = int(Path(f"/proc/{bridge.process.pid}/statm").read_text().split()[1])
    return pages * resource.getpagesize()


def test_bytes_that_trickle_are_ended_and_silence_in_the_end() -> None:
    with scene() as (bridge, good, bad):
        silent, slow = ([bad() for _ in range(50)] for _ in range(2))
        for position in range(8):
            for peer in slow:
                with contextlib.suppress(ConnectionError):
                    peer.send(LIST_TOPICS[position : position + 1])
            good.ask()
            bridge.advance(1)
        eventually(lambda: all(map(_has_ended, slow)) or bridge.advance(5), "the slow ones to be ended")
        # The good client is not silent meanwhile: it would be ended as well.
        eventually(lambda: all(map(_has_ended, silent)) or good.ask() or bridge.advance(100), "all of them to be ended")


def _has_ended(peer: RawPeer) -> bool:
    peer.socket.setblocking(False)
    try:
        return peer.socket.recv(1 << 16) == b""
    except BlockingIOError:
        return False
    except ConnectionError:
        return True


def test_half_open_connections_are_ended() -> None:
    with scene() as (_, good, bad):
        peers = [bad() for _ in range(30)]
        for number, peer in enumerate(peers):
            if number % 2:
                peer.send(LIST_TOPICS[:9])
            peer.socket.shutdown(socket.SHUT_WR)
        good.ask(20)
        assert all(map(is_closed, peers))


def test_connections_that_are_cut_at_any_byte_or_reset_leave_nothing() -> None:
    with scene() as (bridge, good, bad):
        good.ask()
        before = len(bridge_descriptors(bridge))
        for position in range(len(LIST_TOPICS) + 1):
            peer = bad()
            peer.send(LIST_TOPICS[:position])
            if position % 2:
                peer.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            peer.close()
            good.ask()
        wait_until(lambda: len(bridge_descriptors(bridge)) <= before, "every descriptor is given back")


def bridge_descriptors(bridge: LiveBridge) -> list[str]:
    assert bridge.process is not None
    return [path.name for path in Path(f"/proc/{bridge.process.pid}/fd").iterdir()]


def test_a_peer_that_never_reads_is_stopped_and_then_cut_off() -> None:
    with scene() as (bridge, good, bad):
        with contextlib.closing(RawPeer(bridge.place)) as local:
            for number in range(50):
                local.ask(Request.UPDATE_AND_CREATE_TOPIC, {"topic": f"{number:03}-{'x' * 100}"})
        greedy = [bad() for _ in range(3)]
        for peer in greedy:
            peer.socket.settimeout(0.5)
            with contextlib.suppress(TimeoutError, ConnectionError):
                peer.send(LIST_TOPICS * 1000)  # answers of some twelve megabytes, more than the kernel holds
        wait_until(lambda: good.ask() or bridge.advance(100) or not any(map(is_established, greedy)), "all are cut off")


def test_what_the_kernel_holds_for_a_peer_that_never_reads_goes_with_its_connection() -> None:
    """Although the bridge has handed all of it to the kernel, and has nothing of this peer that it has not read."""
    with scene() as (bridge, good, bad):
        with contextlib.closing(RawPeer(bridge.place)) as local:
            for number in range(50):
                local.ask(Request.UPDATE_AND_CREATE_TOPIC, {"topic": f"{number:03}-{'x' * 100}"})
        peer, other = bad(), bad()
        other.send(LIST_TOPICS)
        wait_until(lambda: unread_bytes(other), "an answer")
        due = 40 * unread_bytes(other)
        peer.send(LIST_TOPICS * 40)
        wait_until(lambda: unread_bytes(peer) + queued_bytes(bridge, peer) == due, "the kernel has all answers")
        assert queued_bytes(bridge, peer), "more than the peer's side takes"
        wait_until(lambda: good.ask() or bridge.advance(100) or not is_established(peer), "it is cut off")


def unread_bytes(peer: RawPeer) -> int:
    """What lies on the peer's side of its connection."""
    return int.from_bytes(fcntl.ioctl(peer.socket, termios.FIONREAD, bytes(4)), sys.byteorder)


def queued_bytes(bridge: LiveBridge, peer: RawPeer) -> int:
    """What the kernel holds on the bridge's side of a connection."""
    ports = f":{bridge.address[1]:04X}", f":{peer.socket.getsockname()[1]:04X}"
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        _, local, remote, _, queues, *_ = line.split()
        if local.endswith(ports[0]) and remote.endswith(ports[1]):
            return int(queues.partition(":")[0], 16)
    return 0


def is_established(peer: RawPeer) -> bool:
    """What the kernel says, without reading."""
    return peer.socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0] == TCP_ESTABLISHED


def test_a_peer_that_sends_without_end_leaves_the_others_their_turn() -> None:
    with scene() as (_, good, bad):
        flooding = [bad() for _ in range(4)]
        oneway = encode_command(Command(code=9999, flag=2)) * 200
        for peer in flooding:
            peer.socket.settimeout(0.02)
        for _ in range(30):
            for peer in flooding:
                with contextlib.suppress(TimeoutError):
                    peer.socket.send(oneway)
            good.ask()


def test_more_connections_than_an_address_may_have_are_refused_and_those_that_are_in_stay() -> None:
    with scene(loopback_connections_max=40, refused_connections_max=10) as (bridge, good, bad):
        peers = [bad() for _ in range(300)]
        eventually(lambda: good.ask() or sum(map(_has_ended, peers)) >= 200, "two hundred to be refused")
        with contextlib.closing(RawPeer(bridge.place)) as local:
            assert local.ask(Request.STATUS).code == Response.SUCCESS
        for peer in peers:
            peer.close()
        again = wait_until(lambda: answered(bridge), "a place is free again")
        assert again


def answered(bridge: LiveBridge) -> bool:
    with contextlib.closing(RawPeer(bridge.address)) as peer, contextlib.suppress(ConnectionError, AssertionError):
        return peer.ask(Request.GET_ALL_TOPIC_CONFIG).code == Response.SUCCESS
    return False


def bombs() -> dict[str, Callable[[], bytes]]:
    """Frames that promise or cost more than they may; each is made for its own test."""
    many_keys = {"extFields": {f"k{number}": "v" for number in range(5000)}}
    route = Request.GET_ALL_TOPIC_CONFIG
    return {
        "two gigabytes": lambda: struct.pack(">iI", 2**31 - 1, 20) + bytes(1000),
        "negative": lambda: struct.pack(">iI", -5, 20) + bytes(1000),
        "long header": lambda: struct.pack(">iI", 1 << 24, 0xFFFFFF) + bytes(1000),
        "header beyond frame": lambda: struct.pack(">iI", 30, 200) + bytes(300),
        "http": lambda: b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        "tls": lambda: b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(500),
        "many keys": lambda: encode_frame(Codec.JSON, json.dumps(many_keys).encode()[: 60 << 10], b""),
        "deep": lambda: encode_frame(Codec.JSON, b'{"x":' + b"[" * 60_000, b""),
        "long number": lambda: encode_frame(Codec.JSON, b'{"code":' + b"9" * 60_000 + b"}", b""),
        "surrogate": lambda: encode_frame(Codec.JSON, b'{"remark":"\\ud800"}', b""),
        "zip bomb": lambda: encode_frame(
            Codec.JSON, f'{{"code":{Request.REGISTER_BROKER},"extFields":{{"compressed":"true"}}}}'.encode(),
            zlib.compress(bytes(64 << 20), 9),
        ),
        "heartbeat of lists": lambda: encode_frame(Codec.JSON, b'{"code":34}', b"[" * (1 << 20)),
        "locks of lists": lambda: encode_frame(Codec.JSON, b'{"code":41}', b'{"mqSet":' + b"[" * (1 << 16)),
        "dialect": lambda: encode_frame(Codec.JSON, b'{"code":41}', b"{1:" * 20_000),
        "binary walk": lambda: encode_frame(
            Codec.BINARY, struct.pack(">hBhiiii", route, 0, 409, 1, 0, 0, 8) + b"\xff\xfe" * 4, b""
        ),
        "largest": lambda: encode_frame(Codec.JSON, b'{"code":9999}', bytes(FRAME_BYTES_MAX - 100)),
    }  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("name", bombs())
def test_a_hostile_frame_is_answered_or_ends_its_connection_and_costs_no_memory(name: str) -> None:
    with scene() as (bridge, good, bad):
        frame = bombs()[name]()
        good.ask(3)
        before = resident_bytes(bridge)
        for _ in range(10):
            peer = bad()
            with contextlib.suppress(ConnectionError):
                peer.send(frame + LIST_TOPICS)
            peer.socket.settimeout(20)
            with contextlib.suppress(ConnectionError):
                assert peer.socket.recv(1 << 16) is not None
            peer.close()
            good.ask()
        assert resident_bytes(bridge) - before < 24 << 20, "the frames of ten connections stay"


def test_garbage_of_every_kind_ends_only_its_own_connection() -> None:
    chance = random.Random(SEED)
    with scene() as (_, good, bad):
        for _ in range(60):
            peer = bad()
            garbage = bytearray(LIST_TOPICS * 3)
            for _ in range(chance.randrange(1, 20)):
                garbage[chance.randrange(len(garbage))] = chance.randrange(256)
            with contextlib.suppress(ConnectionError):
                peer.send(bytes(garbage))
            peer.close()
            good.ask()


def test_one_hostile_address_cannot_fill_the_log() -> None:
    with running(tcp=True, limits=QUICK | {"tick_interval": 3600.0}) as bridge:
        for _ in range(200):
            with contextlib.closing(RawPeer(bridge.address)) as peer:
                peer.send(bytes(8))
                assert is_closed(peer)
        _, log = bridge.end()
        assert 1 <= log.count("protocol error") <= 20
        assert log.count("log.suppressed") == 1


def test_unproven_connections_share_a_budget_and_an_account_is_not_held_back_by_it(tmp_path: Path) -> None:
    acl = tmp_path / "acl.yml"
    acl.write_text("accounts:\n- accessKey: administrator\n  secretKey: secret-one\n  admin: true\n")
    acl.chmod(0o600)
    keys = {"access_key": "administrator", "secret_key": "secret-one"}
    limits = QUICK | {"unproven_bytes_max": 1 << 20}
    with running(tcp=True, clock="frozen", acl=str(acl), limits=limits) as bridge, contextlib.ExitStack() as peers:
        proven = peers.enter_context(contextlib.closing(RawPeer(bridge.address)))
        assert proven.ask(Request.GET_ALL_TOPIC_CONFIG, sign({}, b"", **keys)).code == Response.SUCCESS
        body = bytes(2 << 20)
        signed = encode_command(Command(code=9999, opaque=5, ext=sign({}, body, **keys), body=body))
        strangers = [peers.enter_context(contextlib.closing(RawPeer(bridge.address))) for _ in range(4)]
        for stranger in strangers:
            with contextlib.suppress(ConnectionError):
                stranger.send(signed[: 500 << 10])
        proven.send(signed)
        reply = proven.take()
        assert reply is not None and reply.opaque == 5
        # Four times 500 KiB do not fit into the budget of 1 MiB.
        eventually(lambda: sum(map(_has_ended, strangers)) >= 2, "two of them to be ended")
        assert proven.ask(Request.GET_ALL_TOPIC_CONFIG, sign({}, b"", **keys)).code == Response.SUCCESS
