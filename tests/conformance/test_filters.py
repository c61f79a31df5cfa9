"""Filters on both transports: what is selected, that offsets pass the rest, and wrong expressions."""

from collections.abc import Callable
from typing import Any

import pytest

import shmq
from tests.conformance.conftest import Named

COUNT = 60
WHERE = "region = 'eu' AND qty BETWEEN 1 AND 10"
SELECTED = {b"%d" % qty for qty in range(1, 11) if qty % 3}


@pytest.fixture
def filled(mq: shmq.Connection, topic: str) -> str:
    """The topic with messages of two regions, three tags and growing quantities."""
    for qty in range(COUNT):
        properties = {"region": "eu" if qty % 3 else "us", "qty": str(qty)}
        mq.send(topic, b"%d" % qty, tag=("fruit", "veg", "nuts")[qty % 3], properties=properties)
    return topic


def drained(consumer: Any, count: int) -> set[bytes]:
    """The bodies of so many messages, acknowledged, and of none after them."""
    found: list[bytes] = []
    while len(found) < count:
        messages = consumer.receive(wait=60)
        assert messages, f"only {found} came"
        for message in messages:
            found.append(message.body)
            message.ack()
    found += [message.body for message in consumer.receive(wait=0.3)]
    assert len(found) == count, found
    return set(found)


def test_a_group_gets_what_its_expression_selects_and_its_offsets_pass_the_rest(
    mq: shmq.Connection, filled: str, named: Named, eventually: Callable[..., Any]
) -> None:
    with mq.subscribe(filled, group=named("eu"), where=WHERE) as subscription:
        assert drained(subscription, len(SELECTED)) == SELECTED
        eventually(lambda: subscription.lag() == 0)
        mq.send(filled, b"later", properties={"region": "eu", "qty": "5"})
        assert drained(subscription, 1) == {b"later"}


def test_tags_and_an_expression_are_both_looked_at(mq: shmq.Connection, filled: str, named: Named) -> None:
    with mq.subscribe(filled, group=named("veg"), tags="veg || fruit", where="qty < 9") as subscription:
        assert drained(subscription, 6) == {b"0", b"1", b"3", b"4", b"6", b"7"}


def test_a_simple_consumer_filters(mq: shmq.Connection, filled: str, named: Named) -> None:
    with mq.simple_consumer(filled, group=named("simple"), where=WHERE) as consumer:
        assert drained(consumer, len(SELECTED)) == SELECTED


def test_a_listener_filters(mq: shmq.Connection, filled: str, named: Named, eventually: Callable[..., Any]) -> None:
    seen = set()

    @mq.listener(filled, group=named("listener"), where=WHERE)
    def handle(message: shmq.Message) -> None:
        seen.add(message.body)

    mq.start()
    eventually(lambda: len(seen) >= len(SELECTED))
    assert seen == SELECTED


def test_a_pull_consumer_and_a_look_at_the_topic_filter(mq: shmq.Connection, filled: str) -> None:
    with mq.pull_consumer(filled, where=WHERE) as consumer:
        found: set[bytes] = set()
        while len(found) < len(SELECTED):
            messages = consumer.poll(max=100, wait=60)
            assert messages
            found |= {message.body for message in messages}
    assert found == SELECTED
    assert {message.body for message in mq.browse(filled, where=WHERE)} == SELECTED
    assert [message.body for message in mq.browse(filled, where="qty > 57", tags="veg")] == [b"58"]


@pytest.mark.parametrize("make", ["subscribe", "simple_consumer", "pull_consumer", "listener", "browse"])
def test_a_wrong_expression_is_refused_with_its_place(mq: shmq.Connection, topic: str, named: Named, make: str) -> None:
    arguments = {} if make == "browse" else {"group": named("g")}
    with pytest.raises(shmq.FilterSyntaxError) as caught:
        getattr(mq, make)(topic, where="qty > 5 AND region LIKE 'e%'", **arguments)
    error = caught.value
    assert (error.offset, error.end_offset, error.text) == (20, 24, "qty > 5 AND region LIKE 'e%'")
    assert str(error).splitlines()[-1] == "    " + " " * 19 + "^^^^"
    assert "CONTAINS" in error.hint


def test_an_expression_counts_like_tags_in_a_conflict(
    connect: Callable[..., shmq.Connection], topic: str, named: Named, transport: str
) -> None:
    if transport == "tcp":
        pytest.skip("RocketMQ's brokers refuse no member for it; the last heartbeat counts")
    first, second = connect(), connect()
    group = named("g")
    with first.subscribe(topic, group=group, where="qty > 5"):
        with second.subscribe(topic, group=group, where="qty > 5"):
            pass
        for other in ({"where": "qty > 6"}, {"tags": "fruit"}, {"where": "qty > 5", "tags": "fruit"}):
            with pytest.raises(shmq.SubscriptionConflict, match="SQL92 qty > 5"):
                second.subscribe(topic, group=group, **other)
