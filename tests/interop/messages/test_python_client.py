"""Our Python client over TCP, against stock brokers and ours: what it sends, what it receives, and what it survives."""

import asyncio
import itertools
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import shmq
import shmq.aio
from shmq.client.remote.outgoing import BATCH_COUNT_MAX
from shmq.daemon.bridge.sockets.tcp_listener import VIP_DISTANCE
from shmq.testing import Broker
from tests.deadline import eventually
from tests.interop.peers.java import LineClient
from tests.interop.target import STOCK_4, Target
from tests.ports import free_ports

Named = Callable[[str], str]
PATIENCE = 40.0

MEMBER = """
import json, sys, shmq
url, topic, group = sys.argv[1:]
with shmq.connect(url) as mq:
    subscription = mq.subscribe(topic, group=group)
    for message in subscription:
        print(json.dumps([message.queue_id, message.offset, message.body.decode()]), flush=True)
        message.ack()
"""


@pytest.fixture
def url(target: Target) -> str:
    return f"rocketmq://{target.name_server}"


@pytest.fixture
def mq(url: str) -> Iterator[shmq.Connection]:
    before = {thread.name for thread in threading.enumerate()}
    with shmq.connect(url, timeout=60.0) as connection:
        yield connection
    left = {thread.name for thread in threading.enumerate() if thread.name.startswith("shmq")} - before
    assert not left, f"threads are left after close(): {left}"


@pytest.fixture
def topic(mq: shmq.Connection, named: Named) -> str:
    """A topic with four queues."""
    name = named("topic")
    mq.admin.create_topic(name, queues=4)
    return name


def bodies_of(consumer: shmq.PullConsumer, count: int) -> list[bytes]:
    """Read at least `count` messages."""
    found: list[bytes] = []
    deadline = time.monotonic() + PATIENCE
    while len(found) < count and time.monotonic() < deadline:
        found += [message.body for message in consumer.poll(100, 1.0)]
    return found


def take(consumer: shmq.Subscription) -> shmq.Message:
    """Return the next message, which has to come in time."""
    found: list[shmq.Message] = eventually(lambda: consumer.receive(1, 1.0), "a message", PATIENCE)
    return found[0]


# -- producing
def test_what_is_sent_in_every_way_is_stored_once_with_its_properties(mq: shmq.Connection, topic: str) -> None:
    receipt = mq.send(topic, b"42 apples", tag="fruit", keys=["o-1", "o-2"], properties={"region": "eü"}, flag=7)
    batch = mq.send_batch(topic, [b"a", b"b", b"c"], keys=["1", "2", "3"])
    mq.send_oneway(topic, b"tick")
    with mq.producer(group="shop") as producer:
        later = producer.send_nowait(topic, b"later").result(PATIENCE)
        with producer.reserve(topic, 5) as slot:
            slot.view[:3] = b"abc"
            slot.size = 3
    assert slot.receipt is not None and later.topic == topic
    found: dict[bytes, shmq.Message] = {}
    with mq.pull_consumer(topic) as consumer:  # a stock broker shows queues one by one, the one-way message last or not
        deadline = time.monotonic() + PATIENCE
        while len(found) < 7 and time.monotonic() < deadline:
            found |= {message.body: message for message in consumer.poll(100, 1.0)}
        assert consumer.poll(100, 0.5) == []
    assert found.keys() == {b"42 apples", b"a", b"b", b"c", b"tick", b"later", b"abc"}
    first = found[b"42 apples"]
    assert (first.message_id, first.queue_id, first.offset) == (receipt.message_id, receipt.queue_id, receipt.offset)
    assert (first.tag, first.keys, first.properties["region"], first.flag) == ("fruit", ["o-1", "o-2"], "eü", 7)
    assert first.verify() and first.topic == topic
    assert [(found[body].message_id, found[body].offset) for body in (b"a", b"b", b"c")] == [
        (each.message_id, each.offset) for each in batch
    ]
    assert len({each.queue_id for each in batch}) == 1


@pytest.mark.parametrize(("count", "size"), [(48, 86_900), (BATCH_COUNT_MAX, 7_700), (BATCH_COUNT_MAX, 0)])
def test_a_batch_of_four_mebibytes_is_one_request_which_brokers_take(
    mq: shmq.Connection, topic: str, count: int, size: int
) -> None:
    receipts = mq.send_batch(topic, [bytes(size)] * count)
    records = {after.log_position - before.log_position for before, after in itertools.pairwise(receipts)}
    assert len(receipts) == count and len(records) == 1, "nothing lies between two of them"


