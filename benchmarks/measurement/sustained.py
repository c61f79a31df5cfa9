"""Throughput for as long as a service runs: one producer, one consumer, a figure for every second.

    producer   16 sends, the first of them timed ┊ 16 sends …      until the deadline
    consumer   iterates, reads each body, acknowledges             until the deadline

A short run takes place in memory that is already there; a long one needs fresh log memory all the time, waits for the
disk, and old files go. So the worst second counts as much as the mean, and the last hundredth of a percent of sends as
much as the middle.

(1) What counts is what the consumer has acknowledged, by the second in which it did so. The first second is not
    counted: processes get going in it.
(2) Times of sends are kept in classes that are at most 1/128 wide, whatever their number, so a run may last a day.
(3) How much of the log's memory was fresh, the producer's page faults say.
"""

from __future__ import annotations

import secrets
from collections import Counter
from dataclasses import dataclass
from itertools import islice
from typing import Any

import shmq
from shmq.measurement.conditions import fresh_share
from shmq.measurement.measure import (
    Meet,
    Role,
    check_body,
    clock,
    median,
    numbered_body,
    page_faults,
    plain_body,
    run_roles,
)

NS = 1_000_000_000
TIMED_OF = 16  # one send of so many is timed: the clock would be a tenth of all others
CLASS_BITS = 8  # times are rounded down to so many leading bits
WARM_UP_MESSAGES = 2000
GROUP = "bench"
END = b"end"
BORDER_SECONDS = 30.0  # for starting and ending the processes
SHARES = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "p99.9": 0.999, "p99.99": 0.9999, "max": 1.0}


@dataclass(frozen=True)
class Plan:
    """One run: where, how long, and bodies of which size."""

    url: str | None
    topic: str
    size: int
    seconds: int


def time_class(nanoseconds: int) -> int:
    """Return the least time of the class that a time belongs to."""
    shift = nanoseconds.bit_length() - CLASS_BITS
    return nanoseconds if shift <= 0 else nanoseconds >> shift << shift


def shares_us(times: Counter[int]) -> dict[str, float]:
    """Return p50 … max in microseconds of times that are counted by class; nearest rank, as `measure.percentile`."""
    total, found, seen = times.total(), {}, 0
    wanted = list(SHARES.items())
    for nanoseconds in sorted(times):
        seen += times[nanoseconds]
        while wanted and seen >= wanted[0][1] * total:
            found[wanted.pop(0)[0]] = nanoseconds / 1000
    return found


@dataclass(frozen=True)
class Sent:
    """The producer's report: sent messages of each second, times of single sends in it, and page faults."""

    each: list[int]
    times: list[Counter[int]]
    faults: int


def _produce(meet: Meet, plan: Plan) -> Sent:
    """Send until the deadline."""
    each, plain = Counter[int](), plain_body(plan.size)
    times = [
        Counter[int]() for _ in range(plan.seconds + 1)
    ]  # the last send begins before the deadline, and ends after
    with shmq.connect(plan.url) as mq, mq.producer() as producer:
        send, topic, untimed = producer.send, plan.topic, range(TIMED_OF - 1)
        meet()  # the consumer is there
        for number in range(WARM_UP_MESSAGES):
            send(topic, numbered_body(number, plan.size))
        meet()
        before = page_faults()
        started = now = clock()
        deadline = started + plan.seconds * NS
        while now < deadline:
            send(topic, plain)
            after = clock()
            second = (now - started) // NS
            times[second][time_class(after - now)] += 1
            for _ in untimed:
                send(topic, plain)
            each[second] += len(untimed) + 1
            now = clock()
        faults = page_faults() - before
        for _ in range(TIMED_OF):
            send(topic, END)  # a consumer whose deadline is not over yet waits for messages no longer
        meet()
    return Sent([each[second] for second in range(plan.seconds)], times[: plan.seconds], faults)


def _consume(meet: Meet, plan: Plan) -> list[int]:
    """Take until the deadline; returns what was acknowledged in each second."""
    each, plain = Counter[int](), plain_body(plan.size)
    with shmq.connect(plan.url) as mq, mq.subscribe(plan.topic, group=GROUP) as subscription:
        messages = iter(subscription)
        meet()
        warm = []
        for message in islice(messages, WARM_UP_MESSAGES):
            warm.append(message.body)
            message.ack()
        if sorted(warm) != sorted(numbered_body(number, plan.size) for number in range(WARM_UP_MESSAGES)):
            raise ValueError("the warm-up received other messages than it sent")
        meet()
        started = now = clock()
        deadline = started + plan.seconds * NS
        while now < deadline:
            body = b""
            for message in islice(messages, TIMED_OF):
                body = message.body
                message.ack()
            now = clock()
            each[(now - started) // NS] += TIMED_OF
            if body == END:
                break
            check_body(body, [plain])
        meet()
    return [each[second] for second in range(plan.seconds)]


def sustained(url: str | None, seconds: int, *, size: int = 256) -> dict[str, Any]:
    """Measure one producer and one consumer for some seconds.

    Returns:
        rate (messages/s, the mean of the counted seconds), worst and median (of one second), bytes (bodies, bytes/s),
        p50 … max (one send, microseconds), fresh (share of the log's pages that the producer touched first), sent_each
        and taken_each (messages of every second), p50_each and p99_each (one send in every second; 0 where none ended).
    """
    plan = Plan(url, f"bench-{secrets.token_hex(4)}", size, seconds)
    roles = [Role(_produce, (plan,)), Role(_consume, (plan,))]
    sent, taken = run_roles(roles, seconds + BORDER_SECONDS)
    counted = taken[1:] or taken
    rate = sum(counted) / len(counted)
    each = [shares_us(times) for times in sent.times]
    return {
        "rate": rate,
        "worst": float(min(counted)),
        "median": float(median(counted)),
        "bytes": rate * size,
        **shares_us(sum(sent.times, Counter())),
        "fresh": fresh_share(sent.faults, sum(sent.each), size),
        "sent_each": sent.each,
        "taken_each": taken,
        "p50_each": [shares.get("p50", 0.0) for shares in each],
        "p99_each": [shares.get("p99", 0.0) for shares in each],
    }
