"""Makes Spark discover the source: it knows the `DefaultSource` of every `pyspark_*` package in every session.

It does nothing else, because an exception in one such package takes all Python sources of the session with it.
"""

from shmq.spark.source import ShmqDataSource as DefaultSource

__all__ = ["DefaultSource"]
