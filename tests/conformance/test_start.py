"""Where a group begins that never committed, on both transports: at the first message, the last, a time, an offset."""

import time
from collections.abc import Callable
from datetime import UTC, datetime
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
