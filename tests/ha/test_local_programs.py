"""Programs on a slave's host do what changes anything at the master, and need no change for that.

Each test sends or settles at the slave's host, and looks at the master's log and at the slave's.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections import Counter
from collections.abc import Iterator

import pytest

import shmq
import shmq.aio
from shmq.shm.links import CATCHING_UP, Links, read_links, write_links
from shmq.testing import Broker
from tests.deadline import DEADLINE_SECONDS, eventually
from tests.ha.pair import assert_equal, send
from tests.ha.seen import until_told
from tests.ha.test_switch import demote, fixed, go_on, is_writable, pause, promote, slave_of

Pair = tuple[Broker, Broker]


@pytest.fixture(scope="module")
def pair() -> Iterator[Pair]:
    with Broker(**fixed(), default_queues=2) as master, slave_of(master) as slave:
        send(master, range(1))
        assert_equal(master, slave)
        yield master, slave


def stored(broker: Broker, topic: str, count: int) -> list[bytes]:
    """What a topic of a broker holds, once it is so many."""

    def found() -> list[bytes]:
        bodies: list[bytes] = []
        with contextlib.suppress(shmq.TopicNotFound), broker.connect() as mq, mq.pull_consumer(topic) as pull:
            while messages := pull.poll(100, 0.1):
                bodies += [bytes(message.body) for message in messages]
        return bodies

    return list(eventually(lambda: each if len(each := found()) >= count else None))


def test_every_way_to_send_stores_at_the_master(pair: Pair) -> None:
    master, slave = pair
    with slave.connect() as mq, mq.producer(group="shop", compression="zlib") as producer:
        first = mq.send("ways", b"first", tag="t", key="k", properties={"a": "b"})
        many = producer.send_batch("ways", [b"second", b"third"])
        mq.send_oneway("ways", b"fourth")
        with mq.reserve("ways", 5) as slot:
            slot.view[:] = b"fifth"
        long = producer.send("ways", b"z" * 20_000)
    assert first.topic == "ways" and len(many) == 2 and long.offset >= 0
    for broker in pair:
        assert Counter(stored(broker, "ways", 6)) == Counter(
            [b"first", b"second", b"third", b"fourth", b"fifth", b"z" * 20_000]
        )
    assert_equal(master, slave)


@pytest.mark.slow
def test_delayed_messages_and_their_recall_go_to_the_master(pair: Pair) -> None:
    _, slave = pair
    with slave.connect() as mq:
        mq.send("later", b"soon", delay=0.2)
        mq.send("later", b"by level", delay_level=1)
        mq.recall(mq.send("later", b"never", delay=3))
        mq.send("later", b"last", delay=4)
        assert Counter(stored(slave, "later", 3)) == Counter([b"soon", b"by level", b"last"])


@pytest.mark.slow
def test_a_message_given_back_or_rejected_comes_again_through_the_master(pair: Pair) -> None:
    _, slave = pair
    with slave.connect() as mq:
        mq.admin.create_topic("again", queues=1)
        messages = mq.subscribe("again", group="again", attempts_max=2)
        mq.send("again", b"twice")
        message = messages.receive(1, 30.0)[0]
        message.nack(after=0.1)
        message = messages.receive(1, 30.0)[0]
        assert (bytes(message.body), message.attempt) == (b"twice", 2)
        message.nack()  # for the last time
        messages.close()
    assert stored(slave, "%DLQ%again", 1) == [b"twice"]


@pytest.mark.slow
def test_transactions_end_at_the_master_and_are_asked_about_here(pair: Pair) -> None:
    _, slave = pair
    asked: list[bytes] = []
    with slave.connect() as mq:

        @mq.transaction_checker("shop")
        def decide(message: shmq.Message) -> shmq.TxState:
            asked.append(bytes(message.body))
            return shmq.COMMIT

        producer = mq.producer(group="shop")
        with producer.transaction("paid", b"committed"):
            pass
        producer.transaction("paid", b"rolled back").rollback()
        left_open = producer.transaction("paid", b"asked about")
        assert Counter(stored(slave, "paid", 2)) == Counter([b"committed", b"asked about"])
        assert asked == [b"asked about"] and left_open.id


@pytest.mark.slow
def test_requests_and_replies_meet_across_hosts(pair: Pair) -> None:
    for asking, answering in (pair, pair[::-1]):
        with answering.connect() as there, asking.connect() as here:
            topic = f"sums-{pair.index(asking)}"
            there.admin.create_topic(topic)

            @there.replier(topic, group=topic)
            def answer(message: shmq.Message) -> bytes:
                return bytes(message.body) + b"!"

            there.start()
            assert bytes(here.request(topic, b"hello", timeout=30.0).body) == b"hello!"


@pytest.mark.slow
def test_topics_and_groups_are_made_and_deleted_at_the_master(pair: Pair) -> None:
    master, slave = pair
    with slave.connect() as here, master.connect() as there:
        here.admin.create_topic("made-here", queues=3)
        assert there.admin.topics["made-here"].write_queues == 3
        here.admin.delete_topic("made-here")
        assert "made-here" not in there.admin.topics


@pytest.mark.slow
def test_a_topic_that_was_made_at_the_master_is_there_at_once(pair: Pair) -> None:
    master, slave = pair
    with slave.connect() as here, master.connect() as there:
        for name, open_it in (
            ("made-there", lambda: here.subscribe("made-there", group="made-there")),
            ("popped-there", lambda: here.simple_consumer("popped-there", group="popped-there")),
        ):
            there.admin.create_topic(name, queues=1)
            messages = open_it()
            there.send(name, b"first")
            messages.receive(1, DEADLINE_SECONDS)[0].ack()
            messages.close()
        there.admin.create_topic("looked-at-there", queues=1)
        assert here.browse("looked-at-there") == []
        there.admin.create_topic("pulled-there", queues=1)
        here.pull_consumer("pulled-there").close()
        for call in (here.browse, here.pull_consumer):
            with pytest.raises(shmq.TopicNotFound):
                call("never-made")


@pytest.mark.slow
def test_a_message_group_of_a_topic_that_this_host_does_not_know_yet_goes_to_its_queue(pair: Pair) -> None:
    master, slave = pair
    with slave.connect() as here, master.connect() as there, paused(slave):
        there.admin.create_topic("ordered-there", queues=8)
        first = here.send("ordered-there", b"from here", message_group="one")
        assert first.queue_id == there.send("ordered-there", b"from there", message_group="one").queue_id
        made = here.send("made-by-the-first", b"from here", message_group="one")
        assert made.queue_id == there.send("made-by-the-first", b"from there", message_group="one").queue_id


@pytest.mark.slow
def test_messages_popped_here_are_settled_at_the_master(pair: Pair) -> None:
    _, slave = pair
    with slave.connect() as mq:
        mq.admin.create_topic("popped", queues=2)
        consumer = mq.simple_consumer("popped", group="poppers", invisible=2.0)
        for number in range(4):
            mq.send("popped", b"%d" % number)
        found: Counter[bytes] = Counter()
        while len(found) < 4:
            for message in consumer.receive(4, 30.0):
                found[bytes(message.body)] += 1
                if bytes(message.body) != b"3" or found[b"3"] > 1:
                    message.ack()
        again = consumer.receive(4, 30.0)
        assert [bytes(message.body) for message in again] == [b"3"]
        again[0].ack()


def test_an_event_loop_sends_to_the_master_too(pair: Pair) -> None:
    _, slave = pair

    async def main() -> None:
        async with shmq.aio.connect(slave.url) as mq:
            for number in range(3):
                await mq.send("looped", b"%d" % number)

    asyncio.run(main())
    assert len(stored(slave, "looped", 3)) == 3


@pytest.mark.slow
def test_a_program_sends_on_through_a_promotion_and_a_demotion() -> None:
    with Broker(**fixed(), default_queues=2) as old, slave_of(old) as new:
        send(old, range(1))
        assert_equal(old, new)
        receipts: list[bytes] = []
        is_over = threading.Event()

        def produce() -> None:
            with new.connect() as mq:
                number = 0
                while not is_over.is_set():
                    body = b"%d" % number
                    try:
                        mq.send("switched", body)
                    except shmq.ShmqError:
                        is_over.wait(0.01)
                    else:
                        receipts.append(body)
                    number += 1

        def goes_on() -> bool:
            before = len(receipts)
            return bool(eventually(lambda: len(receipts) > before + 20, lambda: new.log[-3000:]))

        producing = threading.Thread(target=produce)
        producing.start()
        try:
            assert goes_on()  # to the old master
            demote(old, new)
            promote(new)
            assert eventually(lambda: is_writable(new)) and goes_on()  # in its own memory
            until_told(
                old, lambda told: told.standing == "follows" and told.master and told.master.state == "up to date"
            )
            demote(new, old)
            promote(old)
            assert eventually(lambda: is_writable(old)) and goes_on()  # to the old master again
        finally:
            is_over.set()
            producing.join()
        found = Counter(bytes(body) for body in stored(old, "switched", len(receipts)))
        assert {body: found[body] for body in receipts if found[body] != 1} == {}


@pytest.mark.slow
def test_a_transaction_that_is_open_in_a_switch_ends_at_the_new_master_from_either_host() -> None:
    with Broker(**fixed(), default_queues=2) as old, slave_of(old) as new:
        send(old, range(1))
        assert_equal(old, new)
        with contextlib.ExitStack() as open_ones:
            producers = [
                open_ones.enter_context(open_ones.enter_context(broker.connect(timeout=30.0)).producer(group="shop"))
                for broker in (old, new)
            ]
            begun = [
                (producer.transaction("switched", body + b" kept"), producer.transaction("switched", body + b" undone"))
                for producer, body in zip(producers, (b"old", b"new"), strict=True)
            ]
            assert_equal(old, new)
            demote(old, new)
            promote(new)
            assert eventually(lambda: is_writable(new))
            for kept, undone in begun:
                receipt = kept.commit()
                assert (receipt.topic, receipt.message_id) == ("switched", kept.id)
                undone.rollback()
        assert Counter(stored(new, "switched", 2)) == Counter([b"old kept", b"new kept"])


def until_cut_off(broker: Broker) -> None:
    until_told(broker, lambda told: told.master and told.master.state == "lost")


def until_up_to_date(broker: Broker) -> None:
    until_told(broker, lambda told: told.master and told.master.state == "up to date")


@pytest.mark.slow
def test_members_of_a_host_that_is_cut_off_get_their_messages_from_the_master(pair: Pair) -> None:
    master, slave = pair
    found: Counter[bytes] = Counter()
    with slave.connect() as here, master.connect() as there:
        here.admin.create_topic("cut-off", queues=2)
        consumer = here.subscribe("cut-off", group="cut-off")

        def read_until(*bodies: bytes) -> None:
            until = time.monotonic() + DEADLINE_SECONDS
            while not found.keys() >= set(bodies) and time.monotonic() < until:
                for message in consumer.receive(10, 1.0):
                    if bytes(message.body) == b"twice" and message.attempt == 1:
                        message.nack(after=0.1)
                        continue
                    found[bytes(message.body)] += 1
                    message.ack()
            assert found.keys() >= set(bodies)

        there.send("cut-off", b"before", queue_id=0)
        read_until(b"before")
        pause(master)
        try:
            bodies = [b"%d" % number for number in range(10)]
            for number, body in enumerate([*bodies, b"twice"]):
                there.send("cut-off", body, queue_id=number % 2)
            read_until(*bodies, b"twice")
            until_cut_off(slave)
            there.admin.create_topic("made-meanwhile", queues=1)
            with pytest.raises(shmq.ConnectError, match=r"is at the master 127\.0\.0\.1:\d+, and did not come"):
                here.subscribe("made-meanwhile", group="late")
        finally:
            go_on(master)
        until_up_to_date(slave)
        here.subscribe("made-meanwhile", group="late").close()
        there.send("cut-off", b"after", queue_id=1)
        read_until(b"after")
        eventually(lambda: there.admin.groups["cut-off"].lag.total == 0)
    assert all(count <= 2 for count in found.values()), found


@pytest.mark.slow
def test_an_ordered_member_of_a_host_that_is_cut_off_goes_on_in_order(pair: Pair) -> None:
    master, slave = pair
    found: list[int] = []
    with slave.connect() as here, master.connect() as there:
        here.admin.create_topic("cut-steps", queues=1)

        @here.listener("cut-steps", group="cut-steps", ordered=True)
        def take(message: shmq.Message) -> None:
            found.append(int(bytes(message.body)))

        here.start()

        def send_until_read(numbers: range) -> None:
            for number in numbers:
                there.send("cut-steps", b"%d" % number)
            eventually(lambda: found and found[-1] == numbers[-1])

        send_until_read(range(3))
        pause(master)
        try:
            send_until_read(range(3, 9))
            until_cut_off(slave)
            send_until_read(range(9, 12))
        finally:
            go_on(master)
        until_up_to_date(slave)
        send_until_read(range(12, 15))
    assert list(dict.fromkeys(found)) == list(range(15)), found


@contextlib.contextmanager
def paused(slave: Broker) -> Iterator[None]:
    """The slave copies nothing, neither messages nor tables."""
    pause(slave)
    try:
        yield
    finally:
        go_on(slave)


@contextlib.contextmanager
def far_behind(slave: Broker) -> Iterator[None]:
    """The slave copies nothing, and says each half a second that it is catching up, 20 s behind its master."""
    links = read_links(slave.place.links_path)
    assert links is not None and links.master is not None
    link, is_over = links.master, threading.Event()

    def say() -> None:
        while not is_over.wait(0.5):
            now_ms = round(time.monotonic() * 1000)
            master = link._replace(state=CATCHING_UP, heard_ms=now_ms, lag_ms=20_000)
            write_links(slave.place.links_path, Links(now_ms, "slave", master=master), mode=0o600, gid=-1)

    with paused(slave):
        saying = threading.Thread(target=say)
        saying.start()
        try:
            yield
        finally:
            is_over.set()
            saying.join()


@pytest.mark.slow
def test_members_of_a_host_whose_copy_is_far_behind_get_their_messages_from_the_master(pair: Pair) -> None:
    master, slave = pair
    with slave.connect() as here, master.connect() as there:
        here.admin.create_topic("far-behind", queues=1)
        consumer = here.subscribe("far-behind", group="far-behind")

        def received(body: bytes) -> bool:
            there.send("far-behind", body)
            messages = consumer.receive(1, DEADLINE_SECONDS)
            for message in messages:
                message.ack()
            return [bytes(message.body) for message in messages] == [body]

        assert received(b"read in the copy")
        with far_behind(slave):
            assert received(b"sent by the master")
        until_up_to_date(slave)
        assert received(b"read in the copy again")
