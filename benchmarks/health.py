"""The command `python -m benchmarks.health`: what looking at a broker costs the host it runs on.

A real broker in processes of its own, with topics, groups and attached client processes; the commands are started as
their users start them.

    health_fast   `shmq health --fast`, the whole process from start to exit, as a container's health check runs it:
                  from a copy that lies as `pip install` lays it, and from where this interpreter has shmq (of an
                  editable install the finder alone takes a quarter of the call)
    top           `shmq top` on a terminal of 120 x 40, refreshed every second: processor time of the process
    scrape        one GET /metrics of the exporter, 10,000 queues: processor time of its process

Each may cost 60 ms a call, or 2 % of one core. On a machine with other work, trust processor time, not wall time. The
processes find compiled modules, whatever this shell says of bytecode: a host compiles once, not with every check.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import resource
import select
import shutil
import site
import struct
import subprocess
import sys
import tempfile
import termios
import time
import urllib.request
import venv
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path

from benchmarks.command import run
from benchmarks.workload import Figure, Workload
from shmq.shm.addresses import read_addresses
from shmq.testing import Broker

CALL_LIMIT_MS = 60.0
CORE_LIMIT_PERCENT = 2.0
CALLS = 10
CLIENTS, TOPICS, GROUPS = 4, 50, 50
QUEUES, TOPIC_QUEUES = 10_000, 8
FRESH_SECONDS = 0.3  # the exporter gathers once a quarter of a second at most
COLUMNS, LINES = 120, 40
SETTLE_SECONDS = 3.0
WATCH_SECONDS = 10.0
_COMMAND = [sys.executable, "-m", "shmq"]
_CLIENT = """
import sys
import shmq
with shmq.connect(sys.argv[1]) as mq:
    for number in range(int(sys.argv[2])):
        mq.send(f"topic-{number}", b"x")
    for number in range(int(sys.argv[3])):
        with mq.pull_consumer("topic-0", group=f"group-{number}", start="begin") as consumer:
            consumer.poll(1, 0.0)
    print("ready", flush=True)
    sys.stdin.read()
