"""What a load reads, planned and read by the product's own reader over a real broker; Spark is in test_session."""

from __future__ import annotations

import json
import os
import time
import zlib
from pathlib import Path
from typing import Any

import pytest

from shmq.errors import BrokerNotRunning, OffsetOutOfRange, ShmqError, TopicNotFound, UsageError
from shmq.shm.core import KeeperStore
from shmq.spark.access.segments import attach
from shmq.spark.options import parse_options
from shmq.spark.scan.reader import RangesPartition, ShmqReader
from shmq.testing import Broker

OFFSETS = ("queue_id", "queue_offset")


@pytest.fixture
def topic(request: pytest.FixtureRequest, mq: Any) -> str:
    """A topic of four queues with 40 messages, ten each: body, tag and key are numbers."""
    name = f"{request.node.name[:90]}".replace("[", "-").replace("]", "")
    mq.admin.create_topic(name, queues=4)
    for number in range(40):
        mq.send(name, b"%d" % number, queue_id=number % 4, tag=f"t{number % 3}", key=f"k{number}")
    return name


def pairs(rows: list[dict[str, Any]]) -> list[tuple[int, int]]:
    return [(row["queue_id"], row["queue_offset"]) for row in rows]


def test_a_topic_is_read_whole_and_once(topic: str, load: Any) -> None:
    rows = load(topic=topic)
    assert sorted(int(row["body"]) for row in rows) == list(range(40))
    assert all(row["keys"] == f"k{int(row['body'])}" and row["topic"] == topic for row in rows)
    assert pairs(rows) == sorted(pairs(rows))


@pytest.mark.parametrize("view", ["messages", "index"])
def test_tags_queues_and_offsets_choose(topic: str, load: Any, view: str) -> None:
    assert len(load(OFFSETS, topic=topic, view=view, tags="t0 || t2")) == 27
    assert pairs(load(OFFSETS, topic=topic, view=view, queueIds="1,3")) == [(q, o) for q in (1, 3) for o in range(10)]
    start = json.dumps({topic: {"0": 7, "1": -1, "2": -2}})
    end = json.dumps({topic: {"0": 9, "2": 2, "3": -2}})
    rows = load(OFFSETS, topic=topic, view=view, startingOffsets=start, endingOffsets=end)
    assert pairs(rows) == [(0, 7), (0, 8), (2, 0), (2, 1)]
    assert {queue for queue, _ in pairs(load(OFFSETS, assign=json.dumps({topic: [0, 2]}), view=view))} == {0, 2}


def test_times_choose_by_when_messages_were_stored(mq: Any, load: Any) -> None:
    mq.admin.create_topic("by-time", queues=1)
    stored = [mq.send("by-time", b"x").store_ms]
    while stored[-1] < stored[0] + 3:
        stored.append(mq.send("by-time", b"x").store_ms)
    rows = load(OFFSETS, topic="by-time", startingTimestamp=stored[0] + 1, endingTimestamp=stored[-1])
    assert [row["queue_offset"] for row in rows] == [at for at, ms in enumerate(stored) if stored[0] < ms < stored[-1]]
    first, late = stored[0] + 1, json.dumps({"by-time": {"0": stored[-1] + 60_000}})
    by_queue = {"startingOffsetsByTimestamp": json.dumps({"by-time": {"0": first}})}
    by_queue["endingOffsetsByTimestamp"] = json.dumps({"by-time": {"0": stored[-1]}})
    assert load(OFFSETS, topic="by-time", **by_queue) == rows
    assert len(load(OFFSETS, topic="by-time", startingOffsetsByTimestamp='{"by-time": {}}')) == len(stored)
    with pytest.raises(UsageError, match="startingTimestamp"):
        load(OFFSETS, topic="by-time", startingTimestamp=stored[-1] + 60_000)
    with pytest.raises(UsageError, match="startingOffsetsByTimestamp"):
        load(OFFSETS, topic="by-time", startingOffsetsByTimestamp=late)
    later = {"startingTimestamp": stored[-1] + 60_000, "startingOffsetsByTimestampStrategy": "latest"}
    assert load(OFFSETS, topic="by-time", **later) == []


def test_a_group_says_where_it_is(topic: str, mq: Any, load: Any) -> None:
    with mq.subscribe(topic, group=f"g-{topic}"[:60], auto_ack=False) as messages:
        for _, message in zip(range(12), messages, strict=False):
            message.ack()
    group = f"g-{topic}"[:60]
    rows = load(view="groups", group=group)
    assert sum(row["lag"] for row in rows) == 28 and {row["consumer_group"] for row in rows} == {group}
    assert len(load(OFFSETS, topic=topic, startingOffsets="committed", group=group)) == 28
    with pytest.raises(UsageError, match="option group"):
        load(topic=topic, startingOffsets="committed", group="absent")


