"""Order: a message group has one queue, a topic with one queue has one order, a listener keeps it when it fails."""

import itertools
import threading
from collections.abc import Callable
from typing import Any

import pytest

import shmq
from shmq.testing import Broker
from tests.conformance.conftest import QUEUES, Named
from tests.tables.rows import every_row

Eventually = Callable[..., Any]
_serial = itertools.count(1)


def test_a_message_group_has_one_queue_for_all_senders(
    mq: shmq.Connection, connect: Callable[..., shmq.Connection], topic: str
) -> None:
    other = connect()
    for name in ("o-1", "o-2", "ü"):
        receipts = [sender.send(topic, name.encode(), message_group=name) for sender in (mq, other) * 3]
        assert len({receipt.queue_id for receipt in receipts}) == 1
        assert [receipt.offset for receipt in receipts] == sorted(receipt.offset for receipt in receipts)
        (batch,) = mq.send_batch(topic, [name.encode()], message_group=name)
        assert batch.queue_id == receipts[0].queue_id
    assert {message.message_group for message in mq.browse(topic)} == {"o-1", "o-2", "ü"}
    assert {mq.send(topic, b"x").queue_id for _ in range(2 * QUEUES)} == set(range(QUEUES))


def test_a_topic_with_one_queue_has_one_order_for_all_senders(
    mq: shmq.Connection, connect: Callable[..., shmq.Connection], named: Named, eventually: Eventually
) -> None:
    topic = named("global")
    mq.admin.create_topic(topic, queues=1)
    senders = [mq, connect(), connect()]
    sent = [senders[number % 3].send(topic, b"%d" % number) for number in range(30)]
    assert [receipt.offset for receipt in sent] == list(range(30))
    with mq.subscribe(topic, group=named("billing")) as subscription:
        found: list[bytes] = []
        while len(found) < 30:
            for message in eventually(lambda: subscription.receive(32, 0.5)):
                found.append(message.body)
                message.ack()
    assert found == [b"%d" % number for number in range(30)]


@pytest.mark.parametrize("threads", [1, 4])
def test_an_ordered_listener_tries_again_here_and_skips_nothing(
    broker: Broker, mq: shmq.Connection, topic: str, named: Named, threads: int, eventually: Eventually
) -> None:
    """A failed message is tried again at once where it stands; what follows in its queue waits, other queues go on."""
    group = named("billing")
    calls: list[tuple[int, int, int]] = []
    running: set[int] = set()
    overlaps: list[int] = []
    lock = threading.Lock()

    @mq.listener(topic, group=group, ordered=True, threads=threads)
    def handle(message: shmq.Message) -> None:
        with lock:
            if message.queue_id in running:
                overlaps.append(message.queue_id)
            running.add(message.queue_id)
            calls.append((message.queue_id, message.offset, message.attempt))
        try:
            if message.offset == 1 and message.attempt < 3:
                raise shmq.Retry(after=0.01)
        finally:
            with lock:
                running.discard(message.queue_id)

    for queue_id in range(QUEUES):
        mq.send_batch(topic, [b"0", b"1", b"2", b"3"], queue_id=queue_id)
    mq.start()
    eventually(lambda: len(calls) >= 6 * QUEUES)
    mq.stop()
    assert not overlaps
    for queue_id in range(QUEUES):
        seen = [(offset, attempt) for queue, offset, attempt in calls if queue == queue_id]
        assert seen == [(0, 1), (1, 1), (1, 2), (1, 3), (2, 1), (3, 1)]
    with broker.connect() as local:
        retry = f"%RETRY%{group}"
        assert retry not in local.admin.topics or local.browse(retry) == [], "it was tried again here"


def test_an_ordered_message_that_takes_long_holds_up_its_own_queue_alone(
    mq: shmq.Connection, topic: str, named: Named, eventually: Eventually
) -> None:
    """However many messages wait behind it."""
    others_are_done = threading.Event()
    seen: dict[int, list[bytes]] = {queue_id: [] for queue_id in range(QUEUES)}

    @mq.listener(topic, group=named("billing"), ordered=True, threads=2)
    def handle(message: shmq.Message) -> None:
        if message.queue_id == 0 and message.offset == 0:
            assert others_are_done.wait(120)
        seen[message.queue_id].append(message.body)

    bodies = [b"%d" % number for number in range(200)]
    for queue_id in range(QUEUES):
        mq.send_batch(topic, bodies, queue_id=queue_id)
    mq.start()
    eventually(lambda: all(len(seen[queue_id]) == len(bodies) for queue_id in range(1, QUEUES)), lambda: f"{seen}", 60)
    others_are_done.set()
    eventually(lambda: len(seen[0]) == len(bodies))
    mq.stop()
    assert all(each == bodies for each in seen.values())


