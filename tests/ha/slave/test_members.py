"""Members of a group on a slave's host: the group is the master's, what they read is this host's copy of the log."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from itertools import chain

import pytest

import shmq
import shmq.aio
from shmq.protocol.body import encode_body
from shmq.protocol.codes import Request
from shmq.protocol.dialect import MessageQueue
from shmq.testing import Broker
from tests.deadline import eventually
from tests.ha.pair import ask, assert_equal, offsets_of, send, stop_threads
from tests.ha.seen import until_told
from tests.ha.test_switch import demote, fixed, follow, go_on, is_writable, pause, promote, slave_of

Pair = tuple[Broker, Broker]
QUEUES = 6


@pytest.fixture(scope="module")
def pair() -> Iterator[Pair]:
    with Broker(**fixed(), default_queues=QUEUES) as master, slave_of(master) as slave:
        send(master, range(1))
        assert_equal(master, slave)
        yield master, slave


def shared_out(*members: shmq.Subscription, count: int = QUEUES) -> list[list[int]]:
    """The queues of each member, once every queue is some member's and each has its part."""

    def found() -> list[list[int]] | None:
        parts = [member.queues for member in members]
        return parts if sorted(chain.from_iterable(parts)) == list(range(count)) and all(parts) else None

    return list(eventually(found, lambda: str([member.queues for member in members])))


def received(count: int, *members: shmq.Subscription) -> list[Counter[int]]:
    """What each member was handed and has acknowledged, once it is so many in all."""
    found: list[Counter[int]] = [Counter() for _ in members]

    def enough() -> bool:
        for member, bodies in zip(members, found, strict=True):
            for message in member.receive(32, 0.05):
                bodies[int(bytes(message.body))] += 1
                message.ack()
        return sum(bodies.total() for bodies in found) >= count

    eventually(enough, lambda: str(found))
    return found


def progress_of(group: str, broker: Broker) -> int:
    return sum(max(0, offset) for offset in offsets_of(group, broker))


def test_members_of_both_hosts_and_over_tcp_share_the_queues(pair: Pair) -> None:
    master, slave = pair
    with (
        master.connect() as there,
        slave.connect() as here,
        shmq.connect(f"rocketmq://{master.name_server}") as far,
        there.subscribe("orders", group="three", start="latest") as first,
        here.subscribe("orders", group="three", start="latest") as second,
        far.subscribe("orders", group="three", start="latest") as third,
    ):
        assert {len(part) for part in shared_out(first, second, third)} == {2}
        send(master, range(60))
        parts = received(60, first, second, third)
        assert sum(parts, Counter()) == Counter(range(60)) and all(parts)


def test_what_is_acknowledged_here_is_committed_at_the_master_when_the_member_leaves(pair: Pair) -> None:
    master, slave = pair
    with slave.connect() as here:
        with here.subscribe("orders", group="handed", start="latest") as member:
            shared_out(member)
            before = progress_of("handed", master)
            send(master, range(40))
            received(30, member)
        count = progress_of("handed", master) - before
        assert count >= 30
        with master.connect() as there, there.subscribe("orders", group="handed") as member:
            if count < 40:
                assert received(40 - count, member)[0].total() == 40 - count
            assert member.receive(1, 0.2) == []


@contextlib.contextmanager
def reading(member: shmq.Subscription) -> Iterator[list[int]]:
    """What a member hands to its loop, which acknowledges and goes on until it is stopped."""
    found: list[int] = []
    failed: list[BaseException] = []

    def read() -> None:
        try:
            for message in member:
                found.append(int(bytes(message.body)))
                message.ack()
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=read)
    thread.start()
    try:
        yield found
    finally:
        member.stop()
        thread.join()
    assert failed == []


def moved(groups: str | None, *members: shmq.Subscription) -> bool:
    """Whether members share queues by the leader's word ("TcpShare"), or among those of their host ("ShmShare")."""
    return bool(eventually(lambda: {type(member._share).__name__ for member in members} == {groups}))


@pytest.mark.slow
def test_members_here_go_on_while_the_master_is_gone_and_it_has_their_offsets_when_it_is_back() -> None:
    with Broker(**fixed(), default_queues=QUEUES) as master, slave_of(master) as slave:
        send(master, range(30))
        assert_equal(master, slave)
        with slave.connect() as one, slave.connect() as two, one.subscribe("orders", group="left") as first:
            received(30, first)
            send(master, range(30, 60))
            assert_equal(master, slave)
            master.kill_daemon()
            received(30, first)  # of what this host has
            assert moved("ShmShare", first)
            with two.subscribe("orders", group="left") as second:  # which finds no master
                assert moved("ShmShare", first, second)
                shared_out(first, second)
                assert sum(received(0, first, second), Counter()) == Counter()
                master.restart()
                assert moved("TcpShare", first, second)
                shared_out(first, second)
                send(master, range(60, 90))
                parts = received(30, first, second)
                assert set(sum(parts, Counter())) >= set(range(60, 90)) and all(parts)
        assert progress_of("left", master) == 90


