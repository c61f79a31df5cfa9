"""The workload of requests and replies: one round trip between two processes of this host.

The replier is a process of its own, through the public API; at a broker over TCP both are clients of it.
"""

from __future__ import annotations

import itertools
import subprocess
import sys
import time

import shmq
from benchmarks.brokers.contestants import Contestant
from benchmarks.workload import Figure, Workload
from benchmarks.workloads.beside import OverTcp
from shmq.errors import RequestTimeout
from shmq.measurement.measure import median
from shmq.testing import Broker

TOPIC, GROUP = "prices", "pricing"
BODY = b"x" * 128
TIMEOUT = 3.0
WARM_UP = 500
COUNT, COUNT_MIN = 20_000, 500
REMOTE_COUNT, REMOTE_COUNT_MIN, REMOTE_WARM_UP = 3000, 50, 500
START_SECONDS = 60.0  # a replier over TCP gets its queues in its first round of shares
_serial = itertools.count(1)

_REPLIER = """
import sys, shmq
url, topic, group = sys.argv[1:]
with shmq.connect(url) as mq:
    mq.replier(topic, group=group)(lambda message: message.body)
    mq.run()
"""


def request_reply(effort: float) -> dict[str, float]:
    """Microseconds of a request and its reply, the median."""
    with Broker(small=False) as broker:
        return {"p50_us": _median_us(broker.url, TOPIC, WARM_UP, max(COUNT_MIN, int(COUNT * effort)))}


def request_reply_over_tcp(contestant: Contestant, effort: float) -> dict[str, float]:
    """The same with two clients of a broker over TCP."""
    topic = f"{TOPIC}_{next(_serial)}"
    count = max(REMOTE_COUNT_MIN, int(REMOTE_COUNT * effort))
    return {"p50_us": _median_us(contestant.url, topic, REMOTE_WARM_UP, count)}


def _median_us(url: str, topic: str, warm_up: int, count: int) -> float:
    with shmq.connect(url) as mq:
        mq.admin.create_topic(topic, queues=1)
        with subprocess.Popen([sys.executable, "-P", "-c", _REPLIER, url, topic, f"{GROUP}_{topic}"]) as replier:
            try:
                _wait_for_replies(mq, topic)
                for _ in range(warm_up):
                    mq.request(topic, BODY, timeout=TIMEOUT)
                times = []
                for _ in range(count):
                    begin = time.perf_counter_ns()
                    mq.request(topic, BODY, timeout=TIMEOUT)
                    times.append((time.perf_counter_ns() - begin) / 1000)
            finally:
                replier.terminate()
    return median(times)


def _wait_for_replies(mq: shmq.Connection, topic: str) -> None:
    deadline = time.monotonic() + START_SECONDS
    while True:
        try:
            mq.request(topic, BODY, timeout=0.5)
            return
        except RequestTimeout:
            if time.monotonic() > deadline:
                raise


def over_tcp() -> dict[str, OverTcp]:
    """Return what is measured beside a stock broker."""
    return {"request_reply": OverTcp(request_reply_over_tcp, {"p50_us": "request_reply_tcp_p50"})}


def workloads() -> list[Workload]:
    """Return what is measured here."""
    return [
        Workload(
            "request_reply", request_reply, [Figure("request_reply_local_p50", "p50_us", "µs", limits={"limit": 60})]
        )
    ]
