"""Members of a group in several processes: every message is read by one of them, though members come, leave and die."""

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import shmq
from shmq.client import options
from shmq.testing import Broker, SharedBroker
from tests.client.administration.groups import groups_of

Eventually = Callable[..., Any]
StartMember = Callable[..., Any]
ALL = list(range(8))


@pytest.fixture
def mq(shmq_shared_broker: SharedBroker) -> Iterator[shmq.Connection]:
    with shmq_shared_broker.connect() as connection:
        yield connection


@pytest.fixture
def topic(shmq_shared_broker: SharedBroker) -> str:
    return shmq_shared_broker.named("orders")


@pytest.fixture
def group(shmq_shared_broker: SharedBroker) -> str:
    return shmq_shared_broker.named("billing")


def shares_are_complete(*members: Any) -> bool:
    """Whether every queue is read by exactly one member, and none of them reads nothing."""
    shares = [member.queues for member in members]
    return all(shares) and sorted(queue for share in shares for queue in share) == ALL


def taken(subscription: shmq.Subscription, count: int, eventually: Eventually) -> list[shmq.Message]:
    """Receive and acknowledge so many messages."""
    messages: list[shmq.Message] = []

    def receive() -> bool:
        for message in subscription.receive(count - len(messages), wait=1):
            message.ack()
            messages.append(message)
        return len(messages) == count

    eventually(receive)
    return messages


def test_members_in_several_processes_share_the_queues(
    mq: shmq.Connection, topic: str, group: str, member: StartMember, eventually: Eventually
) -> None:
    members = [member(mq.url, topic, group) for _ in range(3)]
    eventually(lambda: shares_are_complete(*members) and sorted(len(each.queues) for each in members) == [2, 3, 3])
    for number in range(200):
        mq.send(topic, b"%d" % number)
    eventually(lambda: sum(len(each.seen) for each in members) >= 200)
    bodies = sorted(int(body) for each in members for _, _, body, _ in each.seen)
    assert bodies == list(range(200))
    eventually(lambda: mq.admin.groups[group].lag.total == 0)


def test_a_member_that_comes_later_gets_its_part_and_one_that_leaves_gives_it_back(
    mq: shmq.Connection, topic: str, group: str, member: StartMember, eventually: Eventually
) -> None:
    first = member(mq.url, topic, group)
    eventually(lambda: first.queues == ALL)
    second = member(mq.url, topic, group)
    eventually(lambda: shares_are_complete(first, second))
    second.leave()
    eventually(lambda: first.queues == ALL)


def test_the_queues_of_a_killed_member_are_taken_over_and_nothing_is_lost(
    mq: shmq.Connection, topic: str, group: str, member: StartMember, eventually: Eventually
) -> None:
    survivor, victim = member(mq.url, topic, group), member(mq.url, topic, group, "hold")
    eventually(lambda: shares_are_complete(survivor, victim))
    for number in range(100):
        mq.send(topic, b"%d" % number)
    eventually(lambda: len(survivor.seen) + len(victim.seen) == 100)
    victim.kill()
    # What the victim held was not acknowledged, so the survivor gets it.
    eventually(lambda: {int(body) for _, _, body, _ in survivor.seen} == set(range(100)))
    eventually(lambda: survivor.queues == ALL)
    eventually(lambda: mq.admin.groups[group].lag.total == 0)


def test_a_member_in_this_process_takes_over_as_well(
    mq: shmq.Connection, topic: str, group: str, member: StartMember, eventually: Eventually
) -> None:
    with mq.subscribe(topic, group=group) as subscription:
        victim = member(mq.url, topic, group)
        eventually(lambda: victim.queues and len(subscription.queues) == 4)
        victim.kill()
        eventually(lambda: subscription.queues == ALL)


def test_while_members_come_and_go_every_message_is_read_and_none_twice(
    mq: shmq.Connection, topic: str, group: str, member: StartMember, eventually: Eventually
) -> None:
    stop = threading.Event()
    sent = 0

    def produce() -> None:
        nonlocal sent
        with mq.producer() as producer:
            while not stop.wait(0.001):
                producer.send(topic, b"%d" % sent)
                sent += 1

    thread = threading.Thread(target=produce)
    thread.start()
    try:
        members = [member(mq.url, topic, group)]
        for _ in range(3):
            members.append(member(mq.url, topic, group))
            eventually(lambda: shares_are_complete(*members))
        for leaver in members[:2]:
            leaver.leave()
        eventually(lambda: shares_are_complete(*members[2:]))
    finally:
        stop.set()
        thread.join(60)
    eventually(lambda: mq.admin.groups[group].lag.total == 0)
    eventually(lambda: {int(body) for each in members for _, _, body, _ in each.seen} == set(range(sent)))
    counts = sorted(int(body) for each in members for _, _, body, _ in each.seen)
    # Each member acknowledges before it reports, so an orderly handover repeats nothing.
    assert counts == list(range(sent))


