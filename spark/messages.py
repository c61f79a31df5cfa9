"""Owns reading the ranges of one partition: units and records become record batches, in queue order.

It does not know how the ranges were chosen. It runs in executors, where a broker may restart, retention may pass, or a
topic may be deleted at any moment: each of them is an error that names the place, or with failOnDataLoss=false a gap
that is counted in a warning.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from shmq.errors import OffsetOutOfRange, ShmqError, TopicNotFound
from shmq.shm.lease import renew_lease
from shmq.spark.attach import Attachment, Queue, attach
from shmq.spark.batches import column_numbers, import_batch, inflated
from shmq.spark.options import Options
from shmq.spark.ranges import Range, data_loss, still_there


@dataclass(frozen=True)
class Reading:
    """What one task needs to know; plain data."""

    options: Options
    columns: tuple[str, ...]


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


def read_ranges(reading: Reading, ranges: Sequence[Range], lease: str | None = None) -> Iterator[Any]:
    """Yield record batches of the ranges, one after the other.

    Args:
        lease: what to renew as long as this goes on.

    Raises:
        ShmqError: what was planned cannot be read any more; the text says which queue and offset, and why.
    """
    attachment = attach(reading.options.store)
    renewal = _Renewal(lease, reading.options.lease_seconds)
    for each in ranges:
        renewal.look()
        try:
            queue = still_there(attachment, each)
        except ShmqError as error:
            if reading.options.fail_on_data_loss:
                raise
            data_loss(reading.options, str(error), each.count)
            continue
        for batch in _read_range(reading, attachment, queue, each):
            yield batch
            renewal.look()


def _read_range(reading: Reading, attachment: Attachment, queue: Queue, wanted: Range) -> Iterator[Any]:
    options, numbers = reading.options, column_numbers(reading.columns)
    at = wanted.start
    limits: dict[str, Any] = {} if options.end_ms is None else {"ms_end": options.end_ms}
    while at < wanted.end:
        try:
            following, rows, _, packed, array = attachment.store.columns(
                queue.index,
                queue.queue_id,
                at,
                wanted.end,
                numbers,
                wanted.topic,
                attachment.broker,
                rows_max=options.batch_rows,
                bytes_max=options.batch_bytes,
                tags=options.tags or None,
                ms_begin=options.start_ms or 0,
                verify=options.verify_crc,
                **limits,
            )
        except (OffsetOutOfRange, TopicNotFound) as error:
            at = _after_loss(options, attachment, queue, wanted, at, error)
            continue
        at = following
        if rows:
            yield from inflated(import_batch(numbers, array), packed, bytes_max=options.batch_bytes)


def _after_loss(
    options: Options, attachment: Attachment, queue: Queue, wanted: Range, at: int, error: ShmqError
) -> int:
    """Where reading goes on after messages were lost, if it may."""
    first = attachment.store.queue(queue.index)[0]
    following = min(first, wanted.end) if at < first else wanted.end
    data_loss(options, f"topic {wanted.topic}, {error}", following - at)
    return following
