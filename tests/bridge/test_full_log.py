"""No room in the log, or its lock taken for good: senders wait or are refused, all other requests are served.

Answers are counted, nothing is timed: a loop that waits in the core for each send answers senders as often as others.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from shmq.daemon.logic.parking import PARKED_MAX
from shmq.protocol.codes import Request, Response
from shmq.shm.core import READ_ONLY_DISK_FULL, KeeperStore, StoreFigures, disk_full_word
from tests.bridge.live_bridge import SIZES, LiveBridge, RawPeer, is_served, raw_peer
from tests.bridge.test_sends_over_tcp import broker, send
from tests.deadline import eventually

SENDERS = 4
ASKED = 200
LONG = bytes(10_000)


@contextlib.contextmanager
def beating(bridge: LiveBridge) -> Iterator[None]:
    """A keeper that lives, but makes no file."""
    ended = threading.Event()

    def beat() -> None:
        while not ended.wait(0.02):
            KeeperStore(bridge.store).keeper_beat()

    KeeperStore(bridge.store).keeper_beat()
    thread = threading.Thread(target=beat)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def fill(bridge: LiveBridge, peer: RawPeer) -> int:
    """Send until there is no room for another; returns how many were stored."""
    stored = 0
    while bridge.store.allocated_end - bridge.store.log_end > 2 * len(LONG):
        peer.send(send(stored, body=LONG))
        reply = peer.take()
        assert reply is not None and reply.code == Response.SUCCESS
        stored += 1
    return stored


def add_file(bridge: LiveBridge) -> None:
    """What the keeper does when there is room again."""
    position = bridge.store.allocated_end
    Path(bridge.options.store_path, "commitlog", f"{position:020d}").write_bytes(bytes(SIZES.file_bytes))
    KeeperStore(bridge.store).set_allocated_end(position + SIZES.file_bytes)


class Insisting:
    """A client that sends again as soon as it was answered."""

    def __init__(self, peer: RawPeer, body: bytes) -> None:
        self._peer = peer
        self._body = body
        self.answers: list[int] = []
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._insist, daemon=True)
        self._thread.start()

    def _insist(self) -> None:
        while not self._ended.is_set():
            self._peer.send(send(len(self.answers), body=self._body))
            reply = self._peer.take()
            if reply is None:
                return
            self.answers.append(reply.code)

    def end(self) -> None:
        self._ended.set()
        self._thread.join()


@contextlib.contextmanager
def insisting(bridge: LiveBridge, body: bytes = bytes(60_000)) -> Iterator[list[Insisting]]:
    with contextlib.ExitStack() as peers:
        senders = [Insisting(peers.enter_context(raw_peer(bridge, tcp=True)), body) for _ in range(SENDERS)]
        try:
            yield senders
        finally:
            for sender in senders:
                sender.end()


def ask(peer: RawPeer, times: int) -> None:
    for number in range(times):
        assert peer.ask(Request.GET_ALL_TOPIC_CONFIG, opaque=number).code == Response.SUCCESS


def test_without_a_next_file_senders_wait_and_all_else_is_served() -> None:
    with broker() as (bridge, peer), beating(bridge):
        fill(bridge, peer)
        with insisting(bridge) as senders:
            eventually(lambda: all(sender.answers for sender in senders), "each has been refused once")
            before = sum(len(sender.answers) for sender in senders)
            ask(peer, ASKED)
            assert is_served(bridge)  # attaches
            assert sum(len(sender.answers) for sender in senders) - before < ASKED
            assert {code for sender in senders for code in sender.answers} == {Response.SERVICE_NOT_AVAILABLE}
            add_file(bridge)
            eventually(lambda: all(sender.answers[-1] == Response.SUCCESS for sender in senders), "they go on")


def test_without_a_keeper_all_are_served_until_the_log_is_full_and_then_all_but_senders() -> None:
    with broker() as (bridge, peer):
        assert fill(bridge, peer) > 50
        with insisting(bridge) as senders:
            ask(peer, ASKED)
            assert is_served(bridge)
            eventually(lambda: all(sender.answers for sender in senders), "each has been refused")
            assert {code for sender in senders for code in sender.answers} == {Response.SERVICE_NOT_AVAILABLE}


def test_what_waited_is_stored_in_its_order_when_there_is_room() -> None:
    with broker() as (bridge, peer), beating(bridge):
        stored = fill(bridge, peer)
        refused = StoreFigures(bridge.store).stats()["appended"]
        for number in range(40):
            peer.send(send(number, body=b"%05d" % number + LONG))
        ask_others(bridge)
        assert StoreFigures(bridge.store).stats()["appended"] <= refused + 2  # what was left in the file, at most
        add_file(bridge)
        replies = [peer.take() for _ in range(40)]
        assert [reply.code for reply in replies if reply] == [Response.SUCCESS] * 40
        offsets = [int(reply.ext["queueOffset"]) for reply in replies if reply]
        assert offsets == list(range(stored, stored + 40))


def ask_others(bridge: LiveBridge) -> None:
    with raw_peer(bridge, tcp=True) as other:
        ask(other, 20)


def test_each_of_more_sends_than_can_wait_has_one_answer_and_others_are_served() -> None:
    with broker() as (bridge, peer), beating(bridge):
        fill(bridge, peer)
        flood = PARKED_MAX + 100
        sender = threading.Thread(target=lambda: [peer.send(send(number, body=LONG)) for number in range(flood)])
        sender.start()
        codes = []
        for _ in range(flood):
            reply = peer.take()
            assert reply is not None
            codes.append(reply.code)
        sender.join()
        assert codes.count(Response.SUCCESS) <= 2  # what was left in the file
        # How many wait at once depends on how fast they come: tests/logic/test_parking.py has the bounds.
        assert set(codes) <= {Response.SUCCESS, Response.SYSTEM_BUSY, Response.SERVICE_NOT_AVAILABLE}
        ask(peer, 3)


def test_a_oneway_send_is_stored_when_there_is_room_though_its_sender_has_gone() -> None:
    with broker() as (bridge, peer), beating(bridge):
        stored = fill(bridge, peer)
        with raw_peer(bridge, tcp=True) as gone:
            for number in range(5):
                gone.send(send(number, flag=2, body=LONG))
            gone.send(send(9, body=LONG))
            ask(gone, 0)
        ask(peer, 5)
        add_file(bridge)
        queue = bridge.store.queue_index(bridge.store.topic_find("orders"), 0)
        eventually(lambda: bridge.store.queue(queue)[1] >= stored + 5, "the oneways are stored")


def test_above_the_mark_sends_are_refused_at_once_and_all_else_is_served() -> None:
    with broker() as (bridge, peer), beating(bridge):
        KeeperStore(bridge.store).set_read_only(disk_full_word(95, 90))
        assert bridge.store.read_only == READ_ONLY_DISK_FULL
        with insisting(bridge, b"x") as senders:
            ask(peer, ASKED)
            eventually(lambda: all(len(sender.answers) > 3 for sender in senders), "they are answered")
            assert {code for sender in senders for code in sender.answers} == {Response.SERVICE_NOT_AVAILABLE}


HOLDER = """
import os, signal, sys
from pathlib import Path
from shmq.shm.core import Producer
from shmq.shm.instance import read_instance
from shmq.shm.segment import open_store
store = open_store(read_instance(Path(sys.argv[1])), writable=True)
producer = Producer(store, resolve=store.topic_find)
with producer.reserve("orders", 100) as slot:
    print("claimed", flush=True)
    sys.stdin.read()
"""


@pytest.mark.parametrize("how", ["stopped", "dead"])
def test_the_claim_of_a_process_that_is_stopped_or_dead_is_ended_by_those_who_may_not_wait(how: str) -> None:
    with (
        broker() as (bridge, peer),
        beating(bridge),
        subprocess.Popen(
            [sys.executable, "-P", "-c", HOLDER, os.fspath(bridge.place.instance_path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        ) as holder,
    ):
        try:
            assert holder.stdout is not None and holder.stdout.readline() == b"claimed\n"
            holder.send_signal(signal.SIGSTOP if how == "stopped" else signal.SIGKILL)
            if how == "dead":
                holder.wait()
            for number in range(10):
                peer.send(send(number))
                reply = peer.take()
                assert reply is not None and reply.code == Response.SUCCESS
        finally:
            holder.kill()
