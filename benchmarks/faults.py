"""The command `python -m benchmarks.faults`: what a broker that cannot store costs a client that does not send.

A client over TCP pulls one message and asks for an offset, one request after the other, first of an idle broker. Then
something keeps the broker from storing, four clients in another process try to send all the while, and the first client
asks on. The figure is the 99th percentile of its answers, divided by that of the idle broker.

    disk_full     every allocation of the keeper fails with ENOSPC, and the log is full
    above_mark    the disk is fuller than `disk_refuse_percent` allows
    keeper_dead   the keeper was killed, is not started again, and the log is full

A refused sender rests for ten milliseconds, as a program that logs the error does; without a rest the figure would be
how fast refusals can be made.
"""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence

from benchmarks.command import run
from benchmarks.workload import Figure, Workload
from shmq.protocol.codes import Request, Response
from shmq.protocol.command import Command
from shmq.protocol.header import CommandDecoder, encode_command
from shmq.testing import Broker
from tests.crash.disk.disk import FaultyDisk, Kind

RATIO_LIMIT = 3.0
CALLS, CALLS_MIN = 4000, 50
TOPIC = "answers"
FILE_BYTES = 1 << 20
PATIENCE_SECONDS = 60.0
_PAUSE_SECONDS = 0.0005  # the client's own work between two requests
_SENDERS = """
import sys, threading, time
import shmq
refused = threading.Semaphore(0)
def send():
    told = False
    with shmq.connect(sys.argv[1]) as mq:
        while True:
            try:
                mq.send(sys.argv[2], bytes(60_000))
            except shmq.ShmqError as error:
                if not told:
                    told = True
                    refused.release()
                time.sleep(0.01)
threads = [threading.Thread(target=send, daemon=True) for _ in range(4)]
for thread in threads:
    thread.start()
for _ in threads:
    refused.acquire()
print("refused", flush=True)
sys.stdin.read()
"""


class _Client:
    """One connection over TCP that is asked one thing after the other."""

    def __init__(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        self._socket = socket.create_connection((host, int(port)), PATIENCE_SECONDS)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._decoder = CommandDecoder()
        self._opaque = 0

    def ask(self, code: int, **ext: object) -> Command:
        """Return the answer."""
        self._opaque += 1
        fields = {name: str(value) for name, value in ext.items()}
        self._socket.sendall(encode_command(Command(code=code, opaque=self._opaque, ext=fields)))
        while (answer := self._decoder.take()) is None:
            data = self._socket.recv(1 << 16)
            if not data:
                raise RuntimeError("the broker closed the connection of the client that is measured")
            self._decoder.feed(data)
        return answer

    def close(self) -> None:
        """End the connection."""
        self._socket.close()


def _p99_us(broker: Broker, calls: int) -> float:
    pull = {"consumerGroup": "readers", "topic": TOPIC, "queueId": 0, "queueOffset": 0, "maxMsgNums": 1}
    pull |= {"sysFlag": 4, "commitOffset": 0, "suspendTimeoutMillis": 0, "subVersion": 0, "subscription": "*"}
    times: list[float] = []
    with contextlib.closing(_Client(broker.broker_address)) as client:
        for number in range(-CALLS_MIN, calls):  # the first ones make what is made once
            begin = time.perf_counter()
            if number % 2:
                answer = client.ask(Request.GET_MAX_OFFSET, topic=TOPIC, queueId=0)
            else:
                answer = client.ask(Request.PULL_MESSAGE, **pull)
            times.append(time.perf_counter() - begin)
            if answer.code != Response.SUCCESS:
                raise RuntimeError(f"the client that is measured got {answer.code}: {answer.remark}")
            time.sleep(_PAUSE_SECONDS)
    return sorted(times[CALLS_MIN:])[calls * 99 // 100] * 1e6


@contextlib.contextmanager
def _refused_senders(broker: Broker) -> Iterator[None]:
    """Clients that try to send, from when each of them was refused once."""
    command = [sys.executable, "-c", _SENDERS, f"rocketmq://{broker.name_server}", TOPIC]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        if not process.stdout or process.stdout.readline() != b"refused\n":
            raise RuntimeError("the senders of the benchmark ended before they were refused")
        yield
    finally:
        process.kill()
        process.communicate()


def _measured(broker: Broker, disturb: Callable[[], None], effort: float) -> dict[str, float]:
    calls = max(CALLS_MIN, int(CALLS * effort))
    with broker.connect() as mq:
        mq.admin.create_topic(TOPIC, queues=1)
        mq.send(TOPIC, b"x" * 256)
        mq.subscribe(TOPIC, group="readers").close()
    idle_us = _p99_us(broker, calls)
    disturb()
    with _refused_senders(broker):
        disturbed_us = _p99_us(broker, calls)
    return {"ratio": disturbed_us / idle_us, "idle_us": idle_us, "disturbed_us": disturbed_us}


def disk_full(effort: float) -> dict[str, float]:
    """With no room for the next log file."""
    broker = Broker(tcp=True, file_bytes=FILE_BYTES, when_full="refuse")
    with FaultyDisk(broker.store) as disk:
        try:
            with disk.around():
                broker.start()
            return _measured(broker, lambda: disk.fail({Kind.ALLOCATE}, at=1, error=errno.ENOSPC, after=True), effort)
        finally:
            broker.stop()


def above_mark(effort: float) -> dict[str, float]:
    """With a disk that is fuller than a broker allows which is started again for that."""
    with Broker(tcp=True, file_bytes=FILE_BYTES, when_full="refuse") as broker:

        def restart() -> None:
            broker.kill_daemon()
            broker._settings["disk_refuse_percent"] = 1
            broker.restart()

        return _measured(broker, restart, effort)


def keeper_dead(effort: float) -> dict[str, float]:
    """With a keeper that was killed, below a supervisor that does not notice."""
    with Broker(tcp=True, file_bytes=FILE_BYTES, when_full="refuse") as broker:
        supervisor, keeper = (broker.processes[role].pid for role in ("supervisor", "keeper"))

        def kill() -> None:
            os.kill(supervisor, signal.SIGSTOP)
            os.kill(keeper, signal.SIGKILL)

        try:
            return _measured(broker, kill, effort)
        finally:
            os.kill(supervisor, signal.SIGCONT)


def workloads() -> list[Workload]:
    """Return what is measured here."""
    made = []
    for name, ours in (("disk_full", disk_full), ("above_mark", above_mark), ("keeper_dead", keeper_dead)):
        figures = [
            Figure(f"{name}_p99", "ratio", "x idle", limits={"limit": RATIO_LIMIT}),
            Figure(f"{name}_p99_us", "disturbed_us", "us"),
            Figure(f"{name}_idle_p99_us", "idle_us", "us"),
        ]
        made.append(Workload(name, ours, figures))
    return made


def main(given: Sequence[str] | None = None) -> int:
    """Run what the command line asks for; returns the exit code."""
    return run("python -m benchmarks.faults", "what a broker that cannot store costs others", workloads(), given)


if __name__ == "__main__":
    sys.exit(main())
