"""The rivals of shmq's Spark source: what Spark does with batches that cost nothing to make.

`ReadyMade` yields one Arrow batch again and again, as often as shmq's source yields batches of the same size and
schema, from as many tasks; `Empty` is a stream with a new micro-batch whenever it is asked, and no rows in it. No
source in Python can be faster than these: they are the ceiling and the floor.

The classes are sent to Spark's workers by value: a worker must not find this folder, where the source folder `shmq/`
would hide the installed package.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

from pyspark import cloudpickle
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition

cloudpickle.register_pickle_by_value(sys.modules[__name__])


class Share(InputPartition):
    """How often one task yields the batch."""

    def __init__(self, times: int, rows_last: int) -> None:
        self.times = times
        self.rows_last = rows_last


class ReadyMade(DataSource):
    """A batch from an Arrow file, `rows` rows of it in all, in `tasks` tasks."""

    @classmethod
    def name(cls) -> str:
        """Return what `format()` is given."""
        return "readymade"

    def schema(self) -> Any:
        """Return the schema that the options say."""
        return self.options["ddl"]

    def reader(self, schema: Any) -> DataSourceReader:
        """Return the reader of what the options say."""
        return _ReadyMadeReader(self.options["path"], int(self.options["rows"]), int(self.options["tasks"]))


class _ReadyMadeReader(DataSourceReader):
    def __init__(self, path: str, rows: int, tasks: int) -> None:
        self._path, self._rows, self._tasks = path, rows, tasks

    def partitions(self) -> list[InputPartition]:
        size = self._batch().num_rows
        shares: list[InputPartition] = []
        for task in range(self._tasks):
            rows = self._rows * (task + 1) // self._tasks - self._rows * task // self._tasks
            shares.append(Share(rows // size, rows % size))
        return shares

    def read(self, partition: Any) -> Iterator[Any]:
        batch = self._batch()
        for _ in range(partition.times):
            yield batch
        if partition.rows_last:
            yield batch.slice(0, partition.rows_last)

    def _batch(self) -> Any:
        import pyarrow

        with pyarrow.memory_map(self._path) as file:
            return pyarrow.ipc.open_file(file).get_batch(0)


class Empty(DataSource):
    """A stream of micro-batches without rows."""

    @classmethod
    def name(cls) -> str:
        """Return what `format()` is given."""
        return "empty"

    def schema(self) -> Any:
        """Return the schema that the options say."""
        return self.options["ddl"]

    def streamReader(self, schema: Any) -> DataSourceStreamReader:
        """Return a reader with something new whenever it is asked."""
        return _EmptyReader()


class _EmptyReader(DataSourceStreamReader):
    def initialOffset(self) -> dict[str, Any]:
        return {"batch": 0}

    def latestOffset(self, start: Any = None, limit: Any = None) -> dict[str, Any]:
        return {"batch": (start or {"batch": 0})["batch"] + 1}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        return [InputPartition(None)]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        return iter(())

    def commit(self, end: dict[str, Any]) -> None:
        """Nothing depends on it."""