def test_an_ordered_message_that_fails_too_often_makes_room_as_a_dead_letter(
    mq: shmq.Connection, named: Named, eventually: Eventually
) -> None:
    topic, group = named("global"), named("billing")
    mq.admin.create_topic(topic, queues=1)
    seen: list[bytes] = []

    @mq.listener(topic, group=group, ordered=True, attempts_max=2)
    def handle(message: shmq.Message) -> None:
        seen.append(message.body)
        if message.body == b"poison":
            raise shmq.Retry(after=0.01)

    mq.send_batch(topic, [b"a", b"poison", b"b"])
    mq.start()
    eventually(lambda: b"b" in seen)
    mq.stop()
    assert seen == [b"a", b"poison", b"poison", b"b"]
    assert [letter.body for letter in eventually(lambda: mq.admin.dlq(group))] == [b"poison"]


class _Mute:
    """What was raised cannot say why."""

    def __str__(self) -> str:
        raise ValueError("no words")


def test_no_words_about_a_message_and_none_in_it_keep_it_from_the_dead_letters(
    mq: shmq.Connection, named: Named, eventually: Eventually
) -> None:
    """A queue that is read in order goes on behind it."""
    topic, group = named("global"), named("billing")
    mq.admin.create_topic(topic, queues=1)
    reasons: list[object] = ["x" * 40_000, "\ud800", "a\x01\x02\0b", "\U0001f34e" * 5_000, "", 3, b"\xff", _Mute()]
    given: list[object] = []

    @mq.listener(topic, group=group, ordered=True)
    def handle(message: shmq.Message) -> None:
        given.append(reasons[len(given)])
        raise shmq.Reject(given[-1])

    for number, _ in enumerate(reasons):
        mq.send(topic, b"%d" % number, properties={"most": "x" * 32_600, "region": "eu"}, tag="red")
    mq.start()
    eventually(lambda: len(mq.admin.dlq(group)) == len(reasons))
    mq.stop()  # which says what is settled; a member over TCP says it every five seconds else
    eventually(lambda: mq.admin.groups[group].lag.total == 0)
    assert given == reasons
    for number, letter in enumerate(mq.admin.dlq(group)):
        assert letter.body == b"%d" % number and letter.origin_topic == topic
        assert letter.message.tag == "red" and letter.message.properties["region"] == "eu"


@every_row(
    ("reason", "kept"),
    [
        ("x" * 40_000, "x" * 500),
        ("no \ud800", "no ?"),
        ("a\x01\x02b", "a  b"),
        ("\U0001f34e" * 5_000, "\U0001f34e" * 500),
        (3, "3"),
        (_Mute(), "_Mute"),
    ],
)
def test_why_a_message_was_rejected_is_cut_to_what_a_dead_letter_can_carry(
    mq: shmq.Connection, named: Named, eventually: Eventually, reason: object, kept: str
) -> None:
    topic, group = (named(f"{name}-{next(_serial)}") for name in ("orders", "billing"))
    mq.admin.create_topic(topic, queues=1)
    mq.send(topic, b"x")
    with mq.subscribe(topic, group=group) as subscription:
        (message,) = eventually(lambda: subscription.receive(1, 0.5))
        subscription.reject(message, reason)  # type: ignore[arg-type]
        (letter,) = eventually(lambda: mq.admin.dlq(group))
    assert letter.reason == kept
    mq.send(topic, b"y")
    with mq.simple_consumer(topic, group=group) as simple:
        (message,) = eventually(lambda: simple.receive(1, 0.5))
        simple.reject(message, reason)  # type: ignore[arg-type]
        (_, letter) = eventually(lambda: len(found := mq.admin.dlq(group)) == 2 and found)
    assert letter.reason == kept


def test_order_goes_on_at_the_next_member(
    mq: shmq.Connection, connect: Callable[..., shmq.Connection], named: Named, eventually: Eventually
) -> None:
    """A member leaves in the middle: its successor begins where it stopped."""
    topic, group = named("global"), named("billing")
    mq.admin.create_topic(topic, queues=1)
    seen: list[bytes] = []
    for turn in range(2):
        mq.send_batch(topic, [b"%d" % number for number in range(20 * turn, 20 * turn + 20)])
        member = connect()
        member.listener(topic, group=group, ordered=True)(lambda message: seen.append(message.body))
        member.start()
        eventually(lambda turn=turn: len(seen) >= 20 * turn + 20)
        member.stop()
        member.close()
    assert seen == [b"%d" % number for number in range(40)]
