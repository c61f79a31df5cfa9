"""What chooses messages without reading the others: keys by the index, filters that were pushed, sums of units."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest
from pyspark.sql.datasource import EqualTo, GreaterThanOrEqual, In, IsNotNull, LessThan

import shmq
from shmq.errors import UsageError
from shmq.spark.options import parse_options
from shmq.spark.scan.pushdown import PushingReader
from shmq.spark.scan.selection import where_options
from tests.spark.cluster import until

COLUMNS = ("queue_id", "queue_offset", "keys", "tags")


@pytest.fixture(scope="module")
def far(broker: Any) -> Iterator[Any]:
    """A connection over TCP, where a search by key sees what the index has; local ones look at the log's end, too."""
    with shmq.connect(f"rocketmq://{broker.name_server}") as connection:
        yield connection


@pytest.fixture(scope="module")
def topic(mq: Any, far: Any) -> str:
    """Four queues with 120 messages; keys come back every 40."""
    name = "selected"
    mq.admin.create_topic(name, queues=4)
    for number in range(120):
        mq.send(name, b"%d" % number, queue_id=number % 4, tag=f"t{number % 3}", key=f"k{number % 40}")
    until(lambda: len(far.browse(name, key="k39")) == 3, "the key index")
    return name


@pytest.mark.parametrize("access", ["shm", "remote"])
def test_keys_are_looked_up_and_nothing_else_is_read(topic: str, mq: Any, far: Any, load: Any, access: str) -> None:
    rows = load(COLUMNS, topic=topic, keys="k7, k8", access=access)
    assert sorted((row["keys"], row["queue_offset"]) for row in rows) == [
        (f"k{key}", (key + 40 * turn) // 4) for key in (7, 8) for turn in range(3)
    ]
    assert load(COLUMNS, topic=topic, keys="absent", access=access) == []
    assert [row["keys"] for row in load(COLUMNS, topic=topic, keys="k7,k8", queueIds="0", access=access)] == ["k8"] * 3
    mq.admin.create_topic(f"hot-key-{access}", queues=1)
    for _ in range(64):
        mq.send(f"hot-key-{access}", b"x", key="hot")
    until(lambda: len(far.browse(f"hot-key-{access}", key="hot", limit=64)) == 64, "the key index")
    with pytest.raises(UsageError, match="64 messages or more"):
        load(COLUMNS, topic=f"hot-key-{access}", keys="hot", access=access)
    with pytest.raises(UsageError, match="option keys"):
        parse_options({"topic": topic, "keys": "a"}, stream=True)


@pytest.mark.parametrize("access", ["shm", "remote"])
def test_sums_of_units_are_those_of_the_index(topic: str, load: Any, access: str) -> None:
    rows = load(topic=topic, view="index", access=access)
    sums = load(topic=topic, view="index_stats", access=access)
    assert sum(row["messages"] for row in sums) == len(rows) == 120
    assert sum(row["bytes"] for row in sums) == sum(row["store_size"] for row in rows)
    assert min(row["size_min"] for row in sums) == min(row["store_size"] for row in rows)
    assert max(row["commitlog_last"] for row in sums) == max(row["commitlog_offset"] for row in rows)
    assert {row["queue_id"]: (row["offset_first"], row["offset_last"]) for row in sums} == {
        q: (0, 29) for q in range(4)
    }


def pushed(broker: Any, topic: str, *filters: Any, **options: str) -> list[dict[str, Any]]:
    reader = PushingReader(parse_options({"store": broker.url, "topic": topic, "pushdown": "true", **options}), COLUMNS)
    assert list(reader.pushFilters(list(filters))) == list(filters)  # Spark applies them all the same
    return [row for part in reader.partitions() for batch in reader.read(part) for row in batch.to_pylist()]


def test_a_pushed_filter_prunes_and_never_hides_what_passes_it(broker: Any, topic: str) -> None:
    assert {row["queue_id"] for row in pushed(broker, topic, EqualTo(("queue_id",), 2))} == {2}
    assert {row["queue_id"] for row in pushed(broker, topic, In(("queue_id",), [1, 3, 99]))} == {1, 3}
    assert pushed(broker, topic, In(("queue_id",), [1]), EqualTo(("queue_id",), 2)) == []
    assert {row["tags"] for row in pushed(broker, topic, IsNotNull(("tags",)), EqualTo(("tags",), "t1"))} == {"t1"}
    assert len(pushed(broker, topic, EqualTo(("body", "inner"), 1), EqualTo(("keys",), "k1"))) == 120
    now = datetime.now(UTC)
    assert len(pushed(broker, topic, LessThan(("store_timestamp",), now))) == 120
    assert pushed(broker, topic, GreaterThanOrEqual(("store_timestamp",), now)) == []


def test_a_filter_reaches_the_reader_where_it_was_asked_for(spark: Any, broker: Any, topic: str) -> None:
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    try:
        loaded = spark.read.format("shmq").options(store=broker.url, topic=topic, pushdown="true").load()
        assert loaded.filter("queue_id = 1 and tags = 't1'").count() == 10
    finally:
        spark.conf.unset("spark.sql.python.filterPushdown.enabled")


def test_a_read_with_places_gives_the_rows_of_a_load(spark: Any, broker: Any, topic: str) -> None:
    import shmq.spark

    shmq.spark.register(spark)
    given = {"store": broker.url, "topic": topic, "minPartitions": 5}
    placed = shmq.spark.located_read(spark, hosts=["localhost"], schema="queue_id int, queue_offset bigint", **given)
    rdd = placed._jdf.queryExecution().toRdd()
    wishes = [spark.sparkContext._jsc.sc().getPreferredLocs(rdd, number).mkString() for number in range(5)]
    assert rdd.getNumPartitions() == 5 and wishes == ["localhost"] * 5
    loaded = spark.read.format("shmq").options(**given).schema(placed.schema).load()
    assert sorted(map(tuple, placed.collect())) == sorted(map(tuple, loaded.collect()))
    none = shmq.spark.located_read(spark, store=broker.url, topic=topic, startingOffsets="latest")
    assert none.count() == 0


# ---- a selection as a dictionary -------------------------------------------------------------------------------------


def test_a_selection_becomes_options() -> None:
    begin = datetime(2026, 11, 20, 8)
    assert where_options({"queue_id": [0, 3], "tags": ["a", "b"], "keys": "k1", "store_timestamp": (begin, None)}) == {
        "queueIds": "0,3",
        "tags": "a || b",
        "keys": "k1",
        "startingTimestamp": "2026-11-20T08:00:00+00:00",
    }
    assert where_options({"queue_id": 3, "store_timestamp": (None, 7)}) == {"queueIds": "3", "endingTimestamp": "7"}


@pytest.mark.parametrize(
    ("where", "words"),
    [
        ({"tag": "a"}, "did you mean tags"),
        ({"body": "x"}, "use filter"),
        ({"tags": []}, "no value of tags"),
        ({"keys": "a,b"}, "no value of keys"),
        ({"store_timestamp": "today"}, "no pair"),
    ],
)
def test_a_selection_that_only_a_filter_can_make_is_refused(where: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        where_options(where)


def test_each_selection_is_a_load_of_its_own(spark: Any, broker: Any, topic: str) -> None:
    import shmq.spark

    def count(**where: Any) -> int:
        return shmq.spark.read(spark, topic, where=where, store=broker.url, schema="queue_offset bigint").count()

    assert [count(queue_id=1, tags="t1"), count(), count(queue_id=[0, 2])] == [10, 120, 60]
    assert count(store_timestamp=(datetime.now(UTC), None)) == 0
