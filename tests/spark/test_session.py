"""The source in a real Spark: found by its name, typed as Spark wants it, planned, pickled and read in its workers."""

from __future__ import annotations

from typing import Any

import pytest

from shmq.spark import lag_from_progress
from shmq.spark.scan.stream_lag import StreamLag
from tests.spark.query import SENT, fill

BODIES = 3000


@pytest.fixture(scope="module")
def topic(mq: Any) -> str:
    mq.admin.create_topic("spark-orders", queues=3)
    for number in range(BODIES):
        mq.send(
            "spark-orders", b"%d" % number, queue_id=number % 3, tag=f"t{number % 100}", properties={"n": str(number)}
        )
    return "spark-orders"


def frame(spark: Any, broker: Any, topic: str, **options: Any) -> Any:
    return spark.read.format("shmq").option("store", broker.url).option("topic", topic).options(**options)


def test_spark_finds_the_source_and_reads_every_message_once(spark: Any, broker: Any, topic: str) -> None:
    loaded = frame(spark, broker, topic).load()
    assert loaded.schema.names[:5] == ["topic", "broker", "queue_id", "queue_offset", "commitlog_offset"]
    assert "properties" not in loaded.schema.names
    facts = loaded.selectExpr(
        "count(*)", "count(distinct queue_id, queue_offset)", "sum(cast(cast(body as string) as bigint))", "max(topic)"
    ).collect()[0]
    assert tuple(facts) == (BODIES, BODIES, sum(range(BODIES)), topic)


def test_one_load_answers_every_filter_rightly(spark: Any, broker: Any, topic: str) -> None:
    loaded = frame(spark, broker, topic, minPartitions=4).load()
    assert loaded.rdd.getNumPartitions() == 4
    assert loaded.filter("queue_id = 1").count() == BODIES // 3
    assert loaded.count() == BODIES
    union = loaded.filter("queue_id = 0").union(loaded.filter("queue_id = 1"))
    assert {row["queue_id"]: row["count"] for row in union.groupBy("queue_id").count().collect()} == {
        0: BODIES // 3,
        1: BODIES // 3,
    }


def test_a_schema_chooses_and_orders_columns_with_every_type(spark: Any, broker: Any, topic: str) -> None:
    from shmq.spark.schema import VIEWS

    every = frame(spark, broker, topic, tags="t7").schema(VIEWS["messages"]).load()
    row = every.orderBy("commitlog_offset").first()
    assert (row.topic, bytes(row.body), row.tags, row.properties["n"]) == (topic, b"7", "t7", "7")
    assert every.count() == BODIES // 100
    some = frame(spark, broker, topic).schema("properties map<string,string>, queue_offset bigint").load()
    assert some.schema.names == ["properties", "queue_offset"] and some.count() == BODIES
    assert "properties" in frame(spark, broker, topic, includeProperties="true").load().schema.names


def test_views_are_read_through_sql(spark: Any, broker: Any, topic: str) -> None:
    for view, count in (("index", BODIES), ("queues", 3)):
        options = f"store '{broker.url}', topic '{topic}', view '{view}'"
        spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW v USING shmq OPTIONS ({options})")
        assert spark.sql("SELECT count(*) AS n FROM v").first().n == count
    assert frame(spark, broker, topic, view="segments").load().count() >= 1


def test_nothing_to_read_is_an_empty_frame(spark: Any, broker: Any, topic: str) -> None:
    assert frame(spark, broker, topic, startingOffsets="latest").load().count() == 0


