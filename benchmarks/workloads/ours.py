"""shmq's side of every workload: a private broker per run, then the measurements of `shmq.tools.measurement.bench`.

Every run has a broker of its own, on a fresh store with 1 GiB files and asynchronous flush, so no run pays for the
write-back of the one before. The pages of the first file are made present before the run (`populate_bytes`): a rival
that reuses one small buffer does not pay for fresh memory either.
"""

from __future__ import annotations

from shmq.testing import Broker
from shmq.tools.measurement import bench
from shmq.tools.measurement.bench_command import SUSTAINED_BROKER
from shmq.tools.measurement.sustained import sustained as sustained_run

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


def many_topics(effort: float) -> dict[str, float]:
    """Cost of a send spread over 10,000 topics, and the segment bytes each used queue takes."""
    with _broker() as broker:
        return bench.many_topics(broker.url, topics=max(100, int(10_000 * effort)))
