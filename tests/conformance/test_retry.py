"""Retry and dead letters: what is given back comes again through %RETRY%group, and after the last try is in %DLQ%group.

Nothing but `advance` moves the clock of the broker, which the tests share; each has a topic and a group of its own.
"""

import os
import signal
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import shmq
from shmq.properties import PROPERTIES_BYTES_MAX
from shmq.testing import Broker
from tests.conformance.conftest import Named, url_of
from tests.conformance.foreign import store_foreign

Eventually = Callable[..., Any]
ID = "7F0000010000000000000000DEADBEEF"  # an offset message id of a place where nothing is
LEVELS = [10, 30, 60, 120, 180, 240, 300, 360, 420, 480, 540, 600, 1200, 1800, 3600, 7200]


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker(tcp=True, clock="frozen") as broker:
        yield broker


@pytest.fixture
def mq(broker: Broker, transport: str) -> Iterator[shmq.Connection]:
    with shmq.connect(url_of(broker, transport), timeout=60.0) as connection:
        yield connection


@pytest.fixture
def orders(broker: Broker, named: Named) -> str:
    """A topic of one queue."""
    with broker.connect() as connection:
        connection.admin.create_topic(named("orders"), queues=1)
    return named("orders")


@pytest.fixture
def billing(named: Named) -> str:
    """A group."""
    return named("billing")


def take(subscription: Any, eventually: Eventually) -> shmq.Message:
    (message,) = eventually(lambda: subscription.receive(1, 0.5))
    return message


def waiting(broker: Broker, group: str) -> list[shmq.Message]:
    """What a group's members gave back and waits in the schedule topic or has waited there, the oldest first."""
    return given_back(broker, "SCHEDULE_TOPIC_XXXX", group)


def timed(broker: Broker, group: str) -> list[shmq.Message]:
    """What they gave back and waits for a time of its own."""
    return given_back(broker, "rmq_sys_wheel_timer", group)


def given_back(broker: Broker, topic: str, group: str) -> list[shmq.Message]:
    with broker.connect() as observer:
        found = observer.browse(topic) if topic in observer.admin.topics else []
    return [message for message in found if message.properties["REAL_TOPIC"] == f"%RETRY%{group}"]


def letters(broker: Broker, group: str) -> list[shmq.Message]:
    with broker.connect() as observer:
        return [letter.message for letter in observer.admin.dlq(group)]


def test_what_is_given_back_waits_as_rocketmq_keeps_it(
    broker: Broker, orders: str, billing: str, mq: shmq.Connection, eventually: Eventually
) -> None:
    mq.send(orders, b"x", tag="red", key="k", properties={"region": "eu"}, flag=7)
    with mq.subscribe(orders, group=billing) as subscription:
        first = take(subscription, eventually)
        first.nack()
        (copy,) = eventually(lambda: waiting(broker, billing))
        assert (copy.body, copy.tag, copy.key, copy.flag) == (b"x", "red", "k", 7)
        assert copy.queue_id == 2, "level 3: 10 s"
        assert copy.reconsume_times == 1
        own = {name: text for name, text in copy.properties.items() if name not in first.properties}
        assert own == {
            "RETRY_TOPIC": orders,
            "ORIGIN_MESSAGE_ID": first.offset_message_id,
            "DELAY": "3",
            "REAL_TOPIC": f"%RETRY%{billing}",
            "REAL_QID": "0",
            "WAIT": "false",
        }
        broker.advance(10)
        again = take(subscription, eventually)
        assert (again.topic, again.body, again.attempt, again.reconsume_times) == (orders, b"x", 2, 1)
        assert again.message_id == first.message_id or "UNIQ_KEY" not in first.properties
        again.ack()


def test_full_properties_keep_no_message_from_its_retry(
    broker: Broker, orders: str, billing: str, mq: shmq.Connection, eventually: Eventually
) -> None:
    sizes = []
    for room in (0, 1, 40, 90, 140, 200, 400):
        value = "v" * (PROPERTIES_BYTES_MAX - 120 - room)
        while True:  # the longest that is taken
            try:
                mq.send(orders, b"%d" % room, tag="red", key="k", properties={"region": "eu", "long": value})
                break
            except shmq.MessageTooLarge:
                value = value[:-1]
        sizes.append(len(value))
    assert len(set(sizes)) > 3
    with mq.subscribe(orders, group=billing) as subscription:
        for after, delay in ((None, 10), (1.7, 2), (1800, 1800)):
            found = [take(subscription, eventually) for _ in sizes]
            for message in found:
                message.nack(after)
            eventually(lambda: subscription.lag() == 0)
            broker.advance(delay)
        again = [take(subscription, eventually) for _ in sizes]
        assert {message.body for message in again} == {message.body for message in found}
        for message in again:
            assert (message.topic, message.attempt, message.tag, message.key) == (orders, 4, "red", "k")
            assert message.properties["region"] == "eu"
            assert message.properties.get("long", "v")[0] == "v"
            message.nack()
        eventually(lambda: subscription.lag() == 0)


