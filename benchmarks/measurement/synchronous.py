"""Measures a broker with synchronous flush: processes that each wait for the disk before they send again.

    role   connect · meet() · warm up · meet() · send(), until the time is over · the time of each send

(1) Every process waits for its own message: what many reach together is the work of group commit alone.
(2) The rate counts the sends of all processes between the first that began and the last that ended.
(3) Bodies count nothing: the disk is asked for whole pages.
"""

from __future__ import annotations

import secrets

import shmq
from shmq.measurement.conditions import fresh_share
from shmq.measurement.measure import Meet, Role, clock, page_faults, percentile, plain_body, run_roles

WARM_UP_SENDS = 20
_SHARES = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "p99.9": 0.999, "max": 1.0}


def _send_until_over(
    meet: Meet, url: str | None, topic: str, seconds: float, size: int
) -> tuple[int, int, list[int], int]:
    body, times = plain_body(size), []
    with shmq.connect(url) as mq, mq.producer() as producer:
        meet()
        for _ in range(WARM_UP_SENDS):
            producer.send(topic, body)
        meet()
        before = page_faults()
        started = at = clock()
        end = started + int(seconds * 1e9)
        while at < end:
            producer.send(topic, body)
            now = clock()
            times.append(now - at)
            at = now
        faults = page_faults() - before
        meet()
    return started, at, times, faults


def synchronous(
    url: str | None = None, *, processes: int = 1, seconds: float = 3.0, size: int = 256
) -> dict[str, float]:
    """Measure sends whose answers are waited for one by one, by `processes` processes at once.

    Returns:
        rate (sends/s of all together), percentiles of one send in microseconds, and fresh (share of the log's pages
        that a process touched for the first time, of all processes).
    """
    topic = f"bench-{secrets.token_hex(4)}"
    with shmq.connect(url) as mq:
        mq.admin.create_topic(topic)
    roles = [Role(_send_until_over, (url, topic, seconds, size)) for _ in range(processes)]
    results = run_roles(roles)
    started, ended = min(each[0] for each in results), max(each[1] for each in results)
    times = sorted(time for each in results for time in each[2])
    percentiles = {name: percentile(times, share) / 1000 for name, share in _SHARES.items()}
    fresh = fresh_share(sum(each[3] for each in results), len(times) * processes, size)
    return {"rate": len(times) * 1e9 / (ended - started), **percentiles, "fresh": fresh}
