"""Transactions of stock Java and Go clients at our broker, of our clients at stock brokers, and of both in one group.

The times until a broker asks are made short where a test waits for a question.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

import shmq
from shmq.protocol.codes import Request
from shmq.testing import Broker
from tests.deadline import eventually
from tests.interop.coverage import covers, on_pairs
from tests.interop.pair import Pair
from tests.interop.peers.java import LineClient
from tests.interop.target import Target

JAVA = ("java-4", "java-5")
STOCK = (*JAVA, "go")  # PyPI's rocketmq 0.4.4 has no transaction producer, nor has the library in it
Named = Callable[[str], str]
PATIENCE = 90.0


def set_times(broker: str, *, first_ms: int, interval_ms: int) -> None:
    """How soon a broker asks; one of ours takes it from a local client."""
    with shmq.connect(broker) as mq:
        text = f"transactionTimeOut={first_ms}\ntransactionCheckInterval={interval_ms}\n"
        mq._local().wire.control.request(Request.UPDATE_BROKER_CONFIG, body=text.encode())


@pytest.fixture
def local() -> Iterator[Broker]:
    """A broker of ours that asks soon."""
    with Broker(tcp=True) as broker:
        set_times(broker.url, first_ms=1, interval_ms=1000)
        yield broker


class StockProducer:
    """A TransactionMQProducer of Java, or Go's TransactionProducer."""

    def __init__(self, client: LineClient, name_server: str, name: str, group: str, answer: str) -> None:
        self._client, self._name_server, self._name = client, name_server, name
        self._do("tx-producer", group=group, answer=answer)

    def send(self, topic: str, state: str, *bodies: str) -> list[dict[str, Any]]:
        sent: list[dict[str, Any]] = self._do("tx-send", topic=topic, state=state, bodies=list(bodies))
        assert all(each["status"] == "SEND_OK" for each in sent)
        return sent

    def checked(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self._do("tx-checked")
        return found

    def close(self) -> None:
        if self._client.is_alive:
            self._do("tx-close")

    def _do(self, verb: str, **arguments: Any) -> Any:
        return self._client.do(verb, nameServer=self._name_server, name=self._name, **arguments)


@pytest.fixture
def stock_producer(client_of: Callable[[str], LineClient], named: Named) -> Iterator[Callable[..., StockProducer]]:
    """Call it with client, name server, group and the answer to checks."""
    made: list[StockProducer] = []

    def make(client: str, name_server: str, group: str, answer: str) -> StockProducer:
        made.append(StockProducer(client_of(client), name_server, named("tx"), group, answer))
        return made[-1]

    yield make
    for each in made:
        each.close()


@on_pairs(*STOCK)
@covers("transactions")
def test_a_stock_transaction_is_seen_when_it_is_committed_and_only_then(pair: Pair, stock_producer: Any) -> None:
    topic, group = pair.new_topic(), pair.named("shop")
    producer = stock_producer(pair.client_name, pair.target.name_server, group, "UNKNOW")
    producer.send(topic, "UNKNOW", "open")
    producer.send(topic, "ROLLBACK_MESSAGE", "never")
    (sent,) = producer.send(topic, "COMMIT_MESSAGE", "paid")
    assert sent["state"] == "COMMIT_MESSAGE"
    eventually(lambda: pair.stored(topic) == 1, "the committed message can be consumed")
    with shmq.connect(f"rocketmq://{pair.target.name_server}") as mq, mq.pull_consumer(topic) as consumer:
        (message,) = eventually(lambda: consumer.poll(10, 1.0), "the committed message")
    assert (message.body, message.key, message.message_id) == (b"paid", "key-paid", sent["msgId"])
    assert pair.stored(topic) == 1


@pytest.mark.parametrize("version", STOCK)
def test_a_lost_commit_of_a_stock_client_is_asked_for(
    local: Broker, stock_producer: Any, named: Named, version: str
) -> None:
    topic, group = named("topic"), named("shop")
    producer = stock_producer(version, local.name_server, group, "COMMIT_MESSAGE")
    with shmq.connect(local.url) as mq:
        mq.admin.create_topic(topic, queues=4)
        (sent,) = producer.send(topic, "UNKNOW", "lost")
        (message,) = eventually(lambda: mq.browse(topic), "the broker asked, and the message is there", PATIENCE)
        (checked,) = producer.checked()
        assert (checked["topic"], checked["body"], checked["transactionId"]) == (topic, "lost", sent["msgId"])
        assert (message.body, message.message_id) == (b"lost", sent["msgId"])


@pytest.mark.parametrize("version", STOCK)
def test_members_of_one_group_answer_for_each_other(
    local: Broker, stock_producer: Any, named: Named, version: str
) -> None:
    topic, group = named("topic"), named("shop")
    with shmq.connect(local.url) as mq:
        mq.admin.create_topic(topic, queues=4)
        # A stock half, answered by a local Python member: its own producer never knows.
        producer = stock_producer(version, local.name_server, group, "UNKNOW")

        @mq.transaction_checker(group)
        def outcome(message: shmq.Message) -> shmq.TxState:
            return shmq.COMMIT if message.key == "key-of-stock" else shmq.UNKNOWN

        producer.send(topic, "UNKNOW", "of-stock")
        eventually(lambda: [m.body for m in mq.browse(topic)] == [b"of-stock"], "Python answered for it", PATIENCE)
        # A local half, answered by the stock client.
        producer._do("tx-answer", answer="COMMIT_MESSAGE")
        with mq.producer(group=group) as python:
            lost = python.transaction(topic, b"of python", key="key-of-python")
            eventually(lambda: len(mq.browse(topic)) == 2, "it answered for Python", PATIENCE)
            with pytest.raises(shmq.TransactionError, match="settled before"):
                lost.commit()
        assert "of python" in {each["body"] for each in producer.checked()}
        assert {message.body for message in mq.browse(topic)} == {b"of-stock", b"of python"}


def test_our_tcp_client_commits_and_rolls_back_at_any_broker(target: Target, named: Named) -> None:
    topic, group = named("topic"), named("shop")
    with shmq.connect(f"rocketmq://{target.name_server}", timeout=60.0) as mq:
        mq.admin.create_topic(topic, queues=4)
        with mq.producer(group=group) as producer:
            with producer.transaction(topic, b"paid", key="o-1") as paid:
                pass
            with pytest.raises(ZeroDivisionError), producer.transaction(topic, b"never"):
                raise ZeroDivisionError
        with mq.pull_consumer(topic) as consumer:
            (message,) = eventually(lambda: consumer.poll(10, 1.0), "the committed message")
            assert (message.body, message.key, message.message_id) == (b"paid", "o-1", paid.id)
            assert consumer.poll(10, 1.0) == []


def test_our_tcp_client_answers_the_questions_of_any_broker(target: Target, named: Named) -> None:
    if target.is_ours:
        pytest.skip("tests/client/transactions/test_transaction.py, with short times")
    topic, group = named("topic"), named("shop")
    asked: list[str] = []
    with shmq.connect(f"rocketmq://{target.name_server}", timeout=60.0) as mq:
        mq.admin.create_topic(topic, queues=4)

        @mq.transaction_checker(group)
        def outcome(message: shmq.Message) -> shmq.TxState:
            asked.append(message.message_id)
            return shmq.COMMIT

        with mq.producer(group=group) as producer, mq.pull_consumer(topic) as consumer:
            lost = producer.transaction(topic, b"lost")
            (message,) = eventually(lambda: consumer.poll(10, 1.0), "the broker asked", PATIENCE)
            assert message.message_id == lost.id and set(asked) == {lost.id}
