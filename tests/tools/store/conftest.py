"""A store that a real broker filled with every kind of message and closed in order; tests get copies to damage."""

import os
import shutil
import signal
from pathlib import Path

import pytest

from shmq.testing import Broker
from shmq.waits import is_ready
from tests.tools.shell import Shell

FILE_BYTES = 64 << 10
MESSAGES = 400
ACKED = 100


def end_in_order(broker: Broker) -> None:
    """Stop a broker as systemd does, and wait for its end; its files stay."""
    supervisor = broker.processes["supervisor"]
    descriptor = os.pidfd_open(supervisor.pid)
    signal.pidfd_send_signal(descriptor, signal.SIGTERM)
    assert is_ready(descriptor, 60.0)
    os.close(descriptor)


def copy_file(one: str, other: str) -> None:
    """Copy a file and leave its holes holes: an index file has 420 MB, and hardly a block."""
    with open(one, "rb") as reader, open(other, "wb") as writer:
        size = os.fstat(reader.fileno()).st_size
        writer.truncate(size)
        at = 0
        while at < size:
            try:
                at = os.lseek(reader.fileno(), at, os.SEEK_DATA)
            except OSError:
                return
            end = os.lseek(reader.fileno(), at, os.SEEK_HOLE)
            while at < end:
                at += os.pwrite(writer.fileno(), os.pread(reader.fileno(), min(1 << 20, end - at), at), at)


def copy_store(source: Path, target: Path) -> Path:
    """Copy a store with its holes."""
    return Path(shutil.copytree(source, target, copy_function=copy_file))


def fill(broker: Broker) -> None:
    """Store plain, keyed, delayed and timed messages, transactions that end each way, and a group's progress."""
    with broker.connect() as mq:
        for number in range(MESSAGES):
            mq.send("orders", b"%d" % number * 50, tag="fruit", key=f"key{number % 7}")
        for _ in range(5):
            mq.send("orders", b"later", delay=3600)
        producer = mq.producer(group="buyers")
        for number in range(4):
            transaction = producer.transaction("orders", b"bought %d" % number)
            if number < 2:
                transaction.commit()
            elif number == 2:
                transaction.rollback()
        with mq.pull_consumer("orders", group="readers") as consumer:
            consumer.commit(offsets={0: ACKED})


@pytest.fixture(scope="session")
def closed_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store whose broker has stopped in order."""
    with Broker(file_bytes=FILE_BYTES, default_queues=1) as broker:
        fill(broker)
        end_in_order(broker)
        return copy_store(broker.store, tmp_path_factory.mktemp("closed") / "store")


@pytest.fixture
def store(closed_store: Path, tmp_path: Path) -> Path:
    """A copy of it that may be damaged."""
    return copy_store(closed_store, tmp_path / "store")


@pytest.fixture
def shell() -> Shell:
    """Commands that are about no broker."""
    return Shell()


def change(path: Path, at: int, data: bytes) -> None:
    """Write bytes into a file of the store directly."""
    with path.open("r+b") as file:
        file.seek(at)
        file.write(data)
