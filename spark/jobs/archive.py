"""The archive job: topics to a Delta table, every message once, whatever is killed.

    driver      batch N = offset ranges, in Spark's checkpoint before anything is read
    executors   read the ranges, write files under hidden names, answer one entry a file
    driver      entries ─▶ one atomic step of the table                    ← in, or not, nothing between

Executors write Parquet where they read, three times as fast as through Spark's sink; the driver puts a batch in by one
Delta commit. Why no message is lost: a batch is the same after every restart, and the table takes it whole. Why none is
doubled: the table knows each queue's end; what it has already is not taken again, with the same checkpoint or another
one. What a kill leaves is files of no table, removed by VACUUM.

    python -m shmq.spark.jobs.archive --topic orders --to /data/orders        the same as shmq spark archive …
"""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from shmq.errors import ShmqError
from shmq.spark.access.broker import Access
from shmq.spark.access.way import open_access
from shmq.spark.jobs.driver.failure import failure_of
from shmq.spark.jobs.table.delta import DeltaArchive
from shmq.spark.jobs.table.entry import QueueKey, entries_of
from shmq.spark.jobs.table.file import PARTITION_COLUMNS, Layout
from shmq.spark.jobs.table.table import Commit, Ends, accepted, local_root
from shmq.spark.options import Options, parse_options
from shmq.spark.plan.ranges import chosen_queues
from shmq.spark.schema import column_kinds, refused

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

COLUMNS: Final = (
    "topic", "broker", "queue_id", "queue_offset", "commitlog_offset", "msg_id", "uniq_key", "keys", "tags", "body",
    "body_crc", "properties", "flag", "sys_flag", "born_timestamp", "store_timestamp", "born_host", "store_host",
    "reconsume_times",
)  # fmt: skip
"""The columns archived by default: all that a replay or an audit can want."""
COMPRESSIONS: Final = ("zstd", "snappy", "lz4", "gzip", "none")
_BATCH_BYTES: Final = "4g"
_STARTS: Final = ("startingoffsets", "startingtimestamp", "startingoffsetsbytimestampstrategy")
_LIMITS: Final = ("maxOffsetsPerTrigger", "maxBytesPerTrigger")
_BACKOFF_SECONDS: Final = 0.5
_BACKOFF_SECONDS_MAX: Final = 30.0
_STEPS_MAX: Final = 1000  # batches that the report names, the newest: a run may last for months
Talk = Callable[[str], None]


@dataclass(frozen=True)
class ArchiveSettings:
    """The settings of one run of the job. `source` are options of the source: store, topic, tags, failOnDataLoss …"""

    path: str
    source: Mapping[str, str]
    columns: tuple[str, ...] = COLUMNS
    partition_by: tuple[str, ...] = ("topic", "date")
    file_bytes: int = 256 << 20
    row_group_bytes: int = 32 << 20
    compression: str = "zstd"
    checkpoint: str | None = None  # None: inside the archive
    every_seconds: float | None = None  # None: what is there now, then end
    run_seconds: float | None = None  # of a continuous run
    attempts: int = 5  # without progress between them

    def options(self) -> Options:
        """Return the checked options of the source.

        Raises:
            UsageError: something that cannot be.
        """
        for name, value, known in (
            ("compression", self.compression, COMPRESSIONS),
            *(("partition", each, PARTITION_COLUMNS) for each in self.partition_by),
            *(("column", each, tuple(column_kinds("messages"))) for each in self.columns),
        ):
            if value not in known:
                raise refused(f"there is no {name} {value}", f"take {', '.join(known)}")
        if not set(self.columns) - set(self.partition_by):
            raise refused("no column is left for the files", "name more columns, or fewer partitions")
        return parse_options(self.given(), stream=True)

    def given(self) -> dict[str, str]:
        """Return the options for Spark, with a limit on what one batch holds."""
        found = {name: str(value) for name, value in self.source.items()}
        if not {name.lower() for name in found} & {name.lower() for name in _LIMITS}:
            found["maxBytesPerTrigger"] = _BATCH_BYTES
        return found

    def layout(self, broker: str) -> Layout:
        """Return how executors write what is of a broker."""
        return Layout(
            root=str(local_root(self.path)),
            broker=broker,
            columns=self.columns,
            partition_by=self.partition_by,
            file_bytes=self.file_bytes,
            row_group_bytes=self.row_group_bytes,
            compression=self.compression,
        )

    def archive(self) -> DeltaArchive:
        """Return the archive as it is; nothing is made for it.

        Raises:
            UsageError: it is not on a file system, or something else is there.
        """
        return DeltaArchive(local_root(self.path), self.columns, self.partition_by)