def test_compressed_bodies_arrive_as_they_were_sent(mq: Any, load: Any) -> None:
    mq.admin.create_topic("packed", queues=1)
    producer = mq._live().sends.core_producer(5.0)
    bodies = [b"plain", b"z" * 100_000, b"", b"y" * 100_000]
    for body in bodies:
        if len(body) > 10:
            producer.append("packed", zlib.compress(body), queue_id=0, sys_flag=1)
        else:
            producer.append("packed", body, queue_id=0)
    assert [row["body"] for row in load(("body",), topic="packed")] == bodies
    assert [row["body"] for row in load(("body",), topic="packed", batchBytes="1k")] == bodies


def test_small_batches_change_nothing(topic: str, load: Any) -> None:
    assert load(topic=topic, batchRows=3) == load(topic=topic) == load(topic=topic, batchBytes=1, verifyCrc="true")
    assert sorted(pairs(load(OFFSETS, topic=topic, minPartitions=11))) == pairs(load(OFFSETS, topic=topic))


def test_patterns_and_several_topics(mq: Any, load: Any) -> None:
    for name in ("many-a", "many-b", "other-c"):
        mq.admin.create_topic(name, queues=1)
        mq.send(name, name.encode())
    assert {row["topic"] for row in load(("topic",), topicPattern="many-.*")} == {"many-a", "many-b"}
    assert {row["topic"] for row in load(("topic",), topics="many-a,other-c")} == {"many-a", "other-c"}
    with pytest.raises(UsageError, match="topicPattern"):
        load(topicPattern="none-.*")


