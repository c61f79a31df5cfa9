"""Sends through a real bridge process: whatever the bytes are cut into and whatever comes between them."""

from __future__ import annotations

import random
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from shmq.errors import NotMaster
from shmq.protocol.codes import Codec, Request, Response, TopicFlush
from shmq.protocol.command import Command
from shmq.protocol.failure import error_of
from shmq.protocol.header import encode_command
from shmq.shm.core import READ_ONLY_FLUSH_FAILED, BrokerLog, BrokerTables, KeeperStore, ReplicaStore, record_decode
from tests.bridge.live_bridge import SIZES, LiveBridge, RawPeer, raw_peer, running
from tests.bridge.sockets.test_security import access_file
from tests.deadline import eventually as wait_until

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


# ---- answers that wait for the disk: only the test flushes -----------------------------------------------------------


def silent(peer: RawPeer) -> bool:
    """Whether nothing but the answer to one more question comes: what is held is held."""
    reply = peer.ask(Request.GET_ALL_TOPIC_CONFIG, opaque=9999)
    return reply.opaque == 9999


def stored(bridge: LiveBridge) -> list[int]:
    """How many messages each queue of the topic has."""
    store = bridge.store
    return [store.queue(queue)[1] for queue in store.topic(store.topic_find("orders"))["queues"]]


def test_answers_of_many_connections_come_when_the_disk_has_their_messages() -> None:
    with broker(flush="sync") as (bridge, peer), raw_peer(bridge, tcp=True) as other:
        peer.send(b"".join(send(number) for number in range(50)))
        other.send(b"".join(send(number, e="1", codec=Codec.BINARY) for number in range(50)))
        assert silent(peer) and silent(other)
        wait_until(lambda: stored(bridge) == [50, 50], "all are stored")
        KeeperStore(bridge.store).flush()
        for each in (peer, other):
            replies = [each.take() for _ in range(50)]
            assert [(reply.opaque, reply.code) for reply in replies if reply] == [
                (number, Response.SUCCESS) for number in range(50)
            ]
            assert [reply.ext["queueOffset"] for reply in replies if reply] == [str(number) for number in range(50)]


def test_only_what_is_on_disk_is_answered() -> None:
    with broker(flush="sync") as (bridge, peer):
        peer.send(send(1))
        assert silent(peer)
        KeeperStore(bridge.store).flush()
        first = peer.take()
        assert first is not None and first.opaque == 1
        peer.send(send(2))
        assert silent(peer)
        KeeperStore(bridge.store).flush()
        second = peer.take()
        assert second is not None and second.opaque == 2


def test_who_does_not_wait_for_the_disk_is_answered_at_once() -> None:
    with broker(flush="sync") as (bridge, peer):
        for number, text in enumerate(("WAIT\1false", "a\1b\2WAIT\1false\2")):
            peer.send(send(number, i=text))
            reply = peer.take()
            assert reply is not None and (reply.opaque, reply.code) == (number, Response.SUCCESS)
        BrokerTables(bridge.store).topic_set_flush(bridge.store.topic_find("orders"), TopicFlush.ASYNC)
        peer.send(send(7))
        reply = peer.take()
        assert reply is not None and reply.opaque == 7


@pytest.mark.parametrize("codec", list(Codec))
def test_a_failed_flush_is_answered_at_once_to_all_who_wait(codec: Codec) -> None:
    with broker(flush="sync") as (bridge, peer):
        peer.send(b"".join(send(number, codec=codec) for number in range(20)))
        assert silent(peer)
        KeeperStore(bridge.store).set_read_only(READ_ONLY_FLUSH_FAILED)
        for number in range(20):
            reply = peer.take()
            assert reply is not None and (reply.opaque, reply.code) == (number, Response.FLUSH_DISK_TIMEOUT)
            assert reply.ext["queueOffset"] == str(number)
        peer.send(send(21, codec=codec))
        reply = peer.take()
        assert reply is not None and reply.code not in (Response.SUCCESS, Response.FLUSH_DISK_TIMEOUT)


