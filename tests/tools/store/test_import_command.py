"""`shmq store import`: what a stock broker's directory holds comes along, and what cannot be taken over is refused.

The directories here are ours without the files that only shmq knows, so they are laid out as a stock broker lays them
out; tests/interop/stores/test_store_import.py does the same with stores of real stock brokers.
"""

import json
import shutil
from pathlib import Path

import pytest

from shmq.shm.access import Access
from shmq.store.layout import StoreLayout
from shmq.store.lock import StoreLock
from shmq.store.proof.store import prove_store
from shmq.testing import Broker
from tests.tools.shell import Shell
from tests.tools.store.conftest import ACKED, FILE_BYTES, copy_store
from tests.tools.store.test_verify_command import records, state


@pytest.fixture
def stock(store: Path) -> Path:
    """A store as RocketMQ knows it."""
    for path in store.glob("shmq.*"):
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    (store / "config/shmq.json").unlink()
    for path in (store / "config").glob("*.json"):
        table = json.loads(path.read_text())
        del table["shmqCrc32"]
        path.write_text(json.dumps(table))
    return store


@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("is_killed", [False, True])
def test_everything_comes_along_and_is_proven(
    stock: Path, tmp_path: Path, shell: Shell, in_place: bool, is_killed: bool
) -> None:
    if is_killed:
        (stock / "abort").touch()
    wanted = [data for _, data in records(stock)]
    target = stock if in_place else tmp_path / "taken"
    before = state(stock / "commitlog")
    words = ("--in-place",) if in_place else ("--to", str(target))
    document = shell.json("store-import", "store", "import", str(stock), *words)
    assert sum(document["counts"].values()) == 0 and document["settled"]
    assert document["serve"] == f"shmq serve --store {target} --file-size {FILE_BYTES}"
    assert [data for _, data in records(target)] == wanted
    offsets = json.loads((target / "config/consumerOffset.json").read_text())["offsetTable"]
    assert offsets["orders@readers"] == {"0": ACKED}
    assert in_place or (state(stock / "commitlog") == before and not (stock / "shmq.durable").exists())


def test_a_broker_goes_on_with_what_was_taken_over(stock: Path, tmp_path: Path, shell: Shell) -> None:
    wanted = [one.fields["body"] for one, _ in records(stock) if one.topic == "orders" and one.has_queue]
    shell.ok("store", "import", str(stock), "--to", str(tmp_path / "taken"))
    broker = Broker(file_bytes=FILE_BYTES, default_queues=1)
    copy_store(tmp_path / "taken", broker.store)
    with broker, broker.connect() as mq:
        with mq.pull_consumer("orders", group="readers", start="begin") as consumer:
            assert consumer.committed() == {0: ACKED}
        with mq.pull_consumer("orders") as consumer:
            found: list[bytes] = []
            while len(found) < len(wanted):
                found += [bytes(message.body) for message in consumer.poll(100, wait=10.0)]
        assert found == wanted


def test_a_dry_run_changes_nothing(stock: Path, tmp_path: Path, shell: Shell) -> None:
    shell.ok("store", "import", str(stock), "--to", str(tmp_path / "taken"), "--dry-run")
    assert not (tmp_path / "taken").exists() and not (stock / "shmq.durable").exists()


def test_what_cannot_be_taken_over_is_refused(stock: Path, tmp_path: Path, shell: Shell) -> None:
    words = ("store", "import", str(stock))
    assert "--in-place" in shell.fails(64, *words)["hint"]
    (tmp_path / "full").mkdir()
    (tmp_path / "full/file").touch()
    assert "not empty" in shell.fails(73, *words, "--to", str(tmp_path / "full"))["error"]
    (stock / "config/topics").mkdir()
    (stock / "config/topics/CURRENT").touch()
    assert "RocksDB" in shell.fails(64, *words, "--in-place")["error"]
    (stock / "dledger-n0").mkdir()
    assert "DLedger" in shell.fails(64, *words, "--in-place")["error"]
    assert prove_store(stock).findings.count == 0


def test_a_store_in_use_is_refused(stock: Path, tmp_path: Path, shell: Shell) -> None:
    lock = StoreLock.acquire(StoreLayout(stock, Access(-1)))
    try:
        error = shell.fails(73, "store", "import", str(stock), "--to", str(tmp_path / "taken"))
    finally:
        lock.release()
    assert "belongs to a running broker" in error["error"]
