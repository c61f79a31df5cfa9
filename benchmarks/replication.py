"""The command `python -m benchmarks.replication`: what a second host costs, on two brokers of this one.

    sync-send        a local send() to a synchronous master with one slave, beside what it cannot do without: a flush of
                     the same file system and a round trip over loopback, measured in the same run
    sync-producers   64 threads that send so, beside one
    sync-tcp         sends over TCP to a synchronous master with one slave, 64 unanswered, beside a stock pair
    catch-up         an empty slave takes a log, beside sendfile of as many bytes into fresh pages, and beside a stock
                     slave, which takes a gigabyte
    followed-send    a local send() to an asynchronous master, 100,000 a second, with a slave and beside it without one
    link             processor time of the two processes that ship and take 50 MB a second

Master and slave share one disk and the processors here, so a flush of the one waits for the other's: on two hosts they
run side by side. A stock pair acknowledges what both have in memory, ours what both have on disk.

Options and output are those of `python -m benchmarks.local`. With `--switch COUNT` it measures switches of an elected
master instead (switching.py).
"""

from __future__ import annotations

import os
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import psutil

import shmq
from benchmarks.brokers.contestants import OURS, in_pair, name_of
from benchmarks.brokers.pairs import (
    BODY,
    FILE_BYTES,
    TOPIC,
    asynchronous_pair,
    slave_of,
    stock_log_end,
    stock_master,
    stock_slave,
    synchronous_pair,
    until,
    until_equal,
)
from benchmarks.brokers.rocketmq import Arena
from benchmarks.command import run
from benchmarks.switching import switch
from benchmarks.workload import Figure, PeerAbsent, Workload
from shmq.measurement.measure import median
from shmq.shm.links import read_links
from shmq.testing import Broker
from tests.interop.peers.cache import PeerMissing
from tests.shm.looking import looking

SENDS, SENDS_MIN = 2_000, 50
PRODUCERS = 64
CONNECTIONS = 8
VERSION = "4"
STOCK = name_of(VERSION)
LOG_BYTES, LOG_BYTES_MIN = 2 << 30, 16 << 20
STOCK_LOG_BYTES = 960 << 20  # in one log file
PACED_PER_SECOND, PACED_SECONDS, PACED_MIN = 100_000, 3.0, 2_000
LINK_BYTES_PER_SECOND, LINK_SECONDS, LINK_SECONDS_MIN = 50_000_000, 5.0, 0.2
LINK_BATCH, LINK_BODY = 64, bytes(4096)
_PAGE_BYTES = 4096
_FRAME_BYTES = 1 << 20


def _flush_us(count: int) -> float:
    """The median of a flush of one page that was stored through a mapping, in a file with its blocks reserved."""
    took = []
    with tempfile.TemporaryFile() as file:
        os.posix_fallocate(file.fileno(), 0, FILE_BYTES)
        for number in range(count):
            os.pwrite(file.fileno(), BODY, number * len(BODY))
            began = time.perf_counter_ns()
            os.fdatasync(file.fileno())
            took.append((time.perf_counter_ns() - began) / 1000)
    return median(took)


def _trip_us(count: int) -> float:
    """The median of a round trip of a message over loopback between two threads."""
    ours, theirs = _loopback()

    def echo() -> None:
        while data := theirs.recv(4096):
            theirs.sendall(data)

    thread = threading.Thread(target=echo, daemon=True)
    thread.start()
    took = []
    with ours, theirs:
        for _ in range(count):
            began = time.perf_counter_ns()
            ours.sendall(BODY)
            ours.recv(4096)
            took.append((time.perf_counter_ns() - began) / 1000)
        ours.shutdown(socket.SHUT_WR)
        thread.join()
    return median(took)


