"""Broadcasting: every member gets every message, and shares its offsets with no other."""

from collections.abc import Callable
from typing import Any

import shmq
from tests.conformance.conftest import Named

Eventually = Callable[..., Any]


def taken(subscription: Any, eventually: Eventually, count: int) -> list[bytes]:
    found: list[bytes] = []
    while len(found) < count:
        for message in eventually(lambda: subscription.receive(32, 0.5)):
            found.append(message.body)
            message.ack()
    return sorted(found + [message.body for message in subscription.receive(32, 0.1)])


def test_every_member_gets_every_message_once(
    mq: shmq.Connection, connect: Callable[..., shmq.Connection], topic: str, eventually: Eventually
) -> None:
    other = connect()
    mq.send(topic, b"before")
    with mq.subscribe(topic, model="broadcasting") as one, other.subscribe(topic, model="broadcasting") as two:
        eventually(lambda: len(one.queues) == len(two.queues) == 4)
        sent = sorted(b"%d" % number for number in range(8))
        for body in sent:
            mq.send(topic, body, tag="fruit")
        assert taken(one, eventually, 8) == taken(two, eventually, 8) == sent


def test_a_broadcast_with_start_first_reads_from_the_first_message(
    mq: shmq.Connection, topic: str, eventually: Eventually
) -> None:
    mq.send_batch(topic, [b"1", b"2"])
    with mq.subscribe(topic, model="broadcasting", start="first") as subscription:
        assert taken(subscription, eventually, 2) == [b"1", b"2"]


def test_a_broadcast_filters_by_tag_and_expression(mq: shmq.Connection, topic: str, eventually: Eventually) -> None:
    for number in range(6):
        mq.send(topic, b"%d" % number, tag=("fruit", "veg")[number % 2], properties={"qty": str(number)})
    with mq.subscribe(topic, model="broadcasting", start="first", tags="veg", where="qty > 1") as subscription:
        assert taken(subscription, eventually, 2) == [b"3", b"5"]


def test_a_broadcast_takes_nothing_from_a_group(
    mq: shmq.Connection, topic: str, named: Named, eventually: Eventually
) -> None:
    group = named("billing")
    mq.send_batch(topic, [b"1", b"2"])
    with mq.subscribe(topic, group=named("watch"), model="broadcasting", start="first") as watching:
        assert taken(watching, eventually, 2) == [b"1", b"2"]
    with mq.subscribe(topic, group=group) as subscription:
        assert taken(subscription, eventually, 2) == [b"1", b"2"]


def test_a_member_that_starts_again_goes_on_where_it_was_and_misses_nothing(
    connect: Callable[..., shmq.Connection], topic: str, named: Named, eventually: Eventually
) -> None:
    group = named("watch")
    for turn, (start, sent) in enumerate(((None, b"while here"), ("first", b"while away"), (None, b"again"))):
        mq = connect()
        if turn == 1:
            mq.send(topic, sent)
        with mq.subscribe(topic, group=group, model="broadcasting", start=start) as subscription:
            eventually(lambda subscription=subscription: len(subscription.queues) == 4)
            if turn != 1:
                mq.send(topic, sent)
            assert taken(subscription, eventually, 1) == [sent]
        mq.close()


def test_what_was_not_settled_comes_again_after_a_restart(
    connect: Callable[..., shmq.Connection], topic: str, named: Named, eventually: Eventually
) -> None:
    group = named("watch")
    mq = connect()
    with mq.subscribe(topic, group=group, model="broadcasting", start="first") as subscription:
        mq.send_batch(topic, [b"1", b"2"], queue_id=3)
        first, second = eventually(lambda: len(found := subscription.receive(2, 0.5)) == 2 and found)
        first.ack()
        assert (first.body, second.body) == (b"1", b"2")
    with connect().subscribe(topic, group=group, model="broadcasting") as subscription:
        assert taken(subscription, eventually, 1) == [b"2"]


def test_members_of_one_host_have_places_of_their_own(
    connect: Callable[..., shmq.Connection], topic: str, named: Named, eventually: Eventually
) -> None:
    group, one, two = named("watch"), connect(), connect()
    with (
        one.subscribe(topic, group=group, model="broadcasting", start="first") as left,
        two.subscribe(topic, group=group, model="broadcasting", start="first") as right,
    ):
        one.send(topic, b"1")
        assert taken(left, eventually, 1) == taken(right, eventually, 1) == [b"1"]
        right.close()  # before the second message, which only the other one sees
        one.send(topic, b"2")
        assert taken(left, eventually, 1) == [b"2"]
    one.send(topic, b"3")
    with (
        one.subscribe(topic, group=group, model="broadcasting") as left,
        two.subscribe(topic, group=group, model="broadcasting") as right,
    ):
        assert taken(left, eventually, 1) == [b"3"]
        assert taken(right, eventually, 2) == [b"2", b"3"]