@dataclass
class _Run:
    """The state of a run."""

    table: DeltaArchive
    settings: ArchiveSettings
    told: Talk
    started: float = field(default_factory=time.monotonic)
    batches: int = 0
    files: int = 0
    rows: int = 0
    body_bytes: int = 0
    file_bytes: int = 0
    restarts: int = 0
    gaps: list[dict[str, Any]] = field(default_factory=list)
    steps: deque[dict[str, Any]] = field(default_factory=lambda: deque(maxlen=_STEPS_MAX))
    error: BaseException | None = None

    def take(self, frame: DataFrame, batch: int) -> None:
        """Put one batch in: Spark calls it with the entries as rows, which makes the executors write."""
        try:
            self._take(frame, batch)
        except BaseException as error:
            self.error = error  # Spark passes on its text only
            raise

    def _take(self, frame: DataFrame, batch: int) -> None:
        begun = time.monotonic()
        query = frame.sparkSession.sparkContext.getLocalProperty("sql.streaming.queryId") or ""
        if self.table.holds(query, batch):
            return  # killed between our commit and Spark's
        entries = entries_of(row.entry for row in frame.collect())
        may_lose = not self.settings.options().fail_on_data_loss
        new, known, gaps = accepted(entries, self.table.end_of, may_lose=may_lose)
        for entry in known:
            if entry.path:
                with contextlib.suppress(OSError):
                    (local_root(self.settings.path) / entry.path).unlink()
        if new:
            self.table.commit(Commit(query, batch, tuple(new), tuple(gaps)))
        rows, stored = sum(entry.rows for entry in new), sum(entry.file_bytes for entry in new)
        self.batches, self.rows, self.file_bytes = self.batches + 1, self.rows + rows, self.file_bytes + stored
        self.files += sum(1 for entry in new if entry.path)
        self.body_bytes += sum(entry.body_bytes for entry in new)
        self.gaps += [{"queue": str(gap.key), "start": gap.start, "end": gap.end} for gap in gaps]
        seconds = time.monotonic() - begun
        at = {"at_seconds": round(time.monotonic() - self.started, 3), "seconds": round(seconds, 3)}
        self.steps.append({"batch": batch, "messages": rows, "file_bytes": stored, **at})
        self.told(f"batch {batch}: {rows:,} messages in {len(new)} files, {stored / 1e6:.1f} MB, {seconds:.1f} s")


def run_archive(
    spark: SparkSession,
    settings: ArchiveSettings,
    *,
    told: Talk = lambda text: None,
    stop: threading.Event | None = None,
) -> dict[str, Any]:
    """Archive what is there, or what comes until `stop` is set, and return the report.

    Raises:
        UsageError: settings that cannot be, or a checkpoint that does not fit the archive.
        OffsetOutOfRange: messages are gone that were not archived.
        StoreError: the archive cannot be written, or another job writes it.
        ShmqError: the query failed `attempts` times without getting on.
    """
    from shmq.spark.jobs.table.file_source import ArchiveDataSource

    options = settings.options()
    access = open_access(options)
    spark.dataSource.register(ArchiveDataSource)
    ended = stop or threading.Event()
    table = settings.archive()
    table.create()
    run = _Run(table, settings, told)
    until = None if settings.run_seconds is None else time.monotonic() + settings.run_seconds
    failures, rows = 0, 0
    while True:
        try:
            _query(spark, settings, run, ended, until)
            break
        except Exception as error:
            failures, rows = (failures + 1 if run.rows == rows else 1), run.rows
            wait = _next_attempt(settings, run, error, failures)
            told(f"the query failed and is started again: {str(error).splitlines()[0]}")
            run.restarts += 1
            if ended.wait(wait):
                break
    return _report(settings, access, run)


