"""Celery's own worker on shmq: its canvas, its remote control, and no task lost when a worker is killed.

SHMQ_CELERY_TASKS asks for more tasks than the 500 of the short form.
"""

from __future__ import annotations

import importlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from celery import chain, chord, group

import shmq
from shmq.testing import Broker
from tests.deadline import eventually

TASKS = int(os.environ.get("SHMQ_CELERY_TASKS", "500"))
SECONDS = 60.0
pytestmark = [pytest.mark.slow, pytest.mark.timeout(600 + TASKS // 5)]


class Worker:
    """A worker with two processes in a process group of its own."""

    def __init__(self, environment: dict[str, str], log: Path) -> None:
        command = [sys.executable, "-m", "celery", "-A", "jobs", "worker", "-c", "2", "--without-gossip"]
        with log.open("a") as into:
            self._process = subprocess.Popen(
                command, env=environment, cwd=Path(__file__).parent, stdout=into, stderr=into, start_new_session=True
            )

    def end(self, sent: int) -> None:
        """Signal the whole process group, and wait for its first process."""
        if self._process.poll() is None:
            os.killpg(self._process.pid, sent)
        self._process.wait(SECONDS)


@pytest.fixture
def environment(shmq_broker: Broker, tmp_path: Path) -> dict[str, str]:
    results = tmp_path / "results"
    results.mkdir()
    return {**os.environ, "JOBS_BROKER": shmq_broker.url, "JOBS_RESULTS": str(results)}


@pytest.fixture
def jobs(environment: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    for name in ("JOBS_BROKER", "JOBS_RESULTS"):
        monkeypatch.setenv(name, environment[name])
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    yield importlib.import_module("jobs")
    del sys.modules["jobs"]


@pytest.fixture
def worker(environment: dict[str, str], tmp_path: Path) -> Iterator[Worker]:
    made = Worker(environment, tmp_path / "worker.log")
    yield made
    made.end(signal.SIGKILL)


def lines(path: Path) -> list[str]:
    return path.read_text().split() if path.exists() else []


def test_chains_groups_chords_and_retries_end_with_their_results(jobs: Any, worker: Worker, tmp_path: Path) -> None:
    assert chain(jobs.add.s(1, 2), jobs.add.s(4))().get(timeout=SECONDS) == 7
    assert group(jobs.add.s(number, number) for number in range(10))().get(timeout=SECONDS) == [*range(0, 20, 2)]
    assert chord([jobs.add.s(number, 1) for number in range(5)])(jobs.total.s()).get(timeout=SECONDS) == 15
    assert jobs.third_time_lucky.delay(str(tmp_path / "tries")).get(timeout=SECONDS) == 3


def test_a_worker_answers_its_remote_control(jobs: Any, worker: Worker) -> None:
    assert jobs.add.delay(1, 2).get(timeout=SECONDS) == 3
    [answer] = jobs.app.control.ping(timeout=SECONDS, limit=1)
    assert list(answer.values()) == [{"ok": "pong"}]


def test_each_task_runs_once(jobs: Any, worker: Worker, tmp_path: Path) -> None:
    path = tmp_path / "notes"
    for number in range(TASKS):
        jobs.noted.delay(str(path), str(number))
    eventually(lambda: len(lines(path)) >= TASKS, timeout=SECONDS + TASKS / 10)
    assert sorted(map(int, lines(path))) == list(range(TASKS))


def test_no_task_is_lost_with_the_workers_that_are_killed(
    jobs: Any, environment: dict[str, str], tmp_path: Path
) -> None:
    path, number = tmp_path / "notes", 0
    for turn in range(3):
        made = Worker(environment, tmp_path / "worker.log")
        try:
            before = len(set(lines(path)))
            for number in range(100 * turn, 100 * turn + 100):
                jobs.noted.delay(str(path), str(number))
            eventually(lambda before=before: len(set(lines(path))) > before + 20, timeout=SECONDS)
        finally:
            made.end(signal.SIGKILL)
    made = Worker(environment, tmp_path / "worker.log")
    try:
        eventually(lambda: set(map(int, lines(path))) == set(range(number + 1)), timeout=SECONDS)
    finally:
        made.end(signal.SIGKILL)


def test_a_task_that_takes_longer_than_its_visibility_runs_once(jobs: Any, worker: Worker, tmp_path: Path) -> None:
    path = tmp_path / "notes"
    jobs.long.delay(str(path), 9.0).get(timeout=SECONDS)
    assert lines(path) == ["begun", "ended"]


def test_a_task_whose_worker_was_killed_runs_again(
    jobs: Any, environment: dict[str, str], worker: Worker, tmp_path: Path
) -> None:
    path = tmp_path / "notes"
    result = jobs.long.delay(str(path), 5.0)
    eventually(lambda: lines(path) == ["begun"], timeout=SECONDS)
    worker.end(signal.SIGKILL)
    second = Worker(environment, tmp_path / "worker.log")
    try:
        result.get(timeout=SECONDS)
    finally:
        second.end(signal.SIGKILL)
    assert lines(path) == ["begun", "begun", "ended"]


def test_a_task_that_waits_longer_than_its_visibility_runs_once_and_at_its_time(
    jobs: Any, worker: Worker, tmp_path: Path
) -> None:
    path = tmp_path / "notes"
    begun = time.time()
    for line in ("one", "two", "three"):
        jobs.timed.apply_async((str(path), line), countdown=10)
    eventually(lambda: len(lines(path)) >= 3, timeout=SECONDS)
    jobs.add.delay(1, 2).get(timeout=SECONDS)  # behind them, so that a second delivery would have been seen
    assert sorted(line.split("@")[0] for line in lines(path)) == ["one", "three", "two"]
    assert all(float(line.split("@")[1]) >= begun + 10 for line in lines(path))


def test_a_task_that_no_worker_knows_or_can_read_stops_no_worker(
    jobs: Any, worker: Worker, shmq_broker: Broker, tmp_path: Path
) -> None:
    with shmq.connect(shmq_broker.url) as mq:
        jobs.add.delay(1, 1).get(timeout=SECONDS)
        for topic in ("kombu-celery", "kombu-x-celery.pidbox", "kombu-x-celeryev"):
            if topic in mq.admin.topics:
                mq.send(topic, b"not kombu's")
        jobs.app.send_task("unknown.task")
        assert jobs.add.delay(1, 2).get(timeout=SECONDS) == 3
        assert jobs.app.control.ping(timeout=SECONDS, limit=1)
        eventually(lambda: len(mq.admin.dlq("kombu-celery")) == 1, timeout=SECONDS)


def test_cancelled_queues_lose_nothing_and_go_on(jobs: Any, worker: Worker, tmp_path: Path) -> None:
    path = tmp_path / "notes"
    assert jobs.add.delay(1, 2).get(timeout=SECONDS) == 3
    jobs.app.control.cancel_consumer("celery", reply=True, timeout=SECONDS, limit=1)
    for number in range(50):
        jobs.noted.delay(str(path), str(number))
    jobs.app.control.ping(timeout=3, limit=1)
    assert lines(path) == []
    jobs.app.control.add_consumer("celery", reply=True, timeout=SECONDS, limit=1)
    eventually(lambda: len(lines(path)) >= 50, timeout=SECONDS)
    assert sorted(map(int, lines(path))) == list(range(50))
