"""The source on a standalone cluster: a master and three workers, executors that die, tasks that are tried again."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("pyarrow")

from tests.spark.cluster import Cluster, Driver, until

MESSAGES = 600


@pytest.fixture(scope="module")
def topic(mq: Any) -> str:
    name = "cluster-orders"
    mq.admin.create_topic(name, queues=4)
    for number in range(MESSAGES):
        mq.send(name, b"%d" % number * (1 + number % 50), queue_id=number % 4, tag=f"t{number % 3}", key=f"k{number}")
    return name


def test_a_topic_is_read_by_all_workers_as_by_one(
    cluster: Cluster, driver: Driver, broker: Any, topic: str, load: Any
) -> None:
    until(lambda: len(cluster.executors()) == len(cluster.workers), "three executors")
    found = driver.call("tests.spark.calls:totals", options={"store": broker.url, "topic": topic, "minPartitions": "9"})
    bodies = [row["body"] for row in load(("body",), topic=topic)]
    assert (found["rows"], found["places"], found["partitions"]) == (MESSAGES, MESSAGES, 9)
    assert found["bytes"] == sum(map(len, bodies))


def test_a_worker_elsewhere_reads_the_same_over_tcp(cluster: Cluster, driver: Driver, broker: Any, topic: str) -> None:
    """Three partitions on three executors, of which one finds no broker of that name on its host."""
    options = {"store": f"shmq://{broker.name}", "topic": topic, "minPartitions": "12"}
    mixed = driver.call("tests.spark.calls:totals", options=options)
    ways = driver.call("tests.spark.calls:ways", options=options)
    local = driver.call("tests.spark.calls:totals", options={**options, "store": broker.url, "access": "shm"})
    remote = driver.call("tests.spark.calls:totals", options={**options, "access": "remote"})
    assert mixed == local == remote and mixed["rows"] == MESSAGES
    assert set(ways) == {"Attachment", "RemoteAccess"}