def _loopback() -> tuple[socket.socket, socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        ours = socket.create_connection(listener.getsockname())
        theirs, _ = listener.accept()
    for end in (ours, theirs):
        end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return ours, theirs


def _sync_send(effort: float) -> Mapping[str, float]:
    count = max(SENDS_MIN, int(SENDS * effort))
    took = []
    with synchronous_pair() as (master, _), master.connect() as mq:
        producer = mq.producer()
        for number in range(count + SENDS_MIN):
            began = time.perf_counter_ns()
            producer.send(TOPIC, BODY)
            if number >= SENDS_MIN:
                took.append((time.perf_counter_ns() - began) / 1000)
    return {"p50_us": median(took)}


def _parts(effort: float) -> Mapping[str, float]:
    count = max(SENDS_MIN, int(SENDS * effort))
    return {"p50_us": _flush_us(count) + _trip_us(count)}


def _rate(producers: int, effort: float) -> Mapping[str, float]:
    each = max(SENDS_MIN, int(SENDS * effort)) // (4 if producers > 1 else 1)
    with synchronous_pair() as (master, _), master.connect() as mq, ThreadPoolExecutor(producers) as threads:
        ready = threading.Barrier(producers + 1)

        def send() -> None:
            producer = mq.producer()
            producer.send(TOPIC, BODY)
            ready.wait()
            for _ in range(each):
                producer.send(TOPIC, BODY)

        sending = [threads.submit(send) for _ in range(producers)]
        ready.wait()
        began = time.perf_counter()
        for each_one in sending:
            each_one.result()
        return {"per_second": producers * each / (time.perf_counter() - began)}


def _catch_up(effort: float) -> Mapping[str, float]:
    wanted = max(LOG_BYTES_MIN, int(LOG_BYTES * effort))
    with Broker(tcp=True, ha_listen="127.0.0.1:0", file_bytes=FILE_BYTES) as master:
        with master.connect() as mq, looking(master) as store:
            producer = mq.producer()
            while store.log_end < wanted:
                producer.send_batch(TOPIC, [bytes(4096)] * 64)
            end = store.log_end
        with slave_of(master) as slave, looking(slave) as copy:
            until(lambda: copy.log_end >= end, lambda: slave.log)
            ended_ms = time.monotonic_ns() / 1e6
            # A short log may be here before it is looked at, so the slave says since when it has followed.
            until(lambda: _followed_since_ms(slave) is not None, lambda: slave.log)
            return {"mb_per_second": end / 1e3 / (ended_ms - (_followed_since_ms(slave) or 0))}


def _followed_since_ms(slave: Broker) -> int | None:
    links = read_links(slave.place.links_path)
    return None if links is None or links.master is None else links.master.since_ms


def _stock_catch_up(effort: float) -> Mapping[str, float]:
    size = max(LOG_BYTES_MIN, int(STOCK_LOG_BYTES * effort))
    with _present(), stock_master() as master:
        with shmq.connect(f"rocketmq://{master.name_server}") as mq:
            while stock_log_end(master) < size:
                for _ in range(64):
                    mq.send_batch(TOPIC, [bytes(4096)] * 64)
        end = stock_log_end(master)
        with stock_slave(master) as slave:
            began = time.perf_counter()

            def copies() -> bool:
                nonlocal began
                looked = time.perf_counter()
                if stock_log_end(slave) > 0:
                    return True
                began = looked
                return False

            until(copies, lambda: "the slave copies nothing")
            until(lambda: stock_log_end(slave) == end, lambda: f"{stock_log_end(slave)} of {end} bytes are copied")
            return {"mb_per_second": end / 1e6 / (time.perf_counter() - began)}


@contextmanager
def _present() -> Iterator[None]:
    try:
        yield
    except PeerMissing as reason:
        raise PeerAbsent(str(reason)) from reason


def _sync_tcp(broker: str, effort: float) -> Mapping[str, float]:
    with _present(), Arena() as arena:
        return arena.loading(in_pair(broker), CONNECTIONS, PRODUCERS // CONNECTIONS, effort)


def _sendfile(effort: float) -> Mapping[str, float]:
    """As many bytes of a file over loopback, received into fresh pages."""
    size = max(LOG_BYTES_MIN, int(LOG_BYTES * effort))
    with tempfile.TemporaryDirectory() as name:
        source, target = Path(name, "source"), Path(name, "target")
        with source.open("wb") as file:
            for _ in range(0, size, _FRAME_BYTES):
                file.write(os.urandom(_PAGE_BYTES) * (_FRAME_BYTES // _PAGE_BYTES))
        ours, theirs = _loopback()

        def ship() -> None:
            with source.open("rb") as file, ours:
                at = 0
                while at < size:
                    at += os.sendfile(ours.fileno(), file.fileno(), at, min(_FRAME_BYTES, size - at))

        thread = threading.Thread(target=ship, daemon=True)
        began = time.perf_counter()
        thread.start()
        with theirs, target.open("wb") as file:
            while data := theirs.recv(_FRAME_BYTES):
                file.write(data)
        thread.join()
        return {"mb_per_second": size / 1e6 / (time.perf_counter() - began)}


def _paced(effort: float, *, has_slave: bool) -> Mapping[str, float]:
    count = max(PACED_MIN, int(PACED_PER_SECOND * PACED_SECONDS * effort))
    took = []
    with asynchronous_pair(has_slave=has_slave) as (master, _), master.connect() as mq:
        send = mq.producer().send
        began = time.perf_counter_ns()
        for number in range(count):
            due = began + number * (1_000_000_000 // PACED_PER_SECOND)
            while (now := time.perf_counter_ns()) < due:
                pass
            send(TOPIC, BODY)
            took.append((time.perf_counter_ns() - now) / 1000)
    return {"p50_us": median(took)}


def _link(effort: float) -> Mapping[str, float]:
    """Processor time of each side, in percent of a core, while so many bytes a second go over the link."""
    seconds = max(LINK_SECONDS_MIN, LINK_SECONDS * effort)
    batch = [LINK_BODY] * LINK_BATCH
    period = LINK_BATCH * len(LINK_BODY) / LINK_BYTES_PER_SECOND
    with asynchronous_pair() as (master, slave), master.connect() as mq:
        assert slave is not None
        sides = [psutil.Process(broker.processes["replication"].pid) for broker in (master, slave)]
        producer, before, began = mq.producer(), [sum(each.cpu_times()[:2]) for each in sides], time.perf_counter()
        for number in range(int(seconds / period)):
            time.sleep(max(0.0, began + number * period - time.perf_counter()))
            producer.send_batch(TOPIC, batch)
        until_equal(master, slave)
        took = time.perf_counter() - began
        sender, receiver = (
            100 * (sum(each.cpu_times()[:2]) - spent) / took for each, spent in zip(sides, before, strict=True)
        )
        return {"sender": sender, "receiver": receiver}


WORKLOADS = (
    Workload(
        "sync-send",
        _sync_send,
        (Figure("sync send p50", "p50_us", "us", musts={"flush + round trip": 1.3}),),
        {"flush + round trip": _parts},
    ),
    Workload(
        "sync-producers",
        lambda effort: _rate(PRODUCERS, effort),
        (Figure(f"sync sends of {PRODUCERS}", "per_second", "1/s", is_rate=True, musts={"one producer": 20.0}),),
        {"one producer": lambda effort: _rate(1, effort)},
    ),
    Workload(
        "sync-tcp",
        partial(_sync_tcp, OURS),
        (Figure(f"sync sends of {PRODUCERS} over TCP", "rate", "1/s", is_rate=True, musts={STOCK: 1.5}),),
        {STOCK: partial(_sync_tcp, VERSION)},
    ),
    Workload(
        "catch-up",
        _catch_up,
        (Figure("catch-up received", "mb_per_second", "MB/s", is_rate=True, musts={"sendfile": 0.7, STOCK: 1.5}),),
        {"sendfile": _sendfile, STOCK: _stock_catch_up},
    ),
    Workload(
        "followed-send",
        lambda effort: _paced(effort, has_slave=True),
        (Figure("send p50 with a slave", "p50_us", "us", musts={"without a slave": 1.1}),),
        {"without a slave": lambda effort: _paced(effort, has_slave=False)},
    ),
    Workload(
        "link",
        _link,
        (
            Figure("link, sender", "sender", "% of a core", limits={"limit": 5.0}),
            Figure("link, receiver", "receiver", "% of a core", limits={"limit": 5.0}),
        ),
    ),
)


def main(given: Sequence[str] | None = None) -> int:
    """Run what the command line asks for; returns the exit code."""
    words = sys.argv[1:] if given is None else given
    if "--switch" in words:
        return switch(words)
    return run("python -m benchmarks.replication", "what a second host costs", WORKLOADS, given)


if __name__ == "__main__":
    sys.exit(main())
