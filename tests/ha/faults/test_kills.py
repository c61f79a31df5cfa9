"""A slave is killed at random while its master is at work: process by process, all at once, or stopped in order.

Afterwards its log is the master's but for holes, `shmq store verify` finds nothing, and everything is read from it.
SHMQ_CRASH_LONG=1 kills KILLS_LONG times; SHMQ_TEST_SEED=n repeats a run's choices.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import threading
from typing import Any

import pytest

import shmq
from shmq.shm.liveness import signal_proven
from shmq.testing import Broker
from tests.deadline import eventually
from tests.ha.faults.stored import assert_equal_but_for_holes, prove
from tests.ha.pair import read_until_all, slave_of
from tests.seed import SEED

LONG = os.environ.get("SHMQ_CRASH_LONG", "") not in ("", "0")
KILLS = 100 if LONG else 8
FILE_BYTES = 1 << 20  # so that files end all the time
PROCESSES = ("replication", "keeper", "bridge")
BETWEEN_MAX = 100
PACE_SECONDS = 0.001
WAITED_SECONDS = 120.0


class Work:
    """Messages of every kind over shared memory and TCP, reservations that are kept, given up, and evicted.

    Attributes:
        acknowledged: numbers of the messages of the topic "orders".
    """

    def __init__(self, master: Broker) -> None:
        self.acknowledged: set[int] = set()
        self._stopping = threading.Event()
        self._errors: list[BaseException] = []
        urls = (master.url, f"rocketmq://{master.name_server}")
        self._threads = [threading.Thread(target=self._run, args=each, daemon=True) for each in enumerate(urls)]

    def __enter__(self) -> Work:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        for thread in self._threads:
            thread.join(WAITED_SECONDS)

    def told(self) -> str:
        return f"{len(self.acknowledged)} acknowledged, {self._errors}"

    def _run(self, producer: int, url: str) -> None:
        choice, number = random.Random(f"{SEED}/{producer}"), producer << 32
        try:
            with shmq.connect(url) as mq:
                buyers = mq.producer(group=f"buyers-{producer}")
                while not self._stopping.wait(PACE_SECONDS):
                    number += 1
                    body = b"%d" % number + b" " * choice.choice((0, 10, 1000, 60_000))
                    self._send(mq, buyers, choice, body, url.startswith("shmq:"))
                    self.acknowledged.add(number)
        except BaseException as error:
            self._errors.append(error)
            raise

    def _send(self, mq: Any, buyers: Any, choice: random.Random, body: bytes, is_local: bool) -> None:
        kind = choice.random()
        if kind < 0.05:
            mq.send("later", body, delay_level=1)
        elif kind < 0.1:
            transaction = buyers.transaction("bought", body)
            (transaction.commit if kind < 0.07 else transaction.rollback)()
        elif kind < 0.15 and is_local:
            with contextlib.suppress(ZeroDivisionError), buyers.reserve("held", 5000) as slot:
                slot.view[:5000] = b"h" * 5000
                _ = 1 // int(kind < 0.12)
        mq.send("orders", body, key=f"k{choice.randrange(50)}", timeout=WAITED_SECONDS)


def harm(slave: Broker, choice: random.Random) -> str:
    """Do one of the things that end a slave, or a part of it, and have it run again."""
    how = choice.choice((*PROCESSES, *PROCESSES, "supervisor", "all", "restart"))
    if how in PROCESSES:
        before = slave.processes[how]
        signal_proven(before, signal.SIGKILL)
        eventually(lambda: slave.processes.get(how, before) != before, lambda: slave.log[-2000:])
        return how
    if how == "supervisor":
        signal_proven(slave.processes[how], signal.SIGKILL)
    elif how == "all":
        slave.kill_daemon()
    slave.restart()
    return how


@pytest.mark.timeout(3600 if LONG else 600)
def test_i9_a_slave_that_is_killed_at_random_has_its_masters_bytes_afterwards() -> None:
    choice, done = random.Random(SEED), []
    with (
        Broker(tcp=True, ha_listen="127.0.0.1:0", file_bytes=FILE_BYTES) as master,
        slave_of(master, file_bytes=FILE_BYTES) as slave,
    ):
        with Work(master) as work:
            for _ in range(KILLS):
                wanted = len(work.acknowledged) + choice.randint(1, BETWEEN_MAX)
                eventually(
                    lambda wanted=wanted: len(work.acknowledged) >= wanted, work.told, WAITED_SECONDS, pause=0.001
                )
                done.append(harm(slave, choice))
        end = assert_equal_but_for_holes(master, slave, FILE_BYTES)
        found = read_until_all(slave.url, work.acknowledged, "readers-of-the-slave")
        print(f"SHMQ_TEST_SEED={SEED}: {len(found)} messages, log of {end} bytes, {len(done)} kills: {done}")
        prove(slave)
