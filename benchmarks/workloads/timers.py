"""The workload of timed messages: what one costs the sender and the daemon, and how late it is delivered.

One broker, one run: timers are inserted through the public API, due at random times of the next day; then others, due
within seconds, are delivered while those are pending. Over TCP there are fewer, at a broker that goes on running, and
an insert is over when it is answered.

    timer_insert           one send with delay=, until the last of all is known to the daemon
    timer_memory           what the daemon's own memory grew by, for each pending message
    timer_lateness_p99     store time of the delivered copy - the time that was asked for
"""

from __future__ import annotations

import itertools
import random
import time
from pathlib import Path

import shmq
from benchmarks.brokers.contestants import Contestant
from benchmarks.workload import Figure, Workload
from benchmarks.workloads.beside import OverTcp
from shmq.client.connection import Connection
from shmq.testing import Broker
from shmq.timing import DELIVER_MS, TIMER_GROUP, TIMER_TOPIC

PENDING = 1_000_000
PENDING_MIN = 2_000
DELIVERED = 10_000
DELIVERED_MIN = 100
WITHIN_SECONDS = 5.0
DAY_SECONDS = 86_400
FIRST_SECONDS = 3600.0  # none of the pending ones is due before the run ends
REMOTE_PENDING, REMOTE_PENDING_MIN = 10_000, 200
REMOTE_DELIVERED = 3000
REMOTE_FIRST_SECONDS = 3.0  # all are sent before the first is due, however slow a send is
TOPIC = "reminders"
BODY = b"x" * 100
PATIENCE_SECONDS = 60.0
_serial = itertools.count(1)


def _own_bytes(pid: int) -> int:
    """Memory of a process that it shares with no other."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError(f"/proc/{pid}/status says nothing of RssAnon")


def _known(mq: Connection) -> int:
    """The number of timed messages in the daemon's memory."""
    store = mq._local().wire.store
    topic, group = store.topic_find(TIMER_TOPIC), store.group_find(TIMER_GROUP)
    if topic < 0:
        return 0  # nothing was ever delayed
    queue = store.topic(topic)["queues"][0]
    return max((row[3] for row in store.offsets() if row[1:3] == (group, queue)), default=0)


def _wait_known(mq: Connection, count: int) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while _known(mq) < count:
        if time.monotonic() > deadline:
            raise RuntimeError(f"the daemon knows {_known(mq)} of {count} timers")
        time.sleep(0.002)


def _insert(mq: Connection, count: int, dice: random.Random) -> float:
    """Microseconds for each timer."""
    delays = [dice.uniform(FIRST_SECONDS, DAY_SECONDS) for _ in range(count)]
    known = _known(mq)
    send = mq.send
    begin = time.perf_counter()
    for delay in delays:
        send(TOPIC, BODY, delay=delay)
    _wait_known(mq, known + count)
    return (time.perf_counter() - begin) / count * 1e6


def _lateness(mq: Connection, topic: str, count: int, dice: random.Random, first_seconds: float = 1.0) -> float:
    """The 99th percentile in milliseconds; the first is due in `first_seconds`."""
    begin = time.time() + first_seconds
    for _ in range(count):
        mq.send(topic, BODY, tag="due", deliver_at=begin + dice.uniform(0, WITHIN_SECONDS))
    late: list[int] = []
    deadline = time.monotonic() + PATIENCE_SECONDS
    with mq.pull_consumer(topic, tags="due") as consumer:
        while len(late) < count:
            if time.monotonic() > deadline:
                raise RuntimeError(f"{len(late)} of {count} timers were delivered")
            for message in consumer.poll(1000, 0.5):
                late.append(message.store_ms - int(message.properties[DELIVER_MS]))
    if min(late) < 0:
        raise RuntimeError(f"a message was delivered {-min(late)} ms early")
    return float(sorted(late)[len(late) * 99 // 100])


def timers(effort: float) -> dict[str, float]:
    """All three figures of one broker."""
    count = max(PENDING_MIN, int(PENDING * effort))
    dice = random.Random(count)
    with Broker(small=False, populate_bytes=1 << 30) as broker, shmq.connect(broker.url) as mq:
        mq.admin.create_topic(TOPIC, queues=4)
        _insert(mq, PENDING_MIN, dice)  # what is made once is made
        bridge = broker.processes["bridge"].pid
        before = _own_bytes(bridge)
        insert_us = _insert(mq, count, dice)
        grown = max(0, _own_bytes(bridge) - before)
        lateness_ms = _lateness(mq, TOPIC, max(DELIVERED_MIN, int(DELIVERED * effort)), dice)
    return {"insert_us": insert_us, "bytes": grown / count, "late_ms": lateness_ms}


def timers_over_tcp(contestant: Contestant, effort: float) -> dict[str, float]:
    """Insert and lateness at a broker over TCP."""
    count = max(REMOTE_PENDING_MIN, int(REMOTE_PENDING * effort))
    dice = random.Random(count)
    topic = f"{TOPIC}_{next(_serial)}"
    with shmq.connect(contestant.url) as mq:
        mq.admin.create_topic(topic, queues=4)
        mq.send(topic, BODY, delay=DAY_SECONDS)  # what is made once is made
        delays = [dice.uniform(FIRST_SECONDS, DAY_SECONDS) for _ in range(count)]
        begin = time.perf_counter()
        for delay in delays:
            mq.send(topic, BODY, delay=delay)
        insert_us = (time.perf_counter() - begin) / count * 1e6
        delivered = max(DELIVERED_MIN, int(REMOTE_DELIVERED * effort))
        lateness_ms = _lateness(mq, topic, delivered, dice, REMOTE_FIRST_SECONDS)
    return {"insert_us": insert_us, "late_ms": lateness_ms}


def over_tcp() -> dict[str, OverTcp]:
    """Return what is measured beside a stock broker: 5.x is the first with messages for any time."""
    figures = {"insert_us": "timer_insert_tcp", "late_ms": "timer_lateness_p99_tcp"}
    return {"timers": OverTcp(timers_over_tcp, figures, version="5")}


def workloads() -> list[Workload]:
    """Return what is measured here."""
    return [
        Workload(
            "timers",
            timers,
            [
                Figure("timer_insert", "insert_us", "us", limits={"limit": 5.0}),
                Figure("timer_memory", "bytes", "bytes", limits={"limit": 100.0}),
                Figure("timer_lateness_p99", "late_ms", "ms", limits={"limit": 50.0}),
            ],
        )
    ]
