"""Writers and readers that are stopped while their topic is deleted and its entries are used again.

They are stopped anywhere: in front of a look at a table, behind it, between a message and its acknowledgement. What
they have in mind when they wake is a topic, queues, an offset slot and a group that are another's now.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

import shmq
from shmq.shm.core import BrokerTables, CoreError, Store, StoreFigures
from shmq.testing import Broker
from tests.deadline import attempts, eventually

SCRIPT = Path(__file__).with_name("stopped.py")
ROUNDS = int(os.environ.get("SHMQ_STOPPED_ROUNDS", "4"))
QUEUES = 4
OLD, NEW, PROBE = "old", "new", "probe"
GROUP = "readers"
HOUR_SECONDS = 3600.0


class Stoppable:
    """Such a process, and what it said."""

    def __init__(self, broker: Broker, *words: str) -> None:
        command = [sys.executable, "-P", str(SCRIPT), broker.url, *words]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.said: list[str] = []
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.said.append(line.rstrip("\n"))

    def end(self) -> None:
        """Let it go on, and end it."""
        self.process.send_signal(signal.SIGCONT)
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait(60)
        self._thread.join(60)
        assert self.process.stdout is not None
        self.process.stdout.close()


@pytest.fixture
def broker() -> Iterator[Broker]:
    with Broker(auto_create=False, group_max=64) as running:
        yield running


def tables(connection: shmq.Connection) -> BrokerTables:
    return BrokerTables(store_of(connection))


def store_of(connection: shmq.Connection) -> Store:
    store: Store = connection._live().wire.store  # type: ignore[attr-defined]
    return store


def used(connection: shmq.Connection) -> int:
    return int(StoreFigures(store_of(connection)).stats()["queues_used"])


def entries(connection: shmq.Connection, topic: str) -> list[int]:
    """The entries of the queue table that a topic has."""
    store = store_of(connection)
    mask = store.head["queue_mask"]
    return [queue & mask for queue in store.topic(store.topic_find(topic))["queues"]]


def stop_all(connection: shmq.Connection, processes: list[Stoppable]) -> None:
    """Stop them; a process that holds the append lock goes on until it has none."""
    for _ in attempts():
        for each in processes:
            each.process.send_signal(signal.SIGSTOP)
        for each in processes:
            os.waitid(os.P_PID, each.process.pid, os.WSTOPPED | os.WNOWAIT)
        try:
            connection.send(PROBE, b"is there a lock", timeout=1.0)
            return
        except (shmq.BrokerBusy, shmq.SendTimeout):
            for each in processes:
                each.process.send_signal(signal.SIGCONT)
    raise AssertionError("one of them always held the lock")


def fill_groups(connection: shmq.Connection) -> None:
    """Use up the entries of groups, so that the next group gets one that was deleted."""
    for number in range(64):
        try:
            tables(connection).group_put(f"filler-{number}")
        except CoreError:
            return


def bodies(process: Stoppable, word: str) -> list[str]:
    return [line.split()[-1] for line in list(process.said) if line.startswith(word)]


def one_round(broker: Broker, mq: shmq.Connection, turn: int) -> None:
    """Stop all, give what they use to others, let them go on, and see whose messages came where."""
    mq.admin.create_topic(OLD, queues=QUEUES)
    had, before = entries(mq, OLD), used(mq)
    writers = [Stoppable(broker, OLD, "send", f"w{turn}{number}") for number in range(2)]
    readers = [Stoppable(broker, OLD, "receive", GROUP) for _ in range(2)]
    stopped = [*writers, *readers]
    eventually(lambda: all(bodies(writer, "sent") for writer in writers), "both write")
    eventually(lambda: sum(len(bodies(reader, "got")) for reader in readers) > 20, "the group reads")
    try:
        stop_all(mq, stopped)
        mq.admin.delete_topic(OLD)
        group = tables(mq).group_put(GROUP)
        fill_groups(mq)
        tables(mq).group_delete(GROUP)  # as the broker does it, which would refuse while it knows of members
        eventually(lambda: used(mq) == before - QUEUES, "the entries are free")
        broker.advance(HOUR_SECONDS)
        mq.admin.create_topic(NEW, queues=QUEUES)
        assert set(entries(mq, NEW)) == set(had)
        sent = [f"new{turn}-{number}" for number in range(3 * QUEUES)]
        for number, body in enumerate(sent):
            mq.send(NEW, body.encode(), queue_id=number % QUEUES)
        mask = store_of(mq).head["group_mask"]
        assert tables(mq).group_put("heir") & mask == group & mask, "it has the entry of the deleted group"
        with mq.pull_consumer(NEW, group="heir") as heir:
            committed = heir.commit(offsets=dict.fromkeys(range(QUEUES), 1))
            told = [len(each.said) for each in stopped]
            for each in stopped:
                each.process.send_signal(signal.SIGCONT)
            eventually(
                lambda: all("refused" in each.said[count:] for each, count in zip(writers, told, strict=False)),
                "the writers see that their topic is gone",
            )
            tables(mq).group_delete("filler-0")  # room for the readers' group
            mq.admin.create_topic(OLD, queues=QUEUES)
            told = [len(each.said) for each in stopped]
            eventually(
                lambda: all(len(each.said) > count + 20 for each, count in zip(writers, told, strict=False)),
                "the writers write to the topic's next life",
            )
            assert heir.committed() == committed
            found = [message.body.decode() for message in mq.browse(NEW, limit=1000)]
            assert sorted(found) == sorted(sent)
    finally:
        for each in stopped:
            each.end()
    assert not [body for reader in readers for body in bodies(reader, "got") if body.startswith("new")]
    assert {line.split()[1] for reader in readers for line in reader.said if line.startswith("got")} == {OLD}


def test_what_stopped_processes_had_is_not_taken_from_who_has_it_now(broker: Broker) -> None:
    with broker.connect() as mq:
        mq.admin.create_topic(PROBE, queues=1)
        clean = used(mq)
        for turn in range(ROUNDS):
            one_round(broker, mq, turn)
            mq.admin.delete_topic(OLD)
            mq.admin.delete_topic(NEW)
            tables(mq).group_delete("heir")
            eventually(lambda: used(mq) <= clean, "the next round begins as this one did")
