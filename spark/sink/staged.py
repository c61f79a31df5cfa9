"""Rows written once: a task stages them, and they count when its partition, or the whole batch, is committed.

`shmq.spark.sink.stager` stages the rows at the broker.

    idempotent      a unit is a partition: the task commits it. Tried again, its rows are compared and not stored again
    transactional   a unit is the batch: the driver commits it, with one marker; no part of it is seen before

Rules: (1) which attempt counts is decided by the broker: the first that is committed;
(2) a partition that was committed with other rows is an error and no silence: the query's plan is not repeatable;
(3) what failed is dropped at once if the broker can be reached; otherwise the broker drops it later.
"""

from __future__ import annotations

import contextlib
import logging
import secrets
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from shmq.errors import PermissionDenied, ShmqError
from shmq.protocol.route import DEFAULT_TOPIC
from shmq.protocol.staged_rows import CHECKSUM_MASK, WHOLE, StagedPart
from shmq.spark.schema import refused
from shmq.spark.sink.columns import rows_of
from shmq.spark.sink.options import IDEMPOTENT, SinkOptions
from shmq.spark.sink.stager import Committed, Stager, StagingBroker, Unit

if TYPE_CHECKING:
    from shmq import Connection

_PROBE: Final = Unit("probe", 0, WHOLE)
_log = logging.getLogger("shmq.spark")


@dataclass(frozen=True)
class Task:
    """The rows of one task: of a writer's batch, the partition."""

    writer: str
    batch: int
    partition: int


@dataclass(frozen=True)
class StagedRows:
    """The staged rows of a task; `is_there` when its unit was committed before. `topic` is one of those it wrote to."""

    task: Task
    attempt: str
    chunks: int
    rows: int
    checksum: int
    is_there: bool
    topic: str


def check_staging(reached: Connection, options: SinkOptions) -> None:
    """Check on the driver that the broker can stage rows, and that this batch is not over.

    Raises:
        UsageError: it cannot.
        TransactionError: the writer is farther already.
        PermissionDenied: the account may not write.
    """
    named = options.writer_id is not None and options.batch_id is not None and options.guarantee != IDEMPOTENT
    unit = Unit(options.writer_id or "", options.batch_id or 0, WHOLE) if named else _PROBE
    try:
        _broker(reached, options).state(unit)
    except PermissionDenied as error:
        cure = (
            "an account that may write it" if options.topic else "also option topic=…, one that the account may write"
        )
        raise PermissionDenied(f"option guarantee={options.guarantee}: {error}; give {cure}", hint=cure) from error


def stage_task(
    reached: Connection, options: SinkOptions, columns: tuple[str, ...], task: Task, batches: Iterator[Any]
) -> StagedRows:
    """Stage the rows of a task; of guarantee idempotent, commit them too.

    Raises:
        ShmqError: they could not be staged; Spark tries the task again.
        UsageError: the partition is there with other rows.
    """
    broker = _broker(reached, options)
    unit = Unit(task.writer, task.batch, task.partition if options.guarantee == IDEMPOTENT else WHOLE)
    attempt = secrets.token_hex(8)
    topic = options.topic or DEFAULT_TOPIC
    stager = Stager(broker, unit, task.partition, attempt, chunk_bytes=options.batch_bytes)
    try:
        for batch in batches:
            if stager.committed is not None and unit.unit == WHOLE:
                continue  # Spark wants its rows to be taken
            for topic, body, arguments in rows_of(batch, columns, options.topic):
                stager.add(topic, body, arguments)
        part = stager.finish()
        committed = stager.committed
        if unit.unit != WHOLE:
            committed = broker.commit(unit, [part], rows=stager.rows, checksum=stager.checksum)
            _check_same(task, committed, stager)
    except BaseException:
        with contextlib.suppress(ShmqError):
            stager.drop()
        raise
    is_there = committed is not None and unit.unit == WHOLE
    return StagedRows(task, attempt, part.chunks, stager.rows, stager.checksum, is_there, topic)


def commit_batch(reached: Connection, options: SinkOptions, staged: Sequence[StagedRows]) -> None:
    """Let the rows of a batch count; when this returns, all of them are visible.

    Raises:
        TransactionError: rows are not there any more; Spark has to write the batch again.
    """
    if options.guarantee == IDEMPOTENT or not staged:
        return
    task = staged[0].task
    parts = [StagedPart(each.task.partition, each.attempt, each.chunks) for each in staged if not each.is_there]
    rows = sum(each.rows for each in staged)
    checksum = sum(each.checksum for each in staged) & CHECKSUM_MASK
    unit = Unit(task.writer, task.batch, WHOLE)
    committed = _broker(reached, options, staged[0].topic).commit(unit, parts, rows=rows, checksum=checksum)
    _log.info("batch %d of writer %s: %d rows are visible", task.batch, task.writer, committed.rows)


def drop_batch(reached: Connection, options: SinkOptions, writer: str, batch: int, topic: str | None) -> None:
    """Drop what a batch staged, if the broker can be reached."""
    try:
        _broker(reached, options, topic).drop(Unit(writer, batch, WHOLE))
    except ShmqError as error:
        _log.warning("batch %d of writer %s is dropped later: %s", batch, writer, error)


def _broker(reached: Connection, options: SinkOptions, topic: str | None = None) -> StagingBroker:
    place = topic or options.topic or DEFAULT_TOPIC
    return StagingBroker(reached._wire, reached._queues, options.timeout_ms / 1000, topic=place)


def _check_same(task: Task, committed: Committed, stager: Stager) -> None:
    if (committed.rows, committed.checksum) != (stager.rows, stager.checksum):
        raise refused(
            f"partition {task.partition} of batch {task.batch} was written with {committed.rows} rows before, and has "
            f"{stager.rows} rows now that are not the same: the query does not give the same partitions twice",
            "use guarantee=transactional, which does not need that",
        )
