"""`shmq store import` takes over what stock brokers of both lines wrote, after a stop or a kill, and proves it.

The stock brokers keep `consumequeue_ext` with the bits of SQL filters, so the units of their queues say addresses there
instead of tags.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

import shmq
from shmq.shm.core import UNIT_BYTES, tag_hash
from shmq.shm.unit import units_of
from shmq.store.consumequeue import FILE_BYTES as UNIT_FILE_BYTES
from shmq.store.proof.store import prove_store
from shmq.testing import Broker
from tests.deadline import eventually
from tests.interop.peers.cache import PeerMissing
from tests.interop.peers.stock import StockBroker
from tests.tools.shell import Shell
from tests.tools.store.conftest import copy_store

LOG_FILE_BYTES = 16 << 20
MESSAGES = 300
COMMITTED = 20
EXT = {"enableConsumeQueueExt": "true", "enablePropertyFilter": "true", "enableCalcFilterBitMap": "true"}


@pytest.fixture(params=["4", "5"])
def stock(request: pytest.FixtureRequest) -> Iterator[StockBroker]:
    """A stock broker that was filled."""
    try:
        broker = StockBroker(request.param, settings=EXT)
    except PeerMissing as reason:
        pytest.skip(str(reason))
    with broker:
        with shmq.connect(f"rocketmq://{broker.name_server}") as mq:
            producer = mq.producer(group="importers")
            for number in range(MESSAGES):
                tag = ("red", "blue")[number % 2]
                producer.send("imported", b"%d" % number, key=f"key{number % 7}", tag=tag)
            with mq.pull_consumer("imported", group="readers") as consumer:
                consumer.commit(offsets={consumer.queues()[0]: COMMITTED})
        offsets = broker.store / "config/consumerOffset.json"
        eventually(lambda: offsets.exists() and "imported@readers" in offsets.read_text(), "the offset is saved")
        yield broker


@pytest.mark.parametrize("end", ["stopped", "killed"])
def test_what_a_stock_broker_wrote_is_taken_over_whole(stock: StockBroker, tmp_path: Path, end: str) -> None:
    for child in reversed(stock._children):
        child.stop() if end == "stopped" else child.kill()
    source, target = copy_store(stock.store, tmp_path / "source"), tmp_path / "taken"
    assert (source / "consumequeue_ext").is_dir() and (source / "abort").exists() == (end == "killed")
    document = Shell().json("store-import", "store", "import", str(source), "--to", str(target))
    assert sum(document["counts"].values()) == 0 and document["records"] >= MESSAGES
    if end == "stopped":
        assert any("say an address" in note.reason for note in prove_store(source).findings.notes)
    codes = {
        unit.tag_code
        for path in (target / "consumequeue/imported").rglob("0" * 20)
        for unit in units_of(path.read_bytes()[: UNIT_FILE_BYTES // UNIT_BYTES * UNIT_BYTES])
        if unit.record_bytes
    }
    assert codes == {tag_hash("red"), tag_hash("blue")}
    offsets = json.loads((target / "config/consumerOffset.json").read_text())["offsetTable"]
    assert COMMITTED in offsets["imported@readers"].values()
    broker = Broker(file_bytes=LOG_FILE_BYTES)
    shutil.copytree(target, broker.store, ignore=shutil.ignore_patterns("lock", "index"))
    with broker, broker.connect() as mq, mq.pull_consumer("imported", tags="red") as consumer:
        found: set[bytes] = set()
        while len(found) < MESSAGES // 2:
            found |= {bytes(message.body) for message in consumer.poll(100, wait=10.0)}
        assert found == {b"%d" % number for number in range(0, MESSAGES, 2)}
        assert prove_store(broker.store).findings.disagreements == []
