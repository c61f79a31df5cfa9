"""What tests have done on a driver of the cluster: a function takes the session and plain values, and returns such."""

from __future__ import annotations

from typing import Any


def totals(spark: Any, options: dict[str, str]) -> dict[str, Any]:
    """Read a topic, and return what must not depend on who reads it and where."""
    loaded = spark.read.format("shmq").options(**options).load()
    row = loaded.selectExpr(
        "count(*) AS rows",
        "count(distinct queue_id, queue_offset) AS places",
        "bit_xor(xxhash64(*)) AS content",
        "sum(length(body)) AS bytes",
    ).first()
    return {**row.asDict(), "partitions": loaded.rdd.getNumPartitions()}


def written(spark: Any, rows: int, parts: int, options: dict[str, str]) -> list[str]:
    """Write numbers out of so many partitions, and return the ways executors take to the same broker."""
    frame = spark.range(rows).repartition(parts).selectExpr("cast(id AS string) AS body")
    frame.write.format("shmq").options(**options).mode("append").save()

    from shmq.spark.sink.connection import find_broker
    from shmq.spark.sink.options import parse_sink_options

    way = find_broker(parse_sink_options(options))[1]

    def taken(_: object) -> str:
        import time

        from shmq.spark.sink.connection import connection

        time.sleep(0.5)  # not a wait: work, so that no executor takes the tasks of the others
        return "tcp" if connection(way).is_remote else "shm"

    return sorted(set(spark.sparkContext.parallelize(range(6), 6).map(taken).collect()))


def hosts(spark: Any, tasks: int) -> list[int]:
    """Return the executors that ran so many tasks, by pid."""
    return sorted(set(spark.sparkContext.parallelize(range(tasks), tasks).map(_parent).collect()))


def _parent(_: object) -> int:
    import os

    import psutil

    return psutil.Process(os.getppid()).ppid()


def ways(spark: Any, options: dict[str, str]) -> list[str]:
    """Return the ways executors take to the broker of a load, one for each executor that answers."""
    from shmq.spark.access.way import open_access
    from shmq.spark.options import parse_options

    where = open_access(parse_options(options)).where

    def way(_: object) -> str:
        import time

        from shmq.spark.access.way import reopen

        time.sleep(0.5)  # not a wait: work, so that no executor takes the tasks of the others
        return type(reopen(where)).__name__

    return sorted(set(spark.sparkContext.parallelize(range(6), 6).map(way).collect()))


ROWS_BEFORE = 30  # of about 100 in a task
SCHEMA = "queue_id int, queue_offset bigint, body binary"


def copied(spark: Any, options: dict[str, str], out: str, signals: str, how: str) -> dict[str, Any]:
    """Copy a topic to Parquet in one batch with tasks that stop half-way, as `stopping` says, and return its facts."""
    loaded = spark.read.format("shmq").options(**options).schema(SCHEMA).load()
    loaded.rdd.mapPartitions(stopping(signals, how)).toDF(SCHEMA).write.parquet(out)
    return facts(spark, out)


def streamed(spark: Any, options: dict[str, str], out: str, signals: str, how: str) -> dict[str, Any]:
    """Copy a topic to Parquet in micro-batches with tasks that stop half-way, and return its facts."""

    def batch(part: Any, number: int) -> None:
        stopped = part.rdd.mapPartitions(stopping(signals, how)).toDF(SCHEMA)
        stopped.write.mode("overwrite").parquet(f"{out}/batch={number}")

    loaded = spark.readStream.format("shmq").options(**options).schema(SCHEMA).load()
    writer = loaded.writeStream.foreachBatch(batch).option("checkpointLocation", f"{out}.checkpoint")
    query = writer.trigger(availableNow=True).start()
    assert query.awaitTermination(240)
    return {**facts(spark, out), "batches": sum(each["numInputRows"] > 0 for each in query.recentProgress)}


def facts(spark: Any, path: str) -> dict[str, Any]:
    """Return what a copy holds."""
    row = spark.read.parquet(path).selectExpr(
        "count(*) AS rows",
        "count(distinct queue_id, queue_offset) AS places",
        "bit_xor(xxhash64(queue_id, queue_offset, body)) AS content",
    )
    return row.first().asDict()  # type: ignore[no-any-return]


def stopping(signals: str, how: str) -> Any:
    """Return a function over rows whose first attempts stop in the middle.

    hold     until there is a file `go`; each says in a file which executor it holds
    slow     the first task only, until another attempt of it has begun, which only speculation brings about
    fail     with an error
    """

    def run(rows: Any) -> Any:
        import os
        import time
        from pathlib import Path

        import psutil
        from pyspark import TaskContext

        task, folder = TaskContext.get(), Path(signals)
        number, attempt = task.partitionId(), task.attemptNumber()
        if attempt:
            (folder / f"again-{number}").touch()
        for count, row in enumerate(rows):
            yield row
            if attempt or count != ROWS_BEFORE or (how == "slow" and number):
                continue
            if how == "fail":
                raise RuntimeError("this attempt was meant to fail")
            awaited = folder / ("go" if how == "hold" else f"again-{number}")
            (folder / f"held-{psutil.Process(os.getppid()).ppid()}").touch()
            deadline = time.monotonic() + 120
            while not awaited.exists() and time.monotonic() < deadline:
                time.sleep(0.02)  # not a wait: an executor imports nothing of the tests

    return run
