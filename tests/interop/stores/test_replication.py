"""A slave of ours copies a stock master: its stream, its topics, and the messages in their queues."""

from __future__ import annotations

import socket

import pytest

import shmq
from shmq.daemon.ha.slave.follower import FollowerLink
from shmq.protocol.codes import Response
from shmq.testing import Broker
from tests.deadline import eventually
from tests.interop.peers.cache import PeerMissing
from tests.interop.peers.stock import HA_DISTANCE, StockBroker
from tests.shm.looking import looking

FILE_BYTES = 16 << 20  # of the stock broker's log, too
MESSAGES = 60


def copied(slave: Broker) -> int:
    """Messages of the topic that the slave shows."""
    with looking(slave) as store:
        index = store.topic_find("colours")
        return sum(store.queue(queue).offset_max for queue in store.topic(index)["queues"]) if index >= 0 else 0


@pytest.mark.parametrize("version", ["4", "5"])
def test_a_slave_of_ours_copies_a_stock_master(version: str) -> None:
    try:
        stock = StockBroker(version)
    except PeerMissing as reason:
        pytest.skip(str(reason))
    try:
        stock.start()
        with shmq.connect(f"rocketmq://{stock.name_server}") as mq:
            for number in range(MESSAGES):
                mq.send("colours", b"%d" % number, tag=("red", "blue")[number % 2])
            with Broker(tcp=True, file_bytes=FILE_BYTES, role="slave", master=stock.broker_address) as slave:
                eventually(lambda: copied(slave) == MESSAGES, lambda: slave.log[-2000:])
                for number in range(MESSAGES, 2 * MESSAGES):
                    mq.send("colours", b"%d" % number, tag=("red", "blue")[number % 2])
                eventually(lambda: copied(slave) == 2 * MESSAGES, lambda: slave.log[-2000:])
                with slave.connect() as local, local.pull_consumer("colours", tags="red") as consumer:
                    found: list[int] = []

                    def done() -> bool:
                        found.extend(int(message.body) for message in consumer.poll(100, wait=1.0))
                        return len(found) >= MESSAGES

                    eventually(done, lambda: str(found))
                assert sorted(found) == list(range(0, 2 * MESSAGES, 2))
    finally:
        stock.stop()


def test_our_greeting_acknowledges_nothing_to_a_synchronous_stock_master() -> None:
    """A position above its end would be a slave that has everything, and its master would answer for it."""
    try:
        stock = StockBroker("4", settings={"brokerRole": "SYNC_MASTER", "syncFlushTimeout": 1000, "slaveTimeout": 1000})
    except PeerMissing as reason:
        pytest.skip(str(reason))
    with stock:
        host, _, port = stock.broker_address.rpartition(":")
        slave = FollowerLink(0, 0, is_empty=True, greets=True)
        with (
            socket.create_connection((host, int(port) + HA_DISTANCE), 30.0) as connection,
            shmq.connect(f"rocketmq://{stock.name_server}") as mq,
        ):
            connection.sendall(slave.take())
            with pytest.raises(shmq.SendTimeout) as raised:
                mq.send("colours", b"on no slave")
            assert raised.value.code == Response.FLUSH_SLAVE_TIMEOUT
            while not slave.closed:
                slave.feed(connection.recv(1 << 16), 0)
        assert slave.is_stock
