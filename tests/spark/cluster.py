"""A Spark standalone cluster on loopback, and drivers on it: real processes, ended by pid. It does not know the source.

    master (JVM, 192 MiB) ◀── 3 workers (JVM, 192 MiB) ──▶ an executor of 1 core a worker and application, 512 MiB
    driver   a Python process of ours that answers calls: {"function": "tests.spark.x:f", "arguments": {…}}

Rules: (1) every port is the kernel's choice, and everything listens on loopback: the workers on 127.0.0.2, .3 and .4,
because Spark never speculates on the host of the first attempt;
(2) workers inherit the environment that is given for them, and so do their executors: that is how one of them is put
where it cannot see the broker, as on another host;
(3) what was started is ended with all its children, which the kernel names by their session.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import psutil

from shmq.waits import is_ready
from tests.deadline import eventually
from tests.interop.peers.process import die_with_parent

ROOT = Path(__file__).resolve().parents[2]
START_SECONDS = 90.0
CALL_SECONDS = 300.0
WORKERS = 3
until = functools.partial(eventually, timeout=START_SECONDS)


class DriverError(Exception):
    """What a function on the driver raised, with its text."""


def discovery_path(directory: Path) -> Path:
    """Make a directory to import from in which pkgutil sees pyspark_shmq, as it does with an installed wheel."""
    directory.mkdir(exist_ok=True)
    link = directory / "pyspark_shmq"
    if not link.exists():
        link.symlink_to(ROOT / "pyspark_shmq")
    return directory


@dataclass
class Process:
    """A process of its own session, and where it writes."""

    popen: subprocess.Popen[bytes]
    log: Path

    def said(self, pattern: str) -> str | None:
        """The first group of a pattern in what it wrote so far."""
        assert self.popen.poll() is None, self.log.read_text()[-4000:]
        found = re.search(pattern, self.log.read_text(errors="replace"))
        return found[1] if found else None

    def end(self) -> None:
        """Kill it and everything it started."""
        members = [process.pid for process in psutil.process_iter() if _session(process.pid) == self.popen.pid]
        for pid in {self.popen.pid, *members}:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.popen.wait()


def _session(pid: int) -> int | None:
    try:
        return os.getsid(pid)
    except OSError:
        return None


class Cluster:
    """A master and its workers: `with Cluster(directory) as cluster: … cluster.url …`.

    Args:
        directory: for logs, work and shuffle files.
        environments: what each worker has in its environment beside this process'.
    """

    def __init__(self, directory: Path, environments: list[Mapping[str, str]] | None = None) -> None:
        self.directory = directory
        self._environments = environments or [{}] * WORKERS
        self._processes: list[Process] = []
        self.url = ""
        self.workers: list[Process] = []

    def __enter__(self) -> Cluster:
        try:
            master = self._start("master", {}, "master.Master", "--host", "127.0.0.1", "--port", "0")
            self.url = until(lambda: master.said(r"Starting Spark master at (spark://\S+)"), "the master")
            for number, environment in enumerate(self._environments):
                folder = self.directory / f"work-{number}"
                host = f"127.0.0.{number + 2}"
                place = ("--host", host, "--port", "0", "--cores", "4", "--memory", "3g", "--work-dir")
                self.workers.append(
                    self._start(
                        f"worker-{number}",
                        {**environment, "SPARK_LOCAL_IP": host},
                        "worker.Worker",
                        *place,
                        str(folder),
                        self.url,
                    )
                )
            for worker in self.workers:
                until(lambda worker=worker: worker.said(r"(Successfully registered with master)"), "a worker")
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for process in reversed(self._processes):
            process.end()

    def executors(self, worker: int | None = None) -> list[int]:
        """Return the pids of the executors that run, of one worker or of all."""
        found = []
        for process in self.workers if worker is None else [self.workers[worker]]:
            for child in psutil.Process(process.popen.pid).children():
                with contextlib.suppress(psutil.Error):
                    if any("CoarseGrainedExecutorBackend" in word for word in child.cmdline()):
                        found.append(child.pid)
        return found

    def _start(self, name: str, environment: Mapping[str, str], klass: str, *arguments: str) -> Process:
        import pyspark

        home = Path(pyspark.__file__).parent
        log = self.directory / f"{name}.log"
        command = [str(home / "bin" / "spark-class"), f"org.apache.spark.deploy.{klass}", "--webui-port", "0"]
        options = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1 -Dspark.master.rest.enabled=false"
        options += f" -Dspark.deploy.defaultCores={WORKERS}"  # several applications, each on all workers
        options += " -Dspark.worker.timeout=600"  # seconds: a machine of CI stands still for longer than the default
        daemon = {"SPARK_DAEMON_MEMORY": "192m", "SPARK_DAEMON_JAVA_OPTS": options, "SPARK_HOME": str(home)}
        local = {"SPARK_LOCAL_DIRS": str(self.directory / "local"), "SPARK_LOCAL_IP": "127.0.0.1"}
        path = {"PYTHONPATH": os.pathsep.join((str(discovery_path(self.directory / "discovery")), str(ROOT)))}
        with open(log, "wb") as output:
            popen = subprocess.Popen(
                [*command, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
                preexec_fn=die_with_parent,
                env={**os.environ, **daemon, **local, **path, "PYSPARK_PYTHON": sys.executable, **environment},
            )
        self._processes.append(Process(popen, log))
        return self._processes[-1]


class Driver:
    """A Python process with a Spark session, which runs functions of the tests and sends back what they return.

    Args:
        master: `spark://…` or `local[2]`.
        environment: beside this process'.
        settings: Spark's, beside those that keep it small and on loopback.
    """

    def __init__(
        self, directory: Path, master: str, environment: Mapping[str, str] | None = None, **settings: str
    ) -> None:
        self._log = directory / f"driver-{len(list(directory.glob('driver-*')))}.log"
        here, there = os.pipe()
        back, answers = os.pipe()
        path = (str(discovery_path(directory / "discovery")), str(ROOT))
        needed = {"PYTHONPATH": os.pathsep.join(path), "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
        with open(self._log, "wb") as output:
            popen = subprocess.Popen(
                [sys.executable, "-m", "tests.spark.cluster_driver", str(here), str(answers)],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                pass_fds=(here, answers),
                start_new_session=True,
                preexec_fn=die_with_parent,
                env={**os.environ, **needed, **(environment or {})},
            )
        os.close(here)
        os.close(answers)
        self._process = Process(popen, self._log)
        self._calls: IO[str] = os.fdopen(there, "w", buffering=1)
        self._answers: IO[str] = os.fdopen(back)
        self._say({"master": master, "local": str(directory / "local"), "settings": settings})
        self.result()

    def begin(self, function: str, **arguments: Any) -> None:
        """Have `tests.spark.module:function` called with the session and these arguments."""
        self._say({"function": function, "arguments": arguments})

    def result(self) -> Any:
        """Return what the function that was begun last returns.

        Raises:
            DriverError: it raised.
        """
        line = _line_within(self._answers, CALL_SECONDS)
        assert line, self._log.read_text(errors="replace")[-4000:]
        answer = json.loads(line)
        if "error" in answer:
            raise DriverError(answer["error"])
        return answer["result"]

    def call(self, function: str, **arguments: Any) -> Any:
        """Run a function to its end."""
        self.begin(function, **arguments)
        return self.result()

    @property
    def pid(self) -> int:
        """The process that may be killed."""
        return self._process.popen.pid

    def end(self) -> None:
        """Kill it and its JVM."""
        self._process.end()
        self._calls.close()
        self._answers.close()

    def _say(self, call: dict[str, Any]) -> None:
        self._calls.write(json.dumps(call) + "\n")


def _line_within(file: IO[str], seconds: float) -> str:
    assert is_ready(file.fileno(), seconds), f"no answer of the driver within {seconds:g} s"
    return file.readline()
