"""The data source `shmq`, which Spark finds first.

It imports nothing but Spark's base class until it is asked for something. Spark imports the sources of all packages
when a session starts, and one that cannot be imported (no C core for this Python) would take the others with it.
"""

from __future__ import annotations

import logging

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.types import StructType

_log = logging.getLogger("shmq.spark")


class ShmqDataSource(DataSource):
    """Topics of a broker: `spark.read.format("shmq").option("topic", "orders").load()`, and `df.write` into them."""

    @classmethod
    def name(cls) -> str:
        """Return the name for `format()`."""
        return "shmq"

    def schema(self) -> str:
        """Return what a load has when the user gives no schema.

        Raises:
            UsageError: the options are not possible.
        """
        from shmq.spark.options import parse_options
        from shmq.spark.schema import default_columns

        options = parse_options(self.options)
        return default_columns(options.view, include_properties=options.include_properties)

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the reader of a batch query.

        Raises:
            UsageError: the options are not possible, or the schema asks for what the view has not.
        """
        from shmq.spark.options import ignored_in_batch, parse_options
        from shmq.spark.scan.reader import ShmqReader
        from shmq.spark.schema import projected

        options = parse_options(self.options)
        for name in ignored_in_batch(self.options):
            _log.warning("option %s is for streams: a batch reads all there is at once and tells no group", name)
        columns = tuple(projected(options.view, schema))
        if options.pushdown:
            from shmq.spark.scan.pushdown import PushingReader

            return PushingReader(options, columns)
        return ShmqReader(options, columns)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """Return the reader of a streaming query.

        Raises:
            UsageError: the options are not possible, or the schema asks for what the view has not.
        """
        from shmq.spark.options import parse_options
        from shmq.spark.scan.stream import ShmqStreamReader
        from shmq.spark.schema import projected

        options = parse_options(self.options, stream=True)
        return ShmqStreamReader(options, tuple(projected(options.view, schema)))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """Return the writer of a batch query.

        Raises:
            UsageError: the options, the schema or the mode are not possible.
            ConnectError: the broker is not there, or not for this user.
        """
        from shmq.spark.sink.options import parse_sink_options
        from shmq.spark.sink.writer import ShmqWriter, checked_writing

        return ShmqWriter(checked_writing(parse_sink_options(self.options), schema, overwrite=overwrite))

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        """Return the writer of one micro-batch.

        Raises:
            UsageError: the options, the schema or the output mode are not possible.
            ConnectError: the broker is not there, or not for this user.
        """
        from shmq.spark.sink.options import parse_sink_options
        from shmq.spark.sink.writer import ShmqStreamWriter, checked_writing

        options = parse_sink_options(self.options, stream=True)
        return ShmqStreamWriter(checked_writing(options, schema, overwrite=overwrite))
