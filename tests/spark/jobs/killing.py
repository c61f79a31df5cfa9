"""A job as a process of its own that is killed and typed again, and producers with a ledger: what kill loops share."""

from __future__ import annotations

import contextlib
import functools
import os
import random
import subprocess
import sys
import threading
import zlib
from pathlib import Path
from typing import Any

import psutil

from shmq.errors import ShmqError
from tests import deadline

LONG = os.environ.get("SHMQ_CRASH_LONG", "") not in ("", "0")
WAIT_SECONDS = 300.0
SMALL = ("--master", "local[2]", "--conf", "spark.driver.memory=512m")
eventually = functools.partial(deadline.eventually, timeout=WAIT_SECONDS)


class Producing:
    """A thread that sends until it is stopped; its ledger holds what was acknowledged."""

    def __init__(self, mq: Any, topic: str, queues: int, allowed: int) -> None:
        self.ledger: dict[tuple[int, int], int] = {}
        self.allowed = allowed  # so that a slow host does not pile up what takes it minutes to archive
        self._mq, self._topic, self._queues = mq, topic, queues
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
                receipt = self._mq.send(self._topic, body, queue_id=number % self._queues, timeout=1.0)
                self.ledger[receipt.queue_id, receipt.offset] = zlib.crc32(body)
            number += 1

    def stop(self) -> None:
        """End it; harmless twice."""
        self._ended.set()
        self._thread.join()


class Job:
    """`shmq spark …` as a process, started again whenever its driver is killed.

    It is typed in a directory that holds another package `shmq`, as a checkout does: that one must not be imported.
    """

    def __init__(
        self, name: str, url: str, *arguments: str, log: Path, environment: dict[str, str] | None = None
    ) -> None:
        self._command = [sys.executable, "-P", "-m", f"shmq.spark.jobs.{name}", "--url", url, "--json", *arguments]
        self._log = log
        self._directory = log.with_name("checkout")
        (self._directory / "shmq").mkdir(parents=True)
        (self._directory / "shmq" / "__init__.py").write_text("raise ImportError('not this shmq')\n")
        self._environment = {**os.environ, **(environment or {})}
        self.start()

    def start(self) -> None:
        """Type it."""
        with open(self._log, "ab") as log:
            self.process = subprocess.Popen(
                self._command,
                stdout=log,
                stderr=log,
                start_new_session=True,
                env=self._environment,
                cwd=self._directory,
            )

    def kill(self, victim: str, choose: random.Random) -> bool:
        """Kill its driver, its JVM or one of its Python workers; say whether there was one."""
        if victim == "driver":
            alive = self.process.poll() is None
            self.end()
            return alive
        found = self._alive(victim)
        with contextlib.suppress(psutil.Error, IndexError):
            choose.choice(found).kill()
            return True
        return False

    def _alive(self, victim: str) -> list[psutil.Process]:
        with contextlib.suppress(psutil.Error):
            below = psutil.Process(self.process.pid).children(recursive=True)
            java = [each for each in below if each.name() == "java"]
            return java if victim == "jvm" else [each for each in below if each.name().startswith("python")]
        return []

    def revive(self) -> None:
        """Type it again if it is dead or gave up, as its user would."""
        if self.process.poll() is not None:
            self.end()
            self.start()

    def end(self) -> None:
        """Kill what is left of it, and all it started."""
        self.process.kill()
        self.process.wait()
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error, ProcessLookupError):
                if os.getsid(process.pid) == self.process.pid:
                    process.kill()

    def text(self) -> str:
        """What it said last."""
        return self._log.read_text(errors="replace")[-6000:]
