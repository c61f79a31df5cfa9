"""The bridge process against peers that are slow, silent, greedy or hostile, and its own start and end."""

import asyncio
import contextlib
import json
import os
import select
import signal
import socket
import stat
import struct
import tempfile
from pathlib import Path
from typing import Any

import pytest

from shmq.daemon.bridge.bridge import Bridge
from shmq.daemon.bridge.limits import BridgeLimits
from shmq.daemon.broker.broker import Broker
from shmq.daemon.broker.settings import BrokerSettings
from shmq.daemon.primary_bridge import run_bridge
from shmq.errors import ShmqError
from shmq.exit_code import ExitCode
from shmq.options.broker import Options
from shmq.protocol.body import ConsumerData, HeartbeatData, SubscriptionData, encode_body
from shmq.protocol.codes import Codec, Request, Response
from shmq.protocol.command import FLAG_ONEWAY, Command
from shmq.protocol.failure import error_of
from shmq.protocol.frame import FRAME_BYTES_MAX, encode_frame
from shmq.protocol.header import encode_command
from shmq.shm.access import access_rights
from shmq.shm.core import BrokerTables, KeeperStore
from tests.bridge.live_bridge import LiveBridge, RawPeer, is_served, raw_peer, running, wait_until
from tests.broker.memory_log import MemoryLog

QUICK = {"tick_interval": 0.02, "first_frame_timeout": 0.5, "close_timeout": 0.1}


def attached(peer: RawPeer, name: str = "raw") -> None:
    assert error_of(peer.ask(Request.ATTACH, {"clientId": name, "role": "0"})) is None


@pytest.mark.parametrize(
    "data",
    [
        bytes(8),
        b"GET / HTTP/1.1\r\n\r\n",
        struct.pack(">iI", -1, 20),
        struct.pack(">iI", 2**31 - 1, 20),
        struct.pack(">iI", 100, 0xFFFFFF),
        struct.pack(">iI", 100, 9 << 24 | 20),
        encode_frame(Codec.JSON, b"not json", b""),
        encode_frame(Codec.JSON, b'{"extFields":{"a":[1]}}', b""),
        encode_frame(Codec.JSON, b'{"x":' + b"[" * 20000 + b"}", b""),
        encode_frame(Codec.BINARY, b"\xff" * 30, b""),
    ],
)
def test_a_peer_that_breaks_the_format_is_cut_off_and_no_other(data: bytes) -> None:
    with running() as bridge, raw_peer(bridge) as good, raw_peer(bridge) as bad:
        bad.send(data)
        assert bad.take() is None
        assert good.ask(Request.STATUS).code == Response.SUCCESS
        assert bridge.end() == (ExitCode.DONE, bridge_log_has("protocol error"))


class bridge_log_has(str):
    """Equal to a log that holds the text and no trace of an error of ours."""

    def __eq__(self, log: object) -> bool:
        return isinstance(log, str) and str(self) in log and "Traceback" not in log and "internal.error" not in log

    __hash__ = str.__hash__


def test_requests_before_a_break_are_answered() -> None:
    with running() as bridge, raw_peer(bridge) as peer:
        peer.send(encode_command(Command(code=9999, opaque=5)) + bytes(8))
        reply = peer.take()
        assert reply is not None and reply.opaque == 5
        assert peer.take() is None


def test_a_reply_comes_in_the_encoding_of_the_request() -> None:
    with running() as bridge, raw_peer(bridge) as peer:
        for codec in (Codec.BINARY, Codec.JSON):
            peer.send(encode_command(Command(code=Request.GET_ALL_TOPIC_CONFIG, opaque=3, codec=codec)))
            reply = peer.take()
            assert reply is not None and (reply.codec, reply.code, reply.opaque) == (codec, 0, 3)


def test_commands_may_come_in_any_pieces() -> None:
    stream = b"".join(encode_command(Command(code=9999, opaque=number)) for number in range(5))
    with running() as bridge, raw_peer(bridge) as peer:
        for position in range(len(stream)):
            peer.send(stream[position : position + 1])
        replies = [peer.take() for _ in range(5)]
        assert [reply.opaque for reply in replies if reply is not None] == [0, 1, 2, 3, 4]


