"""Both ways to a broker: segments and TCP give the same rows, and auto takes the segments only of the same store."""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.compute
import pytest

from shmq.errors import BrokerNotRunning, OffsetOutOfRange, ShmqError, TopicNotFound, UsageError
from shmq.protocol.dialect import MessageQueue
from shmq.shm.core import UNIT_BYTES, KeeperStore
from shmq.spark.access import remote
from shmq.spark.access.ranges import STRIPES, Piece, RangeClient
from shmq.spark.access.remote import RemoteAccess, connect_remote
from shmq.spark.access.segments import Attachment
from shmq.spark.access.way import open_access, reopen
from shmq.spark.options import parse_options
from shmq.spark.scan.reader import ShmqReader
from shmq.spark.schema import column_kinds
from shmq.spark.sink.connection import connection, find_broker
from shmq.spark.sink.options import parse_sink_options
from shmq.testing import Broker

OFFSETS = ("queue_id", "queue_offset")


@pytest.fixture(scope="module")
def varied(mq: Any) -> str:
    """A topic with every kind of record: bodies of all sizes, compressed ones, tags, keys, properties, a batch."""
    topic = "varied"
    mq.admin.create_topic(topic, queues=3)
    producer = mq._live().sends.core_producer(5.0)
    for number in range(300):
        body = bytes([number % 256]) * (number * number % 5000)
        properties = {f"p{number % 7}": "ü" * (1 + number % 5)} if number % 2 else None
        mq.send(topic, body, queue_id=number % 3, tag=f"t{number % 4}", key=f"k{number}", properties=properties)
    for number in range(20):
        producer.append(topic, zlib.compress(b"z" * 50_000 * (number % 3)), queue_id=number % 3, sys_flag=1)
    for number in range(3):
        mq.send(topic, os.urandom(900_000), queue_id=number)
    for number in range(2500):
        mq.send(topic, b"%d" % number, queue_id=number % 3)
    return topic


def batches(options: dict[str, str], columns: tuple[str, ...] = ()) -> pyarrow.Table:
    parsed = parse_options(options)
    kinds = column_kinds(parsed.view)
    reader = ShmqReader(parsed, columns or tuple(kinds))
    return pyarrow.Table.from_batches([each for part in reader.partitions() for each in reader.read(part)])


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"verifyCrc": "true", "batchRows": "7"},
        {"batchBytes": "1", "queueIds": "1"},
        {"tags": "t1 || t3"},
        {"view": "index"},
        {"view": "index", "tags": "t2"},
        {"view": "index", "batchRows": "7", "queueIds": "0,2"},
        {"view": "index", "verifyCrc": "true"},
        {"startingOffsets": json.dumps({"varied": {"0": 50, "1": -1}}), "minPartitions": "5"},
    ],
)
def test_rows_over_tcp_are_those_of_the_segments_to_the_byte(
    broker: Broker, varied: str, options: dict[str, str]
) -> None:
    given = {"store": broker.url, "topic": varied, **options}
    here, there = batches({**given, "access": "shm"}), batches({**given, "access": "remote"})
    assert here.num_rows > 0 and here.schema == there.schema
    order = [(name, "ascending") for name in OFFSETS]
    assert here.sort_by(order) == there.sort_by(order)
    nowhere = {**given, "store": f"rocketmq://{broker.name_server}"}
    assert batches(nowhere).sort_by(order) == here.sort_by(order)


