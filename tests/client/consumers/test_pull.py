"""The application owns the offsets."""

import signal
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any

import pytest

import shmq
from shmq.client.observers.observer import polled
from shmq.testing import SharedBroker

Eventually = Callable[..., Any]


@pytest.fixture
def mq(shmq_shared_broker: SharedBroker) -> Iterator[shmq.Connection]:
    with shmq_shared_broker.connect() as connection:
        yield connection


@pytest.fixture
def topic(shmq_shared_broker: SharedBroker) -> str:
    return shmq_shared_broker.named("orders")


@pytest.fixture
def filled(mq: shmq.Connection, topic: str) -> str:
    """A topic of two queues with ten messages in the first one."""
    mq.admin.create_topic(topic, queues=2)
    for number in range(10):
        mq.send(topic, b"%d" % number, queue_id=0)
    return topic


def test_it_reads_every_queue_from_the_beginning(mq: shmq.Connection, filled: str) -> None:
    mq.send(filled, b"other", queue_id=1)
    with mq.pull_consumer(filled) as consumer:
        assert consumer.queues() == [0, 1]
        messages = consumer.poll(max=100, wait=60)
    assert sorted(message.body for message in messages) == sorted([b"other", *(b"%d" % number for number in range(10))])


def test_it_may_begin_at_the_end(mq: shmq.Connection, filled: str) -> None:
    with mq.pull_consumer(filled, start="end") as consumer:
        assert consumer.poll() == []
        mq.send(filled, b"new")
        assert [message.body for message in consumer.poll(wait=60)] == [b"new"]


@pytest.mark.parametrize(
    ("where", "first"),
    [({"position": "begin"}, 0), ({"position": 4}, 4), ({"offset": 7}, 7), ({"position": "-1h"}, 0)],
)
def test_seeking_decides_what_comes_next(mq: shmq.Connection, filled: str, where: dict[str, Any], first: int) -> None:
    with mq.pull_consumer(filled, start="end") as consumer:
        assert consumer.seek(0, **where) == first
        assert [int(message.body) for message in consumer.poll(100, wait=60)] == list(range(first, 10))


def test_seeking_by_time_finds_the_first_message_stored_then(mq: shmq.Connection, topic: str) -> None:
    mq.send(topic, b"before", queue_id=0)
    border = mq.send(topic, b"border", queue_id=0).store_ms
    while (after := mq.send(topic, b"after", queue_id=0)).store_ms == border:
        pass
    moment = datetime.fromtimestamp(after.store_ms / 1000, UTC)
    with mq.pull_consumer(topic) as consumer:
        for time_given in (moment, moment.isoformat()):
            assert consumer.seek(0, time=time_given) == after.offset
            assert [message.offset for message in consumer.poll(10, wait=60)] == [after.offset]
        assert consumer.seek(0, time="2000-01-01T00:00:00Z") == consumer.seek(0, time="-1w") == 0
        with pytest.raises(shmq.UsageError, match="is not a time") as refused:
            consumer.seek(0, time="end")
        assert '"-2h"' in refused.value.hint
        assert consumer.seek(0, time="2200-01-01T00:00:00Z") == after.offset + 1


def test_an_offset_that_is_not_stored_is_an_error_with_those_that_are(mq: shmq.Connection, filled: str) -> None:
    with mq.pull_consumer(filled) as consumer:
        with pytest.raises(shmq.OffsetOutOfRange, match="0 to 9"):
            consumer.seek(0, offset=11)
        assert consumer.seek(0, offset=10) == 10
        with pytest.raises(shmq.UsageError, match="no queue 7"):
            consumer.seek(7, "begin")
        with pytest.raises(shmq.UsageError):
            consumer.seek(0)
        with pytest.raises(shmq.UsageError):
            consumer.seek(0, "begin", offset=3)


def test_positions_move_behind_what_was_polled_and_lag_says_what_is_left(mq: shmq.Connection, filled: str) -> None:
    with mq.pull_consumer(filled) as consumer:
        assert consumer.lag() == {0: 10, 1: 0}
        consumer.poll(max=3, wait=60)
        assert consumer.positions() == {0: 3, 1: 0}
        assert consumer.lag() == {0: 7, 1: 0}


