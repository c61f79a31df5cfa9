"""shmq's side of every workload: a private broker per run, then the measurements of `shmq.measurement.bench`.

Every run has a broker of its own, on a fresh store with 1 GiB files and asynchronous flush, so no run pays for the
write-back of the one before. The pages of the first file are made present before the run (`populate_bytes`): a rival
that reuses one small buffer does not pay for fresh memory either.
"""

from __future__ import annotations

import time

import shmq
from shmq.measurement import bench
from shmq.measurement.measure import median
from shmq.measurement.sustained import sustained as sustained_run
from shmq.testing import Broker
from shmq.tools.bench.bench_command import SUSTAINED_BROKER

VERIFY_BYTES = 256
VERIFY_ROUNDS = 9
VERIFY_BATCH = 256

settings: dict[str, int] = {"populate_bytes": 1 << 30}


def _broker() -> Broker:
    return Broker(small=False, **settings)


def throughput(effort: float, *, producers: int = 1, batch: int = 1) -> dict[str, float]:
    """Messages per second through a fresh broker."""
    count = max(2000, int(1_250_000 * effort))  # 450 MB of log: half of what is made present
    with _broker() as broker:
        return bench.throughput(broker.url, producers=producers, count=count, batch=batch)


def sustained(seconds: int) -> dict[str, float]:
    """One producer and one consumer for some seconds: fresh log memory all the time, consumed files go meanwhile."""
    with Broker(**SUSTAINED_BROKER) as broker:
        figures = sustained_run(broker.url, seconds)
    return {name: value for name, value in figures.items() if isinstance(value, float)}


def latency(
    trips: int, *, size: int = 256, spinning: bool = False, in_place: bool = False, pause_us: int = 0
) -> dict[str, float]:
    """Percentiles of half a round trip, in microseconds, through a fresh broker."""
    with _broker() as broker:
        return bench.latency(
            broker.url, trips=trips, size=size, spinning=spinning, in_place=in_place, pause_us=pause_us
        )


def blocking_runs(runs: int, trips: int) -> dict[str, float]:
    """Spread of the medians of many runs of the same ping-pong, in microseconds, through one broker."""
    with _broker() as broker:
        medians = sorted(bench.latency(broker.url, trips=trips)["p50"] for _ in range(runs))
    middle = median(medians)
    return {"median": middle, "worst": medians[-1], "ratio": medians[-1] / middle}


def many_topics(effort: float) -> dict[str, float]:
    """Cost of a send spread over 10,000 topics, and the segment bytes each used queue takes."""
    with _broker() as broker:
        return bench.many_topics(broker.url, topics=max(100, int(10_000 * effort)))


def verification(effort: float) -> dict[str, float]:
    """Cost of the checksum for a message of a backlog whose bodies are not read, in nanoseconds.

    The same backlog is read in turns with and without, in one process. Each figure is the median of its rounds, the
    cost that of the differences between neighbours: what slows the machine down for longer slows both.
    """
    count = max(4096, int(300_000 * effort)) // VERIFY_BATCH * VERIFY_BATCH
    times: dict[bool, list[float]] = {True: [], False: []}
    with _broker() as broker, broker.connect() as mq:
        mq.admin.create_topic("backlog", queues=1)
        bodies = [bytes(VERIFY_BYTES)] * VERIFY_BATCH
        for _ in range(count // VERIFY_BATCH):
            mq.send_batch("backlog", bodies)
        for turn in range(2 * VERIFY_ROUNDS):
            verify = turn % 2 == 0
            times[verify].append(_read_backlog(mq, count, verify=verify))
    costs = [with_it - without for with_it, without in zip(times[True], times[False], strict=True)]
    return {"with": median(times[True]), "without": median(times[False]), "cost": median(costs)}


def _read_backlog(mq: shmq.Connection, count: int, *, verify: bool) -> float:
    """Nanoseconds of processor time a message, behind the first: what else the machine does takes none of it."""
    with mq.subscribe("backlog", model="broadcasting", start="begin", verify=verify) as consumer:
        messages = iter(consumer)
        next(messages)
        began = time.thread_time_ns()
        for _ in zip(range(count - 1), messages, strict=False):
            pass
        return (time.thread_time_ns() - began) / (count - 1)