def test_a_message_has_sixteen_retries_with_growing_delays_and_is_then_dead_once(
    broker: Broker, orders: str, billing: str, mq: shmq.Connection, eventually: Eventually
) -> None:
    mq.send(orders, b"poison")
    with mq.subscribe(orders, group=billing) as subscription:
        for tries, seconds in enumerate(LEVELS):
            message = take(subscription, eventually)
            assert (message.reconsume_times, message.attempt) == (tries, tries + 1)
            message.nack()
            eventually(lambda tries=tries: len(waiting(broker, billing)) == tries + 1)
            assert waiting(broker, billing)[-1].properties["DELAY"] == str(3 + tries)
            broker.advance(seconds - 2)
            assert subscription.receive(1, 0.05) == [], "it is early"
            broker.advance(2)
        last = take(subscription, eventually)
        assert last.reconsume_times == 16
        last.nack()
        (letter,) = eventually(lambda: letters(broker, billing))
    assert (letter.topic, letter.body, letter.reconsume_times) == (f"%DLQ%{billing}", b"poison", 17)
    assert (letter.properties["RETRY_TOPIC"], letter.properties["DELAY"]) == (orders, "0")
    assert "17 attempts" in letter.properties["SHMQ_REASON"]
    assert len(waiting(broker, billing)) == 16


def test_a_group_sets_how_often_it_tries(
    broker: Broker, orders: str, billing: str, mq: shmq.Connection, eventually: Eventually
) -> None:
    from shmq.protocol.body import SubscriptionGroupConfig, encode_body
    from shmq.protocol.codes import Request

    with broker.connect() as admin:
        config = SubscriptionGroupConfig(billing, retryMaxTimes=1)
        admin._local().wire.control.request(Request.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=encode_body(config))
    mq.send(orders, b"x")
    with mq.subscribe(orders, group=billing) as subscription:
        take(subscription, eventually).nack()
        eventually(lambda: waiting(broker, billing))
        broker.advance(10)
        take(subscription, eventually).nack()
        (letter,) = eventually(lambda: letters(broker, billing))
    assert letter.reconsume_times == 2


def test_a_consumer_that_says_how_often_outweighs_its_group(
    broker: Broker, orders: str, billing: str, mq: shmq.Connection, eventually: Eventually
) -> None:
    mq.send(orders, b"x")
    with mq.subscribe(orders, group=billing, attempts_max=2) as subscription:
        take(subscription, eventually).nack()
        eventually(lambda: waiting(broker, billing))
        broker.advance(10)
        take(subscription, eventually).nack()
        (letter,) = eventually(lambda: letters(broker, billing))
    assert "2 attempts" in letter.properties["SHMQ_REASON"]


def test_a_retry_outlives_the_member_and_the_broker(
    broker: Broker, orders: str, billing: str, transport: str, mq: shmq.Connection, eventually: Eventually
) -> None:
    mq.send(orders, b"x")
    with shmq.connect(url_of(broker, transport)) as member, member.subscribe(orders, group=billing) as subscription:
        take(subscription, eventually).nack(after=1)
        eventually(lambda: waiting(broker, billing))
    broker.kill_daemon()
    broker.start()
    broker.advance(1)
    with shmq.connect(url_of(broker, transport)) as member, member.subscribe(orders, group=billing) as subscription:
        again = take(subscription, eventually)
        assert (again.body, again.attempt) == (b"x", 2)
        again.ack()


def test_nack_comes_again_when_it_was_asked_to_though_no_level_is_that_long(
    broker: Broker, orders: str, billing: str, mq: shmq.Connection, eventually: Eventually
) -> None:
    mq.send(orders, b"x")
    with mq.subscribe(orders, group=billing) as subscription:
        take(subscription, eventually).nack(after=700)  # levels: 600 s and 1200 s
        eventually(lambda: timed(broker, billing))
        broker.advance(690)
        assert subscription.receive(1, 0.05) == [], "it is early"
        broker.advance(10.001)  # the millisecond that had begun does not count
        again = take(subscription, eventually)
        assert (again.topic, again.body, again.attempt) == (orders, b"x", 2)
        again.ack()
        eventually(lambda: subscription.lag() == 0)
    assert waiting(broker, billing) == []


