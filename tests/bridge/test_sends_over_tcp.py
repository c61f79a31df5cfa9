"""Sends through a real bridge process: whatever the bytes are cut into and whatever comes between them."""

from __future__ import annotations

import random
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from shmq.protocol.codes import Codec, Request, Response
from shmq.protocol.command import Command
from shmq.protocol.header import encode_command
from shmq.shm.core import BrokerLog, BrokerTables, KeeperStore, record_decode
from tests.bridge.live_bridge import SIZES, LiveBridge, RawPeer, raw_peer, running
from tests.bridge.sockets.test_security import access_file

PLAIN = {
    "a": "g", "b": "orders", "c": "TBW102", "d": "4", "e": "0", "f": "0", "g": "1", "h": "0", "i": "WAIT\1true",
    "j": "0", "k": "false", "m": "false",
}  # fmt: skip


@contextmanager
def broker(**options: object) -> Iterator[tuple[LiveBridge, RawPeer]]:
    """A bridge over a log with room, and a connection."""
    with running(tcp=True, **options) as bridge:
        folder = Path(bridge.options.store_path, "commitlog")
        folder.mkdir(parents=True)
        (folder / f"{0:020d}").write_bytes(bytes(SIZES.file_bytes))
        KeeperStore(bridge.store).set_allocated_end(SIZES.file_bytes)
        BrokerTables(bridge.store).topic_put("orders", read_queues=2, write_queues=2)
        with raw_peer(bridge, tcp=True) as peer:
            yield bridge, peer


def send(opaque: int, *, flag: int = 0, body: bytes = b"body", codec: Codec = Codec.JSON, **ext: str) -> bytes:
    command = Command(Request.SEND_MESSAGE_V2, opaque=opaque, flag=flag, ext={**PLAIN, **ext}, body=body, codec=codec)
    return encode_command(command)


def requests(count: int) -> bytes:
    """Plain sends with everything else between them, numbered from 0."""
    frames = []
    for number in range(count):
        if number % 7 == 3:
            frames.append(encode_command(Command(Request.GET_ALL_TOPIC_CONFIG, opaque=number)))
        elif number % 7 == 4:
            frames.append(send(number, i="a\1b\2a\1c"))
        elif number % 7 == 5:
            frames.append(send(number, e="1", body=bytes(1000), codec=Codec.BINARY))
        else:
            frames.append(send(number))
    return b"".join(frames)


@pytest.mark.parametrize("seed", range(4))
def test_answers_come_once_and_in_order_however_the_bytes_are_cut(seed: int) -> None:
    noise = random.Random(seed)
    count = 140
    with broker(limits={"send_wait_max": 3600.0}) as (_, peer):
        data = requests(count)
        offsets: dict[str, list[int]] = {"0": [], "1": []}
        most = (1, 50, 700, 100_000)[seed]
        if seed == 0:
            data, count = requests(9), 9
        while data:
            cut = noise.randint(1, most)
            peer.send(data[:cut])
            data = data[cut:]
        for number in range(count):
            reply = peer.take()
            assert reply is not None and (reply.opaque, reply.code) == (number, Response.SUCCESS)
            if number % 7 != 3:
                offsets[reply.ext["queueId"]].append(int(reply.ext["queueOffset"]))
        for found in offsets.values():
            assert found == list(range(len(found)))


def test_a_oneway_send_is_stored_and_not_answered() -> None:
    with broker() as (bridge, peer):
        peer.send(send(1, flag=2) + send(2, flag=2) + send(3))
        reply = peer.take()
        assert reply is not None and (reply.opaque, reply.ext["queueOffset"]) == (3, "2")
        (queue, _) = bridge.store.topic(bridge.store.topic_find("orders"))["queues"]
        assert bridge.store.queue(queue)[1] == 3


def test_a_held_pull_is_answered_by_a_plain_send_of_another_connection() -> None:
    pull = {
        "consumerGroup": "g", "topic": "orders", "queueId": "0", "maxMsgNums": "32", "sysFlag": "6",
        "commitOffset": "0", "suspendTimeoutMillis": "600000", "subscription": "*", "subVersion": "0",
    }  # fmt: skip
    with broker() as (bridge, peer), raw_peer(bridge, tcp=True) as consumer:
        for offset in range(20):
            request = Command(Request.PULL_MESSAGE, opaque=offset, ext={**pull, "queueOffset": str(offset)})
            consumer.send(encode_command(request))
            peer.send(send(offset, body=b"%d" % offset))
            reply = consumer.take()
            assert reply is not None and (reply.opaque, reply.code) == (offset, Response.SUCCESS)
            assert record_decode(reply.body)["body"] == b"%d" % offset
            assert peer.take() is not None


def test_what_follows_a_broken_frame_is_not_served() -> None:
    with broker() as (bridge, peer):
        end = bridge.store.log_end
        peer.send(send(1) + struct.pack(">iI", 3, 0) + send(2))
        reply = peer.take()
        assert reply is not None and reply.opaque == 1
        assert peer.take() is None
        assert bridge.store.log_end - end == len(BrokerLog(bridge.store).record_bytes_at(end) or b"")


def test_no_way_leads_around_the_accounts(tmp_path: Path) -> None:
    with broker(acl=str(access_file(tmp_path))) as (bridge, peer):
        end = bridge.store.log_end
        peer.send(send(1))
        reply = peer.take()
        assert reply is not None and reply.code == Response.SYSTEM_ERROR
        assert bridge.store.log_end == end


def test_a_peer_that_does_not_read_is_not_served_for_ever() -> None:
    """Its requests wait where they are: in the sockets."""
    with broker(limits={"write_bytes_high": 4096}) as (bridge, peer):
        peer.socket.setblocking(False)
        data = b"".join(send(number, body=b"") for number in range(200))
        sent = 0
        try:
            while sent < 50_000_000:
                sent += peer.socket.send(data)
        except BlockingIOError:
            pass
        assert sent < 50_000_000
        with raw_peer(bridge, tcp=True) as other:
            other.send(send(1, e="1"))
            assert other.take() is not None