def test_a_topic_that_does_not_exist_is_created_by_the_first_send(mq: shmq.Connection, named: Named) -> None:
    name = named("fresh")
    receipt = mq.send(name, b"first")
    with mq.pull_consumer(name) as consumer:
        assert receipt.queue_id in consumer.queues() and bodies_of(consumer, 1) == [b"first"]


def test_messages_of_a_group_keep_their_queue_and_their_order(mq: shmq.Connection, topic: str) -> None:
    receipts = [mq.send(topic, b"%d" % number, message_group="o-42") for number in range(10)]
    assert len({receipt.queue_id for receipt in receipts}) == 1
    offsets = [receipt.offset for receipt in receipts]
    assert offsets == sorted(offsets)
    assert {mq.send(topic, b"x").queue_id for _ in range(8)} == {0, 1, 2, 3}
    assert mq.send(topic, b"y", queue_id=2).queue_id == 2
    with pytest.raises(shmq.UsageError, match="no queue 9"):
        mq.send(topic, b"z", queue_id=9)


@pytest.mark.parametrize("kind", ["zlib", "lz4", "zstd"])
def test_a_long_body_is_compressed_and_read_back_by_java_and_by_us(
    client_of: Callable[[str], LineClient], target: Target, mq: shmq.Connection, topic: str, named: Named, kind: str
) -> None:
    body = f"{kind} ".encode() * 3000
    with shmq.connect(f"rocketmq://{target.name_server}?compression={kind}") as other:
        other.send(topic, body)
    with mq.pull_consumer(topic) as consumer:
        (message,) = consumer.poll(1, 10.0)
    assert message.sys_flag & 1 and len(message.view) < len(body) == message.size and message.body == body
    client, name = client_of("java-5"), named("push")
    client.do("push", name=name, group=name, topic=topic, nameServer=target.name_server)
    (received,) = client.expect(name, 1)
    client.do("push-close", name=name)
    assert received["body"] == body.decode()


# -- groups
def test_a_filter_by_tags_delivers_those_and_no_others(mq: shmq.Connection, topic: str, named: Named) -> None:
    for number in range(30):
        mq.send(topic, b"%d" % number, tag=("fruit", "veg", "meat")[number % 3])
    with mq.subscribe(topic, group=named("group"), tags="fruit || veg") as subscription:
        seen = []
        for message in subscription:
            seen.append(message.tag)
            message.ack()
            if len(seen) == 20:
                break
    assert Counter(seen) == {"fruit": 10, "veg": 10}


def test_three_members_share_the_queues_and_a_killed_one_is_replaced(
    url: str, mq: shmq.Connection, topic: str, named: Named
) -> None:
    group = named("group")
    command = [sys.executable, "-P", "-c", MEMBER, url, topic, group]
    others = [subprocess.Popen(command, stdout=subprocess.PIPE) for _ in range(2)]
    try:
        with mq.subscribe(topic, group=group) as ours:
            eventually(lambda: len(mq.admin.groups[group].members) == 3, "three members", PATIENCE)
            eventually(lambda: len(ours.queues) <= 3, "the queues are shared", PATIENCE)
            others[0].kill()
            others[1].kill()
            # A retry topic's queue counts as well, once the group has one.
            eventually(lambda: len(ours.queues) >= 4, "the survivor reads all queues", PATIENCE)
            sent = {mq.send(topic, b"%d" % number).message_id for number in range(12)}
            deadline = time.monotonic() + PATIENCE
            while sent and time.monotonic() < deadline:
                for message in ours.receive(32, 1.0):
                    sent.discard(message.message_id)
                    message.ack()
            assert not sent
    finally:
        for process in others:
            process.kill()
            process.wait(60)
            assert process.stdout is not None
            process.stdout.close()


def test_offsets_are_committed_at_close_and_the_group_goes_on_there(
    mq: shmq.Connection, topic: str, named: Named
) -> None:
    group = named("group")
    mq.send_batch(topic, [b"1", b"2", b"3", b"4"], queue_id=1)
    with mq.subscribe(topic, group=group) as subscription:
        for message in subscription:
            message.ack()
            if message.body == b"2":
                break
    assert mq.admin.groups[group].lag.total == 2
    with mq.subscribe(topic, group=group) as subscription:
        assert take(subscription).body == b"3"


