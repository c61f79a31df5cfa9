"""Accounts and three bridges on one port: ranges and staged rows over TCP. Workers of a cluster are in test_cluster."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from typing import Any

import pyarrow
import pytest

from shmq.errors import PermissionDenied
from shmq.spark.access import remote
from shmq.spark.options import parse_options
from shmq.spark.scan.reader import ShmqReader
from shmq.spark.sink import connection as sink_connection
from shmq.spark.sink.connection import find_broker
from shmq.spark.sink.options import parse_sink_options
from shmq.spark.sink.staged import Task, check_staging, commit_batch, stage_task
from shmq.testing import Broker
from tests.spark.accounts import MESSAGES, READER, WRITER, address, guarded_broker
from tests.spark.cluster import until
from tests.spark.query import Query
from tests.spark.stored_rows import stored

CONNECTIONS = 6  # the kernel deals them out to the bridges
COLUMNS = ("queue_id", "queue_offset", "body", "keys")


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    with guarded_broker(tmp_path_factory.mktemp("accounts")) as broker:
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
        ("access_key=spark-reader&secret_key=guessed-secret", {"topic": "guarded"}, "Check signature failed"),
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


def write(choice: Any, writer: str, batch: int, parts: int, count: int, *, fresh: bool = True) -> None:
    """One batch: each part over a connection of its own, the commit over another; or all over the one there is."""
    done = []
    for part in range(parts):
        if fresh:
            sink_connection._connections.clear()
        first = (batch * parts + part) * count
        done.append(
            stage_task(find_broker(choice)[0], choice, ("body",), Task(writer, batch, part), rows(first, count))
        )
    if fresh:
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
    with pytest.raises(PermissionDenied, match=r"option guarantee=transactional.*No permission PUB on topic 'copied'"):
        check_staging(find_broker(choice)[0], choice)
    anywhere = parse_sink_options({"store": address(guarded, WRITER), "guarantee": "transactional"})
    with pytest.raises(PermissionDenied, match=r"No permission PUB.*also option topic"):
        check_staging(find_broker(anywhere)[0], anywhere)
    choice = choice_of(guarded, "copied", WRITER)
    foreign = pyarrow.record_batch({"body": ["x"], "topic": ["guarded-too"]})
    with pytest.raises(PermissionDenied, match="No permission PUB on topic 'guarded-too'"):
        stage_task(find_broker(choice)[0], choice, ("body", "topic"), Task("w", 0, 0), iter([foreign]))


def test_killed_bridges_cost_no_row_and_double_none(guarded: Broker) -> None:
    choice, killed = choice_of(guarded, "killed", WRITER), []

    def kill() -> None:
        for role in ("bridge-1", "bridge", "bridge-2"):
            mark = until(lambda role=role: guarded.processes.get(role), role)
            time.sleep(0.2)  # not a wait: somewhere in a batch
            os.kill(mark.pid, signal.SIGKILL)
            until(lambda role=role, mark=mark: guarded.processes.get(role) not in (None, mark), f"{role} anew")
            killed.append(role)

    killer = threading.Thread(target=kill)
    killer.start()
    batches = 0
    while batches < 2 or (killer.is_alive() and batches < 40):
        write(choice, "killed", batches, 2, 200, fresh=False)
        batches += 1
    killer.join()
    assert len(killed) == 3
    assert sorted(int(row.body) for row in stored(guarded, "killed")) == list(range(batches * 2 * 200))
