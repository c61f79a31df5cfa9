"""Accounts and three bridges on one port: ranges and staged rows over TCP, from here and from a cluster's workers."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("pyarrow")
pytest.importorskip("pyspark")

import pyarrow

from shmq.errors import PermissionDenied
from shmq.spark import remote, sink_connection
from shmq.spark.options import parse_options
from shmq.spark.reader import ShmqReader
from shmq.spark.sink_connection import find_broker
from shmq.spark.sink_options import parse_sink_options
from shmq.spark.staged_sink import Task, check_staging, commit_batch, stage_task
from shmq.testing import Broker
from tests.spark.cluster import Driver, DriverError
from tests.spark.query import Query
from tests.spark.stored_rows import stored

ACL = """
accounts:
- accessKey: writer
  secretKey: secret-of-writer
  topicPerms: [guarded=PUB, copied=PUB, killed=PUB, wide=PUB]
- accessKey: reader
  secretKey: secret-of-reader
  topicPerms: [guarded=SUB, copied=SUB]
  groupPerms: [spark-readers=SUB]
"""
READER = "access_key=reader&secret_key=secret-of-reader"
WRITER = "access_key=writer&secret_key=secret-of-writer"
CONNECTIONS = 6  # the kernel deals them out to the bridges
MESSAGES = 400
COLUMNS = ("queue_id", "queue_offset", "body", "keys")


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    path = tmp_path_factory.mktemp("accounts") / "plain_acl.yml"
    path.write_text(ACL)
    path.chmod(0o600)
    with Broker(tcp=True, bridges=3, acl=str(path), file_bytes=4 << 20) as broker, broker.connect() as mq:
        for topic in ("guarded", "copied", "killed", "wide"):
            mq.admin.create_topic(topic, queues=3)
        for number in range(MESSAGES):
            mq.send("guarded", b"%d|" % number + bytes(number * 7 % 2000), queue_id=number % 3, key=f"k{number}")
        yield broker


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    """Each test makes its own connections, and ends them."""
    yield
    for client in remote._clients.values():
        client.close()
    remote._clients.clear()
    for connection in sink_connection._connections.values():
        connection.close()
    sink_connection._connections.clear()


def address(broker: Broker, account: str = "") -> str:
    return f"rocketmq://{broker.name_server}" + (f"?{account}" if account else "")


def table(options: dict[str, str], columns: tuple[str, ...] = COLUMNS) -> pyarrow.Table:
    reader = ShmqReader(parse_options(options), columns)
    found = [batch for part in reader.partitions() for batch in reader.read(part)]
    return pyarrow.Table.from_batches(found).sort_by([("queue_id", "ascending"), ("queue_offset", "ascending")])


def test_an_account_reads_the_same_rows_from_every_bridge(guarded: Broker) -> None:
    here = table({"store": guarded.url, "topic": "guarded", "access": "shm"})
    units = ("queue_id", "queue_offset", "store_size", "tags_code")
    sizes = table({"store": guarded.url, "topic": "guarded", "view": "index"}, units)
    assert here.num_rows == MESSAGES
    for _ in range(CONNECTIONS):
        remote._clients.clear()
        given = {"store": address(guarded, READER), "topic": "guarded", "minPartitions": "4"}
        assert table(given) == here and table({**given, "view": "index"}, units) == sizes


def test_a_stream_of_an_account_reads_and_tells_its_group(guarded: Broker) -> None:
    given = {"access": "remote", "nameserver": address(guarded, READER), "startingOffsets": "earliest"}
    given |= {"maxOffsetsPerTrigger": 150, "maxBytesPerTrigger": "1g", "commitGroup": "spark-readers"}
    query = Query(guarded, "guarded", **given)
    at, bodies = query.begin(), []
    query.reader.prepareForTriggerAvailableNow()
    while True:
        end, found = query.step(at)
        if end == at:
            break
        bodies, at = bodies + found, end
    assert sorted(int(body.split(b"|")[0]) for body in bodies) == list(range(MESSAGES))
    committed = {"store": address(guarded, READER), "topic": "guarded", "startingOffsets": "committed"}
    reader = ShmqReader(parse_options({**committed, "group": "spark-readers"}), COLUMNS)
    assert reader.partitions() == []
    first = table({"store": address(guarded, READER), "topic": "guarded", "startingTimestamp": "1"})
    assert first.num_rows == MESSAGES
    found = table({"store": address(guarded, READER), "topic": "guarded", "keys": "k7"}, ("queue_id", "queue_offset"))
    assert found.num_rows == 1


@pytest.mark.parametrize(
    ("account", "options", "said"),
    [
        (WRITER, {"topic": "guarded"}, "No permission SUB on topic 'guarded'"),
        ("", {"topic": "guarded"}, "No accessKey"),
        ("access_key=reader&secret_key=guessed-secret", {"topic": "guarded"}, "Check signature failed"),
        (READER, {"topicPattern": "guard.*"}, "admin"),
    ],
)
def test_what_an_account_may_not_read_is_refused_with_option_and_cure(
    guarded: Broker, account: str, options: dict[str, str], said: str
) -> None:
    with pytest.raises(PermissionDenied) as caught:
        table({"store": address(guarded, account), **options})
    text = str(caught.value)
    assert said in text and "option store or nameserver" in text and "$SHMQ_ACCESS_KEY" in text
    assert "secret-of" not in text and "guessed-secret" not in text


# ---- staged rows -----------------------------------------------------------------------------------------------------


def rows(first: int, count: int) -> Iterator[Any]:
    for start in range(first, first + count, 50):
        yield pyarrow.record_batch({"body": [str(number) for number in range(start, min(start + 50, first + count))]})


def write(choice: Any, writer: str, batch: int, parts: int, count: int) -> None:
    """One batch: each part over a connection of its own, the commit over another."""
    done = []
    for part in range(parts):
        sink_connection._connections.clear()
        first = (batch * parts + part) * count
        done.append(
            stage_task(find_broker(choice)[0], choice, ("body",), Task(writer, batch, part), rows(first, count))
        )
    sink_connection._connections.clear()
    commit_batch(find_broker(choice)[0], choice, done)


def choice_of(broker: Broker, topic: str, account: str, **more: str) -> Any:
    given = {"store": address(broker, account), "topic": topic, "batchBytes": "2k", "timeoutMs": "60000"}
    return parse_sink_options({**given, "guarantee": "transactional", **more})


@pytest.mark.parametrize("guarantee", ["transactional", "idempotent"])
def test_an_account_writes_once_through_any_bridge(guarded: Broker, guarantee: str) -> None:
    choice = choice_of(guarded, "copied", WRITER, guarantee=guarantee)
    check_staging(find_broker(choice)[0], choice)
    before = len(stored(guarded, "copied"))
    for _ in range(2):  # the second time everything is there already
        write(choice, f"w-{guarantee}", 0, CONNECTIONS, 40)
    bodies = [int(row.body) for row in stored(guarded, "copied")[before:]]
    assert len(stored(guarded, "copied")) == before + CONNECTIONS * 40 and set(bodies) <= set(range(CONNECTIONS * 40))


def test_an_account_that_may_not_write_is_refused_on_the_driver(guarded: Broker) -> None:
    choice = choice_of(guarded, "copied", READER)
    with pytest.raises(PermissionDenied, match="No permission PUB"):
        check_staging(find_broker(choice)[0], choice)
    foreign = choice_of(guarded, "audit", WRITER)
    with pytest.raises(PermissionDenied, match="No permission PUB on topic 'audit'"):
        stage_task(find_broker(foreign)[0], foreign, ("body",), Task("w", 0, 0), rows(0, 10))


def test_killed_bridges_cost_no_row_and_double_none(guarded: Broker) -> None:
    choice, stop = choice_of(guarded, "killed", WRITER), threading.Event()

    def kill() -> None:
        for number in range(6):
            if stop.wait(0.3 * (1 + number // 3)):
                return
            mark = guarded.processes.get(("bridge-1", "bridge", "bridge-2")[number % 3])
            if mark is not None:
                os.kill(mark.pid, signal.SIGKILL)

    killer = threading.Thread(target=kill)
    killer.start()
    try:
        for batch in range(5):
            write(choice, "killed", batch, 2, 300)
    finally:
        stop.set()
        killer.join()
    assert sorted(int(row.body) for row in stored(guarded, "killed")) == list(range(5 * 2 * 300))


# ---- on the cluster --------------------------------------------------------------------------------------------------


def test_workers_of_a_cluster_read_and_write_with_accounts(guarded: Broker, driver: Driver) -> None:
    source = {"nameserver": address(guarded, READER), "topic": "guarded", "minPartitions": "9"}
    here = driver.call("tests.spark.calls:totals", options={"store": guarded.url, "topic": "guarded", "access": "shm"})
    there = driver.call("tests.spark.calls:totals", options=source)
    assert there["rows"] == MESSAGES and {**there, "partitions": 0} == {**here, "partitions": 0}
    sink = {"nameserver": address(guarded, WRITER), "topic": "wide", "guarantee": "transactional"}
    for _ in range(2):
        driver.call("tests.spark.calls:written", rows=900, parts=6, options={**sink, "writerId": "w", "batchId": "1"})
    assert sorted(int(row.body) for row in stored(guarded, "wide")) == list(range(900))
    with pytest.raises(DriverError, match="No permission SUB") as caught:
        driver.call("tests.spark.calls:totals", options={**source, "nameserver": address(guarded, WRITER)})
    assert "secret-of" not in str(caught.value)