def test_what_waits_for_its_retry_blocks_neither_offset_nor_messages(
    broker: Broker, orders: str, billing: str, mq: shmq.Connection, eventually: Eventually
) -> None:
    mq.send_batch(orders, [b"bad", b"good"])
    with mq.subscribe(orders, group=billing) as subscription:
        bad, good = take(subscription, eventually), take(subscription, eventually)
        bad.nack()
        good.ack()
        eventually(lambda: waiting(broker, billing))
        eventually(lambda: subscription.lag() == 0)


def test_members_of_both_transports_see_one_count_of_attempts(
    broker: Broker, orders: str, billing: str, transport: str, mq: shmq.Connection, eventually: Eventually
) -> None:
    """The first member fails and leaves; the one that comes after it is connected the other way."""
    other = "tcp" if transport == "shm" else "shm"
    mq.send(orders, b"x")
    seen: list[int] = []
    for way in (transport, other, transport):
        with shmq.connect(url_of(broker, way), timeout=60.0) as member:
            with member.subscribe(orders, group=billing) as subscription:
                message = take(subscription, eventually)
                seen.append(message.attempt)
                message.nack()
                eventually(lambda: len(waiting(broker, billing)) == len(seen))
            # What the member committed at its end: over TCP a commit has no answer that the next member could follow.
            eventually(lambda: mq.admin.groups[billing].lag.total == 0)
            broker.advance(LEVELS[len(seen) - 1])
    assert seen == [1, 2, 3]


@pytest.mark.parametrize("outcome", ["nack", "reject"])
def test_a_member_that_leaves_waits_for_the_broker_that_takes_its_message_over(
    broker: Broker, orders: str, billing: str, eventually: Eventually, monkeypatch: pytest.MonkeyPatch, outcome: str
) -> None:
    """Otherwise the offset it commits lies before the message, which comes twice: from its topic and from retry."""
    from shmq.client.remote import share

    monkeypatch.setattr(share, "LEAVE_TIMEOUT", 60.0)
    with shmq.connect(url_of(broker, "tcp"), timeout=60.0) as mq, broker.connect() as observer:
        mq.send(orders, b"x")
        subscription = mq.subscribe(orders, group=billing)
        message = take(subscription, eventually)
        bridge = broker.processes["bridge"].pid
        os.kill(bridge, signal.SIGSTOP)
        try:
            message.nack() if outcome == "nack" else subscription.reject(message, "no")
            closing = threading.Thread(target=subscription.close)
            closing.start()
            eventually(lambda: "closed" in repr(subscription))
        finally:
            os.kill(bridge, signal.SIGCONT)
        closing.join(60)
        assert observer.admin.groups[billing].lag.total == 0


def test_a_rejected_message_is_dead_at_once_with_the_reason(
    broker: Broker, orders: str, billing: str, mq: shmq.Connection, eventually: Eventually
) -> None:
    mq.send(orders, b"x", tag="red", key="k")
    with mq.subscribe(orders, group=billing) as subscription:
        message = take(subscription, eventually)
        subscription.reject(message, "unknown article")
        (letter,) = eventually(lambda: mq.admin.dlq(billing))
        eventually(lambda: subscription.lag() == 0)
    assert (letter.reason, letter.origin_topic, letter.message.tag) == ("unknown article", orders, "red")
    assert letter.origin_message_id == message.offset_message_id
    assert waiting(broker, billing) == []


def test_a_dead_letter_is_sent_again_as_a_new_message(
    broker: Broker, orders: str, billing: str, mq: shmq.Connection, eventually: Eventually
) -> None:
    mq.send(orders, b"x", tag="red", keys=["a", "b"], properties={"region": "eu"})
    with mq.subscribe(orders, group=billing) as subscription:
        subscription.reject(take(subscription, eventually), "no")
        (letter,) = eventually(lambda: mq.admin.dlq(billing))
        letter.resend()
        again = take(subscription, eventually)
        assert (again.body, again.tag, again.keys, again.attempt) == (b"x", "red", ["a", "b"], 1)
        assert again.properties["region"] == "eu"
        assert {"ORIGIN_MESSAGE_ID", "RETRY_TOPIC", "SHMQ_REASON"}.isdisjoint(again.properties)
        subscription.reject(again, "still no")
        found = eventually(lambda: len(found := mq.admin.dlq(billing)) == 2 and found)
    assert [letter.reason for letter in found] == ["no", "still no"]


