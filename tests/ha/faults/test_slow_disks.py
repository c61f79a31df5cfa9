"""A synchronous pair on slow disks, of master, slave or both: one host is lost, and the slave's loses its power.

What was acknowledged until then is in every store that the power cut may leave on the slave's disk.
"""

from __future__ import annotations

import shutil
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest

import shmq
from shmq.testing import Broker
from tests.crash.disk.disk import FaultyDisk
from tests.crash.disk.recovered import RecoveredStore
from tests.crash.disk.snapshot import Snapshot
from tests.deadline import eventually
from tests.ha.pair import slave_of
from tests.ha.test_synchronous import FILE_BYTES, sync_master, until_in_sync
from tests.seed import SEED

SYNC_MS_MAX = 1500  # a slave that is 2 s behind is counted out, and comes again
SENDERS, WANTED, IMAGES = 8, 100, 12
QUEUES_MAX = 1 << 14  # RocketMQ's own topics are there, too
AGAIN_SECONDS = 0.05


class Sending:
    """Producers over TCP, so that no process but the broker's syncs its files."""

    def __init__(self, master: Broker) -> None:
        self.acknowledged: list[int] = []
        self.refused = 0
        self._url = f"rocketmq://{master.name_server}"
        self._stopping = threading.Event()
        self._threads = ThreadPoolExecutor(SENDERS)

    def __enter__(self) -> Sending:
        for number in range(SENDERS):
            self._threads.submit(self._send, number << 32)
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self._threads.shutdown()

    def _send(self, number: int) -> None:
        with shmq.connect(self._url) as mq:
            while not self._stopping.is_set():
                number += 1
                try:
                    mq.send("orders", b"%d" % number, timeout=10.0)
                except shmq.ShmqError:  # stored, perhaps; or the slave is counted out just now
                    self.refused += 1
                    self._stopping.wait(AGAIN_SECONDS)
                else:
                    self.acknowledged.append(number)


@pytest.mark.slow
@pytest.mark.parametrize("slow", [("master",), ("slave",), ("master", "slave")], ids="-and-".join)
def test_what_was_acknowledged_over_slow_disks_is_on_the_slaves_disk(slow: tuple[str, ...], tmp_path: Path) -> None:
    with ExitStack() as living:
        master = sync_master(in_sync_min=2)
        disks = {"master": living.enter_context(FaultyDisk(master.store))}
        with disks["master"].around():
            living.enter_context(master)
        slave = slave_of(master, file_bytes=FILE_BYTES)
        disks["slave"] = living.enter_context(FaultyDisk(slave.store))
        with disks["slave"].around():
            living.enter_context(slave)
        until_in_sync(master)
        for host in slow:
            disks[host].slow(0, SYNC_MS_MAX)
        with Sending(master) as sending:
            eventually(lambda: len(sending.acknowledged) >= WANTED, lambda: f"{vars(sending)} {master.log[-2000:]}")
            acknowledged = set(sending.acknowledged)
            cut = disks["slave"].snapshot(tmp_path)
    for number in range(IMAGES):
        lost = acknowledged - bodies_in(cut, SEED + number, tmp_path / "image")
        assert not lost, f"SHMQ_TEST_SEED={SEED}, image {number}: {len(lost)} of {len(acknowledged)} are lost"


def bodies_in(cut: Snapshot, seed: int, into: Path) -> set[int]:
    """What the next broker finds after the power cut."""
    cut.image(seed, into)
    recovered = RecoveredStore(into, file_bytes=FILE_BYTES, queue_max=QUEUES_MAX)
    try:
        return {int(body) for (topic, _, _), body in recovered.messages().items() if topic == "orders"}
    finally:
        recovered.close()
        shutil.rmtree(into)
