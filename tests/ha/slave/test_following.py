"""A slave's thread and one connection to its master: what is taken of it, what is said of it, and what can be done."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from itertools import pairwise
from types import SimpleNamespace
from typing import Any, cast

import pytest

from shmq.daemon.bridge.store.tables import StoreTables
from shmq.daemon.ha.meeting import Side, side_bytes
from shmq.daemon.ha.slave import following as module
from shmq.daemon.ha.slave.follower import FollowerLink
from shmq.daemon.ha.slave.following import Following
from shmq.daemon.ha.slave.master_tables import MasterTables
from shmq.daemon.ha.stream import pack_header, pack_progress, pack_welcome
from shmq.delay_levels import DelayLevels
from shmq.errors import SegmentFull
from shmq.protocol.body import TopicConfig
from shmq.protocol.system_topics.table_marks import TABLES_TOPIC, TablesMark, encode_tables_mark
from shmq.shm.access import Access
from shmq.store.layout import StoreLayout
from tests.bindings.live_store import LiveStore
from tests.broker.conftest import MemoryTables
from tests.deadline import eventually
from tests.ha.slave.test_master_tables import Master, offset_of
from tests.keeper.conftest import Events
from tests.tables.rows import every_row

OURS, THEIRS = "1" * 32, "2" * 32
HELLO_BYTES = 8
Address = tuple[str, int]


class Peer:
    """Takes one connection after the other, says something to each, and hangs up once the other end has."""

    def __init__(self, words: Callable[[bytes], bytes]) -> None:
        self._words = words
        self.heard, self.has_ended = b"", False
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address: Address = self._listener.getsockname()
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._listener.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self._listener.accept()
                with connection, contextlib.suppress(OSError):
                    connection.sendall(self._words(connection.recv(HELLO_BYTES)))
                    connection.shutdown(socket.SHUT_WR)
                    while data := connection.recv(4096):
                        self.heard += data
                self.has_ended = True


@pytest.fixture
def slave() -> Iterator[LiveStore]:
    with LiveStore() as live:
        live.topic()
        live.producer().append("orders", b"ours", b"", queue_id=0)
        yield live


@pytest.fixture
def broker() -> Iterator[Master]:
    master = Master()
    master.offsets = {"orders@billing": {"0": 5}}
    yield master
    master.close()


class Slave:
    """A log with one message, and a thread that has not begun to follow."""

    def __init__(self, live: LiveStore, master: Address, master_ha: Address) -> None:
        self.tables = MemoryTables()
        self.events = Events()
        side = Side(store=OURS, log=OURS, file_bytes=live.sizes["file_bytes"], end=live.store.log_end)
        self.following = Following(
            master_ha,
            live.store,
            MasterTables(master, cast(StoreTables, self.tables)),
            DelayLevels("1s"),
            StoreLayout(live.path, Access(-1)),
            cast(Any, self.events),
            me=side,
        )

    def attempt(self) -> tuple[str, str]:
        """Follow over one connection; why it is over, and the cure."""
        return self.following._attempt()


def welcome(live: LiveStore, log: str) -> Callable[[bytes], bytes]:
    """What a master of this log says, and the slave's last record behind it."""
    side = Side(log=log, file_bytes=live.sizes["file_bytes"], end=live.store.log_end)
    record = (live.path / "commitlog" / f"{0:020d}").read_bytes()[: live.store.log_end]
    frame = struct.pack(">qiqq", 0, len(record), 0, 0) + record
    return lambda _: pack_welcome(side_bytes(side)) + frame


def test_of_a_master_with_another_log_neither_a_record_nor_a_table_is_taken(slave: LiveStore, broker: Master) -> None:
    for log, is_ours in ((THEIRS, False), (OURS, True)):
        peer = Peer(welcome(slave, log))
        end, ours = slave.store.log_end, Slave(slave, broker.address, peer.address)
        reason, cure = ours.attempt()
        peer.close()
        assert ("two logs" in reason) is not is_ours, reason
        assert (ours.tables.topic("orders") is not None) is is_ours
        assert offset_of(ours.tables) == (5 if is_ours else -1), "an offset of another log would skip what is here"
        assert slave.store.log_end == end and cure
        assert (ours.following.state.heard_ms is not None) is is_ours
        assert ours.following.state.row(0).is_refused is not is_ours


def http(_: bytes) -> bytes:
    return b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n"


def nothing(_: bytes) -> bytes:
    return b""


