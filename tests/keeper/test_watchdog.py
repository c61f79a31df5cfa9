"""A process that is stopped while it holds a lock: ended if it may be, else said; no other is harmed."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from shmq.daemon.keeper import watchdog
from shmq.shm.core import CoreError, StoreFigures

StartKeeper = Callable[..., Any]
Eventually = Callable[..., Any]
DEADLINE_SECONDS = 180.0  # ends a test that hangs

# Appends without a pause, in batches, so that the lock is held for a good part of the time. It says so after the first
# batch: whatever is undone later, the queue is not empty.
APPENDER = """
import sys
from shmq.shm.core import CoreError, Producer
from shmq.shm.segment import Instance, open_store
store = open_store(Instance.from_json(sys.argv[1]), writable=True)
producer = Producer(store, resolve=store.topic_find)
bodies = [bytes(50)] * 512
said = False
while True:
    try:
        producer.send_batch("orders", bodies, queue_id=1)
        said = said or print("appending", flush=True) is None
    except CoreError:
        pass
"""


# Changes the same topic without a pause, each time under the lock of the tables.
CHANGER = """
import sys
from shmq.shm.core import BrokerTables
from shmq.shm.segment import Instance, open_store
tables = BrokerTables(open_store(Instance.from_json(sys.argv[1]), writable=True))
print("changing", flush=True)
while True:
    tables.topic_put("orders", read_queues=2, write_queues=2)
