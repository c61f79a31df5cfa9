"""Owns a batch query: its partitions, and reading one of them.

    driver      partitions()                        offsets are fixed, and divided
    executor    read(partition) ─▶ record batches   attaches by itself

It does not decide anything about offsets or records. Rules: (1) the reader and its partitions are plain data, because
Spark pickles them; (2) a partition without ranges yields nothing: Spark makes one up when there is nothing to read;
(3) selection is said in options and never pushed down, because Spark 4.3 shares pushed filters between queries.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from pyspark.sql.datasource import DataSourceReader, InputPartition

from shmq.shm.core import UNIT_BYTES
from shmq.shm.lease import take_lease
from shmq.spark.attach import Attachment, Queue, attach
from shmq.spark.frames import read_files, sealed_files
from shmq.spark.messages import Reading, read_ranges
from shmq.spark.options import Options
from shmq.spark.plan import Sized, plan
from shmq.spark.ranges import Range, resolve, still_there
from shmq.spark.tables import read_table

_SAMPLES = 8
_log = logging.getLogger("shmq.spark")


@dataclass
class RangesPartition(InputPartition):
    """Ranges of queues that one task reads, and the lease it renews meanwhile."""

    ranges: tuple[Range, ...]
    lease: str | None


@dataclass
class FilesPartition(InputPartition):
    """Whole log files that one task reads."""

    paths: tuple[str, ...]


@dataclass
class TablePartition(InputPartition):
    """A small view that one task makes."""

    view: str


class ShmqReader(DataSourceReader):
    """Plans on the driver and reads in executors."""

    def __init__(self, options: Options, columns: tuple[str, ...]) -> None:
        self._reading = Reading(options, columns)

    def partitions(self) -> list[InputPartition]:
        """Fix what is read, and divide it.

        Raises:
            ShmqError: no broker, no such topic, offsets that are gone.
        """
        options = self._reading.options
        attachment = attach(options.store)
        if options.view == "frames":
            return [FilesPartition((path,)) for path in sealed_files(attachment)]
        if options.view not in ("messages", "index"):
            return [TablePartition(options.view)]
        ranges = resolve(attachment, options)
        return list(planned(attachment, options, ranges))

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """Yield record batches of one partition.

        Raises:
            ShmqError: what was planned cannot be read any more.
        """
        if isinstance(partition, RangesPartition):
            return read_ranges(self._reading, partition.ranges, partition.lease)
        if isinstance(partition, FilesPartition):
            return read_files(self._reading, partition.paths)
        if isinstance(partition, TablePartition):
            return read_table(self._reading)
        return iter(())


def planned(attachment: Attachment, options: Options, ranges: list[Range]) -> Iterator[RangesPartition]:
    """Yield the partitions of ranges, by about how many bytes they are."""
    sized = [Sized(each, _bytes_of(attachment, still_there(attachment, each), each, options)) for each in ranges]
    slots = options.parallelism or os.cpu_count() or 1
    lease = _lease(attachment, options, ranges)
    for part in plan(sized, bytes_max=options.partition_bytes_max, wanted=options.partition_min, slots=slots):
        yield RangesPartition(part, lease)


def _bytes_of(attachment: Attachment, queue: Queue, wanted: Range, options: Options) -> int:
    """About how many bytes a range is: a few of its units say what a record has."""
    if options.view == "index":
        return wanted.count * UNIT_BYTES
    step = max(1, wanted.count // _SAMPLES)
    sizes = []
    for offset in range(wanted.start, wanted.end, step):
        unit = attachment.store.units_stored(queue.index, offset, 1)
        sizes.append(int.from_bytes(unit[8:12], "big"))
    return wanted.count * sum(sizes) // max(1, len(sizes))


def _lease(attachment: Attachment, options: Options, ranges: list[Range]) -> str | None:
    """Keep retention from what was planned, until the tasks that read it renew the lease themselves."""
    if not ranges or not options.lease_seconds:
        return None
    lowest = min(_position_of(attachment, still_there(attachment, each), each.start) for each in ranges)
    path = take_lease(attachment.instance.store_path, lowest, options.lease_seconds)
    if path is None:
        _log.warning("no lease in %s: retention may pass this read", attachment.instance.store_path)
    return None if path is None else str(path)


def _position_of(attachment: Attachment, queue: Queue, offset: int) -> int:
    return int.from_bytes(attachment.store.units_stored(queue.index, offset, 1)[:8], "big")
