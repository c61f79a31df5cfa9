"""The archive job while its processes and the broker's are killed: what is archived is what the log holds, each once.

SHMQ_CRASH_LONG=1 kills for minutes, SHMQ_CRASH_SEED=n repeats a run's choices.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

pytest.importorskip("pyarrow")

import pyarrow.parquet

from shmq.errors import ShmqError
from shmq.spark.jobs.manifest import entries_in

LONG = os.environ.get("SHMQ_CRASH_LONG", "") not in ("", "0")
SEED = int(os.environ.get("SHMQ_CRASH_SEED", random.randrange(1 << 30)))
KILLS = 40 if LONG else 3
STAGE = 600  # messages for one kill: three batches
WAIT_SECONDS = 300.0
TOPIC = "killed"


def eventually(look: Callable[[], Any], what: str) -> Any:
    deadline = time.monotonic() + WAIT_SECONDS
    while not (found := look()):
        assert time.monotonic() < deadline, f"{what}: not within {WAIT_SECONDS:g} s"
        time.sleep(0.02)
    return found


class Producing:
    """A thread that sends until it is stopped; its ledger holds what was acknowledged."""

    def __init__(self, mq: Any) -> None:
        self.ledger: dict[tuple[int, int], int] = {}
        self.allowed = STAGE  # so that a slow host does not pile up what takes it minutes to archive
        self._mq = mq
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        number = 0
        while not self._ended.wait(0.002):
            if number >= self.allowed:
                continue
            body = b"%d " % number * 20
            with contextlib.suppress(ShmqError):  # not acknowledged while the broker is dead
                receipt = self._mq.send(TOPIC, body, queue_id=number % 3, timeout=1.0)
                self.ledger[receipt.queue_id, receipt.offset] = zlib.crc32(body)
            number += 1

    def stop(self) -> None:
        self._ended.set()
        self._thread.join()


class Job:
    """`shmq spark archive --every`, started again whenever its driver is killed."""

    def __init__(self, url: str, path: Path, log: Path) -> None:
        self._command = [
            sys.executable,
            "-m",
            "shmq.spark.jobs.archive",
            "--url",
            url,
            "--topic",
            TOPIC,
            "--to",
            str(path),
        ]
        self._command += ["--every", "50ms", "--master", "local[2]", "--conf", "spark.driver.memory=512m"]
        self._command += ["--option", "maxOffsetsPerTrigger=200", "--json"]
        self._path, self._log = path, log
        self.start()

    def start(self) -> None:
        with open(self._log, "ab") as log:
            self.process = subprocess.Popen(self._command, stdout=log, stderr=log, start_new_session=True)

    def alive(self, what: str) -> list[psutil.Process]:
        """Its JVM, or the Python processes below it."""
        with contextlib.suppress(psutil.Error):
            below = psutil.Process(self.process.pid).children(recursive=True)
            java = [each for each in below if each.name() == "java"]
            return java if what == "jvm" else [each for each in below if each.name().startswith("python")]
        return []

    def kill(self, what: str, choose: random.Random) -> None:
        if what == "driver":
            self.process.kill()
            self.process.wait()
            self.end()
            self.start()
            return
        found = self.alive(what)
        if found:
            with contextlib.suppress(psutil.Error):
                choose.choice(found).kill()

    def archived(self) -> int:
        return sum(entry.rows for entry in entries_in(self._path))

    def revive(self) -> None:
        """Start it again if it gave up, as its user would."""
        if self.process.poll() is not None:
            self.end()
            self.start()

    def end(self) -> None:
        """Kill what is left of its session."""
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error, ProcessLookupError):
                if os.getsid(process.pid) == self.process.pid:
                    process.kill()

    @property
    def text(self) -> str:
        return self._log.read_text(errors="replace")[-6000:]


@pytest.fixture
def kill_broker() -> Iterator[Any]:
    """A broker of its own, because it is killed."""
    from shmq.testing import Broker

    with Broker(file_bytes=1 << 20) as running:
        yield running


def test_whatever_is_killed_the_archive_holds_each_message_of_the_log_once(kill_broker: Any, tmp_path: Path) -> None:
    choose = random.Random(SEED)
    print(f"{KILLS} kills, SHMQ_CRASH_SEED={SEED}")
    victims = ["worker", "broker", "driver"] if not LONG else ["worker", "broker", "driver", "jvm"]
    with kill_broker.connect() as mq:
        mq.admin.create_topic(TOPIC, queues=3)
        producing = Producing(mq)
        job = Job(kill_broker.url, tmp_path / "archive", tmp_path / "job.log")
        try:
            for number in range(KILLS):
                before, producing.allowed = job.archived(), producing.allowed + STAGE
                eventually(lambda: job.revive() or job.archived() > before, job.text)  # noqa: B023
                time.sleep(choose.uniform(0, 0.3))  # where it dies is the point, not when
                victim = victims[number % len(victims)]
                if victim == "broker":
                    kill_broker.kill_daemon()
                    kill_broker.restart()
                else:
                    job.kill(victim, choose)
            producing.stop()
            stored = {queue.queue_id: queue.offset_max for queue in mq.admin.topics[TOPIC].queues}
            eventually(lambda: job.revive() or job.archived() >= sum(stored.values()), job.text)
            job.process.send_signal(signal.SIGTERM)
            assert job.process.wait(WAIT_SECONDS) == 0, job.text
        finally:
            producing.stop()
            job.process.kill()
            job.end()
    archive_is_the_log(tmp_path / "archive", stored, producing.ledger)


def archive_is_the_log(path: Path, stored: dict[int, int], ledger: dict[tuple[int, int], int]) -> None:
    """Every stored offset once, with the body that was acknowledged; the same by directory and by manifests."""
    files = sorted(each for each in path.rglob("*.parquet") if not each.name.startswith("."))
    assert files == sorted(path / entry.path for entry in entries_in(path))
    seen: Counter[tuple[int, int]] = Counter()
    crc: dict[tuple[int, int], int] = {}
    for file in files:
        table = pyarrow.parquet.ParquetFile(file).read(columns=["queue_id", "queue_offset", "body"])
        for row in table.to_pylist():
            place = (row["queue_id"], row["queue_offset"])
            seen[place] += 1
            crc[place] = zlib.crc32(row["body"])
    assert [place for place, count in seen.items() if count > 1] == []
    assert set(seen) == {(queue, offset) for queue, end in stored.items() for offset in range(end)}
    assert {place: crc[place] for place in ledger} == ledger
    numbers = [json.loads(each.read_text())["version"] for each in sorted((path / "_manifests").glob("*.json"))]
    assert numbers == list(range(1, len(numbers) + 1))