def test_a_group_that_is_new_begins_where_it_was_set_to(mq: shmq.Connection, topic: str, named: Named) -> None:
    mq.send_batch(topic, [b"old"] * 5, queue_id=0)
    group = named("group")
    with mq.subscribe(topic, group=group, start="last") as subscription:
        eventually(lambda: len(subscription.queues) >= 4, "all queues", PATIENCE)
        mq.send(topic, b"new", queue_id=0)
        assert take(subscription).body == b"new"


def test_a_message_that_is_given_back_comes_again_from_the_retry_topic(
    mq: shmq.Connection, topic: str, named: Named
) -> None:
    mq.send(topic, b"again", tag="t", key="k")
    with mq.subscribe(topic, group=named("group"), tags="t") as subscription:
        first = take(subscription)
        first.nack(1)
        second = take(subscription)
        assert (second.body, second.attempt, second.topic, second.key) == (b"again", 2, topic, "k")
        second.ack()
        eventually(lambda: subscription.lag() == 0, "nothing is left", PATIENCE)


def test_what_is_rejected_is_a_dead_letter_that_can_be_sent_again(
    mq: shmq.Connection, topic: str, named: Named
) -> None:
    group = named("group")
    mq.send(topic, b"poison")
    with mq.subscribe(topic, group=group) as subscription:
        subscription.reject(take(subscription), "unknown article")
        (letter,) = eventually(lambda: mq.admin.dlq(group), "a dead letter", PATIENCE)
        assert (letter.body, letter.origin_topic) == (b"poison", topic)
        letter.resend()
        assert take(subscription).body == b"poison"


def test_listeners_handle_in_parallel_and_failures_come_again(mq: shmq.Connection, topic: str, named: Named) -> None:
    seen: list[tuple[bytes, int]] = []

    @mq.listener(topic, group=named("group"), threads=4)
    def on_message(message: shmq.Message) -> None:
        seen.append((message.body, message.attempt))
        if message.body == b"3" and message.attempt == 1:
            raise shmq.Retry(after=1)

    mq.start()
    for number in range(10):
        mq.send(topic, b"%d" % number)
    eventually(lambda: (b"3", 2) in seen, "the failed one came again", PATIENCE)
    eventually(lambda: len(seen) == 11, "all came", PATIENCE)
    mq.stop()
    assert Counter(body for body, _ in seen) == {b"%d" % number: 2 if number == 3 else 1 for number in range(10)}


def test_an_ordered_listener_keeps_the_order_of_each_queue_even_when_it_fails(
    mq: shmq.Connection, topic: str, named: Named
) -> None:
    seen: dict[str, list[int]] = {}
    failed: set[bytes] = set()

    @mq.listener(topic, group=named("group"), threads=3, ordered=True)
    def on_message(message: shmq.Message) -> None:
        name, number = message.body.decode().split("/")
        if number == "4" and message.body not in failed:
            failed.add(message.body)
            raise shmq.Retry(after=0.2)
        seen.setdefault(name, []).append(int(number))

    for number in range(10):
        for name in ("red", "green", "blue"):
            mq.send(topic, f"{name}/{number}".encode(), message_group=name)
    mq.start()
    eventually(lambda: sum(map(len, seen.values())) == 30, "all came", PATIENCE)
    mq.stop()
    assert all(numbers == list(range(10)) for numbers in seen.values()) and len(failed) == 3


def test_a_broadcast_reaches_every_consumer(url: str, mq: shmq.Connection, topic: str) -> None:
    mq.send(topic, b"before")
    eventually(lambda: mq.browse(topic), "a stock broker puts it into its queue a moment later", PATIENCE)
    with shmq.connect(url) as second:
        consumers = [each.subscribe(topic, model="broadcasting") for each in (mq, second)]
        eventually(lambda: all(len(each.queues) == 4 for each in consumers), "both read", PATIENCE)
        mq.send(topic, b"to all")
        for each in consumers:
            assert take(each).body == b"to all"


def test_a_simple_consumer_sees_a_message_again_when_its_time_is_over(
    mq: shmq.Connection, topic: str, named: Named
) -> None:
    mq.send(topic, b"work")
    with mq.simple_consumer(topic, group=named("group"), invisible=0.3) as consumer:
        (first,) = eventually(lambda: consumer.receive(wait=1.0), "the message", PATIENCE)
        assert first.attempt == 1
        (second,) = eventually(lambda: consumer.receive(wait=1.0), "it again", PATIENCE)
        assert (second.attempt, second.body) == (2, b"work")
        second.ack()


