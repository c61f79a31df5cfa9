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
