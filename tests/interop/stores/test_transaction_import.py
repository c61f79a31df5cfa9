"""Transactions that a stock broker has ended are ended after the import, also where it stored their halves again.

The 5.x line writes op records up to three seconds late, all of them in one, and copies the halves it asks about
meanwhile; nothing in the log names these copies.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import shmq
from shmq.protocol.system_topics.transaction import HALF_TOPIC, OP_TOPIC
from shmq.store.proof.record import WalkedRecord
from shmq.store.proof.store import prove_store
from shmq.store.verify import LogFiles, RecordWalk, Verification
from tests.deadline import eventually
from tests.interop.peers.cache import PeerMissing
from tests.interop.peers.stock import StockBroker
from tests.tools.shell import Shell
from tests.tools.store.conftest import copy_store

TRANSACTIONS = 6


def records_of(root: Path, topic: str) -> list[WalkedRecord]:
    """Every record of a topic."""
    log = LogFiles(root / "commitlog")
    found: list[WalkedRecord] = []
    walked = Verification(log_begin=log.begin, log_end=log.begin)
    RecordWalk(log, walked, on_record=lambda at, data: found.append(WalkedRecord(at, data))).run()
    return [record for record in found if record.topic == topic]


def settled(root: Path) -> set[int]:
    """Queue offsets of the halves that op records name."""
    words = ",".join(record.fields["body"].decode() for record in records_of(root, OP_TOPIC)).split(",")
    return {int(word) for word in words if word}


@pytest.mark.parametrize("version", ["4", "5"])
def test_what_a_stock_broker_has_ended_is_not_open_after_the_import(version: str, tmp_path: Path) -> None:
    try:
        stock = StockBroker(version)
    except PeerMissing as reason:
        pytest.skip(str(reason))
    with stock:
        with shmq.connect(f"rocketmq://{stock.name_server}") as mq:
            for number in range(TRANSACTIONS):
                transaction = mq.producer(group="buyers").transaction("orders", b"bought %d" % number)
                transaction.commit() if number % 2 else transaction.rollback()
            mq.producer(group="buyers").transaction("orders", b"not settled yet")
            eventually(lambda: set(range(TRANSACTIONS)) <= settled(stock.store), "the op records are written")
            if version == "5":
                copied = eventually(lambda: len(records_of(stock.store, HALF_TOPIC)) > 2 * TRANSACTIONS)
                assert copied  # the halves were stored again before the op records
        for child in reversed(stock._children):
            child.stop()
        source, target = copy_store(stock.store, tmp_path / "source"), tmp_path / "taken"
    Shell().json("store-import", "store", "import", str(source), "--to", str(target))
    proof = prove_store(target)
    assert proof.open_transactions == 1 and proof.findings.disagreements == []
    shutil.rmtree(source)