def test_a_python_and_a_java_member_share_a_group(
    client_of: Callable[[str], LineClient], target: Target, mq: shmq.Connection, topic: str, named: Named
) -> None:
    client, name, group = client_of("java-4"), named("push"), named("group")
    client.do("push", name=name, group=group, topic=topic, nameServer=target.name_server)
    with mq.subscribe(topic, group=group) as ours:
        eventually(lambda: sorted(queue for queue in ours.queues if queue < 4) in ([0, 1], [2, 3]), "shared", PATIENCE)
        sent = {f"{number}" for number in range(40)}
        for body in sent:
            mq.send(topic, body.encode())
        mine: set[str] = set()

        def all_came() -> bool:
            for message in ours.receive(32, 0.1):
                mine.add(message.body.decode())
                message.ack()
            return mine | {each["body"] for each in client.received(name)} >= sent

        eventually(all_came, "all messages", PATIENCE)
        theirs = {each["body"] for each in client.received(name)}
        assert mine and theirs
    client.do("push-close", name=name)


# -- pulling
def test_a_pull_consumer_reads_from_where_it_was_set_to(mq: shmq.Connection, topic: str, named: Named) -> None:
    receipts = mq.send_batch(topic, [b"%d" % number for number in range(10)], queue_id=3)
    group = named("group")
    with mq.pull_consumer(topic) as consumer:
        assert consumer.queues() == [0, 1, 2, 3]
        assert consumer.seek(3, offset=receipts[7].offset) == receipts[7].offset
        assert [message.body for message in consumer.poll(2, 5.0)] == [b"7", b"8"]
        assert consumer.lag()[3] == 1
        consumer.commit(group=group)
        assert consumer.committed(group)[3] == receipts[9].offset
        assert consumer.seek(3, "end") == receipts[9].offset + 1 and consumer.poll(1) == []
        assert consumer.seek(3, time="2001-01-01T00:00:00Z") == receipts[0].offset
        with pytest.raises(shmq.OffsetOutOfRange, match="not 99"):
            consumer.seek(3, offset=99)
    with mq.pull_consumer(topic, group=group) as consumer:
        assert bodies_of(consumer, 1) == [b"9"]


def test_a_waiting_poll_returns_when_a_message_comes(mq: shmq.Connection, topic: str) -> None:
    with mq.pull_consumer(topic, start="end") as consumer:
        assert consumer.poll(1) == []
        sender = threading.Timer(0.5, mq.send, (topic, b"at last"))
        sender.start()
        assert [message.body for message in consumer.poll(1, PATIENCE)] == [b"at last"]
        sender.join()


# -- administration
def test_groups_can_be_looked_at_and_reset_and_deleted(mq: shmq.Connection, topic: str, named: Named) -> None:
    group = named("group")
    mq.send_batch(topic, [b"x"] * 6, queue_id=0)
    with mq.subscribe(topic, group=group, auto_ack=True) as subscription:
        eventually(lambda: subscription.receive(32, 0.2) == [] and subscription.lag() == 0, "all read", PATIENCE)
        with pytest.raises(shmq.ConsumeError, match="1 members"):
            mq.admin.groups[group].reset(topic, to="begin")
    steps = mq.admin.groups[group].reset(topic, to="begin")
    assert sum(step.again for step in steps) == 6
    assert mq.admin.groups[group].lag.total == 6
    mq.admin.groups[group].delete()
    assert group not in mq.admin.groups


def test_topics_can_be_created_listed_and_deleted(mq: shmq.Connection, named: Named) -> None:
    name = named("topic")
    assert mq.admin.create_topic(name, queues=2).write_queues == 2
    mq.send(name, b"x")
    assert mq.admin.topics[name].messages == 1
    assert mq.admin.update_topic(name, queues=3).write_queues == 3
    mq.admin.delete_topic(name)
    with pytest.raises(shmq.TopicNotFound, match="does not exist"):
        mq.admin.delete_topic(name)
    assert mq.admin.health().verdict in ("OK", "WARNING") and mq.admin.status()


def test_a_wrong_name_is_answered_with_the_right_one(mq: shmq.Connection, topic: str) -> None:
    with pytest.raises(shmq.TopicNotFound) as caught, mq.pull_consumer(topic[:-1] + "x" + topic[-1]):
        pass
    assert topic in caught.value.hint


