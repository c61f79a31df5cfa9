"""What was popped of a topic that was deleted says nothing of the one that has its name next."""

from typing import Any

import pytest

from shmq.daemon.broker.settings import BrokerSettings
from shmq.protocol.codes import Request
from tests.broker.pop.pop_client import INVISIBLE_MS, PopClient

OLD, NEW = (b"a", b"b", b"c", b"d"), (b"A", b"B", b"C", b"D", b"E")


@pytest.fixture
def client(tables: Any, settings: BrokerSettings) -> PopClient:
    client = PopClient(tables, settings)
    client.put(*OLD)
    return client


def made_again(client: PopClient, *, way: str) -> None:
    """Delete the topic and make it again; the broker may be killed around the deletion."""
    if way == "killed before it settled":  # the topic is gone, and nothing else has happened
        client.tables.topic_delete("orders")
    else:
        client.ask(Request.DELETE_TOPIC_IN_BROKER, {"topic": "orders"})
    if way != "running":
        client.start()
        client.tick()
    client.at(client.now_ms + 10)  # receipts of one millisecond are alike
    client.tables.topic_put("orders", read_queues=1, write_queues=1, perm=6, flags=0, kind=0)
    client.put(*NEW)


@pytest.mark.parametrize("way", ["running", "killed", "killed before it settled"])
def test_what_is_hidden_of_a_former_topic_neither_comes_again_nor_settles_anything(client: PopClient, way: str) -> None:
    old = client.popped(maxMsgNums=3)
    made_again(client, way=way)
    assert client.change(old[0], 1000).code == 208 and client.ack(old[1]).code == 0
    new = client.popped(maxMsgNums=3)
    assert [message.body for message in new] == list(NEW[:3])
    client.ack(old[2])
    client.ack(new[0])
    client.run(client.now_ms + INVISIBLE_MS + 1000)
    assert [record.body for record in client.retries()] == list(NEW[1:3])


@pytest.mark.parametrize("way", ["running", "killed", "killed before it settled"])
def test_an_ordered_pop_of_a_former_topic_blocks_none_and_moves_no_progress(client: PopClient, way: str) -> None:
    old = client.popped(order="true", maxMsgNums=3)
    client.ack(old[1])
    made_again(client, way=way)
    for message in old:
        client.ack(message)
    assert client.committed() == -1
    new = client.popped(order="true", maxMsgNums=3)
    assert [(message.body, message.tries) for message in new] == [(body, 0) for body in NEW[:3]]
    client.batch_ack(*old)
    assert client.committed() == 0 and client.popped(order="true") == []
    for message in new:
        client.ack(message)
    assert client.committed() == 3
