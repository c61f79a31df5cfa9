"""The Celery application of the workload `celery_tasks`: a task that leaves one byte in a file."""

from __future__ import annotations

import os

from celery import Celery

import shmq.contrib.kombu  # noqa: F401 - makes "shmq://" known to kombu

app = Celery("jobs", broker_url=os.environ["JOBS_BROKER"])
app.conf.update(task_ignore_result=True, broker_connection_retry_on_startup=True)
_marks = os.open(os.environ["JOBS_MARKS"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)


@app.task
def mark() -> None:
    """Leave a byte."""
    os.write(_marks, b".")
