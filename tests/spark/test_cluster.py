"""The source on a standalone cluster: a master and three workers, executors that die, tasks that are tried again."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.spark.accounts import MESSAGES as GUARDED
from tests.spark.accounts import READER, WRITER, address, guarded_broker
from tests.spark.cluster import ROOT, Cluster, Driver, DriverError, discovery_path, until
from tests.spark.stored_rows import stored

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


def test_a_submitted_job_runs_at_the_master_of_spark_submit(
    cluster: Cluster, broker: Any, topic: str, tmp_path: Path
) -> None:
    import pyspark

    job, report = ROOT / "spark/jobs/archive.py", tmp_path / "report.json"
    command = [str(Path(pyspark.__file__).parent / "bin/spark-submit"), "--master", cluster.url]
    command += ["--conf", "spark.executor.memory=512m", "--conf", "spark.driver.memory=512m", str(job)]
    command += ["--url", broker.url, "--topic", topic, "--to", str(tmp_path / "archive"), "--report", str(report)]
    path = os.pathsep.join((str(discovery_path(cluster.directory / "discovery")), *sys.path[1:]))
    needed = {"PYTHONPATH": path, "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
    said = subprocess.run(
        command, capture_output=True, text=True, timeout=300, cwd=tmp_path, env={**os.environ, **needed}, check=False
    )
    assert said.returncode == 0, said.stderr
    assert json.loads(report.read_text())["messages"] == MESSAGES
    assert all("for shmq archive" in worker.log.read_text() for worker in cluster.workers)  # each had an executor of it
    assert "INFO Executor" not in said.stderr


def test_workers_here_and_elsewhere_write_one_batch(driver: Driver, broker: Any, mq: Any) -> None:
    mq.admin.create_topic("cluster-written", queues=4)
    sink = {"store": f"shmq://{broker.name}", "topic": "cluster-written", "guarantee": "transactional"}
    for _ in range(2):
        options = {**sink, "writerId": "w", "batchId": "1"}
        found = driver.call("tests.spark.calls:written", rows=900, parts=6, options=options)
    assert sorted(int(row.body) for row in stored(broker, "cluster-written")) == list(range(900))
    assert set(found) == {"shm", "tcp"}


def test_workers_read_and_write_with_accounts_through_three_bridges(driver: Driver, tmp_path: Path) -> None:
    with guarded_broker(tmp_path) as guarded:
        source = {"nameserver": address(guarded, READER), "topic": "guarded", "minPartitions": "9"}
        near = {"store": guarded.url, "topic": "guarded", "access": "shm", "minPartitions": "9"}
        found = driver.call("tests.spark.calls:totals", options=source)
        assert found == driver.call("tests.spark.calls:totals", options=near) and found["rows"] == GUARDED
        sink = {"nameserver": address(guarded, WRITER), "topic": "wide", "guarantee": "transactional"}
        for _ in range(2):
            options = {**sink, "writerId": "w", "batchId": "1"}
            assert driver.call("tests.spark.calls:written", rows=900, parts=6, options=options) == ["tcp"]
        assert sorted(int(row.body) for row in stored(guarded, "wide")) == list(range(900))
        with pytest.raises(DriverError, match="No permission SUB") as caught:
            driver.call("tests.spark.calls:totals", options={**source, "nameserver": address(guarded, WRITER)})
        assert "secret-of" not in str(caught.value)


# ---- executors that die, tasks that are tried again ------------------------------------------------------------------


@pytest.fixture
def signals(tmp_path: Path) -> Path:
    """Files in which tasks say what they do, and wait for the test."""
    folder = tmp_path / "signals"
    folder.mkdir()
    return folder


def options_of(broker: Any, topic: str, **more: Any) -> dict[str, str]:
    given = {"store": f"shmq://{broker.name}", "topic": topic, "minPartitions": 6, "batchRows": 20, **more}
    return {name: str(value) for name, value in given.items()}


@pytest.mark.parametrize("function", ["copied", "streamed"])
def test_an_executor_killed_in_the_middle_costs_and_doubles_no_row(
    function: str, cluster: Cluster, driver: Driver, broker: Any, topic: str, signals: Path, tmp_path: Path
) -> None:
    more = {"startingOffsets": "earliest", "maxOffsetsPerTrigger": 400} if function == "streamed" else {}
    options = options_of(broker, topic, **more)
    driver.begin(
        f"tests.spark.calls:{function}", options=options, out=str(tmp_path / "out"), signals=str(signals), how="hold"
    )
    held = until(lambda: [int(path.name.split("-")[1]) for path in signals.glob("held-*")], "a task in its middle")
    victim = held[0]
    assert victim in cluster.executors()
    os.kill(victim, signal.SIGKILL)
    until(lambda: victim not in cluster.executors(), "its worker to notice")
    (signals / "go").touch()
    found = driver.result()
    assert (found["rows"], found["places"]) == (MESSAGES, MESSAGES)
    assert list(signals.glob("again-*")), "no task was tried again"
    assert found["content"] == content_of(driver, broker, topic, tmp_path)
    assert found.get("batches", 2) == 2


def test_first_attempts_that_fail_change_nothing(
    driver: Driver, broker: Any, topic: str, signals: Path, tmp_path: Path
) -> None:
    options = options_of(broker, topic)
    found = driver.call(
        "tests.spark.calls:copied", options=options, out=str(tmp_path / "out"), signals=str(signals), how="fail"
    )
    assert len(list(signals.glob("again-*"))) == 6
    assert (found["rows"], found["places"]) == (MESSAGES, MESSAGES)
    assert found["content"] == content_of(driver, broker, topic, tmp_path)


def test_speculative_attempts_change_nothing(
    cluster: Cluster, driver: Driver, broker: Any, topic: str, signals: Path, tmp_path: Path
) -> None:
    settings = {"spark.speculation": "true", "spark.speculation.quantile": "0.3", "spark.speculation.interval": "100ms"}
    settings |= {"spark.speculation.multiplier": "1.1", "spark.speculation.minTaskRuntime": "100ms"}
    hasty = Driver(cluster.directory, cluster.url, {"SHMQ_RUNTIME_DIR": str(broker.directory)}, **settings)
    try:
        arguments = {"options": options_of(broker, topic), "signals": str(signals), "how": "slow"}
        found = hasty.call("tests.spark.calls:copied", out=str(tmp_path / "out"), **arguments)
    finally:
        hasty.end()
    assert (signals / "again-0").exists()
    assert (found["rows"], found["places"]) == (MESSAGES, MESSAGES)
    assert found["content"] == content_of(driver, broker, topic, tmp_path)


def content_of(driver: Driver, broker: Any, topic: str, directory: Path) -> int:
    """What an undisturbed copy holds."""
    calm = directory / "calm-signals"
    calm.mkdir()
    (calm / "go").touch()
    arguments = {"options": options_of(broker, topic, access="shm", store=broker.url), "signals": str(calm)}
    found = driver.call("tests.spark.calls:copied", out=str(directory / "calm"), how="hold", **arguments)
    assert found["rows"] == MESSAGES
    return int(found["content"])