def test_an_operator_can_ask_a_member_what_it_reads(
    mqadmin: Callable[..., str], target: Target, mq: shmq.Connection, topic: str, named: Named
) -> None:
    group = named("group")
    mq.send(topic, b"x")
    with mq.subscribe(topic, group=group) as subscription:
        take(subscription).ack()
        version = "4" if target.kind == STOCK_4 else "5"
        said = mqadmin(version, "consumerStatus", "-n", target.name_server, "-g", group, "-i", mq.client_id)
        assert topic in said and "PROP_CLIENT_VERSION" in said and "shmq" in said


def test_an_operator_can_reset_a_group_that_reads(
    mqadmin: Callable[..., str], target: Target, mq: shmq.Connection, topic: str, named: Named
) -> None:
    group = named("group")
    mq.send_batch(topic, [b"1", b"2"], queue_id=0)
    with mq.subscribe(topic, group=group) as subscription:
        for _ in range(2):
            take(subscription).ack()
        words = ("resetOffsetByTime", "-n", target.name_server, "-g", group, "-t", topic, "-s", "1000", "-f", "true")
        mqadmin("4" if target.kind == STOCK_4 else "5", *words)
        assert [take(subscription).body for _ in range(2)] == [b"1", b"2"]


def test_an_operator_can_have_a_listener_consume_a_message_again(
    mqadmin: Callable[..., str], target: Target, mq: shmq.Connection, topic: str, named: Named
) -> None:
    group = named("group")
    seen: list[shmq.Message] = []
    mq.listener(topic, group=group)(seen.append)
    mq.start()
    mq.send(topic, b"once more")
    eventually(lambda: seen, "delivered", PATIENCE)
    host, _, port = target.broker_address.partition(":")
    offset_id = f"{socket.inet_aton(host).hex()}{int(port):08x}{seen[0].log_position:016x}".upper()
    words = ["-n", target.name_server, "-i", offset_id, "-g", group, "-d", mq.client_id]
    version = "4" if target.kind == STOCK_4 else "5"
    said = mqadmin(version, "queryMsgById", *words, *(["-t", topic] if version == "5" else []))
    assert "CR_SUCCESS" in said and [message.body for message in seen] == [b"once more"] * 2


# -- asyncio
def test_the_asyncio_twin_does_the_same_without_holding_the_loop_up(url: str, topic: str, named: Named) -> None:
    async def main() -> None:
        async with shmq.aio.connect(url) as mq:
            beats = 0

            async def beat() -> None:
                nonlocal beats
                while True:
                    await asyncio.sleep(0.01)  # not a wait: the loop's heartbeat
                    beats += 1

            beating = asyncio.create_task(beat())
            await asyncio.gather(*(mq.send(topic, b"%d" % number) for number in range(50)))
            await mq.send_batch(topic, [b"b"] * 10)
            count = 0
            group = named("group")
            async with mq.subscribe(topic, group=group) as subscription:
                async for message in subscription:
                    await message.ack()
                    count += 1
                    if count == 60:
                        break
            before = beats
            async with mq.pull_consumer(topic, start="end") as consumer:
                assert await consumer.poll(1, 1.0) == []
            assert beats - before > 20
            beating.cancel()
            group_now = (await mq.admin.fetch_groups())[group]
            assert (await group_now.fetch_lag()).total == 0
            with pytest.raises(shmq.UsageError):
                mq.admin.topics  # noqa: B018

    asyncio.run(asyncio.wait_for(main(), 60))


# -- what goes wrong
def test_a_dead_name_server_beside_a_living_one_is_not_noticed(target: Target, topic: str) -> None:
    with shmq.connect(f"rocketmq://127.0.0.1:1,{target.name_server}") as mq:
        assert mq.send(topic, b"x").topic == topic


def test_where_no_broker_listens_connecting_says_so_in_time() -> None:
    started = time.monotonic()
    with pytest.raises(shmq.BrokerNotRunning, match=r"127\.0\.0\.1:1") as caught:
        shmq.connect("rocketmq://127.0.0.1:1", timeout=2.0)
    assert caught.value.hint and time.monotonic() - started < 20


def test_a_forked_child_has_a_connection_of_its_own(mq: shmq.Connection, topic: str) -> None:
    mq.send(topic, b"parent")
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            receipt = mq.send(topic, b"child")
            os.write(writer, json.dumps([receipt.topic, mq.client_id]).encode())
        finally:
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        said = json.loads(pipe.read() or b"[]")
    os.waitpid(child, 0)
    assert said and said[0] == topic and said[1] != mq.client_id
    assert mq.send(topic, b"parent again").topic == topic


