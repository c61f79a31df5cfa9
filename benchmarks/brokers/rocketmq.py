"""Runs a broker that speaks RocketMQ, ours or a stock one, under RocketMQ's own benchmark classes.

`contestants.py` starts the brokers; `tcp.py` says what each figure must reach.

    driver   rocketmq-example's Producer, BatchProducer or Consumer in a JVM of its own, the same for every broker
    rate     messages a second: what the broker's queues grew by, between two moments after the driver has warmed up
    memory   that of the broker's processes while the driver runs (processes.py)
    processor_us   what these processes used of the processor between the two moments, for each message of the rate

Rule: a rate counts what is stored, not what the driver believes to have sent.
"""

from __future__ import annotations

import json
import re
import subprocess
import tempfile
import time
from collections.abc import Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.brokers.contestants import QUEUES, Contestant, Contestants
from benchmarks.workloads.core import build
from benchmarks.workloads.held_pulls import HELD, WAVES, WAVES_MIN, waves
from benchmarks.workloads.visibility import MESSAGES, MESSAGES_MIN, TOPICS, TOPICS_MIN, keys, routes
from tests.interop.peers.cache import program
from tests.interop.peers.process import Child, eventually
from tests.interop.peers.registry import DEFAULT_JDK, EXAMPLE, class_path, jars

DRIVER_HEAP = ("-Xms512m", "-Xmx1g")
WARM_UP = 6.0
WINDOW = 5.0
WINDOW_MIN = 1.0
START_TIMEOUT = 60.0
BACKLOG = 3_000_000
BACKLOG_MIN = 100_000
BACKLOG_TIMEOUT = 300.0
CATCH_UP_LINES = 3
LOAD_SECONDS = 6.0
_CONSUMED = re.compile(r"Consume TPS: (\d+)")


class Arena:
    """The brokers, and what was stored in them already."""

    def __init__(self) -> None:
        self._contestants = Contestants()
        self._backlogs: set[tuple[str, int]] = set()
        self._groups = 0

    def __enter__(self) -> Arena:
        return self

    def __exit__(self, *exc: object) -> None:
        self._contestants.close()

    def sending(
        self, broker: str, words: Mapping[str, object], effort: float, main: str = "Producer"
    ) -> dict[str, float]:
        """Run a producing driver; returns its rate, and the broker's memory and processor time in the meantime."""
        contestant = self._contestants.get(broker)
        topic = "Sent" + "".join(str(value) for value in words.values())
        before = contestant.stored(topic)
        with _driver(main, contestant, {"-t": topic, **words}) as driver:
            driver.wait_for(lambda: contestant.stored(topic) > before, f"{main} sends", START_TIMEOUT)
            time.sleep(WARM_UP * effort)
            used, started, first = contestant.processor_seconds(), time.monotonic(), contestant.stored(topic)
            time.sleep(max(WINDOW_MIN, WINDOW * effort))
            used, passed = contestant.processor_seconds() - used, time.monotonic() - started
            count = contestant.stored(topic) - first
            memory = contestant.memory_mib()
            _fail_on_errors(driver, main)
        return {"rate": count / passed, "memory": memory, "processor_us": used * 1e6 / max(1, count)}

    def loading(self, broker: str, connections: int, in_flight: int, effort: float) -> dict[str, float]:
        """Let the load generator in C keep so many sends of 128 bytes unanswered; returns the rate of its answers.

        The topic is the automatically created one of the Java drivers, made by a first send over the same wire.
        """
        contestant = self._contestants.get(broker)
        topic = f"Loaded{connections}x{in_flight}"
        host, port = contestant.broker_address.rsplit(":", 1)
        words = [host, port, topic, str(QUEUES // 2), "128"]
        program = str(build("tcp_load"))
        _load(program, [*words, "1", "1", "0.2"])
        return {
            "rate": _load(program, [*words, str(connections), str(in_flight), str(max(1.0, LOAD_SECONDS * effort))])
        }

    def catching_up(self, broker: str, effort: float) -> dict[str, float]:
        """Let a new group consume a backlog; returns the best rate the driver reports over a sliding window."""
        contestant = self._contestants.get(broker)
        topic = self._backlog(broker, contestant, max(BACKLOG_MIN, int(BACKLOG * effort)))
        self._groups += 1
        words = {"-t": topic, "-g": f"catch-up-{self._groups}", "-ri": 1000}
        with _driver("Consumer", contestant, words) as driver:
            lines = driver.wait_for(
                lambda: found if len(found := _consumed(driver)) >= CATCH_UP_LINES else None,
                "the consumer reports",
                START_TIMEOUT,
            )
        return {"rate": float(max(lines))}

    def held_pulls(self, broker: str, effort: float) -> dict[str, float]:
        """Let hundreds of pulls wait for each message of a sender."""
        return waves(self._contestants.get(broker).broker_address, HELD, max(WAVES_MIN, int(WAVES * effort)))

    def routes(self, broker: str, effort: float) -> dict[str, float]:
        """Create topics and ask the name server for each."""
        contestant = self._contestants.get(broker)
        return routes(contestant.broker_address, contestant.name_server, max(TOPICS_MIN, int(TOPICS * effort)))

    def keys(self, broker: str, effort: float) -> dict[str, float]:
        """Send messages and query each by its key."""
        return keys(self._contestants.get(broker).broker_address, max(MESSAGES_MIN, int(MESSAGES * effort)))

    def _backlog(self, broker: str, contestant: Contestant, count: int) -> str:
        topic = f"Backlog{count}"
        if (broker, count) not in self._backlogs:
            with _driver("BatchProducer", contestant, {"-t": topic, "-b": 32, "-w": 8}):
                eventually(lambda: contestant.stored(topic) >= count, "the backlog is there", BACKLOG_TIMEOUT, 0.5)
            self._backlogs.add((broker, count))
        return topic


def _load(program: str, words: list[str]) -> float:
    done = subprocess.run([program, *words], capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"the load generator failed: {done.stdout.strip()} {done.stderr.strip()}")
    return float(json.loads(done.stdout)["per_second"])


@contextmanager
def _driver(main: str, contestant: Contestant, words: Mapping[str, object]) -> Any:
    with tempfile.TemporaryDirectory(prefix="shmq-driver-") as home:
        command = [program("java", DEFAULT_JDK), *DRIVER_HEAP, f"-Duser.home={home}", "-cp", class_path(jars(EXAMPLE))]
        command += [f"org.apache.rocketmq.example.benchmark.{main}", "-n", contestant.name_server]
        command += [str(word) for pair in words.items() for word in pair]
        child = Child(command, Path(home) / "driver.log")
        try:
            yield child
        finally:
            child.kill()


def _consumed(driver: Child) -> list[int]:
    return [int(rate) for rate in _CONSUMED.findall(driver.log)]


def _fail_on_errors(driver: Child, main: str) -> None:
    failed = re.findall(r"Failed: ([1-9]\d*)", driver.log)
    if failed or "Exception" in driver.log:
        raise RuntimeError(f"{main} had failures: {driver.log}")
