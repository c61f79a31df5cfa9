"""`shmq store repair` refuses a store in use, keeps what it cannot mend, and a broker goes on from there."""

import json
from pathlib import Path

from shmq.shm.unit import unpack_unit
from shmq.store.layout import file_name
from shmq.store.proof.store import prove_store
from shmq.testing import Broker
from tests.tools.shell import Shell
from tests.tools.store.conftest import ACKED, FILE_BYTES, change, copy_store
from tests.tools.store.test_verify_command import a_digit_of_an_offset, a_flipped_body, records, units_file


def test_a_store_that_a_broker_works_on_is_refused() -> None:
    with Broker(file_bytes=FILE_BYTES) as broker:
        error = Shell().fails(73, "store", "repair", str(broker.store))
        assert "running broker" in error["error"]


def test_damaged_bytes_are_kept_and_the_units_of_whole_records_stay_where_they_were(store: Path, shell: Shell) -> None:
    before = units_file(store).read_bytes()
    damaged, data = records(store)[20]
    a_flipped_body(store)
    shell.ok("store", "repair", str(store))
    kept = store / "quarantine" / f"{damaged.position:020d}.record"
    assert len(kept.read_bytes()) == damaged.size and kept.read_bytes() != data
    assert json.loads(kept.with_suffix(".json").read_text())["log_position"] == damaged.position
    after = units_file(store).read_bytes()
    assert before[: damaged.queue_offset * 20] == after[: damaged.queue_offset * 20]
    assert before[(damaged.queue_offset + 1) * 20 :] == after[(damaged.queue_offset + 1) * 20 :]
    assert unpack_unit(after, damaged.queue_offset).log_position == damaged.position
    document = shell.json("store-verify", "store", "verify", str(store))
    assert [note["part"] for note in document["notes"]] == ["log"]


def test_a_table_comes_from_its_backup_and_the_damaged_one_is_kept(store: Path, shell: Shell) -> None:
    a_digit_of_an_offset(store)
    shell.ok("store", "repair", str(store))
    table = json.loads((store / "config/consumerOffset.json").read_text())
    assert table["offsetTable"]["orders@readers"] == {"0": ACKED}
    assert any(path.name.startswith("consumerOffset.json.") for path in (store / "quarantine").iterdir())


def test_an_unreadable_mark_and_a_cut_off_last_file_are_mended(store: Path, shell: Shell) -> None:
    wanted = [record.position for record, _ in records(store)]
    change(store / "shmq.durable", 0, b"\xff" * 64)
    change(store / "shmq.durable", 4096, b"\xff" * 64)
    last = sorted((store / "commitlog").iterdir())[-1]
    with last.open("r+b") as file:
        file.truncate(FILE_BYTES // 2)
    assert shell.run("store", "verify", str(store)).status == 1
    shell.ok("store", "repair", str(store))
    assert [record.position for record, _ in records(store)] == wanted


def test_repairing_twice_leaves_the_same_units_and_tables(store: Path, shell: Shell) -> None:
    shell.ok("store", "repair", str(store))
    once = units_file(store).read_bytes(), (store / "config/consumerOffset.json").read_bytes()
    shell.ok("store", "repair", str(store))
    assert (units_file(store).read_bytes(), (store / "config/consumerOffset.json").read_bytes()) == once


def test_a_broker_goes_on_behind_a_repaired_store(store: Path, shell: Shell) -> None:
    wanted = [record.fields["body"] for record, _ in records(store) if record.topic == "orders" and record.has_queue]
    (store / "consumequeue/orders/0" / file_name(0)).unlink()
    shell.ok("store", "repair", str(store))
    broker = Broker(file_bytes=FILE_BYTES, default_queues=1)
    copy_store(store, broker.store)
    (broker.store / "lock").unlink()
    with broker, broker.connect() as mq:
        with mq.pull_consumer("orders") as consumer:
            found: list[bytes] = []
            while len(found) < len(wanted):
                found += [bytes(message.body) for message in consumer.poll(100, wait=10.0)]
        assert found == wanted
        assert mq.send("orders", b"next").offset == len(wanted)
        assert prove_store(broker.store).findings.disagreements == []