@pytest.mark.parametrize(
    ("options", "schema", "words"),
    [
        ({"topik": "x"}, None, ["topik", "did you mean topic"]),
        ({"batchRows": "many"}, None, ["batchRows", "65536"]),
        ({}, "bodi binary", ["bodi", "did you mean body"]),
        ({}, "body string", ["body of view messages is binary", "cast"]),
        ({"queueIds": "77"}, None, ["queueIds", "no queue 77"]),
        ({"startingOffsets": '{"spark-orders": {"0": 99999}}'}, None, ["queue 0", "failOnDataLoss=false"]),
        ({"store": "absent"}, None, ["option store", "shmq serve --name absent"]),
        ({"store": "rocketmq://127.0.0.1:1"}, None, ["option store or nameserver", "127.0.0.1:1", "without --no-tcp"]),
        ({"access": "shm", "store": "shmq:///nowhere/at-all"}, None, ["option store", "/nowhere/at-all"]),
    ],
)
def test_errors_reach_the_driver_with_option_and_cure(
    spark: Any, broker: Any, topic: str, options: dict[str, str], schema: str | None, words: list[str]
) -> None:
    from pyspark.errors import PySparkException

    with pytest.raises(PySparkException) as caught:
        reader = frame(spark, broker, topic, **options)
        (reader.schema(schema) if schema else reader).load().count()
    assert all(word in str(caught.value) for word in words), str(caught.value)


# ---- streaming -----------------------------------------------------------------------------------------------------


def test_available_now_reads_in_limited_batches_and_goes_on_where_it_was(
    spark: Any, broker: Any, mq: Any, tmp_path: Any
) -> None:
    mq.admin.create_topic("spark-stream", queues=2)

    lags: list[StreamLag] = []

    def run() -> list[int]:
        """Start the query on its checkpoint, wait until it ends, and return its batch sizes."""
        query = (
            spark.readStream.format("shmq")
            .options(store=broker.url, topic="spark-stream", startingOffsets="earliest", maxOffsetsPerTrigger=40)
            .option("commitGroup", "spark-group")
            .schema("queue_id int, queue_offset bigint, body binary")
            .load()
            .writeStream.format("parquet")
            .option("path", str(tmp_path / "out"))
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(300)
        lags.append(lag_from_progress(query.recentProgress[0], store=broker.url)[0])
        return [progress["numInputRows"] for progress in query.recentProgress if progress["numInputRows"]]

    for number in range(100):
        mq.send("spark-stream", b"%d" % number, queue_id=number % 2)
    assert run() == [40, 40, 20]
    assert lags[0].total == 60 and lags[0].most == 30 and 0 <= (lags[0].oldest_age_ms or -1) < 3_600_000
    for number in range(100, 130):
        mq.send("spark-stream", b"%d" % number, queue_id=number % 2)
    assert run() == [30]
    assert lags[1].total == 0 and lags[1].oldest_age_ms is None
    rows = spark.read.parquet(str(tmp_path / "out")).selectExpr("cast(body as string) as body").collect()
    assert sorted(int(row.body) for row in rows) == list(range(130))
    with mq.pull_consumer("spark-stream") as consumer:
        assert sum(consumer.committed("spark-group").values()) in (100, 130)  # the last one at the next start


def test_running_queries_say_what_went_or_go_on(spark: Any, broker: Any, mq: Any, tmp_path: Any) -> None:
    """In a real Spark: two queries over TCP, and their topic is deleted and made anew under them."""
    from pyspark.errors import StreamingQueryException

    topic = "spark-loss"
    fill(mq, topic)
    given = {"store": broker.url, "topic": topic, "access": "remote", "startingOffsets": "earliest"}

    def start(name: str, **more: str) -> Any:
        loaded = spark.readStream.format("shmq").options(**given, **more).schema("body binary").load()
        writer = loaded.writeStream.format("memory").queryName(name)
        query = writer.option("checkpointLocation", str(tmp_path / name)).start()
        query.processAllAvailable()
        assert spark.table(name).count() == SENT
        return query

    strict = lenient = None
    try:
        strict, lenient = start("loss_strict"), start("loss_lenient", failOnDataLoss="false")
        mq.admin.delete_topic(topic)
        with pytest.raises(StreamingQueryException) as caught:
            strict.awaitTermination(100)
        said = str(caught.value)
        assert topic in said and "not there any more" in said and "failOnDataLoss=false" in said
        fill(mq, topic, first=100)
        lenient.processAllAvailable()
        assert spark.table("loss_lenient").count() == 2 * SENT
    finally:
        for query in (strict, lenient):
            if query is not None:
                query.stop()