@pytest.mark.parametrize("is_fenced", [False, True])
def test_what_is_on_disk_only_when_the_lease_is_over_is_in_doubt(is_fenced: bool) -> None:
    """Another host may lead without it, so a success would be a promise that nothing keeps."""
    with broker(flush="sync") as (bridge, peer), raw_peer(bridge, tcp=True) as other:
        peer.send(b"".join(send(number, codec=codec) for number, codec in enumerate(Codec)))
        other.send(send(0, i="a\1b\2a\1c"))
        assert silent(peer) and silent(other)
        if is_fenced:
            ReplicaStore(bridge.store).fence_off("", 60.0)
        ReplicaStore(bridge.store).lease(1)
        KeeperStore(bridge.store).flush()
        for number, each in enumerate((peer, peer, other)):
            reply = each.take()
            assert reply is not None and (reply.opaque, reply.code) == (number % 2, Response.SERVICE_NOT_AVAILABLE)
            error = error_of(reply)
            assert isinstance(error, NotMaster) and error.maybe_stored and "it is stored here, but" in str(error)
            assert "msgId" not in reply.ext


def test_what_waits_for_the_disk_as_the_log_is_handed_over_is_stored() -> None:
    """A log that is fenced for the next master goes there whole."""
    with broker(flush="sync") as (bridge, peer):
        peer.send(b"".join(send(number, codec=codec) for number, codec in enumerate(Codec)))
        assert silent(peer)
        ReplicaStore(bridge.store).fence_off("10.0.0.5:10911", 60.0)
        KeeperStore(bridge.store).flush()
        assert [peer.take().code for _ in Codec] == [Response.SUCCESS] * len(Codec)


def test_a_sender_whose_answers_are_held_is_read_no_further() -> None:
    with broker(flush="sync", limits={"write_bytes_high": 4000}) as (bridge, peer):
        peer.send(send(0) * 40)
        wait_until(lambda: stored(bridge)[0] == 40, "all of one read are stored")
        before = bridge.store.log_end
        peer.send(send(1))
        with raw_peer(bridge, tcp=True) as other:
            assert silent(other) and bridge.store.log_end == before
        KeeperStore(bridge.store).flush()
        wait_until(lambda: stored(bridge)[0] == 41, "it is read again")
        assert [reply.opaque for reply in (peer.take() for _ in range(40)) if reply] == [0] * 40


def test_a_held_pull_gets_the_message_when_it_is_on_disk() -> None:
    pull = Command(
        Request.PULL_MESSAGE,
        opaque=5,
        ext={
            "consumerGroup": "readers", "topic": "orders", "queueId": "0", "queueOffset": "0", "maxMsgNums": "32",
            "sysFlag": "6", "commitOffset": "0", "suspendTimeoutMillis": "60000", "subscription": "*",
            "subVersion": "0", "expressionType": "TAG",
        },
    )  # fmt: skip
    with broker(flush="sync") as (bridge, peer), raw_peer(bridge, tcp=True) as reader:
        BrokerTables(bridge.store).group_put("readers")
        reader.send(encode_command(pull))
        assert silent(reader)
        peer.send(send(1, flag=2))  # oneway: nothing is answered, and it is seen when it is on disk
        assert silent(peer) and silent(reader)
        KeeperStore(bridge.store).flush()
        reply = reader.take()
        assert reply is not None and (reply.opaque, reply.code) == (5, Response.SUCCESS) and b"body" in reply.body


def test_answers_of_a_connection_that_is_gone_are_dropped() -> None:
    with broker(flush="sync") as (bridge, peer):
        with raw_peer(bridge, tcp=True) as gone:
            gone.send(send(1))
            assert silent(gone)
        peer.send(send(2))
        assert silent(peer)
        KeeperStore(bridge.store).flush()
        reply = peer.take()
        assert reply is not None and reply.opaque == 2
