"""Transactions of local producers and of our TCP client: visible once after the commit, never before, never twice."""

from __future__ import annotations

import subprocess
import sys
import threading
from asyncio import CancelledError
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

import shmq
from shmq.compat.rocketmq import Message, TransactionMQProducer, TransactionStatus
from shmq.properties import parse_properties
from shmq.protocol.codes import Request
from shmq.protocol.system_topics import transaction as wire
from shmq.shm.core import BrokerLog, record_decode
from shmq.testing import Broker

Eventually = Callable[..., Any]

KILLED = """
import os, signal, sys
import shmq
mq = shmq.connect(sys.argv[1])
tx = mq.producer(group=sys.argv[2]).transaction(sys.argv[3], sys.argv[4].encode(), key="killed")
print(tx.id, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker(tcp=True) as running:
        yield running


@pytest.fixture
def mq(broker: Broker) -> Iterator[shmq.Connection]:
    with shmq.connect(broker.url) as connection:
        yield connection


@pytest.fixture(params=["shm", "tcp"])
def member(request: Any, broker: Broker, mq: shmq.Connection) -> Iterator[shmq.Connection]:
    """A connection that begins transactions, over either transport."""
    if request.param == "shm":
        yield mq
        return
    with shmq.connect(f"rocketmq://{broker.name_server}") as connection:
        yield connection


@pytest.fixture
def topic(request: Any) -> str:
    return f"orders-{abs(hash(request.node.name)) % 10**9}"


@pytest.fixture
def group(topic: str) -> str:
    return f"shop-{topic}"


def visible(mq: shmq.Connection, topic: str) -> list[bytes]:
    """What consumers of a topic may see."""
    try:
        return [message.body for message in mq.browse(topic)]
    except shmq.TopicNotFound:
        return []


def set_times(mq: shmq.Connection, *, first_ms: int, interval_ms: int = 30_000, checks: int = 15) -> None:
    text = f"transactionTimeOut={first_ms}\ntransactionCheckInterval={interval_ms}\ntransactionCheckMax={checks}\n"
    mq._local().wire.control.request(Request.UPDATE_BROKER_CONFIG, body=text.encode())


CHECKED_AFTER = 2.0
"""Where a test is `quick`, an open transaction is asked for by then: the interval of the checks is a second."""


@pytest.fixture
def quick(mq: shmq.Connection) -> Iterator[None]:
    """The broker asks soon."""
    set_times(mq, first_ms=1, interval_ms=1000)
    yield
    set_times(mq, first_ms=6000)


def open_count(mq: shmq.Connection) -> int:
    return int(mq._local().wire.control.request(Request.TRANSACTIONS).body.split(b":")[1].split(b",")[0])


# -- one transaction
def test_of_many_threads_one_commits(mq: shmq.Connection, topic: str, group: str) -> None:
    def attempt(tx: shmq.Transaction) -> bool:
        try:
            tx.commit()
        except shmq.TransactionError:
            return False
        return True

    with mq.producer(group=group) as producer, ThreadPoolExecutor(8) as pool:
        for _ in range(20):
            tx = producer.transaction(topic, b"x")
            assert sum(pool.map(attempt, [tx] * 8)) == 1
    assert len(visible(mq, topic)) == 20


def test_the_receipt_of_a_local_commit_is_where_the_message_is(mq: shmq.Connection, topic: str, group: str) -> None:
    with mq.producer(group=group) as producer:
        receipt = producer.transaction(topic, b"here", queue_id=3).commit()
    (message,) = mq.browse(topic)
    assert (receipt.queue_id, receipt.offset, receipt.log_position) == (3, 0, message.log_position)
    assert receipt.message_id == message.message_id


def test_a_message_group_keeps_its_queue(mq: shmq.Connection, topic: str, group: str) -> None:
    with mq.producer(group=group) as producer:
        receipts = [producer.transaction(topic, b"x", message_group="o-42").commit() for _ in range(5)]
    sent = mq.send(topic, b"y", message_group="o-42")
    assert {receipt.queue_id for receipt in receipts} == {sent.queue_id}


def test_a_body_longer_than_a_batch_is_committed_whole(mq: shmq.Connection, topic: str, group: str) -> None:
    body = bytes(range(256)) * 12_000
    with mq.producer(group=group) as producer, producer.transaction(topic, body):
        pass
    (message,) = mq.browse(topic)
    assert message.body == body and message.verify()


# -- what is refused
def test_a_transaction_needs_a_group_to_ask(member: shmq.Connection, topic: str) -> None:
    with member.producer() as producer, pytest.raises(shmq.UsageError, match="needs a producer group"):
        producer.transaction(topic, b"x")


@pytest.mark.parametrize("name", [wire.HALF_TOPIC, wire.OP_TOPIC, "SCHEDULE_TOPIC_XXXX"])
def test_topics_of_the_broker_take_no_transactions(member: shmq.Connection, group: str, name: str) -> None:
    with member.producer(group=group) as producer, pytest.raises(shmq.UsageError, match="the broker's own"):
        producer.transaction(name, b"x")


def test_what_send_refuses_is_refused_before_anything_is_stored(mq: shmq.Connection, topic: str, group: str) -> None:
    mq.send(topic, b"first")
    with mq.producer(group=group) as producer:
        end = mq._local().wire.store.log_end
        with pytest.raises(TypeError, match="bytes, not str"):
            producer.transaction(topic, "text")
        with pytest.raises(shmq.UsageError):
            producer.transaction(topic, b"x", tag="a|b")
        with pytest.raises(shmq.UsageError):
            producer.transaction(topic, b"x", queue_id=99)
        with pytest.raises(shmq.UsageError):
            producer.transaction(topic, b"x", check_after=-1)
        with pytest.raises(shmq.MessageTooLarge):
            producer.transaction(topic, bytes((4 << 20) + 1))
        with pytest.raises(shmq.UsageError):
            producer.transaction(topic, b"x", properties={"TRAN_MSG": "false"})
    assert mq._local().wire.store.log_end == end


# -- the broker asks
def test_a_checker_settles_what_a_killed_producer_left_open(
    broker: Broker,
    mq: shmq.Connection,
    member: shmq.Connection,
    topic: str,
    group: str,
    quick: None,
    eventually: Eventually,
) -> None:
    asked: list[str] = []

    @member.transaction_checker(group)
    def outcome(message: shmq.Message) -> shmq.TxState:
        asked.append(f"{message.topic} {message.key} {message.message_id}")
        return shmq.COMMIT if message.body == b"done" else shmq.ROLLBACK

    with member.producer(group=group) as producer:  # a TCP member is known by its heartbeats
        producer.transaction(topic, b"known").commit()
        done, undone = (killed_with(broker.url, group, topic, body) for body in ("done", "undone"))
        broker.advance(CHECKED_AFTER)
        eventually(lambda: visible(mq, topic) == [b"known", b"done"] and open_count(mq) == 0)
    assert {f"{topic} killed {done}", f"{topic} killed {undone}"} <= set(asked)


def killed_with(url: str, group: str, topic: str, body: str) -> str:
    process = subprocess.run(
        [sys.executable, "-P", "-c", KILLED, url, group, topic, body], capture_output=True, text=True, timeout=60
    )
    assert process.returncode < 0, process.stderr
    return process.stdout.strip()


def test_a_checker_that_does_not_know_or_fails_is_asked_again(
    broker: Broker, mq: shmq.Connection, topic: str, group: str, quick: None, eventually: Eventually
) -> None:
    failures = (ZeroDivisionError(), CancelledError(), SystemExit(3))
    answers: list[Any] = [shmq.UNKNOWN, *failures, shmq.COMMIT]

    @mq.transaction_checker(group)
    def outcome(message: shmq.Message) -> shmq.TxState:
        answer = answers.pop(0)
        if isinstance(answer, BaseException):
            raise answer
        return shmq.TxState(answer)

    with mq.producer(group=group) as producer:
        producer.transaction(topic, b"asked again")
    for left in reversed(range(len(answers))):
        eventually(lambda left=left: len(answers) <= left)
        broker.advance(CHECKED_AFTER)
    eventually(lambda: visible(mq, topic) == [b"asked again"])
    assert answers == []


def test_a_commit_after_the_broker_asked_is_the_same_transaction(
    broker: Broker,
    mq: shmq.Connection,
    member: shmq.Connection,
    topic: str,
    group: str,
    quick: None,
    eventually: Eventually,
) -> None:
    asked = threading.Event()

    @member.transaction_checker(group)
    def outcome(message: shmq.Message) -> shmq.TxState:
        asked.set()
        return shmq.UNKNOWN

    with member.producer(group=group) as producer:
        tx = producer.transaction(topic, b"slow")
        broker.advance(CHECKED_AFTER)
        assert asked.wait(60)
        tx.commit()
        assert visible(mq, topic) == [b"slow"]
        eventually(lambda: open_count(mq) == 0)
    assert visible(mq, topic) == [b"slow"]


def test_a_producer_learns_that_a_check_has_settled_its_transaction(
    broker: Broker,
    mq: shmq.Connection,
    member: shmq.Connection,
    topic: str,
    group: str,
    quick: None,
    eventually: Eventually,
) -> None:
    member.transaction_checker(group)(lambda message: shmq.ROLLBACK)
    with member.producer(group=group) as producer:
        tx = producer.transaction(topic, b"too late")
        broker.advance(CHECKED_AFTER)
        eventually(lambda: open_count(mq) == 0)
        with pytest.raises(shmq.TransactionError, match="settled before"):
            tx.commit()
    assert visible(mq, topic) == []


def test_a_transaction_may_ask_for_more_time(
    broker: Broker, mq: shmq.Connection, topic: str, group: str, quick: None, eventually: Eventually
) -> None:
    asked: list[str] = []

    @mq.transaction_checker(group)
    def outcome(message: shmq.Message) -> shmq.TxState:
        asked.append(message.body.tobytes().decode() if isinstance(message.body, memoryview) else message.body.decode())
        return shmq.ROLLBACK

    with mq.producer(group=group) as producer:
        patient = producer.transaction(topic, b"patient", check_after=600)
        producer.transaction(topic, b"hasty")
        broker.advance(CHECKED_AFTER)
        eventually(lambda: asked == ["hasty"])
        patient.commit()
    assert visible(mq, topic) == [b"patient"]


def test_one_group_has_one_checker(mq: shmq.Connection, group: str) -> None:
    mq.transaction_checker(group)(lambda message: shmq.COMMIT)
    with pytest.raises(shmq.UsageError, match="already"):
        mq.transaction_checker(group)(lambda message: shmq.COMMIT)


def test_another_member_is_asked_when_the_producer_s_own_connection_is_gone(
    broker: Broker, mq: shmq.Connection, topic: str, group: str, quick: None, eventually: Eventually
) -> None:
    mq.transaction_checker(group)(lambda message: shmq.COMMIT)
    with shmq.connect(broker.url) as other:
        other.producer(group=group).transaction(topic, b"left behind")
    broker.advance(CHECKED_AFTER)
    eventually(lambda: visible(mq, topic) == [b"left behind"])


def test_after_the_last_check_it_is_rolled_back(
    broker: Broker, mq: shmq.Connection, topic: str, group: str, eventually: Eventually
) -> None:
    set_times(mq, first_ms=1, interval_ms=1000, checks=1)
    try:
        with mq.producer(group=group) as producer:
            tx = producer.transaction(topic, b"never decided")
            for _ in range(3):
                broker.advance(CHECKED_AFTER)
            eventually(lambda: open_count(mq) == 0)
            with pytest.raises(shmq.TransactionError):
                tx.commit()
    finally:
        set_times(mq, first_ms=6000)
    assert visible(mq, topic) == []


# -- what is in the log
def test_the_records_are_those_of_rocketmq(mq: shmq.Connection, topic: str, group: str) -> None:
    log = BrokerLog(mq._local().wire.store)
    with mq.producer(group=group) as producer:
        producer.transaction(topic, b"bytes", tag="red", queue_id=1).commit()
    real = mq.browse(topic)[0]
    fields = record_decode(log.record_bytes_at(real.log_position) or b"")
    half = record_decode(log.record_bytes_at(fields["prepared_position"]) or b"")
    op = record_decode(
        log.record_bytes_at(real.log_position + len(log.record_bytes_at(real.log_position) or b"")) or b""
    )
    assert fields["sys_flag"] & 12 == 8 and half["sys_flag"] & 12 == 0
    assert (half["topic"], half["queue_id"], half["body"]) == (wire.HALF_TOPIC.encode(), 0, b"bytes")
    assert (op["topic"], op["body"]) == (wire.OP_TOPIC.encode(), str(half["queue_offset"]).encode())
    properties = parse_properties(half["properties"].decode())
    assert (properties["REAL_TOPIC"], properties["REAL_QID"]) == (topic, "1")
    assert (properties["TRAN_MSG"], properties["PGROUP"]) == ("true", group)


def test_the_old_transaction_producer_commits_rolls_back_and_leaves_open(
    broker: Broker, mq: shmq.Connection, topic: str, group: str
) -> None:
    producer = TransactionMQProducer(group, lambda message: TransactionStatus.UNKNOWN)
    producer.set_name_server_address(broker.url)
    producer.start()
    try:
        for number, status in enumerate(TransactionStatus):
            message = Message(topic)
            message.set_body(b"%d" % number)
            assert producer.send_message_in_transaction(message, lambda _, wanted: wanted, status).msg_id
    finally:
        producer.shutdown()
    assert visible(mq, topic) == [b"0"]
