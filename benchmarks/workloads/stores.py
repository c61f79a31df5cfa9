"""Stores to measure starts on: filled through a real broker, and left as a stop or a crash of the host leaves them.

stopped    the broker ended in order
crashed    its processes were killed, and the segments are gone, as after a crash of the host; what was written lies
           in the page cache, so the log is whole behind its mark
without    the derived files are removed, and everything is built from the log
cold       nothing of the files is in the page cache
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from shmq.shm.access import Access
from shmq.shm.instance import read_instance
from shmq.shm.liveness import is_alive
from shmq.shm.segment import unlink_segments
from shmq.store.durable import DurableMark
from shmq.store.layout import StoreLayout
from shmq.testing import Broker

MIB = 1 << 20
TOPIC = "orders"
QUEUES = 8
BODY_BYTES = 1024
START_SECONDS = 600.0
_READ_BYTES = 8 << 20
_FILL = """
import os, sys
import shmq
url, body_bytes, log_bytes, keyed = sys.argv[1], *map(int, sys.argv[2:5])
body = os.urandom(body_bytes)
with shmq.connect(url) as mq:
    producer, sent = mq.producer(), 0
    while sent < log_bytes:
        for number in range(8):
            if keyed:
                for serial in range(256):
                    producer.send("orders", body, tag=f"tag{number}", key=f"{sent}-{number}-{serial}")
            else:
                producer.send_batch("orders", [body] * 256, tag=f"tag{number}")
            sent += 256 * (body_bytes + 130)
"""
_TOPICS = """
import sys
import shmq
url, topics = sys.argv[1], int(sys.argv[2])
with shmq.connect(url) as mq:
    for number in range(topics):
        mq.send(f"topic-{number}", b"x" * 100, tag="tag")
"""


@contextmanager
def filled_broker(
    log_bytes: int, *, body_bytes: int = BODY_BYTES, keyed: bool = False, **settings: object
) -> Iterator[Broker]:
    """A running broker whose log has about so many bytes of messages in the queues of one topic."""
    with Broker(small=False, timeout=START_SECONDS, **settings) as broker:
        fill(broker, log_bytes, body_bytes=body_bytes, keyed=keyed)
        yield broker


@contextmanager
def broker_of_topics(topics: int) -> Iterator[Broker]:
    """A running broker with many topics, each with one message."""
    queues = topics * (QUEUES + 1)
    sizes = {"topic_max": 2 * topics + 16, "queue_max": 2 * queues + 64, "frame_max": max(1 << 15, 2 * topics)}
    with Broker(small=False, timeout=START_SECONDS, **sizes) as broker:
        _run(_TOPICS, broker.url, topics)
        yield broker


def fill(broker: Broker, log_bytes: int, *, body_bytes: int = BODY_BYTES, keyed: bool = False) -> None:
    """Send about so many bytes of the log."""
    _run(_FILL, broker.url, body_bytes, log_bytes, int(keyed))


def _run(program: str, *words: object) -> None:
    subprocess.run([sys.executable, "-c", program, *map(str, words)], check=True)


def stop(broker: Broker) -> float:
    """Stop a broker in order; returns how many seconds it took."""
    supervisor = broker.processes["supervisor"]
    begin = time.perf_counter()
    os.kill(supervisor.pid, signal.SIGTERM)
    while is_alive(supervisor):
        time.sleep(0.001)
    return time.perf_counter() - begin


def start(broker: Broker) -> float:
    """Start it again; returns how many seconds passed until clients could attach."""
    begin = time.perf_counter()
    broker.restart()
    return time.perf_counter() - begin


def crash(broker: Broker) -> None:
    """End a broker as a crash of the host does that keeps the page cache."""
    instance = read_instance(broker.place.instance_path)
    broker.kill_daemon()
    assert instance is not None
    unlink_segments(instance)


def recovery_of(broker: Broker) -> tuple[float, int]:
    """How many seconds the recovery of a broker took that has just started, and how many records it went over."""
    instance = read_instance(broker.place.instance_path)
    assert instance is not None
    return instance.recovery["took_ms"] / 1000, instance.recovery["records"]


def remove_units(root: Path) -> None:
    """Remove everything that is derived of the queues."""
    shutil.rmtree(root / "consumequeue")
    (root / "shmq.units").unlink()


def log_end(root: Path) -> int:
    """Log position behind the last record of a store that was just recovered or stopped."""
    mark = DurableMark(StoreLayout(root, Access(-1))).load()
    assert mark is not None
    return mark.durable_end


def make_cold(root: Path) -> None:
    """Drop the pages of every file, which are on disk afterwards."""
    for path in _files(root):
        with path.open("rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def read_plainly(root: Path) -> tuple[int, float]:
    """Read what was written of every file from the disk, one after the other: how many bytes, and seconds."""
    make_cold(root)
    room, total = bytearray(_READ_BYTES), 0
    begin = time.perf_counter()
    for path in _files(root):
        with path.open("rb", buffering=0) as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_SEQUENTIAL)
            for first, end in _written(file.fileno(), path.stat().st_size):
                file.seek(first)
                left = end - first
                while left and (got := file.readinto(memoryview(room)[: min(left, len(room))])):
                    left -= got
                    total += got
    return total, time.perf_counter() - begin


def _files(root: Path) -> list[Path]:
    return sorted(path for path in root.rglob("*") if path.is_file())


def _written(descriptor: int, size: int) -> Iterator[tuple[int, int]]:
    at = 0
    while at < size:
        try:
            begin = os.lseek(descriptor, at, os.SEEK_DATA)
        except OSError:  # nothing but unwritten blocks
            return
        at = os.lseek(descriptor, begin, os.SEEK_HOLE)
        yield begin, at
