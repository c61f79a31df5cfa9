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


def hosts(spark: Any, tasks: int) -> list[int]:
    """Return the executors that ran so many tasks, by pid."""
    return sorted(set(spark.sparkContext.parallelize(range(tasks), tasks).map(_parent).collect()))


def _parent(_: object) -> int:
    import os

    import psutil

    return psutil.Process(os.getppid()).ppid()


def ways(spark: Any, options: dict[str, str]) -> list[str]:
    """Return the ways executors take to the broker of a load, one for each executor that answers."""
    from shmq.spark.access import open_access
    from shmq.spark.options import parse_options

    where = open_access(parse_options(options)).where

    def way(_: object) -> str:
        import time

        from shmq.spark.access import reopen

        time.sleep(0.5)  # so that no executor takes the tasks of the others
        return type(reopen(where)).__name__

    return sorted(set(spark.sparkContext.parallelize(range(6), 6).map(way).collect()))