def test_silent_and_slow_peers_are_cut_off_and_attached_ones_may_be_silent() -> None:
    with running(limits=QUICK) as bridge, raw_peer(bridge) as client:
        attached(client)
        frame = encode_command(Command(code=Request.STATUS))
        with raw_peer(bridge) as silent, raw_peer(bridge) as slow, raw_peer(bridge) as late:
            slow.send(frame[:10])
            late.send(frame + frame[:10])
            assert late.take() is not None
            assert silent.take() is None and slow.take() is None and late.take() is None
        # All three waited longer than a frame may take; so did the client, which owes none.
        assert client.ask(Request.STATUS).code == Response.SUCCESS


def test_an_idle_peer_that_never_attached_is_closed() -> None:
    with running(limits=QUICK | {"unattached_idle_timeout": 0.1}) as bridge, raw_peer(bridge) as client:
        attached(client)
        with raw_peer(bridge) as idle:
            assert idle.ask(Request.STATUS).code == Response.SUCCESS
            assert idle.take() is None
        assert client.ask(Request.STATUS).code == Response.SUCCESS


def test_a_peer_that_asks_and_never_reads_delays_no_other_and_loses_nothing() -> None:
    count = 3000
    with running(limits=QUICK | {"write_bytes_high": 4096}) as bridge, raw_peer(bridge) as greedy:
        attached(greedy)
        greedy.socket.settimeout(0.2)
        data = b"".join(encode_command(Command(code=Request.STATUS, opaque=number)) for number in range(count))
        sent = 0
        while sent < len(data):  # until the kernel's buffers are full: the bridge has stopped reading
            try:
                sent += greedy.socket.send(data[sent : sent + 65536])
            except TimeoutError:
                break
        assert sent < len(data), "the bridge must not take requests whose answers are not read"
        assert is_served(bridge)
        greedy.socket.settimeout(20)
        answered = 0
        while answered < count:
            if sent < len(data):
                greedy.socket.setblocking(False)
                with contextlib.suppress(BlockingIOError):
                    sent += greedy.socket.send(data[sent : sent + 65536])
                greedy.socket.settimeout(20)
            reply = greedy.take()
            assert reply is not None and reply.opaque == answered
            answered += 1


def test_replies_beyond_the_limit_end_the_connection() -> None:
    with running(limits=QUICK | {"write_bytes_max": 8192}) as bridge:
        for number in range(60):
            BrokerTables(bridge.store).topic_put(f"{number:02}" + "x" * 120, read_queues=1, write_queues=1)
        with raw_peer(bridge) as greedy:
            attached(greedy)
            # A hundred lists of 20 kB are more than the kernel keeps for a peer that does not read.
            greedy.send(encode_command(Command(code=Request.GET_ALL_TOPIC_CONFIG)) * 100)
            wait_until(lambda: is_cut(greedy.socket), "the bridge ends the connection")
        assert is_served(bridge)
        assert bridge.end() == (ExitCode.DONE, bridge_log_has("bytes of replies unread"))


def is_cut(connection: socket.socket) -> bool:
    """Whether the other side has closed, seen without reading a byte."""
    poll = select.poll()
    poll.register(connection, select.POLLRDHUP)
    return bool(poll.poll(0))


def test_a_stranger_that_never_reads_is_closed_when_it_was_idle_for_long() -> None:
    limits = QUICK | {"unattached_idle_timeout": 0.3, "write_bytes_high": 4096}
    with running(limits=limits) as bridge, raw_peer(bridge) as stranger:
        stranger.send(encode_command(Command(code=Request.STATUS)) * 1000)
        wait_until(lambda: is_cut(stranger.socket), "the bridge ends the connection")
        assert bridge.end() == (ExitCode.DONE, bridge_log_has("idle for 0.3 s"))


def test_frames_are_small_until_a_peer_has_said_who_it_is() -> None:
    large = Command(code=9999, body=bytes(2 << 20))
    with running() as bridge, raw_peer(bridge) as stranger, raw_peer(bridge) as client:
        with pytest.raises((BrokenPipeError, ConnectionResetError)):
            stranger.send(encode_command(large))
            while stranger.take() is not None:
                pass
            raise BrokenPipeError
        attached(client)
        assert client.ask(9999, body=bytes(2 << 20)).code == Response.REQUEST_CODE_NOT_SUPPORTED
        client.send(struct.pack(">iI", FRAME_BYTES_MAX + 1, 20))
        assert client.take() is None