"""


@contextlib.contextmanager
def _broker_with_clients() -> Iterator[Broker]:
    """A broker with the default tables, topics, groups with lag, and processes attached to it."""
    with Broker(tcp=True, small=False) as broker, contextlib.ExitStack() as clients:
        for number in range(CLIENTS):
            words = [broker.url, str(TOPICS), str(GROUPS if number == 0 else 0)]
            process = subprocess.Popen(
                [sys.executable, "-c", _CLIENT, *words], stdin=subprocess.PIPE, stdout=subprocess.PIPE
            )
            clients.callback(process.communicate)
            assert process.stdout and process.stdout.readline() == b"ready\n", "a client of the benchmark did not start"
        yield broker


def health_fast(effort: float) -> dict[str, float]:
    """Milliseconds of wall time and of processor time of one call."""
    calls = max(2, int(CALLS * effort))
    with _broker_with_clients() as broker, tempfile.TemporaryDirectory(prefix="shmq-benchmark-") as directory:
        environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
        environment["PYTHONPYCACHEPREFIX"] = os.path.join(directory, "compiled")
        interpreters = {"": _installed(Path(directory)), "here_": sys.executable}
        found: dict[str, list[float]] = {}
        for call in range(calls + 1):
            for name, interpreter in interpreters.items():
                command = [interpreter, "-P", "-m", "shmq", "health", "--fast", "-u", broker.url]
                wall, cpu = _timed(command, environment)
                if call:  # the first one compiles what is imported
                    found.setdefault(f"{name}wall_ms", []).append(wall * 1000)
                    found.setdefault(f"{name}cpu_ms", []).append(cpu * 1000)
    return {name: _median(values) for name, values in found.items()}


def _installed(directory: Path) -> str:
    """Make an environment that holds shmq as `pip install` leaves it, and the libraries it needs; return its Python."""
    environment = directory / "environment"
    venv.create(environment, with_pip=False)
    [packages] = environment.glob("lib/python*/site-packages")
    for name in ("shmq", "shmq.bindings", "shmq.daemon", "shmq.tools"):
        spec = find_spec(name)
        assert spec is not None and spec.submodule_search_locations, f"{name} is not installed here"
        shutil.copytree(spec.submodule_search_locations[0], packages / name.replace(".", "/"), dirs_exist_ok=True)
    (packages / "libraries.pth").write_text("".join(f"{each}\n" for each in site.getsitepackages()))
    return str(environment / "bin" / "python")


def _timed(command: Sequence[str], environment: dict[str, str]) -> tuple[float, float]:
    """Seconds of wall time and of processor time of one process, from before it is made until it is gone."""
    before, begin = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    done = subprocess.run(command, stdout=subprocess.PIPE, env=environment, check=False)
    wall = time.perf_counter() - begin
    assert b"  broker " in done.stdout.partition(b"\n")[0], f"{' '.join(command)} ended with {done.returncode}"
    return wall, _seconds(resource.getrusage(resource.RUSAGE_CHILDREN)) - _seconds(before)


def _seconds(usage: resource.struct_rusage) -> float:
    return usage.ru_utime + usage.ru_stime


def _median(values: Sequence[float]) -> float:
    return sorted(values)[len(values) // 2]


def top(effort: float) -> dict[str, float]:
    """Percent of one core that a refreshing `shmq top` takes."""
    with _broker_with_clients() as broker:
        ours, theirs = pty.openpty()
        fcntl.ioctl(ours, termios.TIOCSWINSZ, struct.pack("HHHH", LINES, COLUMNS, 0, 0))
        environment = {**os.environ, "TERM": "xterm-256color"}
        process = subprocess.Popen(
            [*_COMMAND, "top", "-u", broker.url], stdin=theirs, stdout=theirs, stderr=theirs, env=environment
        )
        try:
            _read_for(ours, SETTLE_SECONDS)
            before, begin = _cpu_seconds(process.pid), time.monotonic()
            _read_for(ours, max(2.0, WATCH_SECONDS * effort))
            spent, passed = _cpu_seconds(process.pid) - before, time.monotonic() - begin
        finally:
            process.terminate()
            _read_until_end(ours, process)
            os.close(ours)
            os.close(theirs)
    return {"percent": 100 * spent / passed}


def scrape(effort: float) -> dict[str, float]:
    """Milliseconds of processor time of one scrape, and how many bytes it answers."""
    scrapes = max(2, int(CALLS * effort))
    with Broker(tcp=True, small=False, metrics="127.0.0.1:0") as broker:
        words = [broker.url, str(QUEUES // TOPIC_QUEUES), "0"]
        client = subprocess.Popen(
            [sys.executable, "-c", _CLIENT, *words], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        assert client.stdout and client.stdout.readline() == b"ready\n", "the client of the benchmark did not start"
        try:
            address = f"http://{read_addresses(broker.place.metrics_path)['metrics']}/metrics"
            exporter = broker.processes["exporter"].pid
            _get(address)  # what is imported and mapped by the first one
            times, size = [], 0
            for _ in range(scrapes):
                time.sleep(FRESH_SECONDS)
                before = _cpu_seconds(exporter)
                size = _get(address)
                times.append(_cpu_seconds(exporter) - before)
        finally:
            client.communicate()
    return {"cpu_ms": _median(times) * 1000, "kib": size / 1024}


def _get(address: str) -> int:
    with urllib.request.urlopen(address, timeout=30.0) as answer:
        return len(answer.read())


def _read_for(descriptor: int, seconds: float) -> None:
    """Take what a terminal is sent, as an emulator would, for so long."""
    until = time.monotonic() + seconds
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    while (left := until - time.monotonic()) > 0:
        if poll.poll(left * 1000):
            os.read(descriptor, 65536)


def _read_until_end(descriptor: int, process: subprocess.Popen[bytes]) -> None:
    while process.poll() is None:
        _read_for(descriptor, 0.1)


def _cpu_seconds(pid: int) -> float:
    """Processor time of all threads that a process has, to the nanosecond."""
    return sum(int(path.read_text().split()[0]) for path in Path(f"/proc/{pid}/task").glob("*/schedstat")) / 1e9


def workloads() -> list[Workload]:
    """Return what is measured here."""
    limit = {"limit": CALL_LIMIT_MS}
    return [
        Workload(
            "health_fast",
            health_fast,
            [
                Figure("health_fast", "wall_ms", "ms", limits=limit),
                Figure("health_fast_cpu", "cpu_ms", "ms", limits=limit),
                Figure("health_fast_here", "here_wall_ms", "ms", limits=limit),
                Figure("health_fast_here_cpu", "here_cpu_ms", "ms", limits=limit),
            ],
        ),
        Workload(
            "scrape",
            scrape,
            [Figure("scrape_10k_queues", "cpu_ms", "ms", limits=limit), Figure("scrape_10k_queues_size", "kib", "KiB")],
        ),
        Workload("top", top, [Figure("top_at_1_hz", "percent", "%", limits={"limit": CORE_LIMIT_PERCENT})]),
    ]


def main(given: Sequence[str] | None = None) -> int:
    """Run what the command line asks for; returns the exit code."""
    return run("python -m benchmarks.health", "what looking at a broker costs", workloads(), given)


if __name__ == "__main__":
    sys.exit(main())