def test_a_member_killed_between_dead_letter_and_acknowledgement_leaves_one_dead_letter(
    broker: Broker, orders: str, billing: str, transport: str, mq: shmq.Connection, eventually: Eventually
) -> None:
    """I12: what was buried is delivered once more, since its member did not live to say so, and is not buried again."""
    from shmq.client.redelivery.send_back import DEAD_LETTER, send_back_ext
    from shmq.protocol.codes import Request

    mq.send(orders, b"x")
    with shmq.connect(url_of(broker, transport), timeout=60.0) as victim:
        subscription = victim.subscribe(orders, group=billing)
        message = take(subscription, eventually)
        with broker.connect() as local:  # its step up to the answer, without what follows
            ext = send_back_ext(subscription._spec, message, DEAD_LETTER, "no")
            local._local().wire.control.request(Request.CONSUMER_SEND_MSG_BACK, ext)
        assert len(letters(broker, billing)) == 1
        victim._vanish()
    broker.kill_daemon()
    broker.start()
    heir = shmq.connect(url_of(broker, transport), timeout=60.0)
    with heir, heir.subscribe(orders, group=billing) as subscription:
        again = take(subscription, eventually)
        assert again.body == b"x"
        subscription.reject(again, "no")
        eventually(lambda: subscription.lag() == 0)
    assert [letter.body for letter in letters(broker, billing)] == [b"x"]


def test_a_dead_letter_that_another_group_gives_back_comes_again_to_who_reads_dead_letters(
    broker: Broker, orders: str, billing: str, mq: shmq.Connection, eventually: Eventually
) -> None:
    mq.send(orders, b"x")
    with mq.subscribe(orders, group=billing) as subscription:
        subscription.reject(take(subscription, eventually), "no")
        (letter,) = eventually(lambda: mq.admin.dlq(billing))
    mending = f"{billing}-mending"
    with mq.subscribe(f"%DLQ%{billing}", group=mending, attempts_max=3) as burials:
        for attempt in (2, 3):  # a dead letter keeps the count of its tries, as in RocketMQ
            message = take(burials, eventually)
            assert (message.body, message.topic, message.attempt) == (b"x", f"%DLQ%{billing}", attempt)
            message.nack(after=5)
            eventually(lambda: burials.lag() == 0)
            broker.advance(5)
        (again,) = eventually(lambda: mq.admin.dlq(mending))
    assert (again.origin_topic, again.origin_message_id) == (f"%DLQ%{billing}", letter.message.offset_message_id)


def test_a_first_topic_that_a_sender_wrote_keeps_no_message_from_coming_again(
    broker: Broker, orders: str, billing: str, mq: shmq.Connection, eventually: Eventually
) -> None:
    """Programs of RocketMQ send messages on with the properties of what they have received."""
    with broker.connect() as local:
        store_foreign(local, orders, f"RETRY_TOPIC\x01{orders}-before\x02ORIGIN_MESSAGE_ID\x01{ID}\x02")
    with mq.subscribe(orders, group=billing, attempts_max=2) as subscription:
        first = take(subscription, eventually)
        first.nack(after=5)
        eventually(lambda: subscription.lag() == 0)
        broker.advance(5)
        again = take(subscription, eventually)
        assert (again.topic, again.attempt) == (orders, 2)
        again.nack(after=5)
        (letter,) = eventually(lambda: mq.admin.dlq(billing))
    assert (letter.origin_topic, letter.origin_message_id) == (orders, first.offset_message_id)


def test_two_topics_of_one_connection_get_their_own_retries(
    broker: Broker, orders: str, billing: str, mq: shmq.Connection, named: Named, eventually: Eventually
) -> None:
    payments = named("payments")
    mq.admin.create_topic(payments, queues=1)
    mq.send(orders, b"order", tag="red")
    mq.send(payments, b"payment", tag="blue")
    with (
        mq.subscribe(orders, group=billing, tags="red") as ordering,
        mq.subscribe(payments, group=billing, tags="blue") as paying,
    ):
        take(ordering, eventually).nack(after=1)
        take(paying, eventually).nack(after=1)
        eventually(lambda: len(waiting(broker, billing)) == 2)
        broker.advance(1)
        found: dict[str, list[shmq.Message]] = {orders: [], payments: []}

        def both() -> bool:  # what one of them reads of the retry topic may be for the other
            for subscription in (ordering, paying):
                found[subscription.topic] += subscription.receive(1, 0.1)
            return all(found.values())

        eventually(both)
        (order,), (payment,) = found[orders], found[payments]
        assert (order.topic, order.body, order.attempt) == (orders, b"order", 2)
        assert (payment.topic, payment.body, payment.attempt) == (payments, b"payment", 2)
        order.ack()
        payment.ack()
        eventually(lambda: ordering.lag() + paying.lag() == 0)