"""

LEASE_MS, FOR_EVER_MS = 200, 600_000


@pytest.fixture
def appender(start_keeper: StartKeeper, request: pytest.FixtureRequest) -> Iterator[tuple[Any, subprocess.Popen[str]]]:
    """A keeper with a short lease, or the one that the test names, and a process that appends all the time."""
    running = start_keeper(
        lease_ms=getattr(request, "param", LEASE_MS), file_bytes=64 << 20, disk_force_percent=100, disk_warn_percent=100
    )
    running.topic("orders")
    process = subprocess.Popen(
        [sys.executable, "-c", APPENDER, running.attached.instance.to_json()], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout and process.stdout.readline() == "appending\n"
    yield running, process
    process.kill()
    process.communicate()


@pytest.fixture
def changer(start_keeper: StartKeeper) -> Iterator[tuple[Any, subprocess.Popen[str]]]:
    """A keeper with a short lease, and a process that changes a topic all the time."""
    running = start_keeper(lease_ms=LEASE_MS)
    running.topic("orders")
    process = subprocess.Popen(
        [sys.executable, "-c", CHANGER, running.attached.instance.to_json()], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout and process.stdout.readline() == "changing\n"
    yield running, process
    process.kill()
    process.communicate()


def stop_while_it_holds_the_lock(running: Any, process: subprocess.Popen[str], lock: str = "lock_tid") -> None:
    """SIGSTOP again and again until it hits the locked section."""
    deadline = time.monotonic() + DEADLINE_SECONDS
    while time.monotonic() < deadline:
        os.kill(process.pid, signal.SIGSTOP)
        os.waitid(os.P_PID, process.pid, os.WSTOPPED)
        if StoreFigures(running.store).stats()[lock] == process.pid:
            return
        os.kill(process.pid, signal.SIGCONT)
    pytest.fail("it was never met inside the lock")


def test_a_stopped_holder_is_ended_after_the_lease_and_its_append_finished_or_undone(
    appender: tuple[Any, subprocess.Popen[str]], eventually: Eventually
) -> None:
    running, process = appender
    stop_while_it_holds_the_lock(running, process)
    assert process.wait(DEADLINE_SECONDS) == -signal.SIGKILL
    [event] = eventually(lambda: running.events.named("lock.holder_killed"))
    assert event["pid"] == process.pid
    receipt = running.send("orders", b"goes on", timeout=DEADLINE_SECONDS)
    assert running.store.message_at(receipt.log_position).body == b"goes on"
    index = running.queue_index("orders", 1)
    sent = running.store.queue(index)[1]
    eventually(lambda: running.store.queue(index)[2] == sent)
    units = running.attached.files.consumequeue.read(("orders", 1), 0, sent)
    last = running.store.message_at(int.from_bytes(units[-20:-12], "big"))
    assert (last.offset, last.verify()) == (sent - 1, True)


def test_a_stopped_holder_that_may_not_be_ended_makes_the_store_read_only_until_it_goes_on(
    appender: tuple[Any, subprocess.Popen[str]], eventually: Eventually, monkeypatch: pytest.MonkeyPatch
) -> None:
    running, process = appender
    monkeypatch.setattr(watchdog.os, "geteuid", lambda: 12345)
    stop_while_it_holds_the_lock(running, process)
    eventually(lambda: running.store.read_only == watchdog.STOPPED_HOLDER)
    assert process.poll() is None
    with pytest.raises(CoreError):
        running.send("orders", b"refused", timeout=0.1)
    os.kill(process.pid, signal.SIGCONT)
    eventually(lambda: running.store.read_only == 0)
    running.send("orders", b"goes on", timeout=DEADLINE_SECONDS)


def test_a_holder_that_proc_hides_from_the_keeper_is_not_taken_for_a_dead_one(
    appender: tuple[Any, subprocess.Popen[str]], eventually: Eventually, monkeypatch: pytest.MonkeyPatch
) -> None:
    running, process = appender
    monkeypatch.setattr(watchdog, "status_of", lambda tid: {})
    stop_while_it_holds_the_lock(running, process)
    [event] = eventually(lambda: running.events.named("lock.held_long"))
    assert event == {"lock": "append", "tid": process.pid, "state": "hidden"}
    eventually(lambda: StoreFigures(running.store).stats()["lock_tid"] == process.pid)
    assert process.poll() is None and not running.events.named("lock.not_taken")
    os.kill(process.pid, signal.SIGCONT)


def test_a_stopped_holder_of_the_tables_is_ended_and_they_are_changed_again(
    changer: tuple[Any, subprocess.Popen[str]], eventually: Eventually
) -> None:
    running, process = changer
    stop_while_it_holds_the_lock(running, process, "table_lock_tid")
    assert process.wait(DEADLINE_SECONDS) == -signal.SIGKILL
    [event] = eventually(lambda: running.events.named("lock.holder_killed"))
    assert (event["lock"], event["pid"]) == ("table", process.pid)
    assert running.topic("payments") != running.topic("orders")


def test_a_stopped_holder_of_the_tables_that_may_not_be_ended_stops_no_send(
    changer: tuple[Any, subprocess.Popen[str]], eventually: Eventually, monkeypatch: pytest.MonkeyPatch
) -> None:
    running, process = changer
    monkeypatch.setattr(watchdog.os, "geteuid", lambda: 12345)
    stop_while_it_holds_the_lock(running, process, "table_lock_tid")
    [event] = eventually(lambda: running.events.named("lock.holder_stopped"))
    assert (event["lock"], event["pid"], process.poll()) == ("table", process.pid, None)
    running.send("orders", b"goes on", timeout=DEADLINE_SECONDS)
    os.kill(process.pid, signal.SIGCONT)
    assert running.topic("payments") != running.topic("orders")


@pytest.mark.parametrize("appender", [FOR_EVER_MS], indirect=True)  # the keeper is not to be the one who kills it
def test_a_holder_that_was_killed_while_stopped_is_repaired(appender: tuple[Any, subprocess.Popen[str]]) -> None:
    running, process = appender
    stop_while_it_holds_the_lock(running, process)
    process.kill()
    process.wait()
    running.send("orders", b"goes on", timeout=DEADLINE_SECONDS)
    assert running.store.read_only == 0
    assert not running.events.named("lock.holder_killed")


def test_a_process_that_is_stopped_outside_the_lock_is_left_alone(
    appender: tuple[Any, subprocess.Popen[str]], eventually: Eventually
) -> None:
    running, process = appender
    deadline = time.monotonic() + DEADLINE_SECONDS
    while time.monotonic() < deadline:
        os.kill(process.pid, signal.SIGSTOP)
        os.waitid(os.P_PID, process.pid, os.WSTOPPED)
        if StoreFigures(running.store).stats()["lock_tid"] == 0:
            break
        os.kill(process.pid, signal.SIGCONT)
    else:
        pytest.fail("the appender was never met outside the lock")
    rounds = running.keeper.rounds
    eventually(lambda: running.keeper.rounds > rounds + 5)
    running.send("orders", b"goes on")
    assert process.poll() is None
    assert not running.events.named("lock.holder_killed")
