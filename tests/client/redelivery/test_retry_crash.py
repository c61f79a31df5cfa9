"""I12 with real processes, each killed at random: what always fails is a dead letter exactly once, and never early."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from shmq.message import retry_topic_of
from shmq.protocol.body import SubscriptionGroupConfig, encode_body
from shmq.protocol.codes import Request
from shmq.testing import Broker
from tests.bridge.test_delays_survive import is_served
from tests.seed import SEED

pytestmark = pytest.mark.slow  # kills at random, for seconds

MEMBER = Path(__file__).with_name("failing.py")
SECONDS = float(os.environ.get("SHMQ_CRASH_SECONDS", "4"))
KILLS_MIN = 3  # however slow the machine is
PER_SECOND = 10  # messages for each second of kills
Eventually = Callable[..., Any]


class Members:
    """Processes of one group that fail, over both transports unless they pop."""

    def __init__(self, broker: Broker, kind: str) -> None:
        self.broker, self.kind = broker, kind
        self.running: list[subprocess.Popen[bytes]] = []
        self._turn = 0

    def spawn(self) -> None:
        is_local = self.kind == "push" and self._turn % 2 == 0
        self._turn += 1
        url = self.broker.url if is_local else f"rocketmq://{self.broker.name_server}"
        command = [sys.executable, "-P", str(MEMBER), url, self.kind, "g", "orders"]
        self.running.append(subprocess.Popen(command, stderr=subprocess.DEVNULL))

    def kill(self, number: int) -> None:
        process = self.running.pop(number)
        process.kill()
        process.wait()

    def end(self) -> None:
        """Kill them all; harmless twice."""
        while self.running:
            self.kill(0)


@pytest.mark.parametrize("kind", ["push", "pop"])
def test_i12_through_kills_a_message_that_always_fails_is_a_dead_letter_exactly_once(
    kind: str, eventually: Eventually
) -> None:
    dice = random.Random(SEED)
    sent = [b"%d" % number for number in range(int(SECONDS * PER_SECOND))]
    with Broker(tcp=True, delay_levels="1s 1s 1s 1s 1s") as broker:
        with broker.connect() as mq:
            mq.admin.create_topic("orders", queues=2)
            config = SubscriptionGroupConfig("g", retryMaxTimes=2)
            mq._local().wire.control.request(Request.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=encode_body(config))
            for body in sent:
                mq.send("orders", body)
        members = Members(broker, kind)
        try:
            members.spawn()
            members.spawn()
            kills = Counter[str]()
            until = time.monotonic() + SECONDS
            while time.monotonic() < until or kills.total() < KILLS_MIN:
                time.sleep(dice.uniform(0.2, 0.7))  # not a wait: the moment of the kill
                victim = dice.choice(("member", "member", "bridge", "keeper"))
                kills[victim] += 1
                if victim == "member":
                    members.kill(dice.randrange(2))
                    eventually(lambda: broker.processes.keys() >= {"bridge"})
                    members.spawn()
                elif (mark := broker.processes.get(victim)) is not None:
                    os.kill(mark.pid, signal.SIGKILL)
            eventually(lambda: is_served(broker))
            eventually(lambda: stored(broker, "%DLQ%g").keys() >= set(sent), timeout=90.0)
        finally:
            members.end()
        print(f"{dict(kills)} killed")
        assert stored(broker, "%DLQ%g") == Counter(sent)
        retry = "%RETRY%g" if kind == "push" else retry_topic_of("g", "orders")
        tries = {(bytes(message.body), message.reconsume_times) for message in read(broker, retry)}
        assert tries == {(body, count) for body in sent for count in (1, 2)}, "each has every try, one after the other"
        if kind == "push":
            assert_not_early(broker)


def assert_not_early(broker: Broker) -> None:
    due: dict[tuple[bytes, int], int] = {}
    for message in read(broker, "SCHEDULE_TOPIC_XXXX"):
        key = bytes(message.body), message.reconsume_times
        due[key] = min(due.get(key, 1 << 62), message.store_ms + 1000)
    for message in read(broker, "%RETRY%g"):
        assert message.store_ms >= due[bytes(message.body), message.reconsume_times]


def read(broker: Broker, topic: str) -> list[Any]:
    """Every message of a topic; nothing while it, or the broker, is not there."""
    found: list[Any] = []
    with broker.connect() as mq:
        if topic in mq.admin.topics:
            with mq.pull_consumer(topic) as consumer:
                while messages := consumer.poll(500, 0.3):
                    found += messages
    return found


def stored(broker: Broker, topic: str) -> Counter[bytes]:
    return Counter(bytes(message.body) for message in read(broker, topic))