def test_a_spawned_process_can_be_handed_a_connection(mq: shmq.Connection) -> None:
    import pickle

    with pickle.loads(pickle.dumps(mq)) as copy:
        assert copy.url == mq.url and copy.client_id != mq.client_id


def test_old_programs_run_over_the_compatible_module(target: Target, topic: str, named: Named) -> None:
    from shmq.compat.rocketmq import ConsumeStatus, Message, Producer, PushConsumer, RecvMessage, SendStatus

    seen: list[tuple[bytes, int]] = []

    def callback(message: RecvMessage) -> ConsumeStatus:
        seen.append((bytes(message), message.reconsume_times))
        return ConsumeStatus.CONSUME_SUCCESS

    consumer = PushConsumer(named("group"))
    consumer.set_namesrv_addr(target.name_server)
    consumer.subscribe(topic, callback, expression="a")
    with consumer:
        producer = Producer("shop")
        producer.set_name_server_address(target.name_server)
        producer.start()
        message = Message(topic)
        message.set_tags("a")
        message.set_body("hi")
        result = producer.send_sync(message)
        assert result.status is SendStatus.OK and result.msg_id
        eventually(lambda: seen == [(b"hi", 0)], "the message", PATIENCE)
        producer.shutdown()


def test_the_command_line_reads_and_writes_a_cluster(url: str, topic: str, tmp_path: Path) -> None:
    def shell(*words: str, given: bytes = b"") -> subprocess.CompletedProcess[Any]:
        command = [sys.executable, "-P", "-m", "shmq", "-u", url, *words]
        return subprocess.run(command, input=given, capture_output=True, cwd=tmp_path, timeout=60, check=False)

    assert shell("produce", topic, "--tag", "fruit", given=b"1\n2\n3\n").returncode == 0
    assert sorted(shell("consume", topic, "-e").stdout.split()) == [b"1", b"2", b"3"]
    assert shell("tail", topic, "-n", "1", "-e").stdout.strip() in (b"1", b"2", b"3")
    shown = json.loads(shell("topic", "show", topic, "--json").stdout)
    assert (shown["topic"], shown["messages"], shown["queues"]) == (topic, 3, 4)
    assert len(shell("consume", topic, "-g", f"g{topic}", "-n", "2").stdout.split()) == 2
    moved = json.loads(shell("offset", "reset", f"g{topic}", topic, "--to", "begin", "--yes", "--json").stdout)
    assert moved["again"] == 2


def test_a_bridge_killed_under_load_loses_nothing_and_clients_come_back(named: Named) -> None:
    ports = {"listen": f"127.0.0.1:{free_ports(-VIP_DISTANCE)}", "nameserver_listen": f"127.0.0.1:{free_ports()}"}
    with Broker(tcp=True, **ports) as broker, shmq.connect(f"rocketmq://{broker.name_server}", timeout=60.0) as mq:
        topic, group = named("topic"), named("group")
        mq.admin.create_topic(topic, queues=4)
        acknowledged: list[bytes] = []
        stop = threading.Event()

        def produce() -> None:
            number = 0
            while not stop.is_set():
                body = b"%d" % (number := number + 1)
                try:
                    mq.send(topic, body, timeout=60.0)
                except shmq.ShmqError:
                    continue  # not acknowledged: it may be stored or not
                acknowledged.append(body)

        producer = threading.Thread(target=produce)
        producer.start()
        try:
            with mq.subscribe(topic, group=group, auto_ack=True) as subscription:
                seen = {take(subscription).body}
                pid = broker.processes["bridge"].pid
                os.kill(pid, signal.SIGKILL)
                eventually(lambda: getattr(broker.processes.get("bridge"), "pid", pid) != pid, "another one", PATIENCE)
                before = len(acknowledged)
                eventually(lambda: len(acknowledged) > before + 50, "sends go on", PATIENCE)
                stop.set()
                producer.join(PATIENCE)

                def all_came() -> bool:
                    seen.update(message.body for message in subscription.receive(100, 0.2))
                    return seen >= set(acknowledged)

                eventually(all_came, "all that was acknowledged", PATIENCE)
        finally:
            stop.set()
            producer.join(PATIENCE)
