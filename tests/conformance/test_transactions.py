"""Transactions: nothing is seen before the commit, one copy after it, none after a rollback; lost ends are asked for.

The broker asks as soon as a transaction is old enough for it, which is made a moment here.
"""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

import shmq
from shmq.message import TRACE_TOPIC
from shmq.protocol.codes import Request
from shmq.protocol.system_topics.trace import END_TRANSACTION, Trace, decode_traces
from shmq.testing import Broker
from tests.conformance.conftest import Named, url_of

Eventually = Callable[..., Any]
CHECKS_MAX = 2
TIMES = "transactionTimeOut={}\ntransactionCheckInterval={}\ntransactionCheckMax={}\n"
SOON = TIMES.format(1, 1000, CHECKS_MAX)
USUAL = TIMES.format(6000, 30_000, 15)


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    """A broker that tests may kill."""
    with Broker(tcp=True, timeout=90.0) as broker:
        yield broker


def set_times(broker: Broker, times: str) -> None:
    with broker.connect() as local:
        local._local().wire.control.request(Request.UPDATE_BROKER_CONFIG, body=times.encode())


@pytest.fixture
def impatient(broker: Broker) -> Iterator[Broker]:
    """The broker, asking soon and not often."""
    set_times(broker, SOON)
    yield broker
    set_times(broker, USUAL)


@pytest.fixture
def group(named: Named) -> str:
    return named("shop")


def bodies(mq: shmq.Connection, topic: str) -> list[bytes]:
    return [message.body for message in mq.browse(topic)]


def open_ones(local: shmq.Connection, message_id: str) -> bool:
    """Whether the broker still has a transaction to ask about."""
    return message_id.encode() in local._local().wire.control.request(Request.TRANSACTIONS).body


def test_a_commit_shows_one_copy_and_nothing_is_seen_before(mq: shmq.Connection, topic: str, group: str) -> None:
    with mq.producer(group=group) as producer:
        with producer.transaction(topic, b"paid", tag="t", key="o-1", properties={"region": "eu"}) as tx:
            assert bodies(mq, topic) == [] and tx.state is shmq.UNKNOWN
        assert tx.state is shmq.COMMIT and tx.receipt is not None
    (message,) = mq.browse(topic)
    assert (message.body, message.tag, message.key, message.message_id) == (b"paid", "t", "o-1", tx.id)
    assert message.properties["region"] == "eu"


def test_an_exception_rolls_back_and_nothing_is_ever_seen(mq: shmq.Connection, topic: str, group: str) -> None:
    with mq.producer(group=group) as producer:
        with pytest.raises(ZeroDivisionError), producer.transaction(topic, b"never") as tx:
            raise ZeroDivisionError
        assert tx.state is shmq.ROLLBACK
        with producer.transaction(topic, b"second"):
            pass
    assert bodies(mq, topic) == [b"second"]


def test_a_transaction_ends_once(mq: shmq.Connection, topic: str, group: str) -> None:
    with mq.producer(group=group) as producer:
        with producer.transaction(topic, b"paid") as committed:
            committed.commit()
        with producer.transaction(topic, b"never") as rolled_back:
            rolled_back.rollback()
        for tx, how in ((committed, "committed"), (rolled_back, "rolled back")):
            for again in (tx.commit, tx.rollback):
                with pytest.raises(shmq.TransactionError, match=f"{how} already"):
                    again()
    assert bodies(mq, topic) == [b"paid"]


@pytest.mark.parametrize("answer", [shmq.COMMIT, shmq.ROLLBACK], ids=["commit", "rollback"])
def test_a_lost_end_is_asked_for_at_another_member_of_the_group(
    impatient: Broker, transport: str, mq: shmq.Connection, topic: str, group: str, answer: Any, eventually: Eventually
) -> None:
    broker = impatient
    asked: list[str] = []
    with shmq.connect(url_of(broker, transport), timeout=60.0) as victim:
        lost = victim.producer(group=group).transaction(topic, b"lost", key="o-1")
        victim._vanish()

    @mq.transaction_checker(group)
    def outcome(message: shmq.Message) -> shmq.TxState:
        asked.append(message.message_id)
        return answer

    eventually(lambda: asked)
    if answer is shmq.COMMIT:
        eventually(lambda: bodies(mq, topic) == [b"lost"])
        assert mq.browse(topic)[0].message_id == lost.id
    mq.send(topic, b"last")
    with broker.connect() as local:
        eventually(lambda: not open_ones(local, lost.id))
    assert set(asked) == {lost.id}
    assert bodies(mq, topic) == ([b"lost", b"last"] if answer is shmq.COMMIT else [b"last"])


@pytest.mark.slow
def test_a_transaction_that_no_check_decides_is_rolled_back(
    impatient: Broker, mq: shmq.Connection, topic: str, group: str, eventually: Eventually
) -> None:
    asked: list[str] = []

    @mq.transaction_checker(group)
    def outcome(message: shmq.Message) -> shmq.TxState:
        asked.append(message.message_id)
        return shmq.UNKNOWN

    with mq.producer(group=group) as producer, impatient.connect() as local:
        lost = producer.transaction(topic, b"lost")
        found = eventually(lambda: _given_up(local, lost.id))
        assert (found.body, found.properties["TRANSACTION_CHECK_TIMES"]) == (b"lost", str(CHECKS_MAX))
        eventually(lambda: len(asked) == CHECKS_MAX)
        with pytest.raises(shmq.TransactionError):
            lost.commit()
    assert set(asked) == {lost.id} and bodies(mq, topic) == []


def _given_up(local: shmq.Connection, message_id: str) -> shmq.Message | None:
    try:
        found = local.browse("TRANS_CHECK_MAX_TIME_TOPIC")
    except shmq.TopicNotFound:
        return None
    return next((message for message in found if message.message_id == message_id), None)


@pytest.mark.slow
def test_an_open_transaction_outlives_a_killed_broker(
    broker: Broker, transport: str, topic: str, group: str, eventually: Eventually
) -> None:
    asked: list[str] = []
    with shmq.connect(url_of(broker, transport), timeout=60.0) as victim:
        lost = victim.producer(group=group).transaction(topic, b"lost")
        victim._vanish()
    broker.kill_daemon()
    broker.start()
    with shmq.connect(url_of(broker, transport), timeout=60.0) as mq:

        @mq.transaction_checker(group)
        def outcome(message: shmq.Message) -> shmq.TxState:
            asked.append(message.message_id)
            return shmq.COMMIT

        set_times(broker, SOON)
        eventually(lambda: bodies(mq, topic) == [b"lost"])
    assert set(asked) == {lost.id}


def test_the_answer_to_a_check_is_traced(
    impatient: Broker, connect: Callable[..., shmq.Connection], topic: str, group: str, eventually: Eventually
) -> None:
    mq = connect(trace=True)
    mq.transaction_checker(group)(lambda message: shmq.ROLLBACK)
    with mq.producer(group=group) as producer, impatient.connect() as local:
        lost = producer.transaction(topic, b"lost")

        def answered() -> list[Trace]:
            try:
                said = local.browse(TRACE_TOPIC, key=lost.id)
            except shmq.TopicNotFound:  # the first trace makes it
                return []
            found = [trace for message in said for trace in decode_traces(message.body.decode())]
            return [trace for trace in found if trace.kind == END_TRANSACTION]

        (end,) = eventually(answered)
    assert (end.message_id, end.group, end.transaction_state) == (lost.id, group, "ROLLBACK_MESSAGE")
    assert end.is_from_check and end.topic == topic
