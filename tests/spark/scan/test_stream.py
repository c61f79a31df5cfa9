"""A streaming query's source as the engine calls it, over a real broker: batches, limits, groups, loss."""

from __future__ import annotations

from typing import Any

import pytest

from shmq.errors import OffsetOutOfRange, UsageError
from shmq.shm.core import KeeperStore
from tests.spark.query import Query


@pytest.fixture
def topic(request: pytest.FixtureRequest, mq: Any) -> str:
    name = f"stream-{abs(hash(request.node.name))}"
    mq.admin.create_topic(name, queues=2)
    return name


def send(mq: Any, topic: str, *numbers: int) -> None:
    for number in numbers:
        mq.send(topic, b"%d" % number, queue_id=number % 2)


def test_batches_hold_what_came_since_each_message_once(broker: Any, mq: Any, topic: str) -> None:
    send(mq, topic, 0, 1)
    query = Query(broker, topic)
    at = query.begin()
    assert query.step(at) == (at, [])
    send(mq, topic, 2, 3, 4)
    at, bodies = query.step(at)
    assert sorted(bodies) == [b"2", b"3", b"4"]
    assert query.step(at) == (at, [])
    query.start()
    send(mq, topic, 5)
    assert query.step(at)[1] == [b"5"]


def test_batch_0_is_the_same_after_a_crash_though_the_newest_message_moved(broker: Any, mq: Any, topic: str) -> None:
    query = Query(broker, topic)
    at = query.begin()
    send(mq, topic, 0, 1, 2)
    end, first = query.step(at)
    send(mq, topic, 3, 4)
    query.start()  # the engine asks for the initial offset again and gives it as the start
    assert query.batch(query.begin(), end) == first and len(first) == 3
    assert sorted(query.step(end)[1]) == [b"3", b"4"]


def test_limits_hold_and_available_now_ends_at_what_was_there(broker: Any, mq: Any, topic: str) -> None:
    send(mq, topic, *range(100))
    query = Query(broker, topic, startingOffsets="earliest", maxOffsetsPerTrigger=30)
    at = query.begin()
    assert len(query.step(at, everything=True)[1]) == 100
    query.reader.prepareForTriggerAvailableNow()
    send(mq, topic, *range(100, 120))
    sizes, seen = [], []
    while True:
        end, bodies = query.step(at)
        if end == at:
            break
        sizes.append(len(bodies))
        seen += bodies
        at = end
    assert sizes == [30, 30, 30, 10] and sorted(map(int, seen)) == list(range(100))


def test_bytes_limit_a_batch_and_few_messages_wait(broker: Any, mq: Any, topic: str) -> None:
    send(mq, topic, *range(40))
    one = Query(broker, topic, startingOffsets="earliest", maxBytesPerTrigger=1)
    assert len(one.step(one.begin())[1]) == 2  # one of each queue goes always
    waiting = Query(broker, topic, startingOffsets="earliest", minOffsetsPerTrigger=41, maxTriggerDelay="1h")
    at = waiting.begin()
    assert waiting.step(at) == (at, [])
    send(mq, topic, 40)
    assert len(waiting.step(at)[1]) == 41
    hasty = Query(broker, topic, startingOffsets="earliest", minOffsetsPerTrigger=100, maxTriggerDelay="0s")
    assert len(hasty.step(hasty.begin())[1]) == 41


def test_a_group_gets_the_offsets_of_what_is_done(broker: Any, mq: Any, topic: str) -> None:
    send(mq, topic, *range(10))
    group = f"g-{topic}"
    query = Query(broker, topic, startingOffsets="earliest", commitGroup=group)
    end, _ = query.step(query.begin())
    query.step(end)
    with mq.pull_consumer(topic) as consumer:
        assert consumer.committed(group) == {0: 5, 1: 5}
    later = Query(broker, topic, startingOffsets="committed", group=group)
    send(mq, topic, 10)
    assert later.step(later.begin())[1] == [b"10"]


def test_a_queue_that_is_new_begins_at_its_first_message(broker: Any, mq: Any, topic: str) -> None:
    send(mq, topic, 0, 1)
    query = Query(broker, topic, startingOffsets="earliest")
    at, _ = query.step(query.begin())
    mq._live().queues.put_topic(topic, queues=3)
    mq.send(topic, b"new", queue_id=2)
    assert query.step(at)[1] == [b"new"]


def test_lost_messages_stop_a_query_or_are_counted(
    broker: Any, mq: Any, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    send(mq, topic, *range(20))
    given = {"startingOffsets": "earliest", "leaseSeconds": 0}
    strict, lenient = Query(broker, topic, **given), Query(broker, topic, **given, failOnDataLoss="false")
    at = strict.begin()
    store = mq._live().wire.store  # the test plays retention
    KeeperStore(store).set_offset_min(store.topic(store.topic_find(topic))["queues"][0], 4)
    with pytest.raises(OffsetOutOfRange, match="4 messages are missing"):
        strict.step(at)
    assert len(lenient.step(at)[1]) == 16 and "4 messages are missing" in caplog.text
    mq.admin.delete_topic(topic)
    mq.admin.create_topic(topic, queues=2)
    send(mq, topic, 100)
    with pytest.raises(OffsetOutOfRange, match="made anew"):
        strict.step(at)
    assert lenient.step(at)[1] == [b"100"]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"endingOffsets": "latest"}, "no end"),
        ({"view": "queues"}, "does not stream"),
        ({"maxTriggerDelay": "soon"}, "maxTriggerDelay"),
        ({"commitGroup": "bad group"}, "commitGroup"),
        ({"maxOffsetsPerTrigger": "-1"}, "maxOffsetsPerTrigger"),
    ],
)
def test_options_a_stream_cannot_have_are_refused(broker: Any, options: dict[str, str], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        Query(broker, "orders", **options)
