"""Stock brokers of both lines start on a store that ours wrote, read its sealed tables, and write `consumequeue_ext`.

The last entry of each of our tables is a field that RocketMQ does not know; the sums and marks beside them are files
that it does not know. Afterwards ours goes on with what the stock broker left.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

import shmq
from shmq.client.connection import Connection
from shmq.store.proof.store import prove_store
from shmq.testing import Broker
from tests.deadline import eventually
from tests.interop.peers.cache import PeerMissing
from tests.interop.peers.stock import StockBroker
from tests.tools.store.conftest import copy_store, end_in_order

FILE_BYTES = 16 << 20
MESSAGES = 60
COMMITTED = 7
EXT = {"enableConsumeQueueExt": "true", "enablePropertyFilter": "true", "enableCalcFilterBitMap": "true"}
TABLES = ("topics.json", "subscriptionGroup.json", "consumerOffset.json")


def fill(mq: Connection, first: int) -> None:
    for number in range(first, first + MESSAGES):
        tag = ("red", "blue")[number % 2]
        mq.send("colours", b"%d" % number, queue_id=number % 3, tag=tag, key=f"key{number}")


def bodies(mq: Connection, count: int, *, tags: str | None = None) -> list[int]:
    """What a new group reads of the topic, in the order of the numbers."""
    with mq.pull_consumer("colours", tags=tags) as consumer:
        found: list[int] = []

        def done() -> bool:
            found.extend(int(message.body) for message in consumer.poll(100, wait=1.0))
            return len(found) >= count

        eventually(done, f"{count} messages")
    return sorted(found)


@pytest.mark.parametrize("version", ["4", "5"])
def test_a_stock_broker_reads_our_sealed_tables_and_ours_reads_what_it_left(version: str, tmp_path: Path) -> None:
    with Broker(file_bytes=FILE_BYTES, tcp=True) as ours:
        with ours.connect() as mq:
            mq.admin.create_topic("colours", queues=3)
            fill(mq, 0)
            with mq.pull_consumer("colours", group="readers") as consumer:
                consumer.commit(offsets={1: COMMITTED})
        end_in_order(ours)
        source = copy_store(ours.store, tmp_path / "ours")
    for name in TABLES:
        assert "shmqCrc32" in (source / "config" / name).read_text(), name
    try:
        stock = StockBroker(version, settings=EXT)
    except PeerMissing as reason:
        pytest.skip(str(reason))
    try:
        shutil.copytree(source, stock.store, ignore=shutil.ignore_patterns("lock"))
        for path in (stock.store / "config").glob("*.bak"):
            path.unlink()  # or a table that it cannot read would be read from there
        stock.start()
        with shmq.connect(f"rocketmq://{stock.name_server}") as mq:
            assert bodies(mq, MESSAGES) == list(range(MESSAGES))
            assert bodies(mq, MESSAGES // 2, tags="red") == list(range(0, MESSAGES, 2))
            lags = mq.admin.groups["readers"].offsets
            assert [each.committed for each in lags if (each.topic, each.queue_id) == ("colours", 1)] == [COMMITTED]
            fill(mq, MESSAGES)
            assert bodies(mq, MESSAGES, tags="blue") == list(range(1, 2 * MESSAGES, 2))
        for child in reversed(stock._children):
            child.stop()
        assert (stock.store / "consumequeue_ext/colours").is_dir()
        table = json.loads((stock.store / "config/topics.json").read_text())["topicConfigTable"]
        assert table["colours"]["readQueueNums"] == 3
        left = copy_store(stock.store, tmp_path / "left")
    finally:
        stock.stop()
    with Broker(file_bytes=FILE_BYTES) as again:
        end_in_order(again)
        again.kill_daemon()
        shutil.rmtree(again.store)
        copy_store(left, again.store)
        again.start()
        with again.connect() as mq:
            assert bodies(mq, 2 * MESSAGES) == list(range(2 * MESSAGES))
            assert bodies(mq, MESSAGES, tags="red") == list(range(0, 2 * MESSAGES, 2))
        end_in_order(again)
        assert prove_store(again.store).findings.disagreements == []
