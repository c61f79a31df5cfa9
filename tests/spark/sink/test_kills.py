"""Python workers and the driver are killed while they write: nothing is lost, and what is written once is there once.

SHMQ_TEST_SEED repeats a run; SHMQ_SINK_KILLS drivers are killed (1), each after a few of its workers.
"""

from __future__ import annotations

import contextlib
import os
import random
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import psutil

from tests.deadline import eventually
from tests.seed import SEED
from tests.spark.sink.writing_job import GUARANTEES
from tests.spark.stored_rows import stored

JOB = Path(__file__).with_name("writing_job.py")
DRIVERS_KILLED = int(os.environ.get("SHMQ_SINK_KILLS", "1"))
ROWS = 900 * DRIVERS_KILLED
DEADLINE_SECONDS = 300.0 * (1 + DRIVERS_KILLED)


class Driver:
    """One life of the job."""

    def __init__(self, broker: Any, source: str, folder: Path) -> None:
        self.log = (folder / "driver.log").open("ab")
        command = [sys.executable, "-P", str(JOB), broker.url, source, str(folder)]
        self.process = subprocess.Popen(command, stdout=self.log, stderr=self.log)

    @property
    def has_ended(self) -> bool:
        """Whether it did its work, or gave up."""
        return self.process.poll() is not None

    def workers(self) -> list[psutil.Process]:
        """Python workers that run or wait for tasks: children of Spark's daemon."""
        found = []
        with contextlib.suppress(psutil.Error):
            for child in psutil.Process(self.process.pid).children(recursive=True):
                with contextlib.suppress(psutil.Error):
                    parent = child.parent()
                    if parent is not None and "pyspark.daemon" in " ".join(parent.cmdline()):
                        found.append(child)
        return found

    def kill(self) -> None:
        """Kill the driver, its JVM first; workers are left to find out by themselves."""
        with contextlib.suppress(psutil.Error):
            for child in psutil.Process(self.process.pid).children(recursive=True):
                with contextlib.suppress(psutil.Error):
                    if child.name() == "java":
                        child.kill()
        self.process.kill()
        self.process.wait(60)

    def close(self) -> None:
        """End it; harmless twice."""
        self.kill()
        self.log.close()


def written(broker: Any, source: str) -> int:
    """How many rows the stream at least once has written."""
    with broker.connect() as mq:
        topic = f"{source}-at_least_once"
        return mq.admin.topics[topic].messages if topic in mq.admin.topics else 0


def disturb(driver: Driver, rng: random.Random) -> int:
    """Kill a few of its workers, then the driver, at random moments; return how many workers died before it, 0 when
    the driver had ended by itself."""
    killed = 0
    for _ in range(2):
        eventually(lambda: driver.workers() or driver.has_ended, "a worker", DEADLINE_SECONDS)
        workers = driver.workers()
        time.sleep(rng.uniform(0.0, 0.3))  # not a wait: the moment of the kill
        for worker in rng.sample(workers, len(workers)):
            if worker.is_running():
                with contextlib.suppress(psutil.Error):
                    worker.kill()
                    killed += 1
                break
    time.sleep(rng.uniform(0.0, 0.5))  # not a wait: the moment of the kill
    alive = not driver.has_ended
    driver.kill()
    return killed if alive else 0


def test_kills_lose_nothing_and_double_nothing_that_is_written_once(
    spark: Any, broker: Any, mq: Any, tmp_path: Path
) -> None:
    del spark  # its environment is what the job needs: the path Spark finds the source on
    rng, source = random.Random(SEED), f"kills-{SEED}"
    mq.admin.create_topic(source, queues=2)
    for number in range(ROWS):
        mq.send(source, b"%d" % number, queue_id=number % 2)

    def said() -> str:
        return (tmp_path / "driver.log").read_text()[-4000:]

    until = time.monotonic() + DEADLINE_SECONDS
    drivers = workers = 0
    while True:
        assert time.monotonic() < until, said()
        driver = Driver(broker, source, tmp_path)
        try:
            if drivers < DRIVERS_KILLED:
                before = written(broker, source)
                eventually(lambda: written(broker, source) > before or driver.has_ended, said, DEADLINE_SECONDS)  # noqa: B023
                killed = disturb(driver, rng)
                drivers, workers = drivers + bool(killed), workers + killed
            else:
                eventually(lambda: driver.has_ended, said, DEADLINE_SECONDS)  # noqa: B023
                if driver.process.returncode == 0:
                    break
        finally:
            driver.close()
    print(f"{drivers} drivers and {workers} workers killed")
    found = {guarantee: [int(row.body) for row in stored(broker, f"{source}-{guarantee}")] for guarantee in GUARANTEES}
    assert set(found["at_least_once"]) == set(range(ROWS))
    for guarantee in ("idempotent", "transactional"):
        twice = [number for number, times in Counter(found[guarantee]).items() if times > 1]
        assert sorted(found[guarantee]) == list(range(ROWS)), f"{guarantee}: twice {twice[:20]}"
    assert drivers == DRIVERS_KILLED
