"""Where a group begins that never committed, on both transports: at the first message, the last, a time, an offset."""

import time
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta, timezone
from typing import Any

import pytest

import shmq
from tests.conformance.conftest import QUEUES, Named
from tests.deadline import eventually

Eventually = Callable[..., Any]


def taken(subscription: Any, eventually: Eventually, count: int) -> list[bytes]:
    """So many bodies, acknowledged, and no more."""
    found: list[bytes] = []
    while len(found) < count:
        for message in eventually(lambda: subscription.receive(32, 0.5)):
            found.append(message.body)
            message.ack()
    return sorted(found + [message.body for message in subscription.receive(32, 0.2)])


@pytest.fixture
def filled(mq: shmq.Connection, topic: str) -> str:
    """The topic with an old message in every queue, and a newer one a moment later."""
    for queue_id in range(QUEUES):
        mq.send(topic, b"old", queue_id=queue_id)
    before_ms = max(message.store_ms for message in mq.browse(topic))
    eventually(lambda: time.time_ns() // 1_000_000 > before_ms + 1, "the clock of the messages goes on")
    for queue_id in range(QUEUES):
        mq.send(topic, b"new", queue_id=queue_id)
    return topic


@pytest.mark.parametrize("start", [None, "first", "begin", "-1h", 0])
def test_a_group_begins_at_the_first_message(
    mq: shmq.Connection, filled: str, named: Named, start: Any, eventually: Eventually
) -> None:
    with mq.subscribe(filled, group=named("billing"), start=start) as subscription:
        assert taken(subscription, eventually, 2 * QUEUES) == [b"new"] * QUEUES + [b"old"] * QUEUES


@pytest.mark.parametrize("start", ["last", "end", "2999-01-01T00:00:00Z", 10**12])
def test_a_group_begins_behind_the_last_message(
    mq: shmq.Connection, filled: str, named: Named, start: Any, eventually: Eventually
) -> None:
    with mq.subscribe(filled, group=named("billing"), start=start) as subscription:
        eventually(lambda: len(subscription.queues) == QUEUES)
        assert subscription.receive(32, 0.1) == []
        for queue_id in range(QUEUES):
            mq.send(filled, b"later", queue_id=queue_id)
        assert taken(subscription, eventually, QUEUES) == [b"later"] * QUEUES


BEFORE = [
    "1900-01-01",
    "0001-01-01T00:00:00Z",
    "1969-12-31T23:59:59.999Z",
    "-99999w",
    datetime.min,
    datetime.min.replace(tzinfo=UTC),
    datetime.min.replace(tzinfo=timezone(timedelta(hours=23))),
    date.min,
    date(1969, 1, 1),
]
BEHIND = ["9999-12-31", datetime.max, datetime.max.replace(tzinfo=timezone(-timedelta(hours=23))), date.max]


def test_a_time_before_the_first_message_is_the_beginning_and_one_behind_the_last_the_end(
    mq: shmq.Connection, filled: str, named: Named
) -> None:
    group = named("billing")
    with mq.pull_consumer(filled, group=group) as pull:
        for queue_id in range(QUEUES):
            pull.seek(queue_id, "end")
        pull.commit()
        for times, offset in ((BEFORE, 0), (BEHIND, 2)):
            for moment in times:
                assert pull.seek(0, moment) == offset, moment
                if not isinstance(moment, str) or not moment.startswith("-"):
                    assert pull.seek(0, time=moment) == offset, moment
                with mq.pull_consumer(filled, start=moment) as fresh:
                    assert sum(fresh.lag().values()) == QUEUES * (2 - offset), moment
                assert len(mq.browse(filled, since=moment)) == QUEUES * (2 - offset), moment
                assert len(mq.browse(filled, until=moment)) == QUEUES * offset, moment
    for times, offset in ((BEFORE, 0), (BEHIND, 2)):
        for moment in times:
            steps = mq.admin.groups[group].reset(filled, to=moment)
            assert [step.new for step in steps] == [offset] * QUEUES, moment


@pytest.mark.parametrize("start", ["1900-01-01", datetime.min])
def test_a_group_that_begins_before_the_first_message_begins_there(
    mq: shmq.Connection, filled: str, named: Named, start: Any, eventually: Eventually
) -> None:
    with mq.subscribe(filled, group=named("billing"), start=start) as subscription:
        assert taken(subscription, eventually, 2 * QUEUES) == [b"new"] * QUEUES + [b"old"] * QUEUES


def test_a_group_begins_at_a_time(mq: shmq.Connection, filled: str, named: Named, eventually: Eventually) -> None:
    first_new_ms = min(message.store_ms for message in mq.browse(filled) if message.body == b"new")
    start = datetime.fromtimestamp(first_new_ms / 1000, UTC)
    with mq.subscribe(filled, group=named("billing"), start=start) as subscription:
        assert taken(subscription, eventually, QUEUES) == [b"new"] * QUEUES


def test_a_group_that_committed_goes_on_there_whatever_it_says(
    mq: shmq.Connection, filled: str, named: Named, eventually: Eventually
) -> None:
    group = named("billing")
    with mq.subscribe(filled, group=group) as subscription:
        taken(subscription, eventually, 2 * QUEUES)
        eventually(lambda: subscription.lag() == 0)
    for start in ("first", "last"):
        mq.send(filled, start.encode())
        with mq.subscribe(filled, group=group, start=start) as subscription:
            assert taken(subscription, eventually, 1) == [start.encode()]
            eventually(lambda: subscription.lag() == 0)
