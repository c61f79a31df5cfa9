"""The tasks of the tests with Celery's own worker."""

import os
import time
from pathlib import Path

from celery import Celery

import shmq.contrib.kombu  # noqa: F401 - makes "shmq://" known to kombu

app = Celery("jobs", broker_url=os.environ["JOBS_BROKER"], result_backend=f"file://{os.environ['JOBS_RESULTS']}")
app.conf.update(
    task_acks_late=True,
    broker_transport_options={"visibility_timeout": 4},
    worker_prefetch_multiplier=4,
    broker_connection_retry_on_startup=True,
)


def note(path: str, line: str) -> None:
    with Path(path).open("a") as notes:
        notes.write(f"{line}\n")


@app.task
def add(one: int, other: int) -> int:
    return one + other


@app.task
def total(numbers: list[int]) -> int:
    return sum(numbers)


@app.task(bind=True, max_retries=3)
def third_time_lucky(self, path: str) -> int:  # type: ignore[no-untyped-def]
    note(path, "try")
    tries = len(Path(path).read_text().splitlines())
    if tries < 3:
        raise self.retry(countdown=0.1)
    return tries


@app.task
def noted(path: str, line: str) -> None:
    note(path, line)


@app.task
def long(path: str, seconds: float) -> None:
    note(path, "begun")
    time.sleep(seconds)  # not a wait: the work
    note(path, "ended")


@app.task
def timed(path: str, line: str) -> None:
    note(path, f"{line}@{time.time()}")
