"""The workloads of kombu's transport and of Celery over it, beside the same over redis on this machine.

kombu_through    one process publishes with kombu's producer, another consumes and acknowledges, both at once
kombu_publish    the same producer alone
kombu_consume    the same consumer alone, of what is there already
celery_tasks     a worker of two processes runs tasks that do nothing and keep no result, from the first that is sent

Redis listens on a Unix socket and keeps nothing on disk; shmq writes its log with asynchronous flush, as always.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Final

from benchmarks.workload import Figure, PeerAbsent, Sample, Workload
from shmq.measurement.measure import Meet, Role, clock, messages_per_second, run_roles
from shmq.testing import Broker

MESSAGES, MESSAGES_MIN = 20_000, 500
TASKS, TASKS_MIN = 10_000, 200
WARM_UP = 200
PREFETCH = 64
BODY: Final = {"order": 1, "customer": "customer", "lines": ["apple", "pear"] * 8}
QUEUE: Final = "work"
TRANSPORT_FACTOR, CELERY_FACTOR = 3.0, 1.0
PEER: Final = "redis"
_SECONDS_MAX = 120.0

Place = Callable[[], AbstractContextManager[str]]


@contextlib.contextmanager
def _ours() -> Iterator[str]:
    """The address of a broker, as kombu names it."""
    with Broker(tcp=True, small=False) as broker:
        yield broker.url


@contextlib.contextmanager
def _redis() -> Iterator[str]:
    """The address of a redis-server of our own, as kombu names it."""
    try:
        from benchmarks.peers import redis
    except ImportError as error:
        raise PeerAbsent("pip install 'shmq[bench]'") from error
    if shutil.which("redis-server") is None:
        raise PeerAbsent("no redis-server: apt-get install redis-server")
    with redis.place(0) as socket:
        yield f"redis+socket://{socket}"


def _connection(address: str) -> Any:
    import kombu

    import shmq.contrib.kombu  # noqa: F401 - makes "shmq://" known

    return kombu.Connection(address)


def _publish(meet: Meet, address: str, count: int, *, is_alone: bool) -> int:
    with _connection(address) as connection:
        producer = connection.Producer()
        queue = connection.SimpleQueue(QUEUE)  # declares it
        for _ in range(WARM_UP):
            producer.publish(BODY, routing_key=QUEUE)
        meet()
        begun = clock()
        for _ in range(count):
            producer.publish(BODY, routing_key=QUEUE)
        ended = clock()
        if not is_alone:
            meet()
        queue.close()
    return ended - begun if is_alone else begun


def _consume(meet: Meet, address: str, count: int) -> tuple[int, int]:
    from kombu import Consumer, Queue

    with _connection(address) as connection:
        channel = connection.channel()
        channel.basic_qos(0, PREFETCH, False)
        left = WARM_UP

        def take(message: Any) -> None:
            nonlocal left
            if message.payload != BODY:
                raise RuntimeError(f"{message.payload!r} came instead of what was sent")
            message.ack()
            left -= 1

        consumer = Consumer(channel, [Queue(QUEUE)], on_message=take)
        consumer.consume()
        while left > 0:
            connection.drain_events(timeout=_SECONDS_MAX)
        meet()
        begun, left = clock(), left + count
        while left > 0:
            connection.drain_events(timeout=_SECONDS_MAX)
        ended = clock()
        meet()
    return begun, ended


def _through(place: Place, effort: float) -> Sample:
    count = max(MESSAGES_MIN, round(MESSAGES * effort))
    with place() as address:
        begun, (_, ended) = run_roles([Role(_publishes, (address, count)), Role(_consume, (address, count))])
    return {"rate": messages_per_second(count, [begun], ended)}


def _apart(place: Place, effort: float) -> Sample:
    count = max(MESSAGES_MIN, round(MESSAGES * effort))
    with place() as address:
        [published_ns] = run_roles([Role(_publishes_alone, (address, count))])
        [(begun, ended)] = run_roles([Role(_consumes_alone, (address, count))])
    return {"publish_rate": count / published_ns * 1e9, "consume_rate": messages_per_second(count, [begun], ended)}


def _publishes(meet: Meet, address: str, count: int) -> int:
    return _publish(meet, address, count, is_alone=False)


def _publishes_alone(meet: Meet, address: str, count: int) -> int:
    return _publish(meet, address, count, is_alone=True)


def _consumes_alone(meet: Meet, address: str, count: int) -> tuple[int, int]:
    return _consume(meet, address, count)


@contextlib.contextmanager
def _worker(address: str, marks: Path) -> Iterator[None]:
    """Celery's own worker with two processes, in a process group of its own."""
    command = [sys.executable, "-m", "celery", "-A", "benchmarks.workloads.jobs", "worker", "-c", "2", "-l", "ERROR"]
    environment = {**os.environ, "JOBS_BROKER": address, "JOBS_MARKS": str(marks)}
    with (marks.parent / "worker.log").open("wb") as log:
        worker = subprocess.Popen(command, env=environment, stdout=log, stderr=log, start_new_session=True)
    try:
        yield
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(worker.pid, signal.SIGKILL)
        worker.wait()


def _wait_for_marks(marks: Path, count: int) -> int:
    """Wait until so many tasks have run; returns when that was."""
    deadline = time.monotonic() + _SECONDS_MAX
    while not marks.exists() or marks.stat().st_size < count:
        if time.monotonic() > deadline:
            raise RuntimeError(f"fewer than {count} tasks ran in {_SECONDS_MAX:g} s")
        time.sleep(0.002)
    return clock()


def _sends(meet: Meet, address: str, marks: str, count: int) -> int:
    os.environ.update(JOBS_BROKER=address, JOBS_MARKS=marks)
    from benchmarks.workloads.jobs import mark

    for _ in range(WARM_UP):
        mark.delay()
    _wait_for_marks(Path(marks), WARM_UP)
    begun = clock()
    for _ in range(count):
        mark.delay()
    return begun


def _tasks(place: Place, effort: float) -> Sample:
    count = max(TASKS_MIN, round(TASKS * effort))
    with place() as address, tempfile.TemporaryDirectory(prefix="bench-celery-") as folder:
        marks = Path(folder) / "marks"
        with _worker(address, marks):
            [begun] = run_roles([Role(_sends, (address, str(marks), count))])
            ended = _wait_for_marks(marks, WARM_UP + count)
    return {"rate": messages_per_second(count, [begun], ended)}


def workloads() -> list[Workload]:
    """Return the workloads with what they have to reach."""

    def workload(name: str, measure: Callable[[Place, float], Sample], figures: list[Figure]) -> Workload:
        return Workload(
            name, lambda effort: measure(_ours, effort), figures, {PEER: lambda effort: measure(_redis, effort)}
        )

    def figure(name: str, factor: float | None, metric: str = "rate", unit: str = "msg/s") -> Figure:
        return Figure(name, metric, unit, is_rate=True, musts={} if factor is None else {PEER: factor})

    apart = [
        figure("kombu_publish", None, "publish_rate"),
        figure("kombu_consume", None, "consume_rate"),
    ]
    return [
        workload("kombu_through", _through, [figure("kombu_through", TRANSPORT_FACTOR)]),
        workload("kombu_apart", _apart, apart),
        workload("celery_tasks", _tasks, [figure("celery_tasks", CELERY_FACTOR, unit="task/s")]),
    ]