def _next_attempt(settings: ArchiveSettings, run: _Run, error: Exception, failures: int) -> float:
    """How long to wait before the query is started again, if that may help.

    Raises:
        ShmqError: it would not.
    """
    cause = run.error if isinstance(run.error, ShmqError) else failure_of(error)
    run.error = None
    if failures >= settings.attempts or (isinstance(cause, ShmqError) and not cause.retryable):
        if isinstance(cause, ShmqError):
            raise cause from error
        raise ShmqError(
            f"the query failed {failures} times without getting on: {str(error).splitlines()[0]}",
            hint="SHMQ_SPARK_LOG_LEVEL=WARN shows what Spark says; run it again to go on",
        ) from error
    return min(_BACKOFF_SECONDS * 2.0 ** (failures - 1), _BACKOFF_SECONDS_MAX)


def _query(
    spark: SparkSession, settings: ArchiveSettings, run: _Run, ended: threading.Event, until: float | None
) -> None:
    """Run one streaming query until it ends, fails or is stopped."""
    checkpoint = Path(settings.checkpoint or local_root(settings.path) / "_checkpoint")
    start = _start(settings, run.table)
    given = {
        name: value for name, value in settings.given().items() if not start or name.lower() not in _STARTS
    } | start
    reader = spark.readStream.format("shmq_archive").options(**given)
    frame = reader.option("layout", json.dumps(asdict(settings.layout(open_access(settings.options()).broker)))).load()
    writer = frame.writeStream.foreachBatch(run.take).option("checkpointLocation", str(checkpoint))
    if settings.every_seconds is None:
        writer = writer.trigger(availableNow=True)
    else:
        writer = writer.trigger(processingTime=f"{round(settings.every_seconds * 1000)} milliseconds")
    query = writer.queryName("shmq-archive").start()
    try:
        while not query.awaitTermination(1):
            if ended.is_set() or (until is not None and time.monotonic() >= until):
                query.stop()
                return
    except BaseException:
        with contextlib.suppress(Exception):
            query.stop()
        raise


def _start(settings: ArchiveSettings, table: DeltaArchive) -> dict[str, str]:
    """Where a query begins whose checkpoint holds no batch: where the archive ends, else at the first message.

    It is said always, because a directory does not tell whether the query that made it got as far as a batch.
    """
    options = settings.options()
    access = open_access(options)
    offsets: dict[str, dict[str, int]] = {}
    for queue in chosen_queues(access, options):
        end = table.end_of(QueueKey(queue.topic, access.broker, queue.queue_id, queue.born_position))
        if end is not None:
            offsets.setdefault(queue.topic, {})[str(queue.queue_id)] = end
    if offsets:  # a queue that is not named begins at its first message
        return {"startingOffsets": json.dumps(offsets)}
    said = {name.lower() for name in settings.source} & set(_STARTS)
    return {} if said else {"startingOffsets": "earliest"}


def _report(settings: ArchiveSettings, access: Access, run: _Run) -> dict[str, Any]:
    seconds = time.monotonic() - run.started
    return {
        "job": "archive",
        "path": str(local_root(settings.path)),
        "dry_run": False,
        "batches": run.batches,
        "files": run.files,
        "messages": run.rows,
        "body_bytes": run.body_bytes,
        "file_bytes": run.file_bytes,
        "restarts": run.restarts,
        "gaps": run.gaps,
        "seconds": round(seconds, 3),
        "queues": queue_rows(access, settings.options(), run.table.end_of),
        "steps": list(run.steps),
    }


def queue_rows(access: Access, options: Options, end_of: Ends) -> list[dict[str, Any]]:
    """Return how far each queue is in the archive, and how many messages it is behind."""
    rows = []
    for queue in chosen_queues(access, options):
        low, high = access.bounds(queue)
        end = end_of(QueueKey(queue.topic, access.broker, queue.queue_id, queue.born_position))
        rows.append(
            {
                "topic": queue.topic,
                "queue_id": queue.queue_id,
                "archived_until": end,
                "visible_until": high,
                "behind": high - (low if end is None else min(end, high)),
            }
        )
    return rows


def plan_archive(settings: ArchiveSettings) -> dict[str, Any]:
    """Return the report of what a run would do; nothing is written and no Spark is started.

    Raises:
        UsageError: settings that cannot be.
    """
    options = settings.options()
    access = open_access(options)
    rows = queue_rows(access, options, settings.archive().end_of)
    messages = sum(row["behind"] for row in rows)
    root = str(local_root(settings.path))
    return {"job": "archive", "path": root, "dry_run": True, "messages": messages, "queues": rows}


if __name__ == "__main__":
    from shmq.tools.start import run

    raise SystemExit(run("spark", "archive"))
