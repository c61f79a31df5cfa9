"""A batch query: its partitions, and reading one of them.

    driver      partitions()                        offsets are fixed, and divided
    executor    read(partition) ─▶ record batches   attaches by itself

`plan/` decides about offsets. Rules: (1) the reader and its partitions are plain data, because
Spark pickles them; (2) a partition without ranges yields nothing: Spark makes one up when there is nothing to read;
(3) a selection is given in options and never pushed down, because Spark 4.3 shares pushed filters between queries.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from pyspark.sql.datasource import DataSourceReader, InputPartition

from shmq.shm.core import UNIT_BYTES
from shmq.spark.access.broker import Access, Queue, Range, Reading, Where
from shmq.spark.access.loss import present
from shmq.spark.access.memory_limit import explained
from shmq.spark.access.segments import of_segments
from shmq.spark.access.way import open_access, reopen
from shmq.spark.options import QUEUE_VIEWS, Options
from shmq.spark.plan.keys import with_keys
from shmq.spark.plan.partitions import Sized, plan
from shmq.spark.plan.ranges import resolve
from shmq.spark.scan.frames import read_files, sealed_files
from shmq.spark.scan.messages import read_ranges
from shmq.spark.scan.tables import read_stream, table_stream

_SAMPLES = 8
_log = logging.getLogger("shmq.spark")


@dataclass
class RangesPartition(InputPartition):
    """Ranges of queues that one task reads, and the lease it renews meanwhile."""

    ranges: tuple[Range, ...]
    lease: str | None
    where: Where


@dataclass
class FilesPartition(InputPartition):
    """Whole log files that one task reads."""

    paths: tuple[str, ...]
    where: Where


@dataclass
class TablePartition(InputPartition):
    """A small view, made when it was planned: the executor may be on another host."""

    stream: bytes


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
        access = open_access(options)
        if options.view == "frames":
            attachment = of_segments(access, "frames")
            return [FilesPartition((path,), access.where) for path in sealed_files(attachment)]
        if options.view not in QUEUE_VIEWS:
            return [TablePartition(table_stream(self._reading, access))]
        ranges = resolve(access, options)
        if options.keys:
            ranges = with_keys(access, options, ranges)
        return list(planned(access, options, ranges))

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """Yield record batches of one partition.

        Raises:
            ShmqError: what was planned cannot be read any more.
        """
        if isinstance(partition, RangesPartition):
            return explained(read_ranges(self._reading, partition.ranges, partition.lease, partition.where))
        if isinstance(partition, FilesPartition):
            of_segments(reopen(partition.where), "frames")
            return explained(read_files(self._reading, partition.paths))
        if isinstance(partition, TablePartition):
            return read_stream(partition.stream)
        return iter(())


def planned(access: Access, options: Options, ranges: list[Range]) -> Iterator[RangesPartition]:
    """Yield the partitions of ranges, by about how many bytes they are."""
    pairs = list(present(access, options, ranges))
    sized = [Sized(each, _bytes_of(access, queue, each, options)) for queue, each in pairs]
    slots = options.parallelism or os.cpu_count() or 1
    lease = _lease(access, options, pairs)
    for part in plan(sized, bytes_max=options.partition_bytes_max, wanted=options.partition_min, slots=slots):
        yield RangesPartition(part, lease, access.where)


def _bytes_of(access: Access, queue: Queue, wanted: Range, options: Options) -> int:
    """About how many bytes a range is: a few of its units say what a record has."""
    if options.view.startswith("index"):
        return wanted.count * UNIT_BYTES
    sizes = [size for _, size in access.sample(queue, wanted.start, wanted.end, _SAMPLES)]
    return wanted.count * sum(sizes) // max(1, len(sizes))


def _lease(access: Access, options: Options, ranges: list[tuple[Queue, Range]]) -> str | None:
    """Keep retention from what was planned, until the tasks that read it renew the lease themselves."""
    if not ranges or not options.lease_seconds or not access.may_lease:
        return None
    first = [unit for queue, each in ranges for unit in access.units(queue, each.start, each.start + 1)]
    lease = access.lease(min(first)[0], options.lease_seconds) if first else None
    if lease is None:
        _log.warning("no lease at broker %s: retention may pass this read", access.broker)
    return lease
