"""Owns how a broker that speaks RocketMQ is measured: ours or a stock one, driven by RocketMQ's own benchmark classes.

It does not know what a figure must reach (tcp.py).

    driver   rocketmq-example's Producer, BatchProducer or Consumer in a JVM of its own, the same for every broker
    rate     messages a second: what the broker's queues grew by, between two moments after the driver has warmed up
    memory   proportional set size of the broker's processes while the driver runs, so shared pages count once

(1) Both brokers run all the time, the one that is not measured has no clients.
(2) A rate counts what is stored, not what the driver believes to have sent.
"""

from __future__ import annotations

import re
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from shmq.testing import Broker
from tests.interop.peers.cache import program
from tests.interop.peers.process import Child, eventually
from tests.interop.peers.registry import DEFAULT_JDK, EXAMPLE, class_path, jars
from tests.interop.peers.stock import StockBroker
from tests.interop.peers.wire import Wire

# The options of RocketMQ's bin/runbroker.sh with its 8 GiB heap cut to 2 GiB, and without AlwaysPreTouch, so that
# its memory is what it uses and not what it was given.
STOCK_HEAP = [
    "-server",
    "-Xms2g",
    "-Xmx2g",
    "-Xmn1g",
    "-XX:+UseG1GC",
    "-XX:G1HeapRegionSize=16m",
    "-XX:G1ReservePercent=25",
    "-XX:InitiatingHeapOccupancyPercent=30",
    "-XX:SoftRefLRUPolicyMSPerMB=0",
    "-XX:-OmitStackTraceInFastThrow",
]
DRIVER_HEAP = ("-Xms512m", "-Xmx1g")
LOG_FILE_BYTES = 1 << 30  # RocketMQ's default, and shmq's
WARM_UP = 6.0
WINDOW = 5.0
WINDOW_MIN = 1.0
START_TIMEOUT = 60.0
BACKLOG = 3_000_000
BACKLOG_MIN = 100_000
BACKLOG_TIMEOUT = 300.0
CATCH_UP_LINES = 3
QUEUES = 8  # at least as many as a new topic gets
GET_MAX_OFFSET = 30
MIB = 1 << 20
_CONSUMED = re.compile(r"Consume TPS: (\d+)")


@dataclass(frozen=True)
class Contestant:
    """A running broker: where it is, and which processes it is made of."""

    name_server: str
    broker_address: str
    pids: Callable[[], list[int]]

    def stored(self, topic: str) -> int:
        """Return how many messages a topic's queues have."""
        with Wire(self.broker_address) as wire:
            replies = [wire.ask(GET_MAX_OFFSET, {"topic": topic, "queueId": str(queue)}) for queue in range(QUEUES)]
        return sum(int(reply.fields["offset"]) for reply in replies if reply is not None and reply.code == 0)

    def memory_mib(self) -> float:
        """Return the resident memory of its processes; a page that several of them share counts once."""
        return sum(_proportional_bytes(pid) for pid in self.pids()) / MIB


class Arena:
    """Both brokers, started when they are first asked for and stopped together."""

    def __init__(self) -> None:
        self._stack = ExitStack()
        self._running: dict[str, Contestant] = {}
        self._backlogs: set[tuple[str, int]] = set()
        self._groups = 0

    def __enter__(self) -> Arena:
        return self

    def __exit__(self, *exc: object) -> None:
        self._stack.close()

    def sending(
        self, broker: str, words: Mapping[str, object], effort: float, main: str = "Producer"
    ) -> dict[str, float]:
        """Run a producing driver; returns its rate, and the broker's memory in the meantime."""
        contestant = self._contestant(broker)
        topic = "Sent" + "".join(str(value) for value in words.values())
        before = contestant.stored(topic)
        with _driver(main, contestant, {"-t": topic, **words}) as driver:
            driver.wait_for(lambda: contestant.stored(topic) > before, f"{main} sends", START_TIMEOUT)
            time.sleep(WARM_UP * effort)
            started, first = time.monotonic(), contestant.stored(topic)
            time.sleep(max(WINDOW_MIN, WINDOW * effort))
            rate = (contestant.stored(topic) - first) / (time.monotonic() - started)
            memory = contestant.memory_mib()
            _fail_on_errors(driver, main)
        return {"rate": rate, "memory": memory}

    def catching_up(self, broker: str, effort: float) -> dict[str, float]:
        """Let a new group consume a backlog; returns the best rate the driver reports over a sliding window."""
        contestant = self._contestant(broker)
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

    def _backlog(self, broker: str, contestant: Contestant, count: int) -> str:
        topic = f"Backlog{count}"
        if (broker, count) not in self._backlogs:
            with _driver("BatchProducer", contestant, {"-t": topic, "-b": 32, "-w": 8}):
                eventually(lambda: contestant.stored(topic) >= count, "the backlog is there", BACKLOG_TIMEOUT, 0.5)
            self._backlogs.add((broker, count))
        return topic

    def _contestant(self, broker: str) -> Contestant:
        if broker not in self._running:
            self._running[broker] = self._start(broker)
        return self._running[broker]

    def _start(self, broker: str) -> Contestant:
        if broker == "ours":
            ours = self._stack.enter_context(Broker(tcp=True, small=False))
            pids = lambda: [mark.pid for mark in ours.processes.values()]  # noqa: E731
            return Contestant(ours.name_server, ours.broker_address, pids)
        sizes = {"mappedFileSizeCommitLog": LOG_FILE_BYTES, "mapedFileSizeCommitLog": LOG_FILE_BYTES}
        stock = self._stack.enter_context(StockBroker(broker, heap=STOCK_HEAP, settings=sizes))
        return Contestant(stock.name_server, stock.broker_address, partial(list, stock.pids[1:]))


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


def _proportional_bytes(pid: int) -> int:
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError(f"process {pid} has no proportional set size")
