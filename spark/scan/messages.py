"""The ranges of one partition read one after the other, in an executor.

There a broker may restart, retention may pass, or a topic may be deleted at any moment: each of these is an error that
names the place, or with failOnDataLoss=false a gap that a warning counts.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from shmq.columns.memory_limit import OutOfRoom
from shmq.errors import TopicNotFound
from shmq.shm.lease import renew_lease
from shmq.spark.access.broker import Access, Range, Reading, Where
from shmq.spark.access.loss import data_loss
from shmq.spark.access.way import open_access, reopen
from shmq.spark.options import AUTO, REMOTE
from shmq.spark.scan.statistics import INDEX_STATS, summed

__all__ = ["Reading", "read_ranges"]
_log = logging.getLogger("shmq.spark")


class _Renewal:
    """Renews the lease of a read while its batches are made."""

    def __init__(self, lease: str | None, seconds: float) -> None:
        self._lease = lease
        self._seconds = seconds
        self._at = 0.0

    def look(self) -> None:
        """Renew when a quarter of the time is over."""
        now = time.monotonic()
        if self._lease is not None and now >= self._at:
            renew_lease(self._lease, self._seconds)
            self._at = now + self._seconds / 4


def read_ranges(
    reading: Reading, ranges: Sequence[Range], lease: str | None = None, where: Where | None = None
) -> Iterator[Any]:
    """Yield record batches of the ranges, one after the other.

    Args:
        lease: what to renew as long as this goes on.
        where: the broker the ranges were planned with; None looks for it as the options say.

    Raises:
        ShmqError: what was planned cannot be read any more; the text says which queue and offset, and why.
    """
    options = reading.options
    access = open_access(options) if where is None else reopen(where)
    renewal = _Renewal(lease, options.lease_seconds)
    for each in ranges:
        renewal.look()
        try:
            for batch in _read(access, reading, each, where or access.where):
                yield batch
                renewal.look()
        except TopicNotFound as error:
            data_loss(options, f"topic {each.topic}: {error}", each.count)


def _read(access: Access, reading: Reading, wanted: Range, where: Where) -> Iterator[Any]:
    """Yield the batches of a range; from where a log file does not fit into this worker, over TCP if that may be."""
    read = partial(summed, access) if reading.options.view == INDEX_STATS else access.read
    try:
        yield from read(reading, wanted)
    except OutOfRoom as error:
        if where.access != AUTO or where.remote is None:
            raise
        _log.warning("%s: reading on over TCP, from offset %d of topic %s", error, error.offset, wanted.topic)
        elsewhere = replace(where, access=REMOTE)
        yield from _read(reopen(elsewhere), reading, replace(wanted, start=error.offset), elsewhere)
