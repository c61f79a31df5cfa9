"""The command `python -m benchmarks.console`: what a page of the console costs, and an idle console.

A real broker with 10,000 queues and 1,000 groups, each of which has an offset in ten queues, and a console in a process
of its own, started as its users start it.

    pages   one GET of a page, each with a look of its own (a console looks once a second at most): processor time of
            the console's process, and the time until the page is there
    idle    a console without a browser: processor time of its process

On a machine with other work, trust processor time, not wall time.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Sequence

import psutil

from benchmarks.command import run
from benchmarks.workload import Figure, Workload
from shmq.measurement.measure import median
from shmq.testing import Broker

PAGE_LIMIT_MS = 100.0
IDLE_LIMIT_PERCENT = 1.0
TOPICS, TOPIC_QUEUES, GROUPS = 1000, 10, 1000
PAGES = {
    "overview": "/",
    "topics": "/topics",
    "topic": "/topics/topic-7",
    "groups": "/groups",
    "group": "/groups/group-7",
}
ROUNDS = 5
IDLE_SECONDS = 40.0
APART_SECONDS = 1.1


@contextlib.contextmanager
def _console() -> Iterator[tuple[str, psutil.Process]]:
    """The address of a console of a full broker, and its process."""
    with Broker(small=False) as broker:
        with broker.connect(timeout=30) as mq:
            for number in range(TOPICS):
                mq.admin.create_topic(f"topic-{number}", queues=TOPIC_QUEUES)
                mq.send(f"topic-{number}", b"x")
            for number in range(GROUPS):
                with mq.pull_consumer(f"topic-{number % TOPICS}", group=f"group-{number}", start="begin") as consumer:
                    consumer.poll(1, 0.0)
        command = [sys.executable, "-m", "shmq", "console", "-u", broker.url, "--listen", "127.0.0.1:0", "--no-token"]
        with subprocess.Popen([*command, "--jsonl"], stdout=subprocess.PIPE) as process:
            try:
                assert process.stdout is not None
                yield json.loads(process.stdout.readline())["url"], psutil.Process(process.pid)
            finally:
                process.terminate()


def _cpu_seconds(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


def _get(url: str) -> float:
    begin = time.perf_counter()
    with urllib.request.urlopen(url, timeout=60) as answer:
        answer.read()
    return time.perf_counter() - begin


def pages(effort: float) -> dict[str, float]:
    """Open each page some times; return what one costs, and of the dearest page the time until it is there."""
    rounds = max(2, round(ROUNDS * effort))
    with _console() as (url, process):
        for path in PAGES.values():
            _get(url.rstrip("/") + path)
        found: dict[str, float] = {}
        for name, path in PAGES.items():
            before, walls = _cpu_seconds(process), []
            for _ in range(rounds):
                time.sleep(APART_SECONDS)
                walls.append(_get(url.rstrip("/") + path))
            found[f"{name}_cpu_ms"] = 1e3 * (_cpu_seconds(process) - before) / rounds
            found[f"{name}_wall_ms"] = 1e3 * median(walls)
    return found


def idle(effort: float) -> dict[str, float]:
    """Leave a console alone; return the share of a core it takes."""
    with _console() as (url, process):
        _get(url)
        time.sleep(APART_SECONDS)
        seconds = max(5.0, IDLE_SECONDS * effort)
        before = _cpu_seconds(process)
        time.sleep(seconds)
        return {"percent": 100 * (_cpu_seconds(process) - before) / seconds}


def workloads() -> list[Workload]:
    """Return the table of figures."""
    limit = {"limit": PAGE_LIMIT_MS}
    figures = [
        Figure(f"page_{name}{suffix}", f"{name}_{metric}", "ms", limits=limit)
        for name in PAGES
        for suffix, metric in (("", "cpu_ms"), ("_wall", "wall_ms"))
    ]
    return [
        Workload("pages", pages, figures),
        Workload("idle", idle, [Figure("console_idle", "percent", "%", limits={"limit": IDLE_LIMIT_PERCENT})]),
    ]


def main(given: Sequence[str] | None = None) -> int:
    """Run what the command line asks for; returns the exit code."""
    return run("python -m benchmarks.console", "what the console costs", workloads(), given)


if __name__ == "__main__":
    sys.exit(main())
