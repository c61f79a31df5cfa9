"""The writer that Spark calls: checks on the driver, tasks, and the end of a batch.

    driver      writer(schema, overwrite)      options, columns and the broker are looked at here
    executor    write(record batches)          one task: sends or stages, and waits for every acknowledgement
    driver      commit(messages) | abort       what the guarantee asks for at the end

`plain` sends rows for at_least_once, `staged` for guarantees that write once.

Rules: (1) a task ends only when the broker has acknowledged all of its rows;
(2) objects are plain data, because Spark pickles them; connections belong to the process that made them;
(3) commit runs in an object that has seen no task, so the messages say all it needs.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from shmq.spark.access.memory_limit import memory_explained
from shmq.spark.schema import refused
from shmq.spark.sink.columns import column_names
from shmq.spark.sink.connection import Way, connection, find_broker
from shmq.spark.sink.options import AT_LEAST_ONCE, SinkOptions
from shmq.spark.sink.plain import send_all
from shmq.spark.sink.staged import StagedRows, Task, check_staging, commit_batch, drop_batch, stage_task

_QUERY: Final = "sql.streaming.queryId"  # Spark's own names of what a task is part of
_BATCH: Final = "streaming.sql.batchId"
_WRITER_ID_BYTES: Final = 16
_log = logging.getLogger("shmq.spark")


@dataclass
class Written(WriterCommitMessage):
    """One task's report: number of rows, over what, the lowest and highest offset of each queue, or what it staged."""

    rows: int
    via: str
    offsets: dict[tuple[str, int], tuple[int, int]] = field(default_factory=dict)
    staged: StagedRows | None = None


@dataclass(frozen=True)
class Writing:
    """The order for all tasks of a write."""

    options: SinkOptions
    columns: tuple[str, ...]
    way: Way


def checked_writing(options: SinkOptions, schema: StructType, *, overwrite: bool) -> Writing:
    """Check on the driver what a task would stumble over.

    Raises:
        UsageError: the schema or the mode is not possible.
        ConnectError: the broker is not there, or not for this user.
    """
    if overwrite:
        raise refused("a topic cannot be overwritten", 'use mode("append")')
    named = {"keyColumn": options.key_column, "orderBy": options.order_by}
    columns = column_names(schema, has_topic=options.topic is not None, named=named)
    reached, way = find_broker(options)
    if options.topic is not None:
        reached._queues().write_queues(options.topic)
    if options.guarantee != AT_LEAST_ONCE:
        check_staging(reached, options)
    return Writing(options, columns, way)


class ShmqWriter(DataSourceArrowWriter):
    """A batch query's writer; tasks and commit have copies of one object."""

    def __init__(self, writing: Writing) -> None:
        self._writing = writing
        self._writer = writing.options.writer_id or os.urandom(_WRITER_ID_BYTES).hex()

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        """Write what one task has.

        Raises:
            ShmqError: a row could not be stored; the task is tried again by Spark.
        """
        return written(self._writing, self._writer, self._writing.options.batch_id or 0, iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Let the rows count that have waited for it.

        Raises:
            ShmqError: they do not.
        """
        committed(self._writing, messages)

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Forget what was staged."""
        dropped(self._writing, self._writer, self._writing.options.batch_id or 0, messages)


class ShmqStreamWriter(DataSourceStreamArrowWriter):
    """A streaming query's writer; Spark makes a new one for each micro-batch, and another one for its commit."""

    def __init__(self, writing: Writing) -> None:
        self._writing = writing

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        """Write what one task of a micro-batch has.

        Raises:
            ShmqError: a row could not be stored; the task is tried again by Spark.
        """
        context = TaskContext.get()
        assert context is not None
        writer = self._writing.options.writer_id or context.getLocalProperty(_QUERY) or ""
        return written(self._writing, writer, int(context.getLocalProperty(_BATCH) or 0), iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """Let the rows of a micro-batch count that have waited for it.

        Raises:
            ShmqError: they do not; the query fails, and writes the batch again when it is started again.
        """
        committed(self._writing, messages)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """Forget what was staged."""
        dropped(self._writing, self._writing.options.writer_id, batchId, messages)


def written(writing: Writing, writer: str, batch: int, batches: Iterator[Any]) -> Written:
    """Write the rows of the task that runs here."""
    with memory_explained():
        return _written(writing, writer, batch, batches)


def _written(writing: Writing, writer: str, batch: int, batches: Iterator[Any]) -> Written:
    options = writing.options
    reached = connection(writing.way)
    via = "tcp" if reached.is_remote else "shm"
    if options.guarantee == AT_LEAST_ONCE:
        sent = send_all(reached, options, writing.columns, batches)
        return Written(sent.rows, via, sent.offsets)
    context = TaskContext.get()
    task = Task(writer, batch, context.partitionId() if context is not None else 0)
    staged = stage_task(reached, options, writing.columns, task, batches)
    return Written(staged.rows, via, staged=staged)


def committed(writing: Writing, messages: Sequence[WriterCommitMessage | None]) -> None:
    """End a batch whose tasks have all ended well."""
    done = [message for message in messages if isinstance(message, Written)]
    staged = [message.staged for message in done if message.staged is not None]
    if staged:
        commit_batch(connection(writing.way), writing.options, staged)
    _log.info("%d rows written by %d tasks: %s", sum(each.rows for each in done), len(done), done)


def dropped(writing: Writing, writer: str | None, batch: int, messages: Sequence[WriterCommitMessage | None]) -> None:
    """End a batch that failed."""
    staged = [message.staged for message in messages if isinstance(message, Written) and message.staged is not None]
    writer = staged[0].task.writer if staged else writer
    if writing.options.guarantee != AT_LEAST_ONCE and writer is not None:
        topic = staged[0].topic if staged else None
        drop_batch(connection(writing.way), writing.options, writer, batch, topic)
