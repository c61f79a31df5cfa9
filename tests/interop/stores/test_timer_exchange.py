"""A store with timed messages that wait changes hands between ours and the stock broker of 5.3.3: none is lost."""

import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import shmq
from shmq.testing import Broker
from tests.interop.peers.cache import PeerMissing
from tests.interop.peers.stock import StockBroker
from tests.interop.target import missing

FILE_BYTES = 16 << 20
QUEUES = 4
WAIT_SECONDS = 12.0  # longer than a stock broker takes to start
STOCK_PRECISION = 1.0
Start = Callable[[Path | None], StockBroker]


@pytest.fixture
def stock() -> Iterator[Start]:
    """Starts a stock broker, on a copy of a store directory if one is given."""
    running: list[StockBroker] = []

    def start(store: Path | None) -> StockBroker:
        try:
            broker = StockBroker("5")
        except PeerMissing as reason:
            missing(reason)
        running.append(broker)
        if store is not None:
            shutil.copytree(store, broker.store, ignore=shutil.ignore_patterns("lock"))
        return broker.start()

    yield start
    for broker in running:
        broker.stop()


def received(name_server: str, topic: str, wanted: set[bytes]) -> dict[bytes, float]:
    """Body -> when it was stored in its topic, in seconds; waits for those wanted."""
    found: dict[bytes, float] = {}
    deadline = time.monotonic() + 90
    with shmq.connect(f"rocketmq://{name_server}") as mq, mq.pull_consumer(topic) as consumer:
        while not wanted <= found.keys():
            assert time.monotonic() < deadline, f"only {found.keys()} came"
            for message in consumer.poll(100, 1.0):
                found.setdefault(bytes(message.body), message.store_ms / 1000)
    return found


def test_a_stock_broker_delivers_what_waits_in_our_store(stock: Start) -> None:
    with Broker(tcp=True, small=False, file_bytes=FILE_BYTES) as ours:
        with ours.connect() as mq:
            mq.admin.create_topic("orders", queues=QUEUES)
            mq.send("orders", b"over", delay=0.2)
            assert ours.expect("orders", timeout=30)[0].body == b"over"
            due = time.time() + WAIT_SECONDS
            mq.send("orders", b"local", deliver_at=due)
            with shmq.connect(f"rocketmq://{ours.name_server}") as remote:
                remote.send("orders", b"remote", deliver_at=due)
        assert ours._process is not None
        ours._process.terminate()
        ours._process.wait(30)
        theirs = stock(ours.store)
        found = received(theirs.name_server, "orders", {b"local", b"remote"})
        assert min(found[b"local"], found[b"remote"]) >= due - STOCK_PRECISION


def test_we_deliver_what_waits_in_a_stock_brokers_store(stock: Start) -> None:
    theirs = stock(None)
    with shmq.connect(f"rocketmq://{theirs.name_server}") as mq:
        mq.admin.create_topic("orders", queues=QUEUES)
        due = time.time() + WAIT_SECONDS
        mq.send("orders", b"waits", deliver_at=due)
        mq.send("orders", b"now")
    for child in reversed(theirs._children):
        child.stop()
    ours = Broker(tcp=True, small=False, file_bytes=FILE_BYTES)
    shutil.copytree(theirs.store, ours.store, ignore=shutil.ignore_patterns("lock"))
    with ours:
        found = received(ours.name_server, "orders", {b"waits", b"now"})
        assert found[b"waits"] >= due - STOCK_PRECISION  # what its record says was rounded to seconds by RocketMQ
