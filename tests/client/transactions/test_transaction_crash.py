"""I10: a committed transaction is visible exactly once, another one never, whatever is killed at whatever step."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import shmq
from shmq.protocol.codes import Request
from shmq.testing import Broker
from tests.seed import SEED

pytestmark = pytest.mark.timed

PRODUCER = Path(__file__).with_name("transacting.py")
SECONDS = float(os.environ.get("SHMQ_CRASH_SECONDS", "4"))
KILLS_MIN = 3  # however slow the machine is
Eventually = Callable[..., Any]


class Scene:
    """A broker, producers over both transports, and a member that knows what they decided."""

    def __init__(self, broker: Broker, directory: Path, seed: int) -> None:
        self.broker, self.random = broker, random.Random(seed)
        self.decisions = directory / "decisions"
        self.decisions.touch()
        self._file = self.decisions.open()
        self._reading = threading.Lock()
        self._begun = ""
        self._decided: dict[str, str] = {}
        self.mq = broker.connect()
        self.mq.admin.create_topic("orders", queues=4)
        self.mq.transaction_checker("shop")(self.answer)
        self.seen: Counter[str] = Counter()
        self.early: list[str] = []
        self.producers: list[subprocess.Popen[bytes]] = []
        self.urls = [broker.url, broker.url, f"rocketmq://{broker.name_server}"]
        self.ask_soon()

    def decided(self) -> dict[str, str]:
        """Body -> commit or rollback, as far as the producers have got."""
        with self._reading:
            *lines, self._begun = (self._begun + self._file.read()).split("\n")  # the last may be half written
            for line in lines:
                body, choice = line.split()
                self._decided[body] = choice
        return self._decided

    def answer(self, message: shmq.Message) -> shmq.TxState:
        choice = self.decided().get(bytes(message.body).decode())
        return shmq.COMMIT if choice == "commit" else shmq.ROLLBACK

    def ask_soon(self) -> None:
        """The times live in the bridge's memory: a new one has RocketMQ's."""
        # Long enough for the producer to write its decision down before the broker asks.
        text = b"transactionTimeOut=1500\ntransactionCheckInterval=1500\n"
        self.mq._local().wire.control.request(Request.UPDATE_BROKER_CONFIG, body=text, timeout=60.0)

    def open_count(self) -> int:
        body = self.mq._local().wire.control.request(Request.TRANSACTIONS, timeout=60.0).body
        return int(body.split(b":")[1].split(b",")[0])

    def spawn(self) -> None:
        url = self.urls[len(self.producers) % len(self.urls)]
        command = [sys.executable, "-P", str(PRODUCER), url, "shop", "orders", str(self.decisions)]
        self.producers.append(subprocess.Popen(command, stderr=subprocess.DEVNULL))

    def kill(self, victim: str) -> None:
        if victim == "producer":
            producer = self.random.choice([each for each in self.producers if each.poll() is None])
            producer.kill()
            producer.wait()
            self.spawn()
            return
        process = self.broker.processes.get(victim)
        if process is None:
            return  # killed a moment ago
        os.kill(process.pid, signal.SIGKILL)
        if victim == "bridge":
            self.ask_soon()

    def read(self, stop: threading.Event) -> None:
        with self.broker.connect() as mq, mq.subscribe("orders", group="readers") as subscription:
            while not stop.is_set():
                for message in subscription.receive(64, 0.2):
                    body = bytes(message.body).decode()
                    self.seen[body] += message.attempt == 1
                    if self.decided().get(body) != "commit":
                        self.early.append(body)
                    message.ack()

    def end(self) -> None:
        """Kill the producers; harmless twice."""
        for process in self.producers:
            if process.poll() is None:
                process.kill()
            process.wait()


@pytest.mark.slow
@pytest.mark.parametrize(("victim", "bridges"), [("producer", 1), ("bridge", 1), ("bridge", 2), ("keeper", 1)])
def test_i10_a_committed_transaction_is_visible_once_whichever_process_is_killed(
    victim: str, bridges: int, tmp_path: Path, eventually: Eventually
) -> None:
    with Broker(tcp=True, bridges=bridges) as broker:
        scene = Scene(broker, tmp_path, SEED)
        stop = threading.Event()
        reader = threading.Thread(target=scene.read, args=(stop,))
        reader.start()
        try:
            for _ in scene.urls:
                scene.spawn()
            begin = time.monotonic()
            eventually(lambda: len(scene.decided()) > 20, timeout=30.0)
            begin = time.monotonic()
            kills = 0
            while time.monotonic() - begin < SECONDS or kills < KILLS_MIN:
                time.sleep(scene.random.uniform(0.1, 0.6))  # not a wait: the moment of the kill
                scene.kill(victim)
                kills += 1
            scene.end()
            committed = {body for body, choice in scene.decided().items() if choice == "commit"}
            eventually(lambda: scene.open_count() == 0, timeout=60.0)
            eventually(lambda: set(scene.seen) >= committed, timeout=30.0)
        finally:
            scene.end()
            stop.set()
            reader.join(30)
        with scene.mq.pull_consumer("orders") as consumer:
            stored: Counter[str] = Counter()
            while messages := consumer.poll(256, 0.5):
                stored.update(bytes(message.body).decode() for message in messages)
        print(f"{kills} kills of the {victim}, {len(scene.decided())} decisions, {len(committed)} committed")
        scene.mq.close()
    assert committed
    assert scene.early == [], "a message was visible before its transaction was decided"
    assert set(stored) == committed
    assert [body for body, count in stored.items() if count != 1] == []
