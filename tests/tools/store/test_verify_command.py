"""`shmq store verify`: a whole store agrees with itself, each kind of disagreement is found, and nothing is written.

`shmq store repair` is tried on the same damages: what can be derived is right again afterwards.
"""

import json
import shutil
import struct
from collections.abc import Callable
from pathlib import Path

import pytest

from shmq.protocol.system_topics.transaction import OP_TOPIC
from shmq.shm.core import record_encode
from shmq.shm.unit import pack_unit
from shmq.store.layout import file_name
from shmq.store.proof.record import WalkedRecord
from shmq.store.proof.store import prove_store
from shmq.store.verify import LogFiles, RecordWalk, Verification
from shmq.testing import Broker
from shmq.timing import TIMER_GROUPS, TIMER_TOPIC
from tests.store.file_changes import SIZES
from tests.tables.rows import every_row
from tests.tools.shell import Shell
from tests.tools.store.conftest import ACKED, FILE_BYTES, MESSAGES, change, copy_file, fill

SLOTS_AT, SLOTS, ENTRY_BYTES = 40, 5_000_000, 20
ENTRIES_AT = SLOTS_AT + 4 * SLOTS


def records(store: Path) -> list[tuple[WalkedRecord, bytes]]:
    """Every record of a store."""
    found: list[tuple[WalkedRecord, bytes]] = []
    log = LogFiles(store / "commitlog")
    RecordWalk(log, Verification(), on_record=lambda at, data: found.append((WalkedRecord(at, data), data))).run()
    return found


def units_file(store: Path, topic: str = "orders", queue_id: int = 0) -> Path:
    return store / "consumequeue" / topic / str(queue_id) / file_name(0)


def put_record(store: Path, record: WalkedRecord, **fields: object) -> None:
    """Replace a record by one that is whole, as long, and says something else."""
    known = {
        name: record.fields[name]
        for name in ("body", "topic", "queue_id", "queue_offset", "flag", "sys_flag", "born_ms", "store_ms",
                     "born_host", "store_host", "reconsume_times", "prepared_position", "log_position")
    }  # fmt: skip
    text = record.fields["properties"].split(b"__CRC32#")[0]
    data = record_encode(**{**known, "properties": text, **fields})
    assert len(data) == record.size
    at = record.position
    change(store / "commitlog" / file_name(at - at % FILE_BYTES), at % FILE_BYTES, data)


def a_flipped_body(store: Path) -> None:
    record, data = records(store)[20]
    change(store / "commitlog" / file_name(0), record.position + 90, bytes([data[90] ^ 1]))


