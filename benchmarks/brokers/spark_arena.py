"""One Spark and one broker full of messages, for all measurements that read with Spark.

Both are started when first needed and stay: a session takes seconds to start, and a gigabyte as long to produce.
Everything runs on `local[2]`.
"""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import Any

from benchmarks.brokers.spark_sources import Empty, ReadyMade
from shmq.testing import Broker

QUEUES = 4
TASKS = 4
TAG_EACH = 101  # one message in so many has the tag that is looked for; in every queue, as 4 does not divide it
POOL_BYTES = 1 << 22
BODY_STEP = 9_973  # odd and far from body sizes: neighbours have nothing in common
BATCHES_SKIPPED = 5
BATCH_TIMEOUT_S = 300.0


class Arena:
    """A session, a broker, and topics by body size."""

    def __init__(self) -> None:
        self._resources = contextlib.ExitStack()
        self._rows: dict[str, int] = {}

    def __enter__(self) -> Arena:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._resources.close()

    @cached_property
    def directory(self) -> Path:
        """A private directory, on the disk that TMPDIR chooses."""
        return Path(self._resources.enter_context(tempfile.TemporaryDirectory(prefix="shmq-spark-")))

    @cached_property
    def broker(self) -> Broker:
        """The broker all topics are in."""
        return self._resources.enter_context(Broker(small=False, populate_bytes=1 << 30))

    @cached_property
    def spark(self) -> Any:
        """The session, with shmq's source and the rivals registered; the process' own if it has one."""
        from pyspark.sql import SparkSession

        from shmq.spark.source import ShmqDataSource

        os.environ |= {"PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
        running = SparkSession.getActiveSession()
        session = running or (
            SparkSession.builder.master("local[2]")
            .appName("shmq-benchmarks")
            .config("spark.ui.enabled", "false")
            .config("spark.ui.showConsoleProgress", "false")
            .config("spark.driver.memory", "2g")
            .config("spark.driver.host", "127.0.0.1")
            .config("spark.driver.bindAddress", "127.0.0.1")
            .config("spark.sql.shuffle.partitions", "2")
            .getOrCreate()
        )
        if running is None:
            session.sparkContext.setLogLevel("OFF")
            self._resources.callback(session.stop)
        for source in (ShmqDataSource, ReadyMade, Empty):
            session.dataSource.register(source)
        return session

    def topic(self, body_bytes: int, rows: int) -> str:
        """Return a topic with so many messages, one in `TAG_EACH` tagged `rare`; produced once."""
        name = f"bodies-{body_bytes}-{rows}"
        if name not in self._rows:
            with self.broker.connect() as mq:
                mq.admin.create_topic(name, queues=QUEUES)
                pool = os.urandom(POOL_BYTES + body_bytes)  # no body comes twice, so no dictionary makes it short
                for row in range(rows):
                    at = row * BODY_STEP % POOL_BYTES
                    mq.send(name, pool[at : at + body_bytes], tag="common" if row % TAG_EACH else "rare")
            os.sync()  # or the disk is busy with them while the first is timed
            self._rows[name] = rows
        return name

    def load(self, topic: str, **options: Any) -> Any:
        """Return a DataFrame of a topic."""
        given = {"store": self.broker.url, "topic": topic, "minPartitions": TASKS, **options}
        return self.spark.read.format("shmq").options(**given).load()

    def ready_made(self, topic: str) -> Any:
        """Return a DataFrame of as many rows, in batches as shmq makes them of this topic, that are made already."""
        import pyarrow

        from shmq.spark.options import parse_options
        from shmq.spark.scan.reader import ShmqReader

        frame = self.load(topic)
        options = parse_options({"store": self.broker.url, "topic": topic})
        reader = ShmqReader(options, tuple(frame.columns))
        batch = next(iter(reader.read(reader.partitions()[0])))
        path = self.directory / f"{topic}.arrow"
        with pyarrow.ipc.new_file(path, batch.schema) as file:
            file.write_batch(batch)
        ddl = ", ".join(f"{field.name} {field.dataType.simpleString()}" for field in frame.schema.fields)
        given = {"path": str(path), "rows": self._rows[topic], "tasks": TASKS, "ddl": ddl}
        return self.spark.read.format("readymade").options(**given).load()

    def folder(self) -> contextlib.AbstractContextManager[str]:
        """Return an empty folder that is gone after the block."""
        return tempfile.TemporaryDirectory(dir=self.directory)

    def batch_ms(self, frame: Any, batches: int) -> float:
        """Run a streaming DataFrame into nothing; returns the median duration of a trigger that had a batch."""
        with self.folder() as checkpoint:
            query = frame.writeStream.format("noop").option("checkpointLocation", checkpoint).start()
            try:
                deadline = time.monotonic() + BATCH_TIMEOUT_S
                while (query.lastProgress or {}).get("batchId", -1) < BATCHES_SKIPPED + batches:
                    if query.exception() is not None or time.monotonic() > deadline:
                        raise RuntimeError(f"the query stopped early: {query.exception() or query.status}")
                    time.sleep(0.2)
                done = [each["durationMs"] for each in query.recentProgress if each["batchId"] >= BATCHES_SKIPPED]
            finally:
                query.stop()
        durations = sorted(float(each["triggerExecution"]) for each in done if "addBatch" in each)
        return durations[len(durations) // 2]


@contextlib.contextmanager
def repeating(work: Callable[[], object]) -> Iterator[None]:
    """Do something over and over in a thread, until the block ends; it is done once before the block begins."""
    import threading

    stop, failed = threading.Event(), []

    def loop() -> None:
        try:
            while not stop.is_set():
                work()
        except Exception as error:
            failed.append(error)

    work()
    thread = threading.Thread(target=loop)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
    if failed:
        raise failed[0]
