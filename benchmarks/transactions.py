"""Owns the workload of transactions: how many one local producer begins and commits in a second.

It does not know how samples become lines (workload.py). A transaction is two appends, of the half and of its end,
through the public API.
"""

from __future__ import annotations

import time

import shmq
from benchmarks.workload import Figure, Workload
from shmq.testing import Broker

TOPIC, GROUP = "paid", "shop"
BODY = b"x" * 128
WARM_UP = 1000


def transactional_send(effort: float) -> dict[str, float]:
    """Committed transactions per second, of one thread."""
    count = max(2000, int(200_000 * effort))
    with Broker(small=False, populate_bytes=1 << 30) as broker, shmq.connect(broker.url) as mq:
        mq.admin.create_topic(TOPIC, queues=4)
        with mq.producer(group=GROUP) as producer:
            for _ in range(WARM_UP):
                producer.transaction(TOPIC, BODY).commit()
            begin = time.perf_counter()
            for _ in range(count):
                with producer.transaction(TOPIC, BODY):
                    pass
            seconds = time.perf_counter() - begin
        with mq.pull_consumer(TOPIC) as consumer:
            found = 0
            while messages := consumer.poll(1024):
                found += len(messages)
    if found != count + WARM_UP:
        raise RuntimeError(f"{found} messages are visible instead of {count + WARM_UP}")
    return {"per_s": count / seconds}


def workloads() -> list[Workload]:
    """Return what is measured here."""
    return [
        Workload(
            "transactional_send",
            transactional_send,
            [Figure("transactional_send_local", "per_s", "tx/s", is_rate=True, limits={"limit": 100_000})],
        )
    ]
