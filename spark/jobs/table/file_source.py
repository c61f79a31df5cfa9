"""The stream `shmq_archive`: its tasks write the messages to files and yield one entry a file as JSON.

It is the stream of `shmq` in everything else: offsets, limits, planning, leases. It exists for the archive job alone:
a query that counts its rows would write files without a commit.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pyarrow
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from shmq.spark.access.broker import Reading
from shmq.spark.jobs.table.file import Layout, layout_of, write_ranges
from shmq.spark.options import parse_options
from shmq.spark.scan.reader import RangesPartition
from shmq.spark.scan.stream import ShmqStreamReader

_LAYOUT = "layout"
_SCHEMA = pyarrow.schema([("entry", pyarrow.string())])


class ArchiveDataSource(DataSource):
    """The source that the archive job registers in its session."""

    @classmethod
    def name(cls) -> str:
        """Return the name for `format()`."""
        return "shmq_archive"

    def schema(self) -> str:
        """Return the one column it has."""
        return "entry string"

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """Return the reader of a streaming query.

        Raises:
            UsageError: the options are not possible.
        """
        given = {name: value for name, value in self.options.items() if name != _LAYOUT}
        layout = layout_of(self.options[_LAYOUT])
        return ArchiveStreamReader(Reading(parse_options(given, stream=True), layout.read_columns), layout)


class ArchiveStreamReader(ShmqStreamReader):
    """Plans as the source does; `read` writes."""

    def __init__(self, reading: Reading, layout: Layout) -> None:
        super().__init__(reading.options, reading.columns)
        self._layout = layout

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """Write one partition and yield its entries.

        Raises:
            ShmqError: what was planned cannot be read any more.
        """
        if not isinstance(partition, RangesPartition):
            return
        for entry in write_ranges(self._reading, partition.ranges, partition.lease, partition.where, self._layout):
            yield pyarrow.record_batch([pyarrow.array([json.dumps(entry.to_json())])], schema=_SCHEMA)