def test_offsets_survive_an_orderly_restart_of_the_broker() -> None:
    with Broker() as broker:
        with broker.connect() as mq:
            for number in range(10):
                mq.send("orders", b"%d" % number, queue_id=0)
            with mq.subscribe("orders", group="billing") as subscription:
                for message in subscription.receive(4, wait=60):
                    message.ack()
        broker.restart()
        with broker.connect() as mq, mq.subscribe("orders", group="billing") as subscription:
            assert [message.body for message in subscription.receive(wait=60)] == [b"4", b"5", b"6", b"7", b"8", b"9"]


@pytest.mark.slow
def test_offsets_survive_the_death_of_the_daemon() -> None:
    with Broker() as broker, broker.connect() as mq:  # a process that is attached keeps the segments alive
        for number in range(3):
            mq.send("orders", b"%d" % number, queue_id=0)
        with mq.subscribe("orders", group="billing") as subscription:
            subscription.receive(1, wait=60)[0].ack()
        broker.kill_daemon()
        broker.restart()
        with broker.connect() as other, other.subscribe("orders", group="billing") as subscription:
            assert [message.body for message in subscription.receive(wait=60)] == [b"1", b"2"]


def test_queues_added_later_are_read_from_their_first_message(
    mq: shmq.Connection, topic: str, group: str, eventually: Eventually
) -> None:
    mq.admin.create_topic(topic, queues=2)
    with mq.subscribe(topic, group=group, start="last") as subscription:
        mq.admin.update_topic(topic, queues=4)
        for queue in range(4):
            mq.send(topic, b"%d" % queue, queue_id=queue)
        for seconds in (options.REBALANCE_INTERVAL, options.UNSET_QUEUE_GRACE):
            # The next rebalance, and the time after which a queue without an offset counts as new.
            mq._clock.advance(seconds)
            mq._timetable.clock_moved()
            eventually(lambda: len(subscription._share.missing) == 2 or subscription.queues == [0, 1, 2, 3])
        eventually(lambda: subscription.queues == [0, 1, 2, 3])
        assert sorted(message.body for message in subscription.receive(10, wait=60)) == [b"0", b"1", b"2", b"3"]


def test_two_topics_of_one_group_on_one_connection_are_both_read(mq: shmq.Connection, topic: str, group: str) -> None:
    other = f"{topic}-other"
    mq.send(topic, b"one")
    mq.send(other, b"two")
    with mq.subscribe(topic, group=group) as first, mq.subscribe(other, group=group) as second:
        assert [message.body for message in first.receive(wait=60)] == [b"one"]
        assert [message.body for message in second.receive(wait=60)] == [b"two"]


def test_members_that_take_up_two_topics_one_after_the_other_read_all_of_both(
    mq: shmq.Connection, topic: str, group: str, member: StartMember, eventually: Eventually
) -> None:
    """One program in two processes: the second is at its first topic when the first reads both."""
    other = f"{topic}-other"
    with mq.subscribe(topic, group=group) as first, mq.subscribe(other, group=group) as second:
        assert first.queues == second.queues == ALL
        process = member(mq.url, topic, group)
        # The second topic is divided among those that read it, which is one of the two members so far.
        eventually(lambda: shares_are_complete(first, process))
        assert second.queues == ALL
        for name in (topic, other):
            for number in range(40):
                mq.send(name, b"%d" % number, queue_id=number % 8)
        assert sorted(int(message.body) for message in taken(second, 40, eventually)) == list(range(40))
        mine = [int(message.body) for message in taken(first, 5 * len(first.queues), eventually)]
        eventually(lambda: len(process.seen) + len(mine) >= 40)
        assert sorted(mine + [int(body) for _, _, body, _ in process.seen]) == list(range(40))
        eventually(lambda: mq.admin.groups[group].lag.total == 0)


def test_two_connections_that_subscribe_to_two_topics_with_one_group_consume_both(
    shmq_shared_broker: SharedBroker, mq: shmq.Connection, topic: str, group: str, eventually: Eventually
) -> None:
    topics = (topic, f"{topic}-other")
    with contextlib.ExitStack() as stack:
        peer = stack.enter_context(shmq_shared_broker.connect())
        readers: dict[str, list[shmq.Subscription]] = {name: [] for name in topics}
        for connection in (mq, peer):
            for name in topics:
                readers[name].append(stack.enter_context(connection.subscribe(name, group=group)))
        eventually(lambda: all(shares_are_complete(*members) for members in readers.values()))
        for name in topics:
            for number in range(40):
                mq.send(name, b"%d" % number, queue_id=number % 8)
        for members in readers.values():
            got = [message.body for each in members for message in taken(each, 5 * len(each.queues), eventually)]
            assert sorted(map(int, got)) == list(range(40))
        eventually(lambda: mq.admin.groups[group].lag.total == 0)


