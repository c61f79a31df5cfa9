"""Members of one group that hold messages: on this host, over TCP, and both together, with the same expectations."""

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import shmq
from shmq.testing import Broker
from tests.conformance.conftest import url_of
from tests.conformance.test_simple_consumer import take
from tests.deadline import eventually as until

Named = Callable[[str], str]
Eventually = Callable[..., Any]
HOLDER = Path(__file__).with_name("holder.py")
PAIRS = [("shm", "shm"), ("shm", "tcp"), ("tcp", "shm"), ("tcp", "tcp")]


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    """The broker of this file: nothing but `advance` moves the clock by which messages are hidden."""
    with Broker(tcp=True, clock="frozen", timeout=90.0) as broker:
        yield broker


@pytest.fixture(params=PAIRS, ids="-".join)
def members(request: pytest.FixtureRequest, broker: Broker) -> Iterator[tuple[shmq.Connection, shmq.Connection]]:
    """Two connections, of one transport or of both."""
    one, two = request.param
    with (
        shmq.connect(url_of(broker, one), timeout=60.0) as first,
        shmq.connect(url_of(broker, two), timeout=60.0) as second,
    ):
        yield first, second


@pytest.fixture
def holder(broker: Broker) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Start a member in a process of its own, which takes messages and holds them."""
    started: list[subprocess.Popen[str]] = []

    def start(transport: str, topic: str, group: str, count: int, invisible: float) -> subprocess.Popen[str]:
        arguments = [url_of(broker, transport), topic, group, str(count), str(invisible)]
        command = [sys.executable, "-P", str(HOLDER), *arguments]
        started.append(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.communicate()


def fill(mq: shmq.Connection, topic: str, count: int, *, queues: int = 1) -> list[bytes]:
    mq.admin.create_topic(topic, queues=queues)
    bodies = [b"%03d" % number for number in range(count)]
    for body in bodies:
        mq.send(topic, body)
    return bodies


def test_members_share_one_queue_message_by_message(
    broker: Broker, members: tuple[shmq.Connection, shmq.Connection], named: Named
) -> None:
    topic, group = named("orders"), named("group")
    bodies = fill(members[0], topic, 40)
    with (
        members[0].simple_consumer(topic, group=group, invisible=60) as one,
        members[1].simple_consumer(topic, group=group, invisible=60) as two,
    ):
        found = [take(one, 10), take(two, 10), take(one, 10), take(two, 10)]
        assert sorted(message.body for part in found for message in part) == bodies
        assert {message.attempt for part in found for message in part} == {1}
        for part in found:
            assert [message.offset for message in part] == sorted(message.offset for message in part)
            for message in part:
                message.ack()
        broker.advance(61)
        assert one.receive() == two.receive() == []


def test_what_one_member_gives_back_another_may_get(
    broker: Broker, members: tuple[shmq.Connection, shmq.Connection], named: Named
) -> None:
    topic, group = named("orders"), named("group")
    bodies = fill(members[0], topic, 3)
    with (
        members[0].simple_consumer(topic, group=group, invisible=60) as one,
        members[1].simple_consumer(topic, group=group, invisible=60) as two,
    ):
        first, second, third = take(one, 3)
        second.nack(after=0)
        (again,) = take(two, 1)
        assert (again.body, again.attempt, again.topic) == (bodies[1], 2, topic)
        again.nack(after=0)
        (once_more,) = take(one, 1)
        assert (once_more.body, once_more.attempt) == (bodies[1], 3)
        for message in (first, once_more, third):
            message.ack()
        broker.advance(61)
        assert one.receive() == two.receive() == []


def given_back(broker: Broker, subscription: shmq.Subscription) -> list[shmq.Message]:
    """What was to come after 10 s; over TCP the clock may move before the broker has heard of it."""
    return until(lambda: broker.advance(10) or subscription.receive(1, 0.05))


def test_groups_whose_names_add_up_to_one_name_get_each_their_own_again(
    broker: Broker, members: tuple[shmq.Connection, shmq.Connection], named: Named
) -> None:
    """Of `a` that pops `b_c`, `a_b` that pops `c`, and `a_b_c`, which pulls: what each gives back comes to it alone."""
    start, end, pulled = named("a"), named("c"), named("pulled")
    popping = {f"b_{end}": start, end: f"{start}_b"}
    for topic in (*popping, pulled):
        fill(members[0], topic, 0)
        members[0].send(topic, topic.encode())
    with members[1].subscribe(pulled, group=f"{start}_b_{end}", start="begin") as subscription:
        subscription.receive(1, 60)[0].nack(after=10)
        for one, (topic, group) in zip(members, popping.items(), strict=True):
            with one.simple_consumer(topic, group=group, invisible=60) as consumer:
                take(consumer, 1)[0].nack(after=0)
        (again,) = given_back(broker, subscription)
        assert (again.body, again.attempt, again.topic) == (pulled.encode(), 2, pulled)
        again.nack(after=10)
        for one, (topic, group) in zip(reversed(members), popping.items(), strict=True):
            with one.simple_consumer(topic, group=group, invisible=60) as consumer:
                (message,) = take(consumer, 1)
                assert (message.body, message.attempt, message.topic) == (topic.encode(), 2, topic)
                assert consumer.receive(wait=0.05) == []
                message.ack()
        (again,) = given_back(broker, subscription)
        assert (again.body, again.attempt) == (pulled.encode(), 3)
        again.ack()
        assert subscription.receive(1, 0.05) == []


def test_an_extension_keeps_a_message_from_the_other_member(
    broker: Broker, members: tuple[shmq.Connection, shmq.Connection], named: Named
) -> None:
    topic, group = named("orders"), named("group")
    fill(members[0], topic, 1)
    with (
        members[0].simple_consumer(topic, group=group, invisible=60) as one,
        members[1].simple_consumer(topic, group=group, invisible=60) as two,
    ):
        (message,) = take(one, 1)
        message.extend(600)
        broker.advance(500)
        assert two.receive() == []
        message.nack(after=0)
        assert [again.attempt for again in take(two, 1)] == [2]


@pytest.mark.parametrize(("victim", "survivor"), PAIRS, ids=map("-".join, PAIRS))
def test_what_a_killed_member_held_comes_to_another_when_its_time_is_over(
    broker: Broker, holder: Callable[..., subprocess.Popen[str]], named: Named, victim: str, survivor: str
) -> None:
    topic, group = named("orders"), named("group")
    with shmq.connect(url_of(broker, survivor), timeout=60.0) as mq:
        bodies = fill(mq, topic, 6)
        process = holder(victim, topic, group, 4, 60)
        assert process.stdout is not None
        held = [process.stdout.readline().strip().encode() for _ in range(4)]
        process.kill()
        process.wait(60)
        with mq.simple_consumer(topic, group=group, invisible=600) as consumer:
            rest = take(consumer, 2)
            assert sorted([*held, *(message.body for message in rest)]) == bodies
            assert consumer.receive() == [], "it is early"
            broker.advance(60.001)
            again = take(consumer, 4)
            assert sorted(message.body for message in again) == sorted(held)
            assert {message.attempt for message in again} == {2}
            for message in [*rest, *again]:
                message.ack()


def test_the_group_goes_on_behind_a_message_that_is_never_settled(
    members: tuple[shmq.Connection, shmq.Connection], named: Named
) -> None:
    topic, group = named("orders"), named("group")
    fill(members[0], topic, 2)
    with (
        members[0].simple_consumer(topic, group=group, invisible=60) as one,
        members[1].simple_consumer(topic, group=group, invisible=60) as two,
    ):
        (stuck,) = take(one, 1)
        (other,) = take(two, 1)
        other.ack()
        members[0].send(topic, b"later")
        (later,) = take(two, 1)
        assert later.body == b"later"
        later.ack()
        stuck.ack()


def test_what_fails_too_often_for_any_member_is_a_dead_letter_once(
    broker: Broker, members: tuple[shmq.Connection, shmq.Connection], named: Named, eventually: Eventually
) -> None:
    topic, group = named("orders"), named("group")
    (body,) = fill(members[0], topic, 1)
    with (
        members[0].simple_consumer(topic, group=group, attempts_max=2) as one,
        members[1].simple_consumer(topic, group=group, attempts_max=2) as two,
    ):
        take(one, 1)[0].nack(after=0)
        take(two, 1)[0].nack(after=0)
        letters = eventually(lambda: list(members[0].admin.dlq(group)))
        assert [letter.body for letter in letters] == [body]
        broker.advance(61)
        assert one.receive() == two.receive() == []
        assert len(list(members[0].admin.dlq(group))) == 1
