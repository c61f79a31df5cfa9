"""The workloads of filters: how fast a reader passes over what it does not want, by tag and by SQL92.

Both read through the public API, from the first message to the last, and count every message of the topic: what was not
selected is what is measured. Over TCP the broker selects, and four pulls in flight pass over a backlog that each broker
is given once (pulls.py).

    tag_filter    one message in a hundred has the tag; hashes in the ConsumeQueue units decide
    sql_filter    three terms, all of them looked at, over seven properties; nothing is selected
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import shmq
from benchmarks.brokers.contestants import Contestant
from benchmarks.workload import Figure, Workload
from benchmarks.workloads.beside import OverTcp
from benchmarks.workloads.pulls import Scan, scan
from shmq.testing import Broker

TOPIC, QUEUES = "filtered", 4
BATCH = 100
BACKLOG, BACKLOG_MIN = 400_000, 10_000
BODY = b"x" * 64
PROPERTIES = {"region": "eu", "qty": "5", "price": "1.5", "customer": "c-1017", "channel": "web", "currency": "EUR"}
THREE_TERMS = "region = 'eu' AND qty BETWEEN 1 AND 10 AND price > 1.75"


WARM_UP = [("rare", "TAG"), (THREE_TERMS, "SQL92")] * 3  # a JVM compiles what it has done often enough


def _fill(mq: shmq.Connection, count: int, topic: str = TOPIC) -> None:
    mq.admin.create_topic(topic, queues=QUEUES)
    common: dict[str, Any] = {"properties": PROPERTIES}
    for _ in range(count // BATCH):
        mq.send_batch(topic, [BODY], tag="rare", **common)
        mq.send_batch(topic, [BODY] * (BATCH - 1), tag="common", **common)


def _scanned(count: int, wanted: Mapping[str, str], selected: int) -> float:
    """Seconds to read a topic of `count` messages to its end."""
    with Broker(small=False, populate_bytes=1 << 30) as broker, shmq.connect(broker.url) as mq:
        _fill(mq, count)
        with mq.pull_consumer(TOPIC, **wanted) as consumer:
            found = 0
            begin = time.perf_counter()
            while messages := consumer.poll(64):
                found += len(messages)
            seconds = time.perf_counter() - begin
    if found != selected:
        raise RuntimeError(f"{found} messages were selected instead of {selected}")
    return seconds


def tag_filter(effort: float) -> dict[str, float]:
    """Units per second, of which one in a hundred is delivered."""
    count = max(10_000, int(2_000_000 * effort)) // BATCH * BATCH
    return {"units_per_s": count / _scanned(count, {"tags": "rare"}, count // BATCH)}


def sql_filter(effort: float) -> dict[str, float]:
    """Microseconds for each message of a topic, reading it and three terms together."""
    count = max(10_000, int(1_000_000 * effort)) // BATCH * BATCH
    return {"us": _scanned(count, {"where": THREE_TERMS}, 0) / count * 1e6}


def _pulled(contestant: Contestant, effort: float, expression: str, kind: str) -> Scan:
    count = max(BACKLOG_MIN, int(BACKLOG * effort)) // BATCH * BATCH
    topic = f"{TOPIC}_{count}"
    if contestant.stored(topic) == 0:
        with shmq.connect(contestant.url) as mq:
            _fill(mq, count, topic)
        for each in WARM_UP:
            scan(contestant.broker_address, topic, QUEUES, *each)
    found = scan(contestant.broker_address, topic, QUEUES, expression, kind)
    selected = count // BATCH if kind == "TAG" else 0
    if (found.passed, found.selected) != (count, selected):
        raise RuntimeError(f"{found.selected} of {found.passed} were selected instead of {selected} of {count}")
    return found


def tag_filter_over_tcp(contestant: Contestant, effort: float) -> dict[str, float]:
    """Units per second, of which a broker delivers one in a hundred."""
    found = _pulled(contestant, effort, "rare", "TAG")
    return {"units_per_s": found.passed / found.seconds}


def sql_filter_over_tcp(contestant: Contestant, effort: float) -> dict[str, float]:
    """Microseconds for each message that a broker passes over."""
    found = _pulled(contestant, effort, THREE_TERMS, "SQL92")
    return {"us": found.seconds / found.passed * 1e6}


def over_tcp() -> dict[str, OverTcp]:
    """Return what is measured beside a stock broker."""
    return {
        "tag_filter": OverTcp(tag_filter_over_tcp, {"units_per_s": "tag_filter_1_percent_tcp"}),
        "sql_filter": OverTcp(sql_filter_over_tcp, {"us": "sql_filter_three_terms_tcp"}),
    }


def workloads() -> list[Workload]:
    """Return what is measured here."""
    return [
        Workload(
            "tag_filter",
            tag_filter,
            [Figure("tag_filter_1_percent", "units_per_s", "units/s", is_rate=True, limits={"limit": 20e6})],
        ),
        Workload(
            "sql_filter",
            sql_filter,
            [Figure("sql_filter_three_terms", "us", "us", limits={"limit": 2.0})],
        ),
    ]