def a_zeroed_page_of_units(store: Path) -> None:
    change(units_file(store), 4096, bytes(4096 // 20 * 20))


def a_unit_that_points_elsewhere(store: Path) -> None:
    change(units_file(store), 50 * 20, pack_unit(64, 200, 0))


def a_unit_with_another_tag(store: Path) -> None:
    change(units_file(store), 50 * 20 + 12, bytes(8))


def a_unit_behind_the_end(store: Path) -> None:
    end = 20 * sum(record.topic == "orders" and record.has_queue for record, _ in records(store))
    change(units_file(store), end, pack_unit(1 << 40, 200, 0))


def a_queue_without_files(store: Path) -> None:
    shutil.rmtree(store / "consumequeue/orders")


def checksums_that_are_cut_off(store: Path) -> None:
    content = (store / "shmq.units").read_bytes()
    (store / "shmq.units").write_bytes(content[:-5])


def an_entry_of_another_hash(store: Path) -> None:
    (index,) = (store / "index").iterdir()
    change(index, ENTRIES_AT + 17 * ENTRY_BYTES, b"\x00\x01\x02\x03")


def an_entry_that_names_no_record(store: Path) -> None:
    (index,) = (store / "index").iterdir()
    change(index, ENTRIES_AT + 17 * ENTRY_BYTES + 4, struct.pack(">q", records(store)[16][0].position + 1))


def a_slot_that_names_another_entry(store: Path) -> None:
    (index,) = (store / "index").iterdir()
    with index.open("rb") as file:
        file.seek(ENTRIES_AT + 400 * ENTRY_BYTES)
        (hash_code,) = struct.unpack(">I", file.read(4))
    change(index, SLOTS_AT + 4 * (hash_code % SLOTS), struct.pack(">I", 1))


def a_digit_of_an_offset(store: Path) -> None:
    path = store / "config/consumerOffset.json"
    content = path.read_bytes()
    change(path, content.index(b"%d" % ACKED), b"9")
    shutil.copy(store / "config/topics.json", store / "config/topics.json.bak")
    (store / "config/consumerOffset.json.bak").write_bytes(content)


def an_offset_behind_the_end(store: Path) -> None:
    path = store / "config/consumerOffset.json"
    table = json.loads(path.read_text())
    del table["shmqCrc32"]
    table["offsetTable"]["orders@readers"]["0"] = 9999
    path.write_text(json.dumps(table))


def progress_behind_the_end(store: Path) -> None:
    table = {"timerProgress": dict.fromkeys(TIMER_GROUPS, 77)}
    (store / "config/timerProgress.json").write_text(json.dumps(table))


def an_op_record_without_a_half(store: Path) -> None:
    record = next(record for record, _ in records(store) if record.topic == OP_TOPIC)
    put_record(store, record, body=b"9")


def a_committed_message_without_a_half(store: Path) -> None:
    record = next(record for record, _ in records(store) if record.kind == 8)
    put_record(store, record, prepared_position=1)


def a_timed_message_without_a_topic(store: Path) -> None:
    record = next(record for record, _ in records(store) if record.topic == TIMER_TOPIC)
    text = record.fields["properties"].split(b"__CRC32#")[0].replace(b"REAL_TOPIC", b"REAL_TOPIX")
    put_record(store, record, properties=text)


DERIVED: list[tuple[Callable[[Path], None], str]] = [
    (a_flipped_body, "log"),
    (a_zeroed_page_of_units, "units"),
    (a_zeroed_page_of_units, "sums"),
    (a_unit_that_points_elsewhere, "units"),
    (a_unit_with_another_tag, "units"),
    (a_unit_behind_the_end, "units"),
    (a_queue_without_files, "units"),
    (checksums_that_are_cut_off, "sums"),
    (an_entry_of_another_hash, "index"),
    (an_entry_that_names_no_record, "index"),
    (a_slot_that_names_another_entry, "index"),
    (a_digit_of_an_offset, "tables"),
    (an_offset_behind_the_end, "offsets"),
    (progress_behind_the_end, "timers"),
]
STORED: list[tuple[Callable[[Path], None], str]] = [
    (an_op_record_without_a_half, "transactions"),
    (a_committed_message_without_a_half, "transactions"),
    (a_timed_message_without_a_topic, "timers"),
]


def log_bytes(store: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted((store / "commitlog").iterdir())}


def state(store: Path) -> dict[str, tuple[int, int]]:
    return {str(path): (path.stat().st_size, path.stat().st_mtime_ns) for path in store.rglob("*")}


def test_a_whole_store_agrees_and_is_left_as_it_was(store: Path, shell: Shell) -> None:
    before = state(store)
    document = shell.json("store-verify", "store", "verify", str(store))
    assert sum(document["counts"].values()) == 0 and document["settled"] and document["notes"] == []
    assert (document["records"], document["units"]) == (len(records(store)),) * 2
    assert document["index_entries"] >= MESSAGES and document["open_transactions"] == 1
    assert document["offsets"] in (1, 3)  # of the readers; two more once the broker has read the timed messages
    assert document["log_end"] == document["durable_end"]
    assert state(store) == before
    assert shell.ok("store", "verify", str(store)).startswith(b"everything agrees: ")


@pytest.mark.parametrize(("damage", "part"), DERIVED + STORED)
def test_each_disagreement_is_found(store: Path, damage: Callable[[Path], None], part: str) -> None:
    damage(store)
    before = state(store)
    findings = prove_store(store).findings
    assert findings.counts[part] > 0, findings
    assert state(store) == before


@every_row("change", SIZES)
def test_a_file_of_the_index_that_is_changed_is_found(store: Path, change: Callable[[Path], None]) -> None:
    for kind in ("index/*", "shmq.index.sums/*", "shmq.index"):
        path, kept = next(store.glob(kind)), store / "kept"
        path.rename(kept)
        copy_file(str(kept), str(path))
        change(path)
        assert prove_store(store).findings.counts["index"], kind
        path.unlink(missing_ok=True)
        kept.rename(path)


def test_a_log_file_of_another_store_is_found(store: Path) -> None:
    for record, _ in records(store):
        if FILE_BYTES <= record.position < 2 * FILE_BYTES:
            put_record(store, record, queue_offset=record.queue_offset + 7)
    assert prove_store(store).findings.counts["units"] > 0


@pytest.mark.parametrize("damage", dict(DERIVED))
def test_what_is_derived_is_right_again_after_a_repair_and_the_log_is_as_it_was(
    store: Path, damage: Callable[[Path], None], shell: Shell
) -> None:
    damage(store)
    log = log_bytes(store)
    planned = shell.json("store-repair", "store", "repair", str(store), "--dry-run", status=1)
    assert planned["dry_run"] and planned["actions"] and log_bytes(store) == log
    repaired = shell.json("store-repair", "store", "repair", str(store))
    assert sum(repaired["counts"].values()) == 0
    assert log_bytes(store) == log
    assert prove_store(store).findings.count == 0


def test_a_line_says_what_where_which_number_and_what_to_type(store: Path, shell: Shell) -> None:
    a_unit_that_points_elsewhere(store)
    found = shell.run("store", "verify", str(store))
    position, size = next((record.position, record.size) for record, _ in records(store) if record.queue_offset == 50)
    assert found.status == 1
    assert (
        f"orders/0 offset 50: the unit says 200 bytes at byte 64, the record is {size} bytes at byte {position}; "
        f"type: shmq store repair {store}" in found.out.decode()
    )


def test_beside_a_running_broker_and_after_a_kill_nothing_disagrees() -> None:
    with Broker(file_bytes=FILE_BYTES, default_queues=1) as broker:
        shell = Shell(broker.url)
        fill(broker)
        assert sum(shell.json("store-verify", "store", "verify")["counts"].values()) == 0
        with broker.connect() as mq:
            producer = mq.producer()
            for _ in range(5):
                for number in range(200):
                    producer.send("orders", b"%d" % number, key="more")
                assert prove_store(broker.store).findings.disagreements == []
        broker.kill_daemon()
        proof = prove_store(broker.store)
        assert (proof.findings.disagreements, proof.settled) == ([], False)


def test_what_is_no_store_is_refused(tmp_path: Path, shell: Shell) -> None:
    error = shell.fails(64, "store", "verify", str(tmp_path))
    assert "commitlog" in error["error"]