@pytest.mark.slow
def test_members_here_follow_their_group_through_a_promotion_and_a_demotion() -> None:
    with Broker(**fixed(), default_queues=QUEUES) as old, slave_of(old) as new:
        send(old, range(30))
        assert_equal(old, new)
        with new.connect() as mq, mq.subscribe("orders", group="switched") as member, reading(member) as found:
            eventually(lambda: len(found) >= 30)
            demote(old, new)
            promote(new)
            eventually(lambda: is_writable(new), lambda: new.log[-3000:])
            assert moved("ShmShare", member)
            send(new, range(30, 60))
            eventually(lambda: len(found) >= 60, lambda: str(found))
            eventually(lambda: progress_of("switched", old) == 60)  # which its host hears of once a second
            until_told(
                old, lambda told: told.standing == "follows" and told.master and told.master.state == "up to date"
            )
            demote(new, old)
            promote(old)
            eventually(lambda: is_writable(old), lambda: old.log[-3000:])
            assert moved("TcpShare", member)
            send(old, range(60, 90))
            eventually(lambda: len(found) >= 90, lambda: str(found))
        assert Counter(found) == Counter(range(90))
        assert progress_of("switched", old) == 90


@pytest.mark.slow
def test_members_here_stay_with_what_this_host_has_while_it_refuses_its_master() -> None:
    with Broker(**fixed(), default_queues=1) as master, slave_of(master) as slave:
        send(master, range(30))
        assert_equal(master, slave)
        with slave.connect() as mq, mq.subscribe("orders", group="refusing") as member, reading(member) as found:
            assert moved("TcpShare", member)
            eventually(lambda: len(found) >= 30)
            master.kill_daemon()
            master.store.rename(master.directory / "lost")
            master.start()
            send(master, range(100, 110))
            until_told(slave, lambda told: told.master and "two logs" in told.master.error)
            assert moved("ShmShare", member)
            mq.send("orders", b"110")  # to the master, as before
            with mq.pull_consumer("orders") as pull, mq.subscribe("orders", group="again", start="earliest") as other:
                assert len(pull.poll(32, 5.0)) == 30
                assert pull.commit(group="pulled") == pull.committed(group="pulled") == {0: 30}
                [first, *_] = other.receive(32, 10.0)
                first.nack(after=1.0)
                assert [bytes(message.body) for message in other.receive(1, 60.0)] == [bytes(first.body)]
            assert offsets_of("pulled", master) in ([], [-1]), "other messages have these offsets there"
            slave.kill_daemon()
            slave.store.rename(slave.directory / "moved-away")
            slave.start()
            assert moved("TcpShare", member)
            eventually(lambda: len(found) >= 41, lambda: f"{found} {slave.log[-3000:]}")
        assert set(found[30:]) == set(range(100, 111)), "offsets of another log step over nothing"
        assert set(found[:30]) == set(range(30))
        assert progress_of("refusing", master) == 11


@pytest.mark.slow
def test_offsets_are_reset_at_the_master_from_here_and_not_under_a_member_anywhere(pair: Pair) -> None:
    master, slave = pair
    with slave.connect() as here, master.connect() as there:
        with there.subscribe("orders", group="reset", start="latest") as member:
            shared_out(member)
            eventually(lambda: "reset" in here.admin.groups)  # its host copies groups
            assert here.admin.groups["reset"].members == [there.client_id]
            with pytest.raises(shmq.ConsumeError, match="1 members"):
                here.admin.groups["reset"].reset("orders", to="begin")
        ends = offsets_of("reset", master)
        assert sum(ends) > 0
        steps = here.admin.groups["reset"].reset("orders", to="begin")
        assert progress_of("reset", master) == sum(step.new for step in steps) == 0
    eventually(lambda: offsets_of("reset", slave) == [0] * QUEUES)  # the command looks at this host's copy
    words = [
        sys.executable,
        "-m",
        "shmq",
        "-u",
        slave.url,
        "offset",
        "reset",
        "reset",
        "orders",
        "--to",
        "end",
        "--yes",
    ]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert offsets_of("reset", master) == ends


@pytest.mark.slow
def test_an_ordered_member_here_locks_its_queues_at_the_master(pair: Pair) -> None:
    master, slave = pair
    queue = MessageQueue(master.name, 0, "orders")
    body = encode_body({"consumerGroup": "ordered", "clientId": "another", "mqSet": [queue]})

    def locked() -> list[dict[str, object]]:
        found: list[dict[str, object]] = json.loads(ask(master, Request.LOCK_BATCH_MQ, body).body)["lockOKMQSet"]
        return found

    with slave.connect() as here:
        seen: list[int] = []

        @here.listener("orders", group="ordered", ordered=True, start="latest")
        def take(message: shmq.Message) -> None:
            seen.append(int(bytes(message.body)))

        here.start()
        [listener] = here._membership.consumers
        shared_out(listener)  # type: ignore[arg-type]
        assert locked() == []
        with master.connect() as mq:
            for number in range(20):
                mq.send("orders", b"%d" % number, message_group="one")
        eventually(lambda: len(seen) >= 20)
        assert seen == list(range(20))
    assert len(locked()) == 1  # given up at the end