def test_frames_are_the_bytes_of_full_files_in_the_order_of_the_log(broker: Broker, mq: Any, load: Any) -> None:
    mq.admin.create_topic("filling", queues=2)
    while len(load(view="frames", columns=("commitlog_offset",))) < 50:
        for _ in range(60):
            mq.send("filling", os.urandom(9000))
    rows = load(view="frames")
    positions = [row["commitlog_offset"] for row in rows]
    assert positions == sorted(positions) and all(len(row["frame"]) == row["store_size"] for row in rows)
    for row in rows[:: max(1, len(rows) // 20)]:
        path = broker.store / "commitlog" / f"{row['commitlog_offset'] >> 20 << 20:020d}"
        at = row["commitlog_offset"] % (1 << 20)
        assert path.read_bytes()[at : at + row["store_size"]] == row["frame"]
    segments = load(view="segments")
    assert [row["is_sealed"] for row in segments][: positions[-1] >> 20] == [True] * (positions[-1] >> 20)


def test_queues_tell_their_bounds_and_times(topic: str, load: Any) -> None:
    rows = load(view="queues", topic=topic)
    assert [(row["queue_id"], row["offset_min"], row["offset_max"]) for row in rows] == [(q, 0, 10) for q in range(4)]
    assert all(row["first_stored"] <= row["last_stored"] for row in rows)


# ---- what can go wrong ---------------------------------------------------------------------------------------------


def test_a_broker_or_topic_that_is_not_there_is_said_on_the_driver(broker: Broker, topic: str, load: Any) -> None:
    with pytest.raises(TopicNotFound, match="does not exist"):
        load(topic=topic[:-1])
    with pytest.raises(UsageError, match="queueIds"):
        load(topic=topic, queueIds=9)
    with pytest.raises(UsageError, match="option assign"):
        load(assign=json.dumps({topic: [9]}))
    with pytest.raises(BrokerNotRunning, match="option store"):
        load(topic=topic, store="shmq:///tmp/no-such-broker")


def test_offsets_beyond_what_is_stored_are_data_loss(topic: str, load: Any) -> None:
    start = json.dumps({topic: {"0": 12}})
    with pytest.raises(OffsetOutOfRange, match="queue 0"):
        load(OFFSETS, topic=topic, startingOffsets=start)
    assert len(load(OFFSETS, topic=topic, startingOffsets=start, failOnDataLoss="false")) == 30
    with pytest.raises(OffsetOutOfRange, match="endingOffsets"):
        load(OFFSETS, topic=topic, endingOffsets=json.dumps({topic: {"0": 11}}))
    with pytest.raises(UsageError, match="not read"):
        load(OFFSETS, topic=topic, startingOffsets=json.dumps({topic: {"9": 1}}))


def read_planned(reader: ShmqReader, parts: list[Any]) -> list[dict[str, Any]]:
    return [row for part in parts for batch in reader.read(part) for row in batch.to_pylist()]


def test_retention_between_planning_and_reading_is_an_error_or_a_counted_gap(caplog: pytest.LogCaptureFixture) -> None:
    with Broker(file_bytes=1 << 20) as broker, broker.connect() as mq:
        mq.admin.create_topic("old", queues=1)
        for _ in range(300):
            mq.send("old", bytes(9000))
        given = {"store": broker.url, "topic": "old", "leaseSeconds": "0"}
        columns = (*OFFSETS, "body")
        strict = ShmqReader(parse_options(given), columns)
        lenient = ShmqReader(parse_options({**given, "failOnDataLoss": "false"}), columns)
        planned, planned_too = strict.partitions(), lenient.partitions()
        store = mq._live().wire.store  # the test plays the keeper
        (broker.store / "commitlog" / f"{0:020d}").unlink()
        KeeperStore(store).set_log_begin(1 << 20)  # the keeper's two steps are seen one by one
        rest = [row["queue_offset"] for row in read_planned(lenient, planned_too)]
        assert 0 < rest[0] < 150 and rest == list(range(rest[0], 300)) and f"{rest[0]} messages are" in caplog.text
        KeeperStore(store).set_offset_min(store.topic(store.topic_find("old"))["queues"][0], 150)
        with pytest.raises(OffsetOutOfRange, match=r"150 messages are missing"):
            read_planned(strict, planned)
        assert [row["queue_offset"] for row in read_planned(lenient, planned_too)] == list(range(150, 300))
        assert "150 messages are missing" in caplog.text


def test_a_log_file_that_went_after_planning_is_an_error_or_a_counted_gap(caplog: pytest.LogCaptureFixture) -> None:
    with Broker(file_bytes=1 << 20) as broker, broker.connect() as mq:
        mq.admin.create_topic("old", queues=1)
        for _ in range(300):
            mq.send("old", bytes(9000))
        given = {"store": broker.url, "view": "frames"}
        strict = ShmqReader(parse_options(given), ("topic",))
        lenient = ShmqReader(parse_options({**given, "failOnDataLoss": "false"}), ("topic",))
        planned = strict.partitions()
        whole = len(read_planned(strict, planned))
        (broker.store / "commitlog" / f"{0:020d}").unlink()
        with pytest.raises(OffsetOutOfRange, match="retention has deleted"):
            read_planned(strict, planned)
        assert 0 < len(read_planned(lenient, planned)) < whole and "retention has deleted" in caplog.text


def test_a_topic_made_anew_is_not_taken_for_the_old_one(broker: Broker, mq: Any) -> None:
    mq.admin.create_topic("reborn", queues=1)
    mq.send("reborn", b"old")
    reader = ShmqReader(parse_options({"store": broker.url, "topic": "reborn"}), OFFSETS)
    planned = reader.partitions()
    mq.admin.delete_topic("reborn")
    with pytest.raises(ShmqError, match="reborn"):
        read_planned(reader, planned)
    mq.admin.create_topic("reborn", queues=1)
    mq.send("reborn", b"new")
    with pytest.raises(ShmqError, match="made anew"):
        read_planned(reader, planned)


def test_planning_takes_a_lease_that_reading_renews(broker: Broker, topic: str) -> None:
    options = parse_options({"store": broker.url, "topic": topic, "leaseSeconds": "300"})
    reader = ShmqReader(options, OFFSETS)
    (part,) = reader.partitions()
    assert isinstance(part, RangesPartition) and part.lease is not None
    lease = Path(part.lease)
    assert lease.parent == broker.store / "leases" and lease.stat().st_mtime > time.time() + 200
    os.utime(lease, (time.time() + 5, time.time() + 5))
    assert len(read_planned(reader, [part])) == 40
    assert lease.stat().st_mtime > time.time() + 200


def test_a_broker_that_was_started_anew_is_attached_to_anew() -> None:
    with Broker(file_bytes=1 << 20) as broker:
        with broker.connect() as mq:
            mq.admin.create_topic("kept", queues=1)
            mq.send("kept", b"before")
        reader = ShmqReader(parse_options({"store": broker.url, "topic": "kept"}), ("body",))
        planned = reader.partitions()
        first = attach(broker.url)
        broker.restart()
        assert [row["body"] for row in read_planned(reader, planned)] == [b"before"]
        assert attach(broker.url).instance.generation != first.instance.generation
