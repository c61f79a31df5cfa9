"""One metric: its name, kind, unit, labels, meaning and source; and the bounds of histograms.

Latencies are counted in nanoseconds; `scale` converts them to the unit in the metric's name.
"""

from __future__ import annotations

from dataclasses import dataclass

COUNTER, GAUGE, HISTOGRAM, INFO = "counter", "gauge", "histogram", "info"

# Words between the daemon's processes and here that are no metrics of their own.
CLUSTER = "shmq_cluster"  # its label says the name
DISPATCHED = "shmq_dispatched_position"  # units and keys below this log position are in their files

BEAT = "shmq_beat"  # monotonic time of a process' last sign of life, ns
# Families that a part of the keeper counts and the catalogue describes.
SCRUB_BYTES = "shmq_scrub_checked_bytes"
SCRUB_DAMAGES = "shmq_scrub_damages"
SCRUB_REPAIRS = "shmq_scrub_repairs"

MICROSECOND, MILLISECOND, SECOND = 1000, 1_000_000, 1_000_000_000

# RocketMQ's own bounds, of the bytes of a record and of rpc latency.
SIZE_BOUNDS = (1 << 10, 4 << 10, 512 << 10, 1 << 20, 2 << 20, 4 << 20)
RPC_BOUNDS = tuple(each * MILLISECOND for each in (1, 3, 5, 7, 10, 100, 1000, 2000, 3000))
FAST_BOUNDS = tuple(
    each * MICROSECOND
    for each in (5, 10, 25, 50, 100, 250, 500, 1000, 2500, 5000, 10_000, 25_000, 50_000, 100_000, 250_000, 1_000_000)
)
_DISK_MICROSECONDS = (50, 100, 250, 500, 1000, 2500, 5000, 10_000, 25_000, 50_000, 100_000, 250_000, 500_000)
DISK_BOUNDS = (*(each * MICROSECOND for each in _DISK_MICROSECONDS), *(each * SECOND for each in (1, 2, 5, 10)))


@dataclass(frozen=True, slots=True)
class Family:
    """One metric.

    Attributes:
        name: without the _total of a counter's samples.
        unit: of OpenMetrics, "" where there is none; the name ends with it.
        source: where the number is read, and which other tool says the same.
        bounds: of a histogram, in nanoseconds, or bytes where sizes are counted.
        scale: of a histogram, nanoseconds in one unit of its name; 1 for bytes.
    """

    name: str
    kind: str
    meaning: str
    source: str
    labels: tuple[str, ...] = ()
    unit: str = ""
    bounds: tuple[int, ...] = ()
    scale: int = 1

    @property
    def sample(self) -> str:
        """The name people query: of a counter with _total, of an info with _info."""
        return self.name + {COUNTER: "_total", INFO: "_info"}.get(self.kind, "")


KEEPER, BRIDGE = "counted by the keeper", "counted by the bridges"