def test_a_commit_is_where_the_group_goes_on(
    shmq_shared_broker: SharedBroker, mq: shmq.Connection, filled: str
) -> None:
    group = shmq_shared_broker.named("audit")
    with mq.pull_consumer(filled) as consumer:
        assert consumer.committed(group) == {}
        consumer.poll(max=4, wait=60)
        assert consumer.commit(group=group) == {0: 4, 1: 0}
        assert consumer.committed(group) == {0: 4, 1: 0}
        consumer.poll(max=4, wait=60)
    with mq.pull_consumer(filled, group=group) as consumer:
        assert consumer.positions() == {0: 4, 1: 0}
        consumer.commit(offsets={0: 6})
        with pytest.raises(shmq.UsageError):
            consumer.commit(offsets={9: 1})
    assert mq.admin.groups[group].lag.total == 4
    with mq.subscribe(filled, group=group) as subscription:
        assert [message.body for message in subscription.receive(wait=60)] == [b"6", b"7", b"8", b"9"]


def test_committing_needs_a_group(mq: shmq.Connection, filled: str) -> None:
    with mq.pull_consumer(filled) as consumer, pytest.raises(shmq.UsageError) as caught:
        consumer.commit()
    assert "group" in caught.value.hint


def test_reading_does_not_disturb_a_group(shmq_shared_broker: SharedBroker, mq: shmq.Connection, filled: str) -> None:
    group = shmq_shared_broker.named("billing")
    with mq.subscribe(filled, group=group) as subscription, mq.pull_consumer(filled) as consumer:
        assert len(consumer.poll(100, wait=60)) == 10
        assert len(subscription.receive(100, wait=60)) == 10
        assert subscription.queues == [0, 1]


def test_a_waiting_poll_returns_as_soon_as_something_comes(mq: shmq.Connection, topic: str) -> None:
    with mq.pull_consumer(topic) as consumer:
        got: list[bytes] = []
        thread = threading.Thread(target=lambda: got.extend(message.body for message in consumer.poll(wait=600)))
        thread.start()
        mq.send(topic, b"x")
        thread.join(60)
        assert got == [b"x"]


def test_queues_that_come_later_are_read_from_their_beginning(mq: shmq.Connection, filled: str) -> None:
    with mq.pull_consumer(filled, start="end") as consumer:
        mq.admin.update_topic(filled, queues=3)
        mq.send(filled, b"new queue", queue_id=2)
        assert consumer.queues() == [0, 1, 2]
        assert [message.body for message in consumer.poll(wait=60)] == [b"new queue"]


def test_only_the_tags_asked_for_come(mq: shmq.Connection, topic: str) -> None:
    for tag in ("fruit", "meat"):
        mq.send(topic, tag.encode(), tag=tag)
    with mq.pull_consumer(topic, tags="fruit") as consumer:
        assert [message.body for message in consumer.poll(10, wait=60)] == [b"fruit"]
        assert consumer.poll(10, wait=0.05) == []


@pytest.mark.parametrize("kind", ["pull_consumer", "subscribe", "simple_consumer"])
def test_a_consumer_that_a_signal_handler_closes_returns_what_it_has(
    mq: shmq.Connection, topic: str, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A handler runs in the middle of a wait of its thread: before the reader waits, and after it has waited."""
    mq.admin.create_topic(topic)
    for is_closed_first in (True, False):
        made: Any = mq.pull_consumer(topic) if kind == "pull_consumer" else getattr(mq, kind)(topic, group=topic)
        before = signal.signal(signal.SIGUSR1, lambda *_, made=made: made.close())

        def interrupted(*words: Any, is_closed_first: bool = is_closed_first) -> list[shmq.Message]:
            if is_closed_first:
                signal.raise_signal(signal.SIGUSR1)
            found = polled(*words[:-1], 0.0)
            signal.raise_signal(signal.SIGUSR1)
            return found

        with monkeypatch.context() as patch:
            patch.setattr(
                f"shmq.client.consumers.{'pull' if kind == 'pull_consumer' else 'consumer'}.polled", interrupted
            )
            try:
                assert (made.poll if kind == "pull_consumer" else made.receive)(wait=60) == []
            finally:
                signal.signal(signal.SIGUSR1, before)


def test_a_closed_consumer_says_so(mq: shmq.Connection, filled: str) -> None:
    consumer = mq.pull_consumer(filled)
    consumer.close()
    consumer.close()
    with pytest.raises(shmq.UsageError, match="closed"):
        consumer.poll()
