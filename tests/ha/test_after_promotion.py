"""What a broker does beside storing goes on at a promoted slave: pops, delays, times and transactions are complete.

And what it stores reaches those who had read farther at the lost master, too.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

import shmq
from shmq.testing import Broker
from tests.deadline import DEADLINE_SECONDS, attempts, eventually
from tests.ha.pair import bodies_of, send, settled_end
from tests.ha.test_switch import fixed, pause, promote, read, slave_of
from tests.shm.looking import looking
from tests.tools.shell import Shell

pytestmark = pytest.mark.slow

FEW = 10
HIDDEN_SECONDS = 5.0
LATER_LEVEL, LATER_SECONDS = 4, 30.0


@pytest.fixture
def pair() -> Iterator[tuple[Broker, Broker]]:
    with Broker(**fixed(), default_queues=2) as master, slave_of(master) as slave:
        yield master, slave


def switch(pair: tuple[Broker, Broker]) -> Broker:
    """The master's host is gone; return the new master."""
    master, slave = pair
    settled_end(master, slave)
    master.kill_daemon()
    promote(slave)
    return slave


def test_popped_messages_come_again_at_the_new_master_unless_they_were_acknowledged(
    pair: tuple[Broker, Broker],
) -> None:
    master, _ = pair
    send(master, range(FEW))
    with master.connect() as mq, mq.simple_consumer("orders", group="poppers", invisible=HIDDEN_SECONDS) as consumer:
        taken = [message for _ in range(2) for message in consumer.receive(4, 10.0)]
        assert len(taken) > 2
        done = {bytes(message.body) for message in taken[:2]}
        for message in taken[:2]:
            message.ack()
        popped_at = time.monotonic()
        new = switch(pair)
    found: Counter[bytes] = Counter()
    with new.connect() as mq, mq.simple_consumer("orders", group="poppers", invisible=60.0) as consumer:
        for _ in attempts(60.0):
            for message in consumer.receive(32, 1.0):
                if bytes(message.body) in {bytes(one.body) for one in taken[2:]}:
                    assert time.monotonic() - popped_at > HIDDEN_SECONDS - 1.0, "it is hidden until its time is over"
                found[bytes(message.body)] += 1
                message.ack()
            if len(found) >= FEW - len(done):
                break
    assert found == Counter({b"%d" % number: 1 for number in range(FEW)} | dict.fromkeys(done, 0)) - Counter()


def test_what_was_acknowledged_just_before_the_master_died_does_not_come_again(pair: tuple[Broker, Broker]) -> None:
    master, _ = pair
    count = 60
    send(master, range(count))
    acknowledged = set()
    with master.connect() as mq, mq.simple_consumer("orders", group="poppers", invisible=HIDDEN_SECONDS) as consumer:
        while len(acknowledged) < count - FEW:
            for message in consumer.receive(2, 10.0):
                acknowledged.add(bytes(message.body))
                message.ack()
    new = switch(pair)  # acknowledgements leave soon, together; its end has waited for the last ones
    found: Counter[bytes] = Counter()
    with new.connect() as mq, mq.simple_consumer("orders", group="poppers", invisible=60.0) as consumer:
        for _ in attempts(60.0):
            for message in consumer.receive(32, 1.0):
                found[bytes(message.body)] += 1
                message.ack()
            if len(found) >= count - len(acknowledged):
                break
        assert not consumer.receive(32, 2.0)
    assert found == Counter({b"%d" % number for number in range(count)} - acknowledged)


def test_delayed_and_timed_messages_come_once_and_not_early(pair: tuple[Broker, Broker]) -> None:
    master, _ = pair
    due: dict[bytes, float] = {}
    with master.connect() as mq:
        producer = mq.producer()
        for number, level, seconds in (
            (0, 1, 1.0),
            (1, None, 1.0),
            (2, LATER_LEVEL, LATER_SECONDS),
            (3, None, LATER_SECONDS),
        ):
            due[b"%d" % number] = time.time() + seconds
            how: dict[str, Any] = {"delay": seconds} if level is None else {"delay_level": level}
            producer.send("orders", b"%d" % number, **how)
        with mq.subscribe("orders", group="early") as early:
            first = [bytes(message.body) for _ in range(2) for message in early.receive(1, 30.0)]
        assert sorted(first) == [b"0", b"1"]
    new = switch(pair)
    found: dict[bytes, list[float]] = {}
    with new.connect() as mq:
        mq.send("orders", b"4", delay=LATER_SECONDS + 3)
        with mq.subscribe("orders", group="late", start="first") as late:
            for _ in attempts(90.0):
                for message in late.receive(32, 1.0):
                    found.setdefault(bytes(message.body), []).append(message.store_ms / 1000)
                    message.ack()
                if b"4" in found:
                    break
    assert {body: len(times) for body, times in found.items()} == dict.fromkeys([*due, b"4"], 1)
    assert all(found[body][0] >= when - 0.1 for body, when in due.items())