@every_row(
    ("who", "cause", "cure"),
    [
        ("no listener at --master", "refused", "--master, the HOST:PORT of its --listen"),
        ("no listener at --master-ha", "refused", "or --master-ha, that of its --ha-listen"),
        ("a name without an address", "the broker at", "correct the name of the host"),
        ("a name that can be none", "the broker at", "correct the name of the host"),
        ("HTTP at --master", "is no RocketMQ broker", "correct --master"),
        ("HTTP at --master-ha", "announces", "--master-ha"),
        ("a stock master with other words", "its log at 7", "--master-ha"),
        ("who hangs up", "closed the connection", "--master-ha"),
        ("this broker itself", "this broker itself", "correct --master and --master-ha"),
    ],
)
def test_who_is_no_master_is_named_with_a_cure(
    slave: LiveStore, broker: Master, who: str, cause: str, cure: str
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        closed: Address = free.getsockname()
    web = Peer(http)
    words = {
        "HTTP at --master-ha": http,
        "a stock master with other words": lambda _: pack_header(7, 0),
        "who hangs up": nothing,
    }
    peer = Peer(words.get(who, nothing))
    master = {
        "no listener at --master": closed,
        "a name without an address": ("no-such-host.invalid", 10911),
        "a name that can be none": ("a..b", 10911),
        "HTTP at --master": web.address,
    }.get(who, broker.address)
    ours = Slave(slave, master, closed if who == "no listener at --master-ha" else peer.address)
    ours.following._own_port = peer.address[1] if who == "this broker itself" else 0
    said = ours.attempt()
    web.close()
    peer.close()
    assert cause in said[0] and cure in said[1], said
    assert not said[0].startswith(": ") and ours.tables.topic("orders") is None


def test_a_master_whose_broker_does_not_answer_goes_on_being_followed_and_that_is_reported(
    slave: LiveStore,
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        closed: Address = free.getsockname()
    following = Slave(slave, closed, ("127.0.0.1", 1)).following
    following.state.heard(is_stock=False, now_ms=0)
    following._look_at_tables()
    row = following.state.row(10**9)
    assert "its tables are not copied" in row.error and str(closed[1]) in row.error and row.cure
    assert row.since_ms is not None, "the log goes on coming"


@pytest.mark.parametrize("is_full", [False, True])
def test_nothing_is_reported_to_be_on_the_disk_before_the_tables_are_taken(
    slave: LiveStore, broker: Master, is_full: bool
) -> None:
    slave.keeper.flush()
    end = slave.store.log_end
    assert slave.store.durable_end == end
    peer = Peer(welcome(slave, OURS))
    ours = Slave(slave, broker.address, peer.address)
    ours.tables.topic_max = 0 if is_full else 10
    reason, _ = ours.attempt()
    eventually(lambda: peer.has_ended)
    peer.close()
    assert (pack_progress(end, end) in peer.heard) is not is_full, reason


def test_a_record_is_not_reported_before_what_it_says_of_tables_is_taken_over(
    slave: LiveStore, broker: Master, monkeypatch: pytest.MonkeyPatch
) -> None:
    slave.topic(TABLES_TOPIC, queues=1)
    ours = Slave(slave, broker.address, ("127.0.0.1", 1))
    mark = encode_tables_mark(TablesMark(topics=[TopicConfig("invoices")]))
    reported: list[int] = []
    link = cast(FollowerLink, SimpleNamespace(applied=lambda end, now_ms: reported.append(end)))
    producer = slave.producer()
    ends = [producer.append(TABLES_TOPIC, mark, b"", queue_id=0)[3]]
    ours.tables.topic_max = 0
    with pytest.raises(SegmentFull):
        ours.following._take(link, ends[0])
    assert reported == []
    ours.tables.topic_max = 1
    ends.append(producer.append(TABLES_TOPIC, mark, b"", queue_id=0)[3])
    ours.following._take(link, ends[1])
    assert reported == ends[1:] and ours.tables.topic("invoices") is not None


def test_a_mark_that_cannot_be_read_has_the_tables_copied_before_its_record_is_reported(
    slave: LiveStore, broker: Master
) -> None:
    slave.topic(TABLES_TOPIC, queues=1)
    ours = Slave(slave, broker.address, ("127.0.0.1", 1))
    reported: list[int] = []
    link = cast(FollowerLink, SimpleNamespace(applied=lambda end, now_ms: reported.append(end)))
    end = slave.producer().append(TABLES_TOPIC, b"of a version to come", b"", queue_id=0)[3]
    ours.tables.topic_max = 0
    with pytest.raises(SegmentFull):
        ours.following._take(link, end)
    assert reported == []
    ours.tables.topic_max = 10
    slave.producer().append(TABLES_TOPIC, b"of a version to come", b"", queue_id=0)
    ours.following._take(link, end)
    assert reported == [end] and ours.tables.topic("orders") is not None


@every_row("copying_ms", [5, 400, 1_900])
def test_tables_that_change_all_the_time_take_a_tenth_of_the_time_at_most(
    slave: LiveStore, broker: Master, monkeypatch: pytest.MonkeyPatch, copying_ms: int
) -> None:
    now_ms, copied_at = 1_000_000, []

    class Tables:
        are_old = True

        def copy(self, seconds: float) -> None:
            nonlocal now_ms
            copied_at.append(now_ms)
            now_ms += copying_ms

        def copy_offsets(self, seconds: float) -> None:
            pass

    monkeypatch.setattr(module, "_now_ms", lambda: now_ms)
    following = Slave(slave, broker.address, ("127.0.0.1", 1)).following
    following._tables = cast(MasterTables, Tables())
    until_ms = now_ms + 120_000
    while now_ms < until_ms:
        following._look_at_tables()
        now_ms += 50
    between = [after - before for before, after in pairwise(copied_at)]
    assert min(between) >= 10 * copying_ms, "the log waits while tables are copied"
    assert max(between) <= 10 * copying_ms + 1_200, "a topic made at the master is known here soon"