def test_all_connections_share_one_budget() -> None:
    with running(limits={"in_flight_bytes_max": 400_000}) as bridge, raw_peer(bridge) as good:
        attached(good)
        peers = [RawPeer(bridge.place) for _ in range(3)]
        part = encode_command(Command(code=9999, body=bytes(500_000)))[:180_000]
        for peer in peers:
            try:
                peer.send(part)
            except (BrokenPipeError, ConnectionResetError):
                continue
        assert peers[2].take() is None
        assert good.ask(Request.STATUS).code == Response.SUCCESS
        for peer in peers:
            peer.close()


def admitted(bridge: LiveBridge) -> RawPeer | None:
    """A peer that gets answers, or None while there is no room."""
    peer = RawPeer(bridge.place)
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        peer.send(encode_command(Command(code=Request.STATUS)))
        reply = peer.take()
        if reply is not None and reply.code == Response.SUCCESS:
            return peer
    peer.close()
    return None


def test_connections_beyond_the_limit_are_closed_and_room_is_made_again() -> None:
    with running(limits={"connections_max": 3}) as bridge:
        # The probe that found the bridge ready may still be counted for a moment.
        peers: list[RawPeer] = [wait_until(lambda: admitted(bridge)) for _ in range(3)]
        assert admitted(bridge) is None
        peers.pop().close()
        peers.append(wait_until(lambda: admitted(bridge)))
        for peer in peers:
            assert peer.ask(Request.STATUS).code == Response.SUCCESS
            peer.close()


def test_a_flood_of_oneway_requests_is_served_in_turns() -> None:
    with running() as bridge, raw_peer(bridge) as flood:
        attached(flood)
        flood.send(encode_command(Command(code=Request.STATUS, flag=FLAG_ONEWAY)) * 2000)
        assert is_served(bridge)
        assert flood.ask(Request.STATUS, opaque=7).opaque == 7


def test_notices_that_a_member_does_not_read_are_folded_and_the_last_one_arrives() -> None:
    changes = 1500
    beat = HeartbeatData("raw", [ConsumerData("g", [SubscriptionData("t")])])
    with running(limits=QUICK | {"write_bytes_high": 1}) as bridge, raw_peer(bridge) as slow:
        slow.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1)
        attached(slow)
        assert slow.ask(Request.HEART_BEAT, body=encode_body(beat)).code == Response.SUCCESS
        other = bridge.connect("other", role=0)
        for _ in range(changes // 2):
            other.heartbeat([], [ConsumerData("g", [SubscriptionData("t")])])
            other.unregister("g")
        notices = 0
        slow.send(encode_command(Command(code=Request.STATUS, opaque=77)))
        while (command := slow.take()) is not None and not command.is_reply:
            assert command.code == Request.NOTIFY_CONSUMER_IDS_CHANGED
            notices += 1
        assert command is not None and command.opaque == 77, "the member is still connected"
        assert 0 < notices < changes


def test_a_hostile_peer_cannot_fill_the_log() -> None:
    with running(limits={"log_lines_per_tick": 5, "tick_interval": 60}) as bridge:
        for _ in range(50):
            with raw_peer(bridge) as bad:
                bad.send(bytes(8))
                assert bad.take() is None
        _, log = bridge.end()
        assert len(log.splitlines()) < 15


def test_the_socket_is_for_its_owner_and_group_only() -> None:
    with running() as bridge:
        mode = stat.S_IMODE(bridge.place.socket_path.lstat().st_mode)
        assert mode == access_rights().mode and mode & 0o007 == 0


def test_a_stop_removes_the_socket_and_leaves_every_slot_to_its_process() -> None:
    with running() as bridge:
        _, slot = bridge.spawn("child")
        status, log = bridge.end()
        assert status == ExitCode.DONE and "bridge.ready" in log and "bridge.stopped" in log
        assert not bridge.place.socket_path.exists()
        assert slot in bridge.slots()


def test_a_killed_bridge_is_followed_by_another_over_its_socket() -> None:
    with running() as bridge:
        bridge.end(signal.SIGKILL)
        assert bridge.place.socket_path.exists()
        bridge.start()
        assert is_served(bridge)


def test_slots_of_processes_that_died_while_no_bridge_ran_are_taken_back() -> None:
    with running() as bridge:
        child, slot = bridge.spawn("child")
        bridge.end(signal.SIGKILL)
        child.kill()
        child.wait()
        assert slot in bridge.slots()
        bridge.start()
        assert bridge.slots() == {}


def test_retired_segments_end_the_bridge_with_a_status_to_start_it_again() -> None:
    with running(limits=QUICK) as bridge:
        process = bridge.process
        assert process is not None
        KeeperStore(bridge.store).set_retired()
        assert process.wait(60) == ExitCode.TEMPORARY
        bridge.process = None
        assert process.stderr is not None and "bridge.retired" in process.stderr.read()
        process.stderr.close()
        assert not bridge.place.socket_path.exists()


def failed_start(options: Options, capfd: pytest.CaptureFixture[str]) -> str:
    before = os.umask(0o077)
    try:
        assert run_bridge(options.place, options) != ExitCode.DONE
    finally:
        os.umask(before)
    lines = capfd.readouterr().err.splitlines()
    assert len(lines) == 1
    return lines[0]


def test_a_bridge_without_segments_says_so_in_one_line(capfd: pytest.CaptureFixture[str]) -> None:
    with tempfile.TemporaryDirectory(prefix="shmq-") as directory:
        options = Options(broker_name="test", runtime_dir=directory, store=directory)
        assert "no broker has made segments" in failed_start(options, capfd)
        Path(directory, "instance.json").write_text(json.dumps({"kind": "posix"}))
        assert "instance description" in failed_start(options, capfd)


def test_a_second_bridge_refuses_to_start_and_the_first_goes_on(capfd: pytest.CaptureFixture[str]) -> None:
    with running() as bridge:
        assert "another bridge answers" in failed_start(bridge.options, capfd)
        assert is_served(bridge)


def test_signals_mean_what_they_meant_before_when_a_bridge_has_ended(capfd: pytest.CaptureFixture[str]) -> None:
    before = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)]
    with running() as bridge:
        failed_start(bridge.options, capfd)  # it runs in this process
    assert [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)] == before


