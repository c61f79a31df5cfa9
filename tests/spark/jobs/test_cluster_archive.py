"""The archive job on a standalone cluster: one worker reads over TCP, an executor is killed, and nothing changes."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import deltalake

from tests.spark.cluster import Cluster, Driver, until

MESSAGES = 900


def is_begun(path: Path) -> bool:
    """Whether a batch is in."""
    return deltalake.DeltaTable.is_deltatable(str(path)) and deltalake.DeltaTable(path).version() > 0


def test_a_killed_executor_and_a_worker_elsewhere_change_nothing(
    cluster: Cluster, driver: Driver, broker: Any, mq: Any, tmp_path: Path
) -> None:
    mq.admin.create_topic("cluster-archive", queues=3)
    sent = [b"%d" % number * 9 for number in range(MESSAGES)]
    for number, body in enumerate(sent):
        mq.send("cluster-archive", body, queue_id=number % 3)
    path = tmp_path / "archive"
    source = {"store": f"shmq://{broker.name}", "topics": "cluster-archive"}
    source |= {"maxOffsetsPerTrigger": "90", "minPartitions": "6"}
    until(lambda: len(cluster.executors()) == len(cluster.workers), "three executors")
    driver.begin("tests.spark.jobs.calls:archive", path=str(path), source=source)
    until(lambda: is_begun(path), "the first batch", timeout=300)
    os.kill(cluster.executors()[0], signal.SIGKILL)
    report = driver.result()
    assert (report["messages"], report["gaps"]) == (MESSAGES, [])
    rows = deltalake.DeltaTable(path).to_pyarrow_table(columns=["queue_id", "queue_offset", "body"]).to_pylist()
    assert len(rows) == MESSAGES
    assert {(row["queue_id"], row["queue_offset"]): row["body"] for row in rows} == {
        (number % 3, number // 3): body for number, body in enumerate(sent)
    }
