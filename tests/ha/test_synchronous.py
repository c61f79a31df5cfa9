"""A synchronous master and its slave, as processes: what is acknowledged is on both disks after any stop or death."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

import shmq
from shmq.addresses import parse_address
from shmq.errors import UsageError
from shmq.figures.observer import Observer
from shmq.figures.thresholds import Thresholds
from shmq.figures.verdict import Finding, Verdict
from shmq.options.broker import Options
from shmq.protocol.codes import Request, Response
from shmq.protocol.command import Command
from shmq.protocol.header import CommandDecoder, encode_command
from shmq.shm.core import READ_ONLY_FEW_REPLICAS
from shmq.shm.instance import read_instance
from shmq.testing import Broker
from shmq.tools.health.examine import examine
from tests.deadline import eventually
from tests.ha.pair import assert_equal, bodies_of, read_until_all, slave_of, stop_threads
from tests.shm.looking import looking

FILE_BYTES = 4 << 20
LONG = 60.0


def sync_master(**settings: object) -> Broker:
    return Broker(tcp=True, role="sync-master", ha_listen="127.0.0.1:0", file_bytes=FILE_BYTES, **settings)  # type: ignore[arg-type]


def in_sync(broker: Broker) -> int:
    with looking(broker) as store:
        return store.in_sync_count


def until_in_sync(master: Broker, count: int = 1) -> None:
    eventually(lambda: in_sync(master) == count, lambda: master.log[-3000:])


def replication_pid(broker: Broker) -> int:
    instance = read_instance(broker.place.instance_path)
    assert instance is not None
    return instance.processes["replication"].pid


@pytest.fixture
def master() -> Iterator[Broker]:
    with sync_master() as broker:
        yield broker


@pytest.fixture
def slave(master: Broker) -> Iterator[Broker]:
    with slave_of(master, file_bytes=FILE_BYTES) as broker:
        until_in_sync(master)
        yield broker


def test_a_master_alone_stores_and_says_that_no_slave_has_it(master: Broker) -> None:
    with master.connect() as mq:
        assert mq.send("orders", b"0", timeout=LONG).offset == 0
    assert bodies_of(master.url, 1, "alone") == [0]
    assert in_sync(master) == 0


def test_what_is_sent_is_on_both_disks_when_send_returns(master: Broker, slave: Broker) -> None:
    for connect in (master.connect, lambda: shmq.connect(f"rocketmq://{master.name_server}")):
        with connect() as mq:
            for number in range(20):
                mq.send("orders", b"%d" % number, timeout=LONG)
                with looking(slave) as copy, looking(master) as store:
                    assert copy.durable_end >= store.confirmed_end > 0
    assert bodies_of(slave.url, 40, "both") == sorted([*range(20)] * 2)


@pytest.mark.slow
def test_a_slave_that_is_stopped_hides_what_it_has_not_until_it_leaves(master: Broker, slave: Broker) -> None:
    with master.connect() as mq, ThreadPoolExecutor(2) as threads:
        mq.send("orders", b"0", timeout=LONG)
        stopped = replication_pid(slave)
        stop_threads(stopped)
        try:
            with looking(master) as store:
                before = store.confirmed_end
                sending = [threads.submit(mq.send, "orders", b"%d" % number, timeout=LONG) for number in (1, 2)]
                eventually(lambda: store.durable_end > before and store.log_end > before)
                while store.in_sync_count:
                    seen = store.confirmed_end, store.visible_end, any(each.done() for each in sending)
                    # Asked again: it may have left the set between the first look and the others.
                    assert seen == (before, before, False) or not store.in_sync_count
                for each in sending:
                    each.result(LONG)
                eventually(lambda: "ha.out_of_sync" in master.log)  # which is said after it was done
        finally:
            os.kill(stopped, signal.SIGCONT)
        until_in_sync(master)
        mq.send("orders", b"3", timeout=LONG)
    assert bodies_of(slave.url, 4, "stopped") == [0, 1, 2, 3]


@pytest.mark.slow
def test_a_send_that_is_not_confirmed_in_time_says_so_and_is_stored(master: Broker, slave: Broker) -> None:
    with master.connect() as mq:
        mq.send("orders", b"0", timeout=LONG)
        stopped = replication_pid(slave)
        stop_threads(stopped)
        try:
            with pytest.raises(shmq.SendTimeout, match="its slaves confirm it only up to") as raised:
                mq.send("orders", b"1", timeout=0.3)
            assert raised.value.code == 12
        finally:
            os.kill(stopped, signal.SIGCONT)
    assert bodies_of(master.url, 2, "late") == [0, 1]


@pytest.mark.slow
def test_two_disks_are_asked_for_and_one_is_refused_before_anything_is_stored() -> None:
    with sync_master(in_sync_min=2) as master:
        with looking(master) as store:
            eventually(lambda: store.read_only == READ_ONLY_FEW_REPLICAS)
            end = store.log_end
            with master.connect() as mq, pytest.raises(shmq.ReadOnlyStore, match="--in-sync-min 1"):
                mq.send("orders", b"refused")
            with (
                shmq.connect(f"rocketmq://{master.name_server}") as mq,
                pytest.raises(shmq.ShmqError, match="replicas"),
            ):
                mq.send("orders", b"refused")
            assert store.log_end == end
        with slave_of(master, file_bytes=FILE_BYTES) as slave:
            until_in_sync(master)
            with master.connect() as mq:
                mq.send("orders", b"1", timeout=LONG)
            assert bodies_of(slave.url, 1, "two") == [1]
        with looking(master) as store:
            eventually(lambda: store.read_only == READ_ONLY_FEW_REPLICAS)


class Load:
    """Producers over shared memory and over TCP; what was acknowledged as replicated, and as stored only."""

    def __init__(self, master: Broker) -> None:
        self.acknowledged: list[bytes] = []
        self.failed: list[Exception] = []
        self._master = master
        self._stopping = threading.Event()
        self._threads = ThreadPoolExecutor(4)
        self._running: list[Future[None]] = []

    def __enter__(self) -> Load:
        for number, url in enumerate([self._master.url, f"rocketmq://{self._master.name_server}"] * 2):
            self._running.append(self._threads.submit(self._send, url, number))
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        for each in self._running:
            each.result(LONG)
        self._threads.shutdown()

    def _send(self, url: str, producer: int) -> None:
        try:
            with shmq.connect(url) as mq:
                number = 0
                while not self._stopping.is_set():
                    number += 1
                    body = b"%d" % (producer << 32 | number)
                    try:
                        mq.send("orders", body, timeout=5.0)
                    except (shmq.SendTimeout, shmq.RequestTimeout):
                        continue  # stored, or perhaps, and confirmed later or not
                    self.acknowledged.append(body)
        except (shmq.ShmqError, OSError) as error:
            if not self._stopping.is_set():
                self.failed.append(error)


@pytest.mark.slow
def test_nothing_acknowledged_is_missing_on_a_slave_that_was_killed_again_and_again(
    master: Broker, slave: Broker
) -> None:
    with Load(master) as load:
        for number in range(4):
            sent = len(load.acknowledged)
            eventually(lambda sent=sent: len(load.acknowledged) > sent + 20, lambda: str(load.failed))
            os.kill(replication_pid(slave), (signal.SIGKILL, signal.SIGSTOP)[number % 2])
            eventually(lambda: not in_sync(master), lambda: master.log[-2000:])
            if number % 2:
                os.kill(replication_pid(slave), signal.SIGCONT)
            until_in_sync(master)
    assert not load.failed
    assert_equal(master, slave)
    read_until_all(slave.url, {int(body) for body in load.acknowledged}, "killed")


@pytest.mark.slow
def test_what_was_acknowledged_is_on_the_slave_when_the_masters_host_is_gone() -> None:
    with sync_master(in_sync_min=2) as master, slave_of(master, file_bytes=FILE_BYTES) as slave:
        until_in_sync(master)
        with Load(master) as load:
            eventually(lambda: len(load.acknowledged) > 100, lambda: str(load.failed))
            for mark in list(master.processes.values()):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(mark.pid, signal.SIGKILL)
        read_until_all(slave.url, {int(body) for body in load.acknowledged}, "alone")


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"role": "sync-master"}, "none can connect"),
        ({"in_sync_min": 2}, "in_sync_min is for"),
        ({"role": "sync-master", "ha_listen": "127.0.0.1:0", "in_sync_min": 3}, "from 1 to 2"),
    ],
)
def test_options_that_belong_together(settings: dict[str, object], why: str) -> None:
    with pytest.raises(UsageError, match=why):
        Options(**settings)  # type: ignore[arg-type]


def replicas(broker: Broker) -> Finding:
    """What `shmq health` says of the slaves of a broker."""
    with Observer(broker.url) as observer:
        report = examine(observer, Thresholds())
    (finding,) = [finding for finding in report.findings if finding.check == "replicas"]
    return finding


@pytest.mark.slow
def test_health_says_whether_slaves_have_what_is_acknowledged(master: Broker) -> None:
    alone = replicas(master)
    assert alone.verdict is Verdict.WARNING and alone.measures["replicas_in_sync"].value == 0
    with slave_of(master, file_bytes=FILE_BYTES):
        until_in_sync(master)
        with master.connect() as mq:
            mq.send("orders", b"0", timeout=LONG)
        paired = replicas(master)
        assert paired.verdict is Verdict.OK and paired.measures["unconfirmed"].value == 0
        assert paired.measures["replicas_in_sync"].value == 1


class Talk:
    """A RocketMQ client that shows the code of each answer."""

    def __init__(self, broker: Broker) -> None:
        host, port = parse_address(broker.broker_address)
        self._socket = socket.create_connection((host, port), LONG)
        self._decoder = CommandDecoder()

    def __enter__(self) -> Talk:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def send(self) -> int:
        """Send a message; the code of the answer."""
        header = {"a": "g", "b": "orders", "c": "TBW102", "d": "4", "e": "0", "f": "0", "g": "0", "h": "0", "i": ""}
        self._socket.sendall(encode_command(Command(code=Request.SEND_MESSAGE_V2, opaque=1, ext=header, body=b"1")))
        while (reply := self._decoder.take()) is None:
            self._decoder.feed(self._socket.recv(1 << 16))
        return reply.code


@pytest.mark.slow
def test_the_answer_to_a_rocketmq_client_says_whether_a_slave_has_its_message(master: Broker) -> None:
    with Talk(master) as talk:
        assert talk.send() == Response.SLAVE_NOT_AVAILABLE
        with slave_of(master, file_bytes=FILE_BYTES) as slave:
            until_in_sync(master)
            assert talk.send() == Response.SUCCESS
            stopped = replication_pid(slave)
            stop_threads(stopped)
            try:
                assert talk.send() == Response.SLAVE_NOT_AVAILABLE, "it left after 2 s, before the 5 s were over"
            finally:
                os.kill(stopped, signal.SIGCONT)
    assert bodies_of(master.url, 3, "told") == [1, 1, 1]


@pytest.mark.slow
def test_the_answer_to_a_rocketmq_client_says_that_a_slave_is_late() -> None:
    with sync_master(in_sync_min=2) as master, slave_of(master, file_bytes=FILE_BYTES) as slave, Talk(master) as talk:
        until_in_sync(master)
        assert talk.send() == Response.SUCCESS
        stopped = replication_pid(slave)
        stop_threads(stopped)
        try:
            assert talk.send() == Response.FLUSH_SLAVE_TIMEOUT
            assert talk.send() == Response.SERVICE_NOT_AVAILABLE, "refused before it is stored"
        finally:
            os.kill(stopped, signal.SIGCONT)
        until_in_sync(master)
        assert talk.send() == Response.SUCCESS
        assert bodies_of(slave.url, 3, "late") == [1, 1, 1]
