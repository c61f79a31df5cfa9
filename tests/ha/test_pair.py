"""Two real brokers, a master and its slave: the log, the topics and the offsets of one become those of the other."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest

import shmq
from shmq.options.broker import Options
from shmq.protocol.codes import Request
from shmq.shm.core import READ_ONLY_FOLLOWER
from shmq.testing import Broker
from tests.deadline import eventually
from tests.ha.pair import ask, assert_equal, bodies_of, offsets_of, pulled, send, slave_of
from tests.shm.looking import looking


@pytest.fixture(scope="module")
def master() -> Iterator[Broker]:
    with Broker(tcp=True, ha_listen="127.0.0.1:0") as broker:
        send(broker, range(500))
        yield broker


@pytest.fixture(scope="module")
def slave(master: Broker) -> Iterator[Broker]:
    with slave_of(master) as broker:
        yield broker


def test_i9_what_was_and_what_comes_is_copied_byte_for_byte(master: Broker, slave: Broker) -> None:
    assert_equal(master, slave)
    send(master, range(500, 700))
    send(master, range(10), topic="made-later")
    assert_equal(master, slave)
    with looking(master) as theirs, looking(slave) as ours:
        for name in ("orders", "made-later"):
            queues = [store.topic(store.topic_find(name))["queues"] for store in (theirs, ours)]
            ends = [
                [store.queue(queue).offset_max for queue in each]
                for store, each in zip((theirs, ours), queues, strict=True)
            ]
            assert ends[0] == ends[1]


def test_consumers_read_from_the_slave(master: Broker, slave: Broker) -> None:
    assert_equal(master, slave)
    with looking(slave) as store:
        queues = store.topic(store.topic_find("orders"))["queues"]
        total = sum(store.queue(queue).offset_max for queue in queues)
    assert bodies_of(slave.url, total, "readers-of-the-copy") == list(range(total))


def test_a_pull_over_tcp_is_answered_by_the_slave(master: Broker, slave: Broker) -> None:
    assert_equal(master, slave)
    ours, theirs = (pulled(broker, 0) for broker in (slave, master))
    assert (ours.code, ours.body) == (theirs.code, theirs.body)
    assert ours.code == 0 and ours.body


def test_a_slave_takes_no_message_over_tcp_and_names_its_master(master: Broker, slave: Broker) -> None:
    sent = {"a": "group", "b": "orders", "c": "TBW102", "d": "4", "e": "0", "f": "0", "g": "0", "h": "0", "i": ""}
    reply = ask(slave, Request.SEND_MESSAGE_V2, body=b"x", **sent, j="0", k="false", m="false")
    assert reply.code == 14, reply
    assert master.broker_address in (reply.remark or "")


def test_a_slave_changes_no_topic(slave: Broker) -> None:
    reply = ask(slave, Request.DELETE_TOPIC_IN_BROKER, topic="orders")
    assert (reply.code, reply.remark) == (
        1,
        "Can't modify topic or subscription group from slave broker, please execute it from master broker.",
    )


def test_groups_and_their_offsets_are_copied(master: Broker, slave: Broker) -> None:
    assert_equal(master, slave)
    with looking(master) as store:
        queues = store.topic(store.topic_find("orders"))["queues"]
        total = sum(store.queue(queue).offset_max for queue in queues)
    bodies_of(master.url, total, "billing")
    eventually(
        lambda: offsets_of("billing", slave) == offsets_of("billing", master) != [],
        lambda: f"{offsets_of('billing', slave)} {offsets_of('billing', master)}",
    )


def test_offsets_that_are_reset_at_the_master_are_reset_on_the_slave(master: Broker, slave: Broker) -> None:
    assert_equal(master, slave)
    with master.connect() as mq:
        mq.subscribe("orders", group="audit").close()
        for to, is_there in (("end", any), ("begin", lambda offsets: not any(offsets)), ("end", any)):
            mq.admin.groups["audit"].reset("orders", to=to)
            wanted = offsets_of("audit", master)
            assert wanted and is_there(wanted)
            eventually(
                lambda wanted=wanted: offsets_of("audit", slave) == wanted, lambda: str(offsets_of("audit", slave))
            )


def test_the_follower_says_that_it_is_one(slave: Broker, master: Broker) -> None:
    with looking(slave) as store:
        assert (store.read_only, store.leader) == (READ_ONLY_FOLLOWER, master.broker_address)


@pytest.mark.parametrize("role", ["replication", "bridge", "keeper"])
def test_a_killed_process_of_the_slave_comes_again_and_goes_on(master: Broker, slave: Broker, role: str) -> None:
    before = slave.processes[role]
    os.kill(before.pid, signal.SIGKILL)
    send(master, range(20), topic="while-killed")
    eventually(lambda: slave.processes.get(role, before) != before, lambda: slave.log[-2000:])
    assert_equal(master, slave)
    with looking(slave) as store:
        assert store.read_only == READ_ONLY_FOLLOWER


@pytest.mark.slow
def test_a_slave_that_was_dead_goes_on_where_it_was(master: Broker) -> None:
    with slave_of(master) as other:
        assert_equal(master, other)
        other.kill_daemon()
        send(master, range(50), topic="while-dead")
        other.restart()
        assert_equal(master, other)
        other.restart()  # in order, this time
        send(master, range(50), topic="after-a-stop")
        assert_equal(master, other)


def test_options_of_a_slave_belong_together() -> None:
    with pytest.raises(shmq.UsageError, match="a slave has a master"):
        Options(role="slave")
    with pytest.raises(shmq.UsageError, match="a slave has a master"):
        Options(master="10.0.0.4:10911")
    assert Options(role="slave", master="[fe80::1]:10911").master_ha_address == ("fe80::1", 10912)
