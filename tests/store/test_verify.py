"""A store is checked without being changed: what is damaged is found, what is whole or still being written is not."""

import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from shmq.shm.access import Access
from shmq.shm.core import UNIT_BYTES
from shmq.store.durable import DurableMark
from shmq.store.layout import StoreLayout, file_name
from shmq.store.proof.store import prove_store
from shmq.store.verify import (
    FAULTS_MAX,
    LogFiles,
    RecordWalk,
    Verification,
    known_mark,
    log_problems,
    verify_store,
)
from shmq.testing import Broker
from shmq.tools.store.verify_command import what_to_type
from shmq.waits import is_ready
from tests.store.bad_pages import PAGE, gives_no_pages
from tests.store.file_changes import NO_FILES, SIZES, grown, halved, moved, zeroed
from tests.tables.rows import every_row

MESSAGES = 300
FILE_BYTES = 64 << 10


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store of several log files whose broker has stopped in order."""
    root = tmp_path_factory.mktemp("verify") / "store"
    with Broker(file_bytes=FILE_BYTES, default_queues=1) as broker:
        with broker.connect() as mq:
            for number in range(MESSAGES):
                mq.send("orders", b"%d" % number * 180, tag="fruit")  # three files and more of records
            running = verify_store(broker.store)
        assert running.fault_count == 0 and running.records <= MESSAGES
        supervisor = broker.processes["supervisor"]
        descriptor = os.pidfd_open(supervisor.pid)
        signal.pidfd_send_signal(descriptor, signal.SIGTERM)
        assert is_ready(descriptor, 30.0)
        os.close(descriptor)
        shutil.copytree(broker.store, root)
    return root


@pytest.fixture
def store(stopped: Path, tmp_path: Path) -> Path:
    """A copy that may be damaged."""
    return Path(shutil.copytree(stopped, tmp_path / "store"))


def first_log(store: Path) -> Path:
    return sorted((store / "commitlog").iterdir())[0]


def flip(path: Path, position: int) -> None:
    with open(path, "r+b") as file:
        file.seek(position)
        byte = file.read(1)
        file.seek(position)
        file.write(bytes([byte[0] ^ 0xFF]))


def contents(store: Path) -> dict[str, tuple[int, bytes]]:
    return {
        str(path.relative_to(store)): (path.stat().st_mtime_ns, path.read_bytes())
        for path in store.rglob("*")
        if path.is_file() and path.stat().st_size < 1 << 20
    }


def test_a_whole_store_is_walked_to_its_end_and_left_as_it_was(store: Path) -> None:
    before = contents(store)
    found = verify_store(store)
    assert (found.fault_count, found.complete, found.records) == (0, True, MESSAGES)
    assert found.files > 2 and found.log_end == found.durable_end and found.units == 256
    assert contents(store) == before


def test_a_budget_ends_the_walk_early(store: Path) -> None:
    found = verify_store(store, bytes_max=FILE_BYTES // 2, samples=0)
    assert not found.complete and FILE_BYTES // 2 <= found.log_end < FILE_BYTES and found.units == 0


def test_a_flipped_byte_is_found_by_the_walk_and_by_the_sample_and_what_follows_is_read(store: Path) -> None:
    flip(first_log(store), 150)
    found = verify_store(store, samples=2000)
    assert (found.complete, found.records, found.faults[0].position) == (True, MESSAGES - 1, 0)
    assert "checksum" in found.faults[0].reason
    assert any("unit 0 of queue 0 of topic orders" in fault.reason for fault in found.faults[1:])


def test_a_torn_end_above_the_durable_mark_is_no_damage(store: Path) -> None:
    end = verify_store(store).log_end
    last = sorted((store / "commitlog").iterdir())[end // FILE_BYTES]
    with open(last, "r+b") as file:
        file.seek(end % FILE_BYTES)
        file.write(b"\0\0\1\0\xda\xa3\x20\xa7half a record")
    assert (verify_store(store).fault_count, verify_store(store).log_end) == (0, end)


def test_without_a_mark_a_bad_record_is_damage_only_if_another_follows(store: Path) -> None:
    (store / "shmq.durable").unlink()
    assert verify_store(store).fault_count == 0
    flip(first_log(store), 150)
    assert verify_store(store, samples=0).fault_count == 1


def test_without_a_mark_the_damaged_end_of_a_file_is_damage_if_a_later_file_has_a_record(store: Path) -> None:
    (store / "shmq.durable").unlink()
    places: list[int] = []
    log = LogFiles(store / "commitlog")
    RecordWalk(log, Verification(), on_record=lambda at, _: places.append(at)).run()
    last = max(at for at in places if at < FILE_BYTES)
    flip(first_log(store), last + 150)
    found = verify_store(store, samples=0)
    assert (found.records, [fault.position for fault in found.faults]) == (MESSAGES - 1, [last])
    end = max(places)
    flip(store / "commitlog" / file_name(end - end % FILE_BYTES), end % FILE_BYTES + 150)
    found = verify_store(store, samples=0)
    assert (found.records, found.fault_count) == (MESSAGES - 2, 1), "that may be the end of what was stored"


@pytest.mark.parametrize("at_once", [True, False])
def test_what_the_disk_refuses_to_read_costs_only_the_records_there(
    store: Path, monkeypatch: pytest.MonkeyPatch, at_once: bool
) -> None:
    log, places = LogFiles(store / "commitlog", reads_past_errors=True), list[int]()
    RecordWalk(log, Verification(), on_record=lambda at, _: places.append(at)).run()
    bad = [page * PAGE for page in (2, 6, 7, 11)]
    gives_no_pages(monkeypatch, first_log(store), *(at // PAGE for at in bad))
    walked = Verification(durable_end=log.end)
    found: list[int] = []
    RecordWalk(log, walked, on_record=None if at_once else lambda at, _: found.append(at)).run()
    ends = zip(places, [*places[1:], log.end], strict=True)
    whole = [at for at, end in ends if all(end <= page or at >= page + PAGE for page in bad)]
    assert walked.records == len(whole) < MESSAGES and walked.faults[0].position < bad[0] + PAGE
    assert at_once or found == whole
    with pytest.raises(OSError):
        RecordWalk(LogFiles(store / "commitlog"), Verification()).run()


@pytest.mark.parametrize("first_page", range(12))
def test_what_lies_behind_pages_that_the_disk_refuses_keeps_its_place(
    store: Path, monkeypatch: pytest.MonkeyPatch, first_page: int
) -> None:
    log, pages = LogFiles(store / "commitlog", reads_past_errors=True), (2, 6, 7, 11)
    given = bytearray(first_log(store).read_bytes())
    for page in pages:
        given[page * PAGE : (page + 1) * PAGE] = bytes(PAGE)
    gives_no_pages(monkeypatch, first_log(store), *pages)
    at = first_page * PAGE
    assert log.read(at, FILE_BYTES) == given[at:]
    filled = bytes(log.fill(at, memoryview(bytearray(FILE_BYTES))))
    assert filled and filled == given[at : at + len(filled)]


def test_a_unit_that_points_at_another_record_is_found(store: Path) -> None:
    path = next((store / "consumequeue/orders/0").iterdir())
    with open(path, "r+b") as file:
        units = file.read(2 * UNIT_BYTES)
        file.seek(0)
        file.write(units[UNIT_BYTES:])
    found = verify_store(store, samples=2000, bytes_max=0)
    assert found.fault_count and "the record there is of queue 0 of topic orders, offset 1" in found.faults[0].reason


def test_a_missing_log_file_is_named_and_many_faults_are_counted(store: Path) -> None:
    names = sorted((store / "commitlog").iterdir())
    names[1].unlink()
    found = verify_store(store, samples=2000)
    assert f"1 log file is missing ({names[1].name}) with {FILE_BYTES} bytes" in found.faults[0].reason
    assert found.fault_count > len(found.faults) == FAULTS_MAX


BY_DESIGN = {
    ("checkpoint", halved): "nothing is behind byte 308, and the next mark writes it whole",
    ("checkpoint", grown): "the same",
    ("shmq.durable", grown): "the same",
    ("shmq.units", grown): "a batch that was torn when it was written, and is cut off by the next start",
}


def examples(store: Path) -> list[str]:
    """One file of each kind; of the log the first, one between, and the last with records."""
    log = [
        f"commitlog/{file_name(number * FILE_BYTES)}" for number in (0, 1, verify_store(store).log_end // FILE_BYTES)
    ]
    units, tables = f"consumequeue/orders/0/{file_name(0)}", ["config/topics.json", "config/shmq.json"]
    return [*log, units, *tables, "shmq.durable", "shmq.units", "checkpoint"]


@every_row("change", [*SIZES, *NO_FILES])
def test_a_file_of_any_kind_that_is_changed_is_found_and_named_with_what_to_do(
    store: Path, change: Callable[[Path], None]
) -> None:
    agreed = []
    for name in examples(store):
        path, kept = store / name, store.with_name("kept")
        shutil.copy2(path, kept)
        change(path)
        found = prove_store(store).findings
        if not found.count or not all(what_to_type(store, each) for each in found.disagreements):
            agreed.append(name)
        if path.parent.name == "commitlog" and change is not zeroed:
            texts = [f"{each.where} {each.reason}" for each in found.disagreements]
            assert any(path.name in text for text in texts), (name, texts)
            assert any(path.name in fault.reason for fault in verify_store(store).faults)
        path.rmdir() if path.is_dir() and not path.is_symlink() else path.unlink(missing_ok=True)
        moved(path).unlink(missing_ok=True)
        kept.rename(path)
    assert not [name for name in agreed if (name, change) not in BY_DESIGN], agreed
    assert not prove_store(store).findings.count


def test_a_directory_that_is_missing_is_found(store: Path) -> None:
    for name in ("consumequeue", "config"):
        (store / name).rename(store / "kept")
        assert prove_store(store).findings.count, name
        (store / "kept").rename(store / name)


def test_what_is_missing_is_reported_with_the_numbers_to_accept_it(store: Path) -> None:
    (store / "commitlog" / file_name(0)).unlink()
    [finding] = [each for each in prove_store(store).findings.disagreements if each.where == "commitlog"]
    assert "1 log file is missing (00000000000000000000) with 65536 bytes" in finding.reason
    assert finding.cure.endswith("shmq serve --accept-loss 0-65536")


def test_a_file_that_retention_removes_meanwhile_is_not_missing(store: Path) -> None:
    layout = StoreLayout(store, Access(-1))
    before = known_mark(layout)
    mark = DurableMark(layout)
    mark.load()
    mark.advance(log_begin=FILE_BYTES)
    mark.close()
    first_log(store).unlink()
    assert log_problems(layout, LogFiles(layout.commitlog), before) == []
    first_log(store).unlink()
    assert len(log_problems(layout, LogFiles(layout.commitlog), before)) == 1


def test_a_log_of_which_no_file_is_left_is_missing_as_a_whole(store: Path) -> None:
    mark = known_mark(StoreLayout(store, Access(-1)))
    assert mark is not None
    for path in (store / "commitlog").iterdir():
        path.unlink()
    found = verify_store(store)
    missing = f"all log files are missing with {mark.durable_end} bytes that were on disk, positions 0 to "
    assert missing in found.faults[0].reason and f"--accept-loss 0-{mark.durable_end}" in found.faults[0].reason
    assert [each.reason for each in prove_store(store).findings.disagreements if missing in each.reason]


def test_what_the_retention_of_a_stock_broker_removed_is_a_note(store: Path) -> None:
    first_log(store).unlink()
    content = (store / "checkpoint").read_bytes()
    later = int.from_bytes(content[:8], "big") + 60_000
    (store / "checkpoint").write_bytes(later.to_bytes(8, "big") + content[8:])
    findings = prove_store(store).findings
    assert not [each for each in findings.disagreements if each.where == "commitlog"]
    assert [each.where for each in findings.notes if "stock broker" in each.reason] == [f"bytes 0 to {FILE_BYTES - 1}"]
    assert not [fault for fault in verify_store(store).faults if "missing" in fault.reason]


def test_what_is_no_store_cannot_be_verified(tmp_path: Path) -> None:
    with pytest.raises(OSError):
        verify_store(tmp_path)
    (tmp_path / "commitlog").mkdir()
    assert verify_store(tmp_path).records == 0
    assert os.listdir(tmp_path) == ["commitlog"]
