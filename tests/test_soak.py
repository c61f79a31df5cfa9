"""Many deaths of real processes against the real broker: nothing acknowledged is lost, nothing is left behind.

SHMQ_SOAK_KILLS and SHMQ_SOAK_SECONDS ask for the long form; SHMQ_TEST_SEED repeats a run.
"""

import os
import random
import signal
import subprocess
import sys
import threading
import time

import pytest

import shmq
from shmq.shm.core import StoreFigures
from shmq.testing import Broker
from tests.deadline import eventually
from tests.seed import SEED

KILLS = int(os.environ.get("SHMQ_SOAK_KILLS", "1000"))
SECONDS = int(os.environ.get("SHMQ_SOAK_SECONDS", "8"))

# Forks clients that attach, send and read, and kills each with SIGKILL at a moment of its own.
NURSERY = """
import os, random, signal, sys, time
import shmq, shmq.client.connection
url, kills, seed = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
chance = random.Random(seed)
for number in range(kills):
    pause = chance.random() * 0.01
    ready, child_end = os.pipe()
    pid = os.fork()
    if pid == 0:
        mq = shmq.connect(url)
        subscription = mq.subscribe("soak", group="soak")
        mq.send("soak", b"x" * 100)
        os.write(child_end, b"!")
        while True:
            mq.send_batch("soak", [b"y" * 100] * 10)
            with mq.reserve("soak", 20_000) as slot:
                slot.view[:5] = b"hello"
            for message in subscription.receive(max=100):
                message.ack()
            time.sleep(0.001)  # not a wait: a load that does not fill the disk
    os.close(child_end)
    assert os.read(ready, 1) == b"!", f"client {number} did not get started"
    os.close(ready)
    time.sleep(pause)  # not a wait: the moment of the kill
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
print("killed", kills)
"""


def left(broker: Broker) -> dict[str, int]:
    """What killed clients could leave: names in /dev/shm, descriptors of the broker's processes."""
    counts = {"shm": len([name for name in os.listdir("/dev/shm") if broker.name in name])}
    for role, mark in broker.processes.items():
        counts[role] = len(os.listdir(f"/proc/{mark.pid}/fd"))
    return counts


@pytest.mark.slow
def test_killed_clients_leave_nothing_behind() -> None:
    # Log files large enough for all of it: each one more costs the keeper a descriptor, up to sixteen.
    with Broker(file_bytes=512 << 20) as broker:
        command = [sys.executable, "-P", "-c", NURSERY, broker.url]
        subprocess.run([*command, "30", str(SEED)], check=True, timeout=100)
        with broker.connect() as mq:
            mq.send("soak", b"alive")
        before = left(broker)
        finished = subprocess.run(
            [*command, str(KILLS), str(SEED)], check=True, timeout=100 + KILLS, capture_output=True, text=True
        )
        assert finished.stdout == f"killed {KILLS}\n"
        with broker.connect() as mq:
            status = mq._live().wire.control.status()
            # Our own slot, and none of the dead; the bridge has one too, since it watches the log.
            bridge = broker.processes["bridge"].pid
            clients = StoreFigures(mq._live().wire.store).clients()
            slots = [client for client in clients if client.state != 0 and client.pid != bridge]
            assert [client.pid for client in slots] == [os.getpid()], status
            mq.send("soak", b"alive")
            eventually(lambda: left(broker)["bridge"] <= before["bridge"] + 1)
            after = left(broker)
            assert after["shm"] <= before["shm"] + 1  # at most one slot was in use beside ours
            assert after["keeper"] <= before["keeper"] + 2  # ConsumeQueue files it keeps open
            assert mq.admin.groups["soak"].members == []


def test_the_broker_killed_every_second_under_load_loses_no_acknowledged_message() -> None:
    chance = random.Random(SEED)
    sent: list[tuple[int, int, bytes]] = []
    stopping = threading.Event()
    with Broker(file_bytes=32 << 20) as broker, broker.connect() as mq:
        mq.admin.create_topic("load")

        def produce() -> None:
            number = 0
            while not stopping.is_set():
                body = b"%d" % number
                try:
                    receipt = mq.send("load", body)
                except shmq.ShmqError as error:
                    assert error.retryable, error
                    continue
                sent.append((receipt.queue_id, receipt.offset, body))
                number += 1
                if number % 200 == 0:
                    time.sleep(0.001)  # not a wait: leaves the other side a processor

        producer = threading.Thread(target=produce)
        producer.start()
        for _ in range(SECONDS):
            time.sleep(1)  # not a wait: a second of load
            roles = chance.choice([["keeper"], ["bridge"], ["supervisor"], ["supervisor", "keeper", "bridge"]])
            before = len(sent)
            for role in roles:
                mark = broker.processes.get(role)
                if mark is not None:
                    os.kill(mark.pid, signal.SIGKILL)
            eventually(lambda before=before: len(sent) > before + 100)  # type: ignore[misc]
            if "supervisor" in roles:
                broker.kill_daemon()
                broker.restart()
        stopping.set()
        producer.join(60)
        assert not producer.is_alive()
        stored: dict[tuple[int, int], bytes] = {}
        with mq.pull_consumer("load") as pull:
            for queue in pull.queues():
                pull.seek(queue, "begin")
            while messages := pull.poll(max=1000, wait=0.5):
                for message in messages:
                    assert (message.queue_id, message.offset) not in stored
                    stored[message.queue_id, message.offset] = message.body
    assert len(sent) > 1000
    assert all(stored.get((queue_id, offset)) == body for queue_id, offset, body in sent)
    for queue_id in {queue_id for queue_id, _ in stored}:
        offsets = sorted(offset for queue, offset in stored if queue == queue_id)
        assert offsets == list(range(len(offsets)))
