"""What the keeper counts: how long units wait for their files, how far these are, how long records are, and what the
last recovery found.

The flusher counts its flushes by itself.

    round   ├─ log end E read ── units written ─┤      units below E waited since the round before began, at the longest
"""

import time

from shmq.metrics.family import BEAT, CLUSTER, DISK_BOUNDS, DISPATCHED, SIZE_BOUNDS
from shmq.options.broker import Options
from shmq.shm.core import unit_sizes
from shmq.shm.counters import Counters, Histogram
from shmq.store.recovery import RecoveryReport

SIZES = "rocketmq_message_size"


class KeeperFigures:
    """Counts for one keeper."""

    def __init__(self, counters: Counters, options: Options, report: RecoveryReport | None) -> None:
        self._counters = counters
        self._sizes: dict[str, Histogram] = {}
        self._latency = counters.histogram("shmq_dispatch_latency_seconds", DISK_BOUNDS)
        self._position = counters.counter(DISPATCHED)
        self._beat = counters.counter(BEAT)
        counters.counter(CLUSTER, cluster=options.cluster).set(1)
        self._dispatched = 0
        self._seen_end: int | None = None
        self._since: float | None = None
        if report is not None:
            counters.counter("shmq_recovery_time_seconds").set(int(time.time()))
            counters.counter("shmq_recovery_messages").set(report.records)
            counters.counter("shmq_recovery_damages").set(len(report.damages))

    def beat(self) -> None:
        """Give a sign of life."""
        self._beat.set(time.monotonic_ns())

    def dispatched(self, began: float, log_end: int, *, is_complete: bool) -> None:
        """Note a round that began at that monotonic time and saw that log end; complete: all units are in files."""
        if is_complete:
            if self._seen_end is not None and log_end != self._dispatched:
                waited_since = began if self._since is None else self._since
                self._latency.observe(int((time.monotonic() - waited_since) * 1e9))
            self._dispatched = self._seen_end = log_end
            self._since = began
        elif self._seen_end is None:
            self._seen_end = log_end

    def stored(self, topic: str, units: bytes) -> None:
        """Note records whose units are in their files now."""
        words = self._sizes.get(topic)
        if words is None:
            words = self._sizes[topic] = self._counters.histogram(SIZES, SIZE_BOUNDS, topic=topic)
        words.merge(unit_sizes(units, SIZE_BOUNDS))

    def indexed(self, log_position: int) -> None:
        """Note how far the key index is; what is dispatched is both."""
        self._position.set(min(self._dispatched, log_position))