@pytest.mark.slow
def test_a_message_given_back_here_comes_again_out_of_this_hosts_copy(pair: Pair) -> None:
    master, slave = pair
    with slave.connect() as here:
        here.admin.create_topic("again", queues=QUEUES)
    with slave.connect() as here, here.subscribe("again", group="again") as member:
        shared_out(member)
        here.send("again", b"7")
        [message] = member.receive(1, 60.0)
        assert member.lag() == 1
        message.nack(after=1.0)
        [message] = member.receive(1, 60.0)
        assert (message.topic, bytes(message.body), message.attempt) == ("again", b"7", 2)
        message.ack()
        assert member.lag() == 0
    with master.connect() as there:
        assert there.admin.groups["again"].lag.total == 0


@pytest.mark.slow
def test_a_member_waits_where_the_copy_is_not_as_far_as_its_group() -> None:
    with Broker(**fixed(), default_queues=1) as master, slave_of(master) as slave:
        send(master, range(10))
        assert_equal(master, slave)
        replication = slave.processes["replication"].pid
        stop_threads(replication)
        try:
            send(master, range(10, 20))
            with master.connect() as there, there.subscribe("orders", group="ahead") as member:
                received(20, member)
            with slave.connect() as here, here.subscribe("orders", group="ahead") as member:
                shared_out(member, count=1)
                assert member.receive(1, 0.5) == []
                os.kill(replication, signal.SIGCONT)
                send(master, range(20, 30))
                assert received(10, member) == [Counter(range(20, 30))]
        finally:
            os.kill(replication, signal.SIGCONT)


@pytest.mark.slow
def test_the_end_of_a_log_that_a_new_leader_lacks_is_not_read_for_its_groups() -> None:
    with Broker(**fixed(), default_queues=1) as old, slave_of(old) as new, slave_of(old) as here:
        send(old, range(10))
        assert_equal(old, here)
        assert_equal(old, new)
        new.kill_daemon()
        send(old, range(10, 15))  # these the next leader never gets
        assert_equal(old, here)
        old.kill_daemon()
        slave = new.restart().processes["replication"]
        promote(new, "--force")
        eventually(lambda: new.processes.get("replication", slave) != slave, lambda: new.log[-3000:])
        pause(new)  # nothing is cut before it goes on
        here.kill_daemon()
        follow(here, new)
        with here.connect() as mq, mq.subscribe("orders", group="met") as member, reading(member) as found:
            assert moved("TcpShare", member)
            eventually(lambda: found or member._share.last_error)  # type: ignore[union-attr]
            assert found == []
            send(new, range(100, 105))  # which have the offsets of those
            with mq.pull_consumer("orders") as pull:
                assert len(pull.poll(32, 5.0)) == 15
                with pytest.raises(shmq.ConsumeError, match="that the leader lacks"):
                    pull.commit(group="pulled")
            assert offsets_of("pulled", new) in ([], [-1])
            go_on(new)
            eventually(lambda: len(found) >= 15, lambda: f"{found} {here.log[-3000:]}")
        assert Counter(found) == Counter([*range(10), *range(100, 105)])
        assert progress_of("met", new) == 15


def test_a_pull_consumer_here_commits_at_the_master_and_begins_there(pair: Pair) -> None:
    master, slave = pair
    with slave.connect() as here, here.pull_consumer("orders") as pull:
        places = pull.commit(group="pulled")
        assert offsets_of("pulled", master) == list(places.values()) == list(pull.committed(group="pulled").values())


@pytest.mark.slow
def test_a_member_of_an_event_loop_here_shares_with_one_on_the_masters_host(pair: Pair) -> None:
    master, slave = pair

    async def main(there: shmq.Subscription) -> Counter[int]:
        found: Counter[int] = Counter()
        async with (
            shmq.aio.connect(slave.url) as mq,
            await mq.subscribe("orders", group="loop", start="latest") as here,
        ):
            await asyncio.to_thread(eventually, lambda: len(here.queues) == len(there.queues) == QUEUES // 2)
            await asyncio.to_thread(send, master, range(12))
            while sum(found.values()) < 6:
                for message in await here.receive(32, 1.0):
                    found[int(bytes(message.body))] += 1
                    await message.ack()
        return found

    with master.connect() as mq, mq.subscribe("orders", group="loop", start="latest") as there:
        shared_out(there)
        found = asyncio.run(main(there))
        assert found + received(6, there)[0] == Counter(range(12))
