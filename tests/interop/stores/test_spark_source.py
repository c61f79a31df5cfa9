"""The Spark source at RocketMQ's own brokers, where it pulls as a client does, and at ours for comparison."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("pyarrow")
pytest.importorskip("pyspark")

import shmq
from shmq.errors import OffsetOutOfRange, TopicNotFound
from shmq.spark.options import parse_options
from shmq.spark.scan.reader import ShmqReader
from shmq.spark.scan.stream import ShmqStreamReader
from shmq.spark.schema import column_kinds
from tests.interop.target import Target

COLUMNS = ("queue_id", "queue_offset", "body", "tags", "keys", "properties")
Rows = list[dict[str, Any]]


@pytest.fixture
def topic(target: Target, named: Callable[[str], str]) -> str:
    """Two queues with 100 messages of all kinds, by our client over TCP: large, packed, tagged, a batch."""
    name = named("spark")
    with shmq.connect(f"rocketmq://{target.name_server}", timeout=15.0) as mq:
        mq.admin.create_topic(name, queues=2)
        for number in range(60):
            body = b"%d|" % number + (
                b"z" * 60_000 if number % 10 == 0 else os.urandom(3000) if number % 7 == 0 else b""
            )
            mq.send(
                name, body, queue_id=number % 2, tag=f"t{number % 3}", key=f"k{number}", properties={"n": str(number)}
            )
        mq.producer().send_batch(name, [b"%d|" % number for number in range(60, 100)])
    return name


def rows_of(target: Target, topic: str, columns: tuple[str, ...] = COLUMNS, **options: str) -> Rows:
    parsed = parse_options({"store": f"rocketmq://{target.name_server}", "topic": topic, **options})
    reader = ShmqReader(parsed, columns or tuple(column_kinds(parsed.view)))
    return [row for part in reader.partitions() for batch in reader.read(part) for row in batch.to_pylist()]


def test_every_message_is_read_once_with_all_that_was_sent(target: Target, topic: str) -> None:
    rows = rows_of(target, topic)
    numbers = [int(row["body"].split(b"|")[0]) for row in rows]
    assert sorted(numbers) == list(range(100))
    assert len({(row["queue_id"], row["queue_offset"]) for row in rows}) == 100
    for number, row in zip(numbers, rows, strict=True):
        if number < 60:
            assert (row["tags"], row["keys"]) == (f"t{number % 3}", f"k{number}")
            assert dict(row["properties"])["n"] == str(number)
            assert len(row["body"]) > 60_000 or number % 10
    assert len(rows_of(target, topic, (), minPartitions="3")) == 100
    assert len(rows_of(target, topic, (), view="index")) == 100


def test_tags_and_offsets_choose(target: Target, topic: str) -> None:
    rows = rows_of(target, topic, tags="t1")
    assert sorted(int(row["body"].split(b"|")[0]) for row in rows) == list(range(1, 60, 3))
    start, end = f'{{"{topic}": {{"0": 10, "1": -1}}}}', f'{{"{topic}": {{"0": 13}}}}'
    chosen = rows_of(target, topic, startingOffsets=start, endingOffsets=end)
    assert [(row["queue_id"], row["queue_offset"]) for row in chosen] == [(0, 10), (0, 11), (0, 12)]
    with pytest.raises(OffsetOutOfRange, match="queue 0"):
        rows_of(target, topic, startingOffsets=f'{{"{topic}": {{"0": 5000}}}}')
    with pytest.raises(TopicNotFound):
        rows_of(target, topic + "x")


def test_a_stream_goes_on_where_it_was_and_tells_its_group(
    target: Target, topic: str, named: Callable[[str], str]
) -> None:
    group, url = named("spark_group"), f"rocketmq://{target.name_server}"
    with shmq.connect(url) as mq, mq.subscribe(topic, group=group):
        pass  # RocketMQ 5 takes offsets of groups only that had a member once
    given = {"store": url, "topic": topic, "startingOffsets": "earliest", "commitGroup": group}
    given |= {"maxOffsetsPerTrigger": "70", "maxBytesPerTrigger": "1g"}
    reader = ShmqStreamReader(parse_options(given, stream=True), COLUMNS)
    reader.prepareForTriggerAvailableNow()
    at, bodies = reader.initialOffset(), []
    while (end := reader.latestOffset(at, reader.getDefaultReadLimit())) != at:
        parts = reader.partitions(at, end)
        bodies += [row["body"] for part in parts for batch in reader.read(part) for row in batch.to_pylist()]
        at = end
    reader.commit(at)
    assert sorted(int(body.split(b"|")[0]) for body in bodies) == list(range(100))
    with shmq.connect(url) as mq, mq.pull_consumer(topic) as consumer:
        assert sum(consumer.committed(group).values()) == 100
    assert rows_of(target, topic, startingOffsets="committed", group=group) == []
