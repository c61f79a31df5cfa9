"""The sink in a real Spark, at least once: every column arrives, every row is acknowledged, errors name their cure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.spark.stored_rows import stored

ROWS = 500


@pytest.fixture(scope="module")
def tcp_broker() -> Iterator[Any]:
    from shmq.testing import Broker

    with Broker(tcp=True) as running:
        yield running


def save(frame: Any, url: str, topic: str | None = None, **options: Any) -> None:
    writer = frame.write.format("shmq").option("store", url).options(**options).mode("append")
    (writer.option("topic", topic) if topic else writer).save()


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_every_column_arrives_and_every_row_once(spark: Any, tcp_broker: Any, transport: str) -> None:
    topic = f"sink-{transport}"
    frame = spark.range(ROWS).selectExpr(
        "encode(cast(id as string), 'utf-8') as body",
        f"if(id % 2 = 0, '{topic}', '{topic}-odd') as topic",
        "concat('t', id % 3) as tag",
        "array(concat('k', id), 'all') as keys",
        "map('n', cast(id as string)) as properties",
        "cast(id % 5 as string) as message_group",
        "cast(id as int) as flag",
    )
    save(frame, tcp_broker.url if transport == "shm" else f"rocketmq://{tcp_broker.name_server}")
    even, odd = stored(tcp_broker, topic), stored(tcp_broker, f"{topic}-odd")
    assert sorted(int(message.body) for message in even) == list(range(0, ROWS, 2))
    assert sorted(int(message.body) for message in odd) == list(range(1, ROWS, 2))
    for message in even + odd:
        number = int(message.body)
        assert (message.tag, message.keys, message.properties["n"]) == (
            f"t{number % 3}", [f"k{number}", "all"], str(number),
        )  # fmt: skip
    queues = {(int(message.body) % 5, message.queue_id) for message in even}
    assert len(queues) == 5  # a message group has one queue


def test_a_delayed_row_waits_and_a_named_queue_is_taken(spark: Any, tcp_broker: Any) -> None:
    with tcp_broker.connect() as mq:
        mq.admin.create_topic("sink-later", queues=4)
    soon = "timestamp_seconds(unix_timestamp() + 3600) as deliver_at"
    save(spark.range(2).selectExpr("'later' as value", soon), tcp_broker.url, "sink-later")
    save(spark.range(2).selectExpr("'now' as value", "3 as queue_id"), tcp_broker.url, "sink-later")
    assert [(bytes(message.body), message.queue_id) for message in stored(tcp_broker, "sink-later")] == [
        (b"now", 3)
    ] * 2


def test_a_batch_of_foreach_batch_is_there_once_with_the_order_and_keys_that_options_name(
    spark: Any, tcp_broker: Any
) -> None:
    import shmq.spark

    shmq.spark.register(spark)
    with tcp_broker.connect() as mq:
        mq.admin.create_topic("sink-named", queues=4)
    frame = spark.range(60).selectExpr("cast(id as string) as body", "id as order_id", "id % 3 as customer")
    named = {"store": tcp_broker.url, "topic": "sink-named", "keyColumn": "order_id", "orderBy": "customer"}
    for _ in range(2):
        shmq.spark.write_batch(frame, 7, "named-query", **named)
    found = stored(tcp_broker, "sink-named")
    assert sorted(int(row.body) for row in found) == list(range(60))
    assert all(row.keys == [row.body.decode()] for row in found)
    for customer in range(3):
        mine = [row for row in found if int(row.body) % 3 == customer]
        assert len({row.queue_id for row in mine}) == 1


def test_a_stream_writes_each_batch(spark: Any, tcp_broker: Any, tmp_path: Any) -> None:
    with tcp_broker.connect() as mq:
        for number in range(100):
            mq.send("sink-from", b"%d" % number)
    query = (
        spark.readStream.format("shmq")
        .options(store=tcp_broker.url, topic="sink-from", startingOffsets="earliest", maxOffsetsPerTrigger=60)
        .schema("body binary")
        .load()
        .writeStream.format("shmq")
        .options(store=tcp_broker.url, topic="sink-to", checkpointLocation=str(tmp_path))
        .trigger(availableNow=True)
        .start()
    )
    try:
        assert query.awaitTermination(300)
    finally:
        query.stop()
    assert sorted(int(message.body) for message in stored(tcp_broker, "sink-to")) == list(range(100))


@pytest.mark.parametrize(
    ("options", "columns", "mode", "words"),
    [
        ({"topik": "x"}, "'b' as body", "append", ["topik", "did you mean topic"]),
        ({"topic": "x"}, "'b' as bodi", "append", ["bodi", "did you mean body"]),
        ({"topic": "x"}, "id as body", "append", ["column body", "not bigint"]),
        ({"topic": "x"}, "'b' as body", "overwrite", ["overwritten", 'mode("append")']),
        ({"topic": "x", "store": "absent"}, "'b' as body", "append", ["option store", "shmq serve", "nameserver"]),
        (
            {"topic": "x", "store": "absent", "nameserver": "127.0.0.1:1"},
            "'b' as body", "append", ["option nameserver", "127.0.0.1:1"],
        ),
    ],
)  # fmt: skip
def test_errors_reach_the_driver_with_option_and_cure(
    spark: Any, tcp_broker: Any, options: dict[str, str], columns: str, mode: str, words: list[str]
) -> None:
    from pyspark.errors import PySparkException

    frame = spark.range(1).selectExpr(columns)
    with pytest.raises(PySparkException) as caught:
        frame.write.format("shmq").options(**{"store": tcp_broker.url, **options}).mode(mode).save()
    assert all(word in str(caught.value) for word in words), str(caught.value)
