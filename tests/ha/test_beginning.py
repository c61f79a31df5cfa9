"""A new slave of a master whose first log files retention has deleted: its log begins where the master's does."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from shmq.testing import Broker
from tests.deadline import eventually
from tests.ha.pair import bodies_of, log_of, send, settled_end, slave_of
from tests.shm.looking import looking

pytestmark = pytest.mark.slow

FILE_BYTES = 64 << 10


def log_begin(broker: Broker) -> int:
    with looking(broker) as store:
        return store.log_begin


def expire(broker: Broker, files: int) -> int:
    """Let retention delete the oldest log files; return where the log begins then."""
    names = sorted(name for name in os.listdir(Path(broker.store, "commitlog")) if name.isdecimal())
    for name in names[:files]:
        os.utime(Path(broker.store, "commitlog", name), (0, 0))
    wanted = int(names[files])
    os.kill(broker.processes["keeper"].pid, signal.SIGKILL)  # the next one looks at once
    eventually(lambda: log_begin(broker) >= wanted, lambda: broker.log[-2000:])
    return wanted


@pytest.fixture(scope="module")
def master() -> Iterator[Broker]:
    with Broker(tcp=True, ha_listen="127.0.0.1:0", file_bytes=FILE_BYTES, delete_hour="") as broker:
        send(broker, range(1200))
        expire(broker, 2)
        yield broker


def queue_bounds(broker: Broker) -> list[tuple[int, int]]:
    with looking(broker) as store:
        queues = store.topic(store.topic_find("orders"))["queues"]
        return [(store.queue(queue).offset_min, store.queue(queue).offset_max) for queue in queues]


def assert_same_log(master: Broker, slave: Broker) -> None:
    end, begin = settled_end(master, slave), log_begin(master)
    assert log_begin(slave) == begin > 0
    assert log_of(slave, end, begin=begin) == log_of(master, end, begin=begin)
    assert queue_bounds(slave) == queue_bounds(master)


def test_an_empty_slave_begins_where_the_log_of_its_master_begins(master: Broker) -> None:
    with slave_of(master, file_bytes=FILE_BYTES) as slave:
        assert_same_log(master, slave)
        send(master, range(1200, 1300))
        assert_same_log(master, slave)
        # All processes were started again; the one that copies the log may be ahead of the one that takes connections.
        eventually(slave.place.socket_path.exists, lambda: slave.log[-2000:])
        total = sum(end - begin for begin, end in queue_bounds(master))
        assert bodies_of(slave.url, total, "readers-of-the-copy") == bodies_of(master.url, total, "readers")
        assert not Path(slave.store, "shmq.begin").exists()
        slave.restart()  # in order
        send(master, range(1300, 1400))
        assert_same_log(master, slave)
        slave.kill_daemon()
        slave.restart()  # from the files alone
        assert_same_log(master, slave)
        assert "ha.begins" not in slave.log[slave.log.rindex("keeper.stopped") :]


def test_a_file_size_that_does_not_fit_is_named(master: Broker) -> None:
    with slave_of(master, file_bytes=5 * FILE_BYTES) as slave:
        told = f"start this slave on an empty store with --file-size {FILE_BYTES}"
        eventually(lambda: told in slave.log, lambda: slave.log[-2000:])
        assert (log_begin(slave), Path(slave.store, "shmq.begin").exists()) == (0, False)