def test_several_threads_may_wait_on_one_connection(
    mq: shmq.Connection, shmq_shared_broker: SharedBroker, eventually: Eventually
) -> None:
    topics = [shmq_shared_broker.named(f"t{number}") for number in range(3)]
    got: list[bytes] = []

    def consume(topic: str) -> None:
        with mq.subscribe(topic, group=shmq_shared_broker.named(f"g-{topic}")) as subscription:
            got.extend(message.body for message in subscription.receive(wait=60))

    threads = [threading.Thread(target=consume, args=(topic,)) for topic in topics]
    for thread in threads:
        thread.start()
    for topic in topics:
        mq.send(topic, topic.encode())
    for thread in threads:
        thread.join(30)
    assert sorted(got) == sorted(topic.encode() for topic in topics)


def test_broadcast_members_all_read_everything_and_begin_at_the_end(
    shmq_shared_broker: SharedBroker, mq: shmq.Connection, topic: str
) -> None:
    mq.send(topic, b"earlier")
    with shmq_shared_broker.connect() as other:
        one = mq.subscribe(topic, model="broadcasting")
        two = other.subscribe(topic, model="broadcasting", group=shmq_shared_broker.named("wall"))
        assert one.queues == two.queues == ALL
        for number in range(20):
            mq.send(topic, b"%d" % number)
        for subscription in (one, two):
            bodies: list[bytes] = []
            while len(bodies) < 20:
                messages = subscription.receive(wait=60)
                assert messages
                bodies += [message.body for message in messages]
                for message in messages:
                    message.ack()
            assert sorted(bodies, key=int) == [b"%d" % number for number in range(20)]


def test_a_broadcast_member_without_a_group_commits_nothing_and_gets_back_what_it_gave_back(
    mq: shmq.Connection, topic: str
) -> None:
    groups = groups_of(mq)
    with mq.subscribe(topic, model="broadcasting") as subscription:
        mq.send(topic, b"x")
        (message,) = subscription.receive(wait=60)
        message.nack(after=0)
        (again,) = subscription.receive(wait=60)
        assert again.attempt == 2
        with pytest.raises(shmq.UsageError):
            subscription.reject(again)
    assert groups_of(mq) == groups


def test_a_member_whose_place_another_process_has_got_disturbs_it_in_nothing_and_comes_back(
    member: StartMember, eventually: Eventually
) -> None:
    with Broker(default_queues=8) as broker, broker.connect() as mq:
        subscription = mq.subscribe("orders", group="billing")
        eventually(lambda: subscription.queues == ALL)
        for number in range(16):
            mq.send("orders", b"%d" % number)
        messages = subscription.receive(16, wait=60)
        wire = mq._live().wire
        lost, may_notice, reconnect = wire.store.client_slot, threading.Event(), wire.control._reconnect
        wire.control._reconnect = lambda: may_notice.wait(60) and reconnect()
        wire.control._link.close()
        other = member(broker.url, "orders", "billing", "hold")
        eventually(lambda: other.queues == ALL)
        with broker.connect() as onlooker:
            (status,) = [each for each in onlooker.admin.status()["connections"] if each["consumerGroups"]]
            assert status["clientSlot"] == lost, "it has the very slot"
            eventually(lambda: len(other.seen) >= len(messages))
            for message in messages:
                message.ack()
            assert onlooker.admin.groups["billing"].lag.total == 16, "what is not its own it acknowledges in vain"
        assert subscription._share is not None
        subscription._share.want(subscription._share.held.values(), [], 0.0)  # a sharing, before it has noticed
        subscription._step()
        assert subscription.queues == [] and other.queues == ALL
        may_notice.set()
        eventually(lambda: wire.store.client_slot != lost)
        eventually(lambda: shares_are_complete(subscription, other))


def test_a_broker_that_is_away_again_keeps_no_consumer_from_being_opened_anew(
    mq: shmq.Connection, topic: str, group: str, monkeypatch: pytest.MonkeyPatch, eventually: Eventually
) -> None:
    consumers = [mq.subscribe(name, group=group) for name in (topic, f"{topic}-too")]
    before = [consumer._reader for consumer in consumers]

    def away(*_: object) -> None:
        raise shmq.BrokerNotRunning("away again")

    members = mq._live().members
    with monkeypatch.context() as patched:
        patched.setattr(members, "register", away)
        patched.setattr(members, "assignment", away)
        mq._membership.reattach(is_new=True)
    assert all(consumer._reader not in (None, *before) for consumer in consumers)
    mq._membership.rebalance(None, register=True)  # as when it is back
    eventually(lambda: all(consumer.queues == ALL for consumer in consumers))
    mq.send(topic, b"after it")
    assert [bytes(message.body) for message in taken(consumers[0], 1, eventually)] == [b"after it"]
