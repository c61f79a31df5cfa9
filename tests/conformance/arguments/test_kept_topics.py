"""No client may send by name to a topic that the broker keeps for itself; its own delayed messages still go."""

from collections.abc import Callable
from typing import Any

import pytest

import shmq
from shmq.delay_levels import SCHEDULE_TOPIC
from shmq.message import KEPT_TOPICS, retry_topic_of
from shmq.protocol.pop import REVIVE_TOPIC_PREFIX
from shmq.protocol.system_topics.row_marks import STAGED_TOPIC
from shmq.protocol.system_topics.transaction import GIVEN_UP_TOPIC, HALF_TOPIC, OP_TOPIC
from shmq.timing import TIMER_TOPIC
from tests.conformance.conftest import PATIENCE, Named

KEPT = sorted({*KEPT_TOPICS, f"{REVIVE_TOPIC_PREFIX}DefaultCluster", retry_topic_of("g", "orders")})
CALLS: dict[str, Callable[[shmq.Connection, str], Any]] = {
    "send": lambda mq, topic: mq.send(topic, b"x"),
    "send with keywords": lambda mq, topic: mq.send(topic, b"x", tag="fruit", queue_id=0),
    "send_oneway": lambda mq, topic: mq.send_oneway(topic, b"x"),
    "send_batch": lambda mq, topic: mq.send_batch(topic, [b"x"]),
    "reserve": lambda mq, topic: _filled(mq, topic),
    "delay": lambda mq, topic: mq.send(topic, b"x", delay=60),
    "delay_level": lambda mq, topic: mq.send(topic, b"x", delay_level=3),
    "deliver_at": lambda mq, topic: mq.send(topic, b"x", deliver_at="2020-01-01"),
    "request": lambda mq, topic: mq.request(topic, b"x", timeout=1.0),
    "producer": lambda mq, topic: mq.producer(group="shop").send(topic, b"x"),
    "compressed": lambda mq, topic: mq.producer(group="shop", compression="zlib").send(topic, bytes(10_000)),
    "send_nowait": lambda mq, topic: mq.producer(group="shop").send_nowait(topic, b"x").result(PATIENCE),
}


def _filled(mq: shmq.Connection, topic: str) -> None:
    with mq.reserve(topic, 3) as slot:
        slot.view[:] = b"abc"


def _send_all_that_waits(mq: shmq.Connection, topic: str) -> None:
    mq.send(topic, b"1", delay=0.001)
    mq.send(topic, b"2", delay_level=1)
    mq.send_oneway(topic, b"3", delay=0.001)
    with mq.producer(group="shop") as producer, producer.transaction(topic, b"4"):
        pass


def test_what_the_broker_itself_writes_to_is_kept() -> None:
    assert {SCHEDULE_TOPIC, TIMER_TOPIC, STAGED_TOPIC, HALF_TOPIC, OP_TOPIC, GIVEN_UP_TOPIC} <= KEPT_TOPICS


@pytest.mark.parametrize("call", CALLS)
def test_a_topic_of_the_brokers_own_is_refused_with_its_cure(mq: shmq.Connection, topic: str, call: str) -> None:
    _send_all_that_waits(mq, topic)  # the client itself has looked some of them up by now
    for kept in KEPT:
        with pytest.raises(shmq.PermissionDenied) as refused:
            CALLS[call](mq, kept)
        assert (
            str(refused.value).startswith(f'topic "{kept}" is the broker\'s own') and "delay=60" in refused.value.hint
        )


def test_what_waits_is_delivered_after_a_refusal(mq: shmq.Connection, topic: str, named: Named) -> None:
    for kept in KEPT:
        with pytest.raises(shmq.PermissionDenied):
            mq.send(kept, b"x", delay=1)
    with mq.subscribe(topic, group=named("late"), start="begin") as subscription:
        _send_all_that_waits(mq, topic)
        found: set[bytes] = set()
        while found != {b"1", b"2", b"3", b"4"}:
            messages = subscription.receive(4, PATIENCE)
            assert messages, f"only {found} came"
            found |= {message.body for message in messages}
