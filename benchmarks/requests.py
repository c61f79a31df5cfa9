"""Owns the workload of requests and replies: one round trip between two processes of this host.

It does not know how samples become lines (workload.py). The replier is a process of its own, through the public API.
"""

from __future__ import annotations

import subprocess
import sys
import time

import shmq
from benchmarks.workload import Figure, Workload
from shmq.errors import RequestTimeout
from shmq.testing import Broker
from shmq.tools.measure import median

TOPIC, GROUP = "prices", "pricing"
BODY = b"x" * 128
WARM_UP = 500
START_SECONDS = 20.0

_REPLIER = """
import sys, shmq
url, topic, group = sys.argv[1:]
with shmq.connect(url) as mq:
    mq.replier(topic, group=group)(lambda message: message.body)
    mq.run()
"""


def request_reply(effort: float) -> dict[str, float]:
    """Microseconds of a request and its reply, the median."""
    count = max(500, int(20_000 * effort))
    with Broker(small=False) as broker, shmq.connect(broker.url) as mq:
        mq.admin.create_topic(TOPIC, queues=1)
        with subprocess.Popen([sys.executable, "-P", "-c", _REPLIER, broker.url, TOPIC, GROUP]) as replier:
            try:
                _wait_for_replies(mq)
                for _ in range(WARM_UP):
                    mq.request(TOPIC, BODY, timeout=1.0)
                times = []
                for _ in range(count):
                    begin = time.perf_counter_ns()
                    mq.request(TOPIC, BODY, timeout=1.0)
                    times.append((time.perf_counter_ns() - begin) / 1000)
            finally:
                replier.terminate()
    return {"p50_us": median(times)}


def _wait_for_replies(mq: shmq.Connection) -> None:
    deadline = time.monotonic() + START_SECONDS
    while True:
        try:
            mq.request(TOPIC, BODY, timeout=0.5)
            return
        except RequestTimeout:
            if time.monotonic() > deadline:
                raise


def workloads() -> list[Workload]:
    """Return what is measured here."""
    return [
        Workload(
            "request_reply", request_reply, [Figure("request_reply_local_p50", "p50_us", "µs", limits={"limit": 60})]
        )
    ]