def test_what_units_tell_costs_no_record_on_the_way(
    broker: Broker, varied: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = {"store": broker.url, "topic": varied, "batchRows": "100"}
    some = ("store_size", "queue_offset", "queue_id", "topic")
    here = batches({**given, "access": "shm"}, some), batches({**given, "access": "shm", "view": "index"})
    monkeypatch.delattr(RangeClient, "read")
    there = batches({**given, "access": "remote"}, some), batches({**given, "access": "remote", "view": "index"})
    assert [by_queue(each) for each in here] == [by_queue(each) for each in there] and here[0].num_rows > 2500
    client = connect_remote(open_access(parse_options({**given, "access": "remote"})).where)._client
    described = client.describe(varied)
    piece = client.wait(client.read_units(MessageQueue(described.broker, 0, varied), 0, 50, born=described.born))
    assert (len(piece.body), piece.next_offset) == (50 * UNIT_BYTES, 50)


def test_stripes_of_pulls_are_every_message_once_and_in_order(
    broker: Broker, varied: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As at a broker of RocketMQ, which knows no ranges: pieces are pulled side by side."""
    given = {"store": broker.url, "topic": varied}
    columns = ("queue_id", "queue_offset", "body", "keys")
    here = batches({**given, "access": "shm"}, columns)
    make = RangeClient.__init__

    def making(client: RangeClient, *arguments: Any, **named: Any) -> None:
        make(client, *arguments, **named)
        client._stock[broker.name] = True

    monkeypatch.setattr(RangeClient, "__init__", making)
    monkeypatch.setattr(remote, "_clients", {})
    counts: list[int] = []
    pull = RangeClient._pull

    async def counting(client: RangeClient, queue: MessageQueue, begin: int, end: int, tags: Sequence[str]) -> Piece:
        piece = await pull(client, queue, begin, end, tags)
        counts.append(piece.next_offset - begin)
        return piece

    monkeypatch.setattr(RangeClient, "_pull", counting)
    there = batches({**given, "store": f"rocketmq://{broker.name_server}"}, columns)
    assert by_queue(there) == by_queue(here)
    assert max(counts) > 1 and len(counts) > STRIPES
    tagged = {**given, "tags": "t1 || t3"}
    there = batches({**tagged, "store": f"rocketmq://{broker.name_server}"}, columns)
    assert by_queue(there) == by_queue(batches(tagged, columns))


def by_queue(table: pyarrow.Table) -> list[pyarrow.Table]:
    """The rows of each queue, in the order they came."""
    return [table.filter(pyarrow.compute.equal(table["queue_id"], number)) for number in range(3)]


def test_times_mean_the_same_over_both_ways(broker: Broker, mq: Any) -> None:
    mq.admin.create_topic("timed-both", queues=1)
    stored = [mq.send("timed-both", b"x").store_ms]
    while len(set(stored)) < 4:
        stored.append(mq.send("timed-both", b"x").store_ms)
    given = {"store": broker.url, "topic": "timed-both", "startingTimestamp": str(stored[0] + 1)}
    given["endingTimestamp"] = str(stored[-1])
    here, there = (batches({**given, "access": access}, OFFSETS) for access in ("shm", "remote"))
    assert here == there and here.num_rows == sum(stored[0] < ms < stored[-1] for ms in stored)
    late = {**given, "startingTimestamp": str(stored[-1] + 60_000), "access": "remote"}
    late.pop("endingTimestamp")
    with pytest.raises(UsageError, match="stored nothing since"):
        batches(late)


def test_a_group_is_known_over_tcp(broker: Broker, mq: Any, varied: str) -> None:
    with mq.pull_consumer(varied) as consumer:
        consumer.commit("tcp-group", offsets={0: 7, 1: 9, 2: 11})
    given = {"store": broker.url, "topic": varied, "startingOffsets": "committed", "access": "remote"}
    first = batches({**given, "group": "tcp-group"}, OFFSETS).group_by("queue_id").aggregate([("queue_offset", "min")])
    assert dict(zip(*(column.to_pylist() for column in first.columns), strict=True)) == {0: 7, 1: 9, 2: 11}
    with pytest.raises(UsageError, match="option group"):
        batches({**given, "group": "absent"})
    view = {"store": broker.url, "topic": varied, "view": "groups", "group": "tcp-group"}
    here, there = (batches({**view, "access": access}).to_pylist() for access in ("shm", "remote"))
    assert len(there) == 3 and there == [{**row, "updated": None} for row in here]


# ---- which way -------------------------------------------------------------------------------------------------------


def test_auto_takes_the_segments_of_the_same_store_only(broker: Broker, varied: str) -> None:
    planned = open_access(parse_options({"store": broker.url, "topic": varied})).where
    assert planned.remote == f"rocketmq://{broker.name_server}"
    assert isinstance(reopen(planned), Attachment)
    assert isinstance(reopen(replace(planned, store="shmq:///nowhere/at-all")), RemoteAccess)
    with Broker(file_bytes=1 << 20) as other:
        assert isinstance(reopen(replace(planned, store=other.url)), RemoteAccess)
        with pytest.raises(BrokerNotRunning, match="only has the same name"):
            reopen(replace(planned, store=other.url, access="shm"))
        alone = open_access(parse_options({"store": other.url, "topic": varied})).where
        assert alone.remote is None
        with pytest.raises(BrokerNotRunning, match="option store"):
            reopen(replace(alone, store="shmq:///nowhere/at-all"))
        with pytest.raises(UsageError, match="nameserver"):
            open_access(parse_options({"store": other.url, "topic": varied, "access": "remote"}))


def test_a_store_that_is_started_anew_is_the_same_one() -> None:
    with Broker(file_bytes=1 << 20) as broker:
        before = open_access(parse_options({"store": broker.url, "topic": "any"})).where
        broker.restart()
        assert isinstance(reopen(before), Attachment)


def test_what_only_files_tell_is_refused_over_tcp(broker: Broker, varied: str) -> None:
    for view in ("frames", "segments", "groups"):
        with pytest.raises(UsageError, match=f"view {view}"):
            batches({"store": broker.url, "view": view, "access": "remote"})
    rows = batches({"store": broker.url, "view": "queues", "topic": varied, "access": "remote"}).to_pylist()
    same = batches({"store": broker.url, "view": "queues", "topic": varied}).to_pylist()
    assert [{**row, "persisted": None, "bytes": None} for row in same] == rows


def test_a_name_server_alone_is_the_broker_that_is_meant(
    broker: Broker, varied: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "default").symlink_to(broker.place.runtime_dir)
    monkeypatch.setenv("SHMQ_RUNTIME_DIR", str(tmp_path))
    found = open_access(parse_options({"topic": varied}))
    assert isinstance(found, Attachment) and found.where.store == "shmq://default"
    assert isinstance(reopen(found.where), Attachment)
    with Broker(file_bytes=1 << 20, tcp=True) as other:
        meant = open_access(parse_options({"topic": varied, "nameserver": other.name_server}))
        assert isinstance(meant, RemoteAccess) and meant.broker == other.name
        assert isinstance(reopen(meant.where), RemoteAccess)
        sink, way = find_broker(parse_sink_options({"topic": varied, "nameserver": other.name_server}))
        assert sink.url == connection(way).url == f"rocketmq://{other.name_server}"


# ---- what can go wrong -----------------------------------------------------------------------------------------------


@pytest.fixture
def old() -> Iterator[tuple[Broker, Any]]:
    """A broker of its own with a topic of 300 messages in a few log files."""
    with Broker(file_bytes=1 << 20, tcp=True) as broker, broker.connect() as mq:
        mq.admin.create_topic("old", queues=1)
        for _ in range(300):
            mq.send("old", bytes(9000))
        yield broker, mq


def read_planned(reader: ShmqReader, parts: list[Any]) -> list[int]:
    return [row["queue_offset"] for part in parts for each in reader.read(part) for row in each.to_pylist()]


def test_retention_between_planning_and_reading_over_tcp(
    old: tuple[Broker, Any], caplog: pytest.LogCaptureFixture
) -> None:
    broker, mq = old
    given = {"store": broker.url, "topic": "old", "access": "remote"}
    strict = ShmqReader(parse_options(given), (*OFFSETS, "body"))
    lenient = ShmqReader(parse_options({**given, "failOnDataLoss": "false"}), (*OFFSETS, "body"))
    planned, planned_too = strict.partitions(), lenient.partitions()
    store = mq._live().wire.store  # the test plays the keeper, whose two steps are seen one by one
    (broker.store / "commitlog" / f"{0:020d}").unlink()
    KeeperStore(store).set_log_begin(1 << 20)
    with pytest.raises(OffsetOutOfRange, match="messages are missing"):
        read_planned(strict, planned)
    first = min(read_planned(lenient, planned_too))
    assert 0 < first < 300 and f"{first} messages are missing" in caplog.text
    KeeperStore(store).set_offset_min(store.topic(store.topic_find("old"))["queues"][0], first + 1)
    assert read_planned(lenient, planned_too) == list(range(first + 1, 300))


def test_a_topic_made_anew_is_not_read_for_the_old_one_over_tcp(
    old: tuple[Broker, Any], caplog: pytest.LogCaptureFixture
) -> None:
    broker, mq = old
    given = {"store": broker.url, "topic": "old", "access": "remote"}
    strict = ShmqReader(parse_options(given), OFFSETS)
    lenient = ShmqReader(parse_options({**given, "failOnDataLoss": "false"}), OFFSETS)
    planned, planned_too = strict.partitions(), lenient.partitions()
    mq.admin.delete_topic("old")
    with pytest.raises(ShmqError, match="old"):
        read_planned(strict, planned)
    mq.admin.create_topic("old", queues=1)
    mq.send("old", b"new")
    with pytest.raises(ShmqError, match="made anew"):
        read_planned(strict, planned)
    assert read_planned(lenient, planned_too) == [] and "300 messages are missing" in caplog.text


def test_a_topic_that_is_not_there_is_said_with_the_nearest_name(broker: Broker, varied: str) -> None:
    with pytest.raises(TopicNotFound, match="varied"):
        batches({"store": broker.url, "topic": varied[:-1], "access": "remote"})


def test_a_record_of_another_queue_is_not_believed(broker: Broker, varied: str) -> None:
    from shmq.columns.record_batches import column_numbers
    from shmq.errors import CorruptionError
    from shmq.shm.core import columns_decode

    path = min(Path(broker.store / "commitlog").iterdir())
    numbers = column_numbers(["topic"])
    data = path.read_bytes()
    with pytest.raises(CorruptionError, match="not one of those asked for"):
        columns_decode(data, numbers, varied, "b", range=(9, 0, 100))