class BrokenTables:
    """Every question is a fault of ours, but for the one that a start asks."""

    def topic(self, name: str) -> None:
        return None

    def __getattr__(self, name: str) -> Any:
        raise RuntimeError(f"broken on purpose: {name}")


def test_a_fault_of_ours_costs_one_connection_and_one_log_line(tmp_path: Path) -> None:
    logged: list[str] = []

    async def scene() -> tuple[ShmqError | None, bool]:
        settings = BrokerSettings(broker_name="test", version="0", abi=1, generation=1, pid_namespace=1)
        tables = BrokenTables()
        broker = Broker(tables, settings, now_ms=0, log=MemoryLog(tables))
        bridge = Bridge(broker, lambda event, **_: logged.append(event), limits=BridgeLimits())
        with tempfile.TemporaryDirectory(prefix="shmq-") as directory, socket.socket(socket.AF_UNIX) as listener:
            listener.bind(f"{directory}/s")
            listener.listen()
            listener.setblocking(False)
            bridge.listen(listener)
            unlucky, other = (
                await asyncio.open_unix_connection(f"{directory}/s"),
                await asyncio.open_unix_connection(f"{directory}/s"),
            )
            peer = RawPeerOnStreams()
            unlucky[1].write(encode_command(Command(code=Request.GET_ALL_TOPIC_CONFIG, opaque=1)))
            reply = await peer.take(unlucky[0])
            assert reply is not None
            assert await unlucky[0].read() == b""
            other[1].write(encode_command(Command(code=9999, opaque=2)))
            answered = await RawPeerOnStreams().take(other[0]) is not None
            bridge.close()
            for _, writer in (unlucky, other):
                writer.close()
            return error_of(reply), answered

    error, answered = asyncio.run(scene())
    assert error is not None and "internal error" in str(error) and "broken on purpose" not in str(error)
    assert answered
    assert logged.count("internal.error") == 1


class RawPeerOnStreams:
    """Reads commands from an asyncio stream."""

    def __init__(self) -> None:
        from shmq.protocol.header import CommandDecoder

        self._decoder = CommandDecoder()

    async def take(self, reader: asyncio.StreamReader) -> Command | None:
        while (command := self._decoder.take()) is None:
            data = await reader.read(65536)
            if not data:
                return None
            self._decoder.feed(data)
        return command


def test_every_name_is_gone_in_the_end() -> None:
    with LiveBridge() as bridge:
        bridge.start()
        bridge.spawn("child")
        mark = f"{bridge.instance.generation:016x}"
        assert [name for name in os.listdir("/dev/shm") if mark in name]
    assert not [name for name in os.listdir("/dev/shm") if mark in name]
    assert not bridge.directory.exists()
