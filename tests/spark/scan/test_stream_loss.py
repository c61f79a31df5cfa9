"""Retention and the deletion of topics while a query runs, over both ways: an error, or a gap that is counted once."""

from __future__ import annotations

import os
import signal
from typing import Any

import pytest

from shmq.errors import OffsetOutOfRange
from shmq.shm.core import KeeperStore
from shmq.testing import Broker
from tests.spark.cluster import until
from tests.spark.query import SENT, Query, fill


@pytest.fixture(params=["shm", "remote"])
def access(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def topic(request: pytest.FixtureRequest, mq: Any) -> str:
    name = f"loss-{abs(hash(request.node.name))}"
    fill(mq, name)
    return name


def pair(broker: Any, topic: str, access: str) -> tuple[Query, Query]:
    """The same query twice: one that stops at a loss, one that goes on."""
    given = {"startingOffsets": "earliest", "leaseSeconds": 0, "access": access}
    return Query(broker, topic, **given), Query(broker, topic, **given, failOnDataLoss="false")


def retire(mq: Any, topic: str, first: int) -> None:
    """Play retention for the first queue of a topic."""
    store = mq._live().wire.store
    KeeperStore(store).set_offset_min(store.topic(store.topic_find(topic))["queues"][0], first)


@pytest.mark.parametrize("moment", ["before the plan", "after the plan"])
def test_retention_that_passes_a_batch(
    broker: Any, mq: Any, topic: str, access: str, moment: str, caplog: pytest.LogCaptureFixture
) -> None:
    strict, lenient = pair(broker, topic, access)
    at = strict.begin()
    ends = [query.step(at)[0] for query in (strict, lenient)]
    parts = [query.reader.partitions(at, end) for query, end in zip((strict, lenient), ends, strict=True)]
    retire(mq, topic, 4)
    if moment == "before the plan":
        parts = [query.reader.partitions(at, end) for query, end in zip((strict, lenient), ends, strict=True)]
    with pytest.raises(OffsetOutOfRange, match=r"4 messages are missing.*failOnDataLoss=false"):
        strict.read(parts[0])
    assert sorted(map(int, lenient.read(parts[1]))) == sorted({*range(SENT)} - {0, 2, 4, 6})
    assert caplog.text.count("4 messages are missing") == 1
    mq.send(topic, b"next", queue_id=0)
    assert strict.step(ends[0])[1] == lenient.step(ends[1])[1] == [b"next"]


def test_retention_between_two_batches(
    broker: Any, mq: Any, topic: str, access: str, caplog: pytest.LogCaptureFixture
) -> None:
    strict, lenient = pair(broker, topic, access)
    at, _ = strict.step(strict.begin())
    for number in range(SENT, SENT + 20):
        mq.send(topic, b"%d" % number, queue_id=number % 2)
    retire(mq, topic, SENT // 2 + 3)
    with pytest.raises(OffsetOutOfRange, match="3 messages are missing"):
        strict.step(at)
    at, bodies = lenient.step(at)
    assert len(bodies) == 17 and caplog.text.count("3 messages are missing") == 1
    assert lenient.step(at) == (at, [])


@pytest.mark.parametrize("moment", ["before the plan", "after the plan"])
def test_a_topic_that_is_deleted_under_a_batch(
    broker: Any, mq: Any, topic: str, access: str, moment: str, caplog: pytest.LogCaptureFixture
) -> None:
    strict, lenient = pair(broker, topic, access)
    at = strict.begin()
    end, _ = strict.step(at)
    parts = [query.reader.partitions(at, end) for query in (strict, lenient)]
    mq.admin.delete_topic(topic)
    if moment == "before the plan":
        with pytest.raises(OffsetOutOfRange, match=rf"{topic}.*deleted.*{SENT} messages are missing.*failOnDataLoss"):
            strict.reader.partitions(at, end)
        assert lenient.reader.partitions(at, end) == []
    else:
        with pytest.raises(OffsetOutOfRange, match=rf"{topic}.*messages are missing.*failOnDataLoss=false"):
            strict.read(parts[0])
        assert lenient.read(parts[1]) == []
    missing = [int(text.split()[-1]) for text in caplog.text.split(" messages are missing")[:-1]]
    assert sum(missing) == SENT


def test_a_topic_that_is_deleted_between_two_batches_and_made_anew(
    broker: Any, mq: Any, topic: str, access: str, caplog: pytest.LogCaptureFixture
) -> None:
    strict, lenient = pair(broker, topic, access)
    at, _ = strict.step(strict.begin())
    assert lenient.step(lenient.begin())[0] == at
    mq.send(topic, b"unread", queue_id=0)
    lenient.reader.latestOffset(at, lenient.reader.getDefaultReadLimit())
    mq.admin.delete_topic(topic)
    with pytest.raises(OffsetOutOfRange, match=r"is not there any more.*failOnDataLoss=false"):
        strict.step(at)
    for _ in range(3):
        assert lenient.step(at) == (at, [])
        lenient.reader.reportLatestOffset()
        lenient.reader.prepareForTriggerAvailableNow()
        lenient.reader._target = None
    assert caplog.text.count("is not there any more") == 2  # a queue each, once
    assert "1 messages are missing" in caplog.text and "0 messages are missing" in caplog.text
    fill(mq, topic, first=100)
    with pytest.raises(OffsetOutOfRange, match="made anew"):
        strict.step(at)
    at, bodies = lenient.step(at)
    assert sorted(map(int, bodies)) == list(range(100, 100 + SENT))
    assert "made anew" not in caplog.text  # that was counted when it went
    assert lenient.step(at) == (at, [])


def test_a_pattern_goes_on_without_a_topic_that_went(
    broker: Any, mq: Any, topic: str, access: str, caplog: pytest.LogCaptureFixture
) -> None:
    other = f"{topic}-other"
    fill(mq, other)
    given = {"startingOffsets": "earliest", "access": access, "topicPattern": f"{topic}.*", "failOnDataLoss": "false"}
    query = Query(broker, None, **given)
    at, bodies = query.step(query.begin())
    assert len(bodies) == 2 * SENT
    mq.admin.delete_topic(other)
    mq.send(topic, b"on", queue_id=0)
    at, bodies = query.step(at)
    assert bodies == [b"on"] and caplog.text.count("is not there any more") == 2
    mq.admin.delete_topic(topic)
    assert query.step(at) == (at, [])


def test_the_retention_of_a_living_broker_is_an_error_or_the_same_gap_over_both_ways(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with Broker(file_bytes=1 << 20, tcp=True, retention_hours=1) as broker, broker.connect() as mq:
        mq.admin.create_topic("aged", queues=1)
        for number in range(400):
            mq.send("aged", b"%d|" % number + bytes(9000))
        queries = [query for access in ("shm", "remote") for query in pair(broker, "aged", access)]
        planned = []
        for query in queries:
            at = query.begin()
            end = query.reader.latestOffset(at, query.reader.getDefaultReadLimit())
            planned.append(query.reader.partitions(at, end))
        oldest = broker.store / "commitlog" / f"{0:020d}"
        os.utime(oldest, (0, 0))
        os.kill(broker.processes["keeper"].pid, signal.SIGKILL)  # its successor looks at once, and not in a while
        until(lambda: not oldest.exists(), "retention")
        for query, parts in zip(queries[::2], planned[::2], strict=True):
            with pytest.raises(OffsetOutOfRange, match=r"messages are missing.*failOnDataLoss=false"):
                query.read(parts)
        here, there = ([int(body.split(b"|")[0]) for body in queries[at].read(planned[at])] for at in (1, 3))
        assert here == there == list(range(here[0], 400)) and 100 < here[0] < 130
        assert caplog.text.count(f"{here[0]} messages are missing") == 2
