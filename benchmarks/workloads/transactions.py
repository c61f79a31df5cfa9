"""The workload of transactions: how many one local producer begins and commits in a second.

A transaction is two appends, of the half and of its end, through the public API; over TCP it is two requests, and both
are waited for.
"""

from __future__ import annotations

import itertools
import time

import shmq
from benchmarks.brokers.contestants import Contestant
from benchmarks.workload import Figure, Workload
from benchmarks.workloads.beside import OverTcp
from shmq.testing import Broker

TOPIC, GROUP = "paid", "shop"
BODY = b"x" * 128
PATIENCE_SECONDS = 5.0
WARM_UP = 1000
COUNT, COUNT_MIN = 200_000, 2000
REMOTE_COUNT, REMOTE_COUNT_MIN, REMOTE_WARM_UP = 3000, 50, 500
_serial = itertools.count(1)


def _per_s(mq: shmq.Connection, topic: str, warm_up: int, count: int) -> float:
    """Committed transactions per second, each of which is visible afterwards."""
    mq.admin.create_topic(topic, queues=4)
    with mq.producer(group=GROUP) as producer:
        for _ in range(warm_up):
            producer.transaction(topic, BODY).commit()
        begin = time.perf_counter()
        for _ in range(count):
            with producer.transaction(topic, BODY):
                pass
        seconds = time.perf_counter() - begin
    with mq.pull_consumer(topic) as consumer:
        found = 0
        while messages := consumer.poll(1024, wait=PATIENCE_SECONDS if found < warm_up + count else 0.0):
            found += len(messages)
    if found != warm_up + count:
        raise RuntimeError(f"{found} messages are visible instead of {warm_up + count}")
    return count / seconds


def transactional_send(effort: float) -> dict[str, float]:
    """Committed transactions per second, of one thread."""
    with Broker(small=False, populate_bytes=1 << 30) as broker, shmq.connect(broker.url) as mq:
        return {"per_s": _per_s(mq, TOPIC, WARM_UP, max(COUNT_MIN, int(COUNT * effort)))}


def transactional_send_over_tcp(contestant: Contestant, effort: float) -> dict[str, float]:
    """The same at a broker over TCP."""
    topic = f"{TOPIC}_{next(_serial)}"
    with shmq.connect(contestant.url) as mq:
        return {"per_s": _per_s(mq, topic, REMOTE_WARM_UP, max(REMOTE_COUNT_MIN, int(REMOTE_COUNT * effort)))}


def over_tcp() -> dict[str, OverTcp]:
    """Return what is measured beside a stock broker."""
    return {"transactional_send": OverTcp(transactional_send_over_tcp, {"per_s": "transactional_send_tcp"})}


def workloads() -> list[Workload]:
    """Return what is measured here."""
    return [
        Workload(
            "transactional_send",
            transactional_send,
            [Figure("transactional_send_local", "per_s", "tx/s", is_rate=True, limits={"limit": 100_000})],
        )
    ]