def test_an_open_transaction_is_asked_about_and_ended_once(pair: tuple[Broker, Broker]) -> None:
    master, _ = pair
    with master.connect() as mq:
        producer = mq.producer(group="buyers")
        with producer.transaction("orders", b"0"):
            pass
        opened = [producer.transaction("orders", b"%d" % number) for number in (1, 2)]
        producer.transaction("orders", b"3").rollback()
        new = switch(pair)
        assert len({each.id for each in opened}) == 2  # not ended
    shell = Shell(new.url)
    rows = eventually(lambda: shell.json("tx-list", "tx", "list")["transactions"])
    assert len(rows) == 2 and {row["topic"] for row in rows} == {"orders"}
    asked: list[bytes] = []
    with new.connect() as mq:

        @mq.transaction_checker("buyers")
        def decide(message: shmq.Message) -> shmq.TxState:
            asked.append(bytes(message.body))
            return shmq.COMMIT if asked[-1] == b"1" else shmq.ROLLBACK

        found: list[bytes] = []
        with mq.subscribe("orders", group="readers", start="first") as readers:
            for _ in attempts(60.0):
                for message in readers.receive(32, 1.0):
                    found.append(bytes(message.body))
                    message.ack()
                if set(asked) >= {b"1", b"2"} and len(found) >= 2:
                    break
        assert sorted(found) == [b"0", b"1"], asked
        eventually(lambda: shell.json("tx-list", "tx", "list")["transactions"] == [])
        assert found == sorted(found)


def test_a_group_that_was_ahead_of_the_slaves_log_misses_nothing_that_is_sent_there(
    pair: tuple[Broker, Broker],
) -> None:
    master, slave = pair
    send(master, range(FEW))
    assert bodies_of(master.url, FEW, "readers") == list(range(FEW))
    settled_end(master, slave)
    eventually(lambda: offsets(slave) == FEW, lambda: str(offsets(slave)))
    pause(master)  # the log is shipped no more; offsets come, but count only once their messages are here
    send(master, range(100, 100 + FEW))
    assert bodies_of(master.url, FEW, "readers") == list(range(100, 100 + FEW))
    assert offsets(master) == 2 * FEW
    master.kill_daemon()
    promote(slave)
    assert offsets(slave) == FEW
    send(slave, range(FEW, 2 * FEW))
    assert read(slave, FEW, "readers") == list(range(FEW, 2 * FEW))


def offsets(broker: Broker) -> int:
    """How many messages the group has settled."""
    with looking(broker) as store:
        topic = store.topic(store.topic_find("orders"))
        group = store.group_find("readers")
        return sum(
            entry.committed for entry in store.offsets() if entry.group == group and entry.queue in topic["queues"]
        )


def test_a_reader_that_comes_from_the_lost_master_gets_all_that_is_new() -> None:
    kept, lost, new = 10, 5, [b"%d" % number for number in range(100, 120)]
    with Broker(**fixed(), default_queues=1) as master, slave_of(master) as slave:
        send(master, range(kept))
        settled_end(master, slave)
        pause(master)
        send(master, range(kept, kept + lost))
        master.kill_daemon()
        promote(slave)
        send(slave, range(100, 120))
        with (
            shmq.connect(f"rocketmq://{slave.name_server}", timeout=DEADLINE_SECONDS) as mq,
            mq.pull_consumer("orders") as pull,
        ):
            [queue] = pull.queues()
            pull.seek(queue, kept + lost)
            found: list[bytes] = []
            while len(found) < len(new):
                found += [bytes(message.body) for message in pull.poll(max=100, wait=DEADLINE_SECONDS)]
            assert found == new
            pull.seek(queue, kept + lost)
            again = pull.poll(max=1, wait=DEADLINE_SECONDS)
            assert bytes(again[0].body) == new[lost], "what it has read here is its own"
