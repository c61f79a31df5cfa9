"""Cold recovery: what was acknowledged is there, what was torn is gone, what is damaged is said."""

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from shmq.errors import CorruptionError, UsageError
from shmq.record import HOLE_TOPIC
from shmq.shm.access import Access
from shmq.shm.core import UNIT_BYTES, BrokerTables, KeeperStore, Reader, record_encode, record_verify
from shmq.shm.unit import pack_unit
from shmq.store.durable import DurableMark
from shmq.store.group_settings import decode_settings, encode_settings
from shmq.store.layout import StoreLayout, file_name

OpenSession = Callable[..., Any]
Tree = Callable[[], dict[str, bytes]]


def write_at(root: Path, position: int, data: bytes, file_bytes: int = 64 << 10) -> None:
    """Change bytes of a log file directly."""
    path = root / "commitlog" / file_name(position - position % file_bytes)
    with path.open("r+b") as file:
        file.seek(position % file_bytes)
        file.write(data)


def read_at(root: Path, position: int, size: int, file_bytes: int = 64 << 10) -> bytes:
    path = root / "commitlog" / file_name(position - position % file_bytes)
    return path.read_bytes()[position % file_bytes :][:size]


def test_an_empty_directory_becomes_an_empty_store(open_session: OpenSession, root: Path) -> None:
    session = open_session()
    assert session.store.log_end == 0
    assert session.store.allocated_end == 64 << 10
    assert session.report.clean
    assert (root / "abort").exists()


def test_nothing_is_lost_when_every_process_is_killed_before_anything_was_saved(open_session: OpenSession) -> None:
    session = open_session()
    for number in range(100):
        session.send("orders", b"%d" % number, queue_id=number % 2, tag="t")
    end = session.store.log_end
    session = open_session()
    assert session.store.log_end == session.store.durable_end == end
    assert session.queue("orders", 0) == (0, 50)
    assert session.read("orders", 1) == [b"%d" % number for number in range(1, 100, 2)]
    assert session.report.records == 100
    assert session.report.damages == []


def test_appending_goes_on_where_the_log_ended(open_session: OpenSession) -> None:
    session = open_session()
    first = [session.send("orders", b"%d" % number).offset for number in range(300)]
    session = open_session()
    then = [session.send("orders", b"%d" % number).offset for number in range(300, 600)]
    assert first + then == list(range(600))
    session.save()
    session = open_session()
    assert session.read("orders") == [b"%d" % number for number in range(600)]


def test_recovery_begins_at_the_mark_and_not_at_the_beginning(open_session: OpenSession) -> None:
    session = open_session()
    for number in range(400):
        session.send("orders", bytes(500), tag=str(number))
    session.save()
    marked = session.store.log_end
    session.send("orders", b"last")
    session = open_session()
    assert session.report.scanned_from == marked
    assert session.report.records == 1
    assert session.queue("orders", 0) == (0, 401)


def test_recovering_twice_leaves_the_same_bytes(open_session: OpenSession, tree: Tree) -> None:
    session = open_session()
    for number in range(300):
        session.send(f"topic{number % 7}", bytes(400), queue_id=number % 2)
    session.save()
    for number in range(50):
        session.send("late", b"%d" % number)
    open_session()
    first = tree()
    open_session()
    assert tree() == first


def test_a_torn_last_record_is_cut_at_every_byte(open_session: OpenSession, root: Path) -> None:
    session = open_session()
    for number in range(3):
        session.send("orders", b"%d" % number)
    session.save()
    torn = session.send("orders", b"the last one", tag="tag", key="key")
    size = session.store.log_end - torn.log_position
    whole = read_at(root, torn.log_position, size)
    for cut in range(size):
        session.end()
        write_at(root, torn.log_position, whole[:cut] + bytes(size - cut))
        session = open_session()
        assert session.store.log_end == torn.log_position, cut
        assert session.queue("orders", 0) == (0, 3), cut
        assert session.report.damages == [], cut
        assert not any(read_at(root, torn.log_position, size + 64)), cut


def test_garbage_behind_the_last_record_is_zeroed(open_session: OpenSession, root: Path) -> None:
    session = open_session()
    session.send("orders", b"kept")
    session.save()
    end = session.store.log_end
    session.end()
    write_at(root, end, bytes(range(1, 256)) * 40)
    session = open_session()
    assert session.store.log_end == end
    assert session.report.zeroed_bytes >= 255 * 40
    assert not any(read_at(root, end, 64 << 10))


def test_whole_records_behind_a_damaged_one_above_the_mark_are_kept(open_session: OpenSession, root: Path) -> None:
    session = open_session()
    session.send("orders", b"kept")
    session.save()
    # Synced and acknowledged; the mark that would say so was not written yet.
    sent = [session.send("orders", b"acknowledged %d" % number, queue_id=number % 2) for number in range(150)]
    end = KeeperStore(session.store).flush()
    session.end()
    write_at(root, sent[40].log_position + 20, b"\xff")
    log = read_at(root, 0, 64 << 10)
    session = open_session()
    assert session.store.log_end == end
    assert [(damage.position, damage.end) for damage in session.report.damages] == [
        (sent[40].log_position, sent[41].log_position)
    ]
    assert read_at(root, 0, 64 << 10) == log
    assert (session.queue("orders", 0), session.queue("orders", 1)) == ((0, 76), (0, 75))
    assert session.store.message_at(sent[149].log_position).body == b"acknowledged 149"
    assert session.send("orders", b"next").offset == 76


@pytest.mark.parametrize("bytes_lost", [4096, 8192])
def test_a_page_above_the_mark_that_was_lost_costs_its_own_records(
    open_session: OpenSession, root: Path, bytes_lost: int
) -> None:
    session = open_session()
    sent = [session.send("orders", b"%d" % number * 50) for number in range(400)]
    end = session.store.log_end
    session.end()
    write_at(root, 16384, bytes(bytes_lost))
    session = open_session()
    first = max(index for index, receipt in enumerate(sent) if receipt.log_position <= 16384)
    behind = next(receipt for receipt in sent if receipt.log_position >= 16384 + bytes_lost)
    (damage,) = session.report.damages
    assert (session.store.log_end, session.queue("orders", 0)) == (end, (0, 400))
    assert damage.position == sent[first].log_position and damage.end <= behind.log_position
    assert session.store.message_at(behind.log_position).body == b"%d" % behind.offset * 50


def test_a_record_inside_the_body_of_a_damaged_one_is_not_taken_for_one_of_the_log(
    open_session: OpenSession, root: Path
) -> None:
    session = open_session()
    session.send("orders", b"kept")
    position = session.store.log_end
    inner = record_encode(
        body=b"forged", topic=b"orders", queue_offset=1, log_position=position + 88 + 7, born_ms=1, store_ms=1
    )
    outer = session.send("orders", b"x" * 7 + inner)
    assert (outer.log_position, read_at(root, position + 95, len(inner))) == (position, inner)
    behind = session.send("orders", b"behind")
    session.end()
    write_at(root, position + 88, b"y")
    session = open_session()
    assert [(damage.position, damage.end) for damage in session.report.damages] == [(position, behind.log_position)]
    assert session.queue("orders", 0) == (0, 3)


def test_a_whole_record_of_an_offset_that_its_queue_has_passed_does_not_come_back(
    open_session: OpenSession, root: Path
) -> None:
    session = open_session()
    for number in range(5):
        session.send("orders", b"%d" % number)
    session.save()
    end = session.store.log_end
    session.end()
    # What an earlier life of these blocks may have left: whole, at its own position, but not of this log.
    stale = record_encode(
        body=b"stale", topic=b"orders", queue_offset=2, log_position=end + 1000, born_ms=1, store_ms=1
    )
    write_at(root, end, b"torn" * 10)
    write_at(root, end + 1000, stale)
    session = open_session()
    assert (session.store.log_end, session.queue("orders", 0)) == (end, (0, 5))
    assert not any(read_at(root, end, 4096))


def test_the_offset_of_a_damaged_last_record_is_not_given_out_again(open_session: OpenSession, root: Path) -> None:
    session = open_session()
    for number in range(5):
        session.send("orders", b"%d" % number)
    last = session.send("orders", b"the last of its queue", tag="t")
    session.send("payments", b"behind")
    session.end()
    write_at(root, last.log_position + 90, b"\xff")
    session = open_session()
    assert [damage.position for damage in session.report.damages] == [last.log_position]
    assert session.queue("orders", 0) == (0, 6)
    assert session.send("orders", b"next").offset == 6


def test_zeroing_that_was_interrupted_is_finished_by_the_next_recovery(open_session: OpenSession, root: Path) -> None:
    session = open_session()
    session.send("orders", b"kept")
    session.save()
    torn = session.send("orders", bytes(3000))
    end = session.store.log_end
    session.end()
    # The begin of the torn record is gone already, its rest is not: as after a crash while the tail was zeroed.
    write_at(root, torn.log_position, bytes(100))
    write_at(root, end, b"garbage" * 1000)
    session = open_session()
    assert session.store.log_end == torn.log_position
    assert not any(read_at(root, torn.log_position, 32 << 10))


@pytest.mark.parametrize("where", ["header", "body", "properties", "whole"])
def test_damage_below_the_mark_is_said_and_never_cut_off(open_session: OpenSession, root: Path, where: str) -> None:
    session = open_session()
    receipts = [session.send("orders", b"body %d" % number * 10, tag="t") for number in range(20)]
    session.save()
    end = session.store.log_end
    session.end()
    # The units are not trusted either, so that every offset comes from the walk.
    mark_not_dispatched(root, end)
    bad, after = receipts[7].log_position, receipts[8].log_position
    spot = {"header": bad + 3, "body": bad + 95, "properties": after - 30, "whole": bad}[where]
    before = read_at(root, 0, 64 << 10)
    write_at(root, spot, b"\xee" * (after - bad) if where == "whole" else bytes([before[spot] ^ 1]))
    damaged = read_at(root, 0, 64 << 10)
    session = open_session()
    assert session.store.log_end == end
    assert [(damage.position, damage.end) for damage in session.report.damages] == [(bad, after)]
    assert session.events.named("recovery.damage")[0]["log_position"] == bad
    assert read_at(root, 0, 64 << 10) == damaged
    assert session.queue("orders", 0) == (0, 20)
    with pytest.raises(Exception, match=r"."):
        assert session.store.message_at(bad, after - bad).verify()
    assert session.store.message_at(receipts[8].log_position).body == b"body 8" * 10


def test_damage_at_the_very_end_of_the_durable_log_does_not_shorten_it(open_session: OpenSession, root: Path) -> None:
    session = open_session()
    session.send("orders", b"first")
    last = session.send("orders", b"last")
    session.save()
    end = session.store.log_end
    session.end()
    mark_not_dispatched(root, end)
    write_at(root, last.log_position, bytes(end - last.log_position))
    session = open_session()
    assert session.store.log_end == end
    assert [(damage.position, damage.end) for damage in session.report.damages] == [(last.log_position, end)]


def test_damage_over_a_file_border_goes_on_in_the_next_file(open_session: OpenSession, root: Path) -> None:
    session = open_session()
    receipts = [session.send("orders", bytes(4000)) for _ in range(40)]
    session.save()
    end = session.store.log_end
    session.end()
    mark_not_dispatched(root, end)
    rolled = next(receipt for receipt in receipts if receipt.log_position == 64 << 10)
    previous = receipts[receipts.index(rolled) - 1]
    write_at(root, previous.log_position, b"\x55" * ((64 << 10) - previous.log_position))
    session = open_session()
    assert session.store.log_end == end
    assert [(damage.position, damage.end) for damage in session.report.damages] == [(previous.log_position, 64 << 10)]
    assert session.queue("orders", 0) == (0, 40)


def mark_not_dispatched(root: Path, durable_end: int) -> None:
    """Make the mark say that the log is durable up to there, but no unit."""
    (root / "shmq.durable").unlink()
    mark = DurableMark(StoreLayout(root, Access(-1)))
    mark.advance(durable_end=durable_end, dispatched=0)
    mark.close()


def test_a_store_without_a_mark_is_walked_from_its_beginning(open_session: OpenSession, root: Path) -> None:
    session = open_session()
    receipts = [session.send("orders", b"%d" % number) for number in range(10)]
    session.save()
    end = session.store.log_end
    session.end()
    (root / "shmq.durable").unlink()
    shutil.rmtree(root / "consumequeue")
    session = open_session()
    assert (session.report.scanned_from, session.report.records) == (0, 10)
    assert session.queue("orders", 0) == (0, 10)
    session.end()
    # One flipped bit must not cost everything behind it, although nothing says how far the log was durable.
    (root / "shmq.durable").unlink()
    write_at(root, receipts[4].log_position + 90, b"\x00\x01\x02")
    session = open_session()
    assert session.store.log_end == end
    assert [damage.position for damage in session.report.damages] == [receipts[4].log_position]


def test_missing_unit_files_are_built_again_from_the_whole_log(
    open_session: OpenSession, root: Path, tree: Tree
) -> None:
    session = open_session()
    for number in range(500):
        session.send(f"topic{number % 3}", b"%d" % number, queue_id=number % 2, tag="t")
    session.save()
    session.end()
    before = {name: data for name, data in tree().items() if name.startswith("consumequeue")}
    shutil.rmtree(root / "consumequeue")
    session = open_session()
    assert len(session.events.named("recovery.units_wrong")) == 6
    assert {name: data for name, data in tree().items() if name.startswith("consumequeue")} == before


def test_units_that_point_behind_the_log_are_removed(open_session: OpenSession, root: Path) -> None:
    session = open_session()
    session.send("orders", b"kept")
    session.save()
    end = session.store.log_end
    # As after a power cut that kept pages of the unit file and lost those of the log.
    session.files.consumequeue.write(("orders", 0), 1, pack_unit(end, 200, 0) + pack_unit(end + 200, 200, 0))
    session.files.consumequeue.sync_all()
    session = open_session()
    assert session.queue("orders", 0) == (0, 1)
    assert session.files.consumequeue.read(("orders", 0), 1, 2) == bytes(40)


def test_units_that_were_lost_between_others_are_written_again(open_session: OpenSession) -> None:
    session = open_session()
    for number in range(100):
        session.send("orders", b"%d" % number)
    session.save()
    for number in range(100, 200):
        session.send("orders", b"%d" % number)
    # Units behind the mark: some pages reached the disk, some did not.
    index = session.store.queue_index(session.store.topic_find("orders"), 0)
    units = KeeperStore(session.store).units_read(index, 150, 50)
    session.files.consumequeue.write(("orders", 0), 150, units)
    session = open_session()
    assert session.read("orders") == [b"%d" % number for number in range(200)]


def test_a_queue_whose_last_frame_was_partly_full_can_be_read_and_continued(open_session: OpenSession) -> None:
    session = open_session()
    for number in range(204 * 2 + 10):
        session.send("orders", b"%d" % number)
    session = open_session()
    index = session.store.queue_index(session.store.topic_find("orders"), 0)
    assert len(KeeperStore(session.store).units_read(index, 204 * 2, 100)) == 10 * 20
    assert session.send("orders", b"next").offset == 204 * 2 + 10
    assert len(KeeperStore(session.store).units_read(index, 204 * 2, 100)) == 11 * 20


def test_a_reader_gets_every_message_from_the_first_on(open_session: OpenSession) -> None:
    session = open_session()
    for number in range(1000):
        session.send("orders", b"%d" % number)
    session = open_session()
    # Units of the first frames are in files only, those of the last one in memory.
    index = session.store.queue_index(session.store.topic_find("orders"), 0)
    assert KeeperStore(session.store).units_read(index, 0, 1) == b""
    reader = Reader(session.store)
    reader.assign("orders", index, 0, 0)
    found: list[bytes] = []
    while part := reader.poll(max=100):
        found += [message.body for message in part]
    assert found == [b"%d" % number for number in range(1000)]
    reader.close()


def test_topics_keep_their_settings_and_groups_their_offsets(open_session: OpenSession) -> None:
    session = open_session()
    index = BrokerTables(session.store).topic_put("fifo", read_queues=3, write_queues=2, perm=4, flags=1, kind=1)
    for _ in range(5):
        session.send("orders", b"x")
    group = BrokerTables(session.store).group_put("billing")
    BrokerTables(session.store).group_set(group, encode_settings({"retryMaxTimes": 3, "consumeEnable": False}))
    queue = session.store.queue_index(session.store.topic_find("orders"), 0)
    session.store.offset_set(BrokerTables(session.store).offset_put(group, queue), 3)
    born = session.store.topic(index)["born_position"]
    session.save_tables()
    session = open_session()
    topic = session.store.topic(session.store.topic_find("fifo"))
    assert [topic[name] for name in ("read_queues", "write_queues", "perm", "flags", "kind")] == [3, 2, 4, 1, 1]
    assert topic["born_position"] == born
    assert [
        (name, committed) for _, _, _, committed, _, _ in session.store.offsets() for _, name in session.store.groups()
    ] == [("billing", 3)]
    settings = decode_settings(session.store.group_settings(session.store.group_find("billing")))
    assert (settings["retryMaxTimes"], settings["consumeEnable"], settings["retryQueueNums"]) == (3, False, 1)


def test_an_offset_above_the_queue_is_lowered_to_its_maximum(open_session: OpenSession) -> None:
    session = open_session()
    session.send("orders", b"kept")
    session.save()
    lost = session.send("orders", b"lost")
    group = BrokerTables(session.store).group_put("billing")
    queue = session.store.queue_index(session.store.topic_find("orders"), 0)
    session.store.offset_set(BrokerTables(session.store).offset_put(group, queue), 2)
    session.save_tables()
    session.end()
    write_at(Path(session.files.layout.root), lost.log_position, bytes(400))
    session = open_session()
    assert [committed for _, _, _, committed, _, _ in session.store.offsets()] == [1]
    assert session.events.named("recovery.offset_lowered")[0]["was"] == 2


def test_a_topic_of_the_log_that_no_table_names_is_made(open_session: OpenSession, root: Path) -> None:
    session = open_session()
    session.send("orders", b"x", queue_id=1)
    session.send("%RETRY%billing", b"x", queue_id=0)
    session.save()
    session.end()
    for path in (root / "config").iterdir():
        path.write_text("{}")  # as the error about missing tables says
    session = open_session()
    assert session.queue("orders", 1) == (0, 1)
    counts = {topic["name"]: topic["read_queues"] for topic in session.store.topics()}
    assert counts == {"orders": 4, "%RETRY%billing": 1}


@pytest.mark.parametrize("missing", ["*", "consumerOffset.json*", "topics.json*"])
def test_a_table_that_was_there_is_not_taken_for_one_of_a_new_store(
    open_session: OpenSession, root: Path, missing: str
) -> None:
    session = open_session()
    session.send("orders", b"x")
    session.save()
    session.end()
    for path in (root / "config").glob(missing):
        path.unlink()
    before = sorted(path.name for path in root.rglob("*"))
    with pytest.raises(CorruptionError, match="missing") as caught:
        open_session()
    assert sorted(path.name for path in root.rglob("*")) == before
    # What the error says helps.
    subprocess.run(caught.value.hint.rpartition(": ")[2], shell=True, check=True, capture_output=True)
    session = open_session()
    assert session.read("orders") == [b"x"]


def test_a_deleted_topic_does_not_come_back_from_its_records(open_session: OpenSession, root: Path) -> None:
    session = open_session()
    session.send("old", b"x")
    session.save()
    BrokerTables(session.store).topic_delete("old")
    session.save_tables()
    session.end()
    mark_not_dispatched(root, session.report.log_end)
    session = open_session()
    assert session.store.topic_find("old") == -1
    assert not (root / "consumequeue" / "old").exists()


def test_a_topic_that_was_made_anew_does_not_get_the_records_of_its_former_life(open_session: OpenSession) -> None:
    session = open_session()
    for number in range(5):
        session.send("orders", b"old %d" % number)
    session.save()
    BrokerTables(session.store).topic_delete("orders")
    session.topic("orders")
    session.send("orders", b"new")
    # The keeper was killed before it removed the unit files of the former life.
    session.save_tables()
    session = open_session()
    assert session.queue("orders", 0) == (0, 1)
    assert session.read("orders") == [b"new"]


def test_a_missing_file_below_the_mark_is_refused_and_nothing_is_changed(open_session: OpenSession, root: Path) -> None:
    session = open_session()
    for _ in range(40):
        session.send("orders", bytes(4000))
    session.save()
    session.end()
    files = sorted((root / "commitlog").iterdir())
    for missing in (files[-1], files[-2], files[-3]):
        missing.unlink()
    before = sorted(path.name for path in root.rglob("*"))
    with pytest.raises(CorruptionError, match="that were on disk"):
        open_session()
    assert sorted(path.name for path in root.rglob("*")) == before


def test_a_gap_between_files_is_refused(open_session: OpenSession, root: Path) -> None:
    session = open_session()
    for _ in range(40):
        session.send("orders", bytes(4000))
    session.end()
    sorted((root / "commitlog").iterdir())[1].unlink()
    with pytest.raises(CorruptionError, match="1 log file is missing"):
        open_session()


def test_log_files_of_another_size_are_refused_with_the_option_that_helps(
    open_session: OpenSession, root: Path
) -> None:
    open_session().end()
    os.truncate(root / "commitlog" / file_name(0), (64 << 10) + 4096)
    with pytest.raises(UsageError) as caught:
        open_session()
    assert str((64 << 10) + 4096) in caught.value.hint


def test_the_units_of_deleted_files_are_below_the_minimum(open_session: OpenSession, root: Path) -> None:
    session = open_session()
    receipts = [session.send("orders", bytes(4000)) for _ in range(40)]
    session.save()
    session.end()
    (root / "commitlog" / file_name(0)).unlink()
    session = open_session(accept_loss="0-65536")
    kept = [receipt.offset for receipt in receipts if receipt.log_position >= 64 << 10]
    assert session.store.log_begin == 64 << 10
    assert session.queue("orders", 0) == (kept[0], 40)
    session.end()
    # Without any unit file the queue begins in the middle, as RocketMQ's pre-blank says.
    shutil.rmtree(root / "consumequeue")
    session = open_session()
    assert session.queue("orders", 0) == (kept[0], 40)
    assert session.files.consumequeue.read(("orders", 0), 0, 1) == pack_unit(0, 0x7FFFFFFF, 0)


def test_a_hole_that_its_owner_did_not_settle_is_stepped_over(open_session: OpenSession, root: Path) -> None:
    session = open_session()
    session.send("orders", b"before")
    position = session.store.log_end
    session.end()
    hole = record_encode(body=bytes(300), topic=HOLE_TOPIC, sys_flag=12, log_position=position, born_ms=1, store_ms=1)
    following = record_encode(
        body=b"behind", topic=b"orders", queue_offset=1, log_position=position + len(hole), born_ms=1, store_ms=1
    )
    # The evicted owner went on writing its body.
    write_at(root, position, hole[:100] + b"scribble" + hole[108:] + following)
    session = open_session()
    assert session.report.damages == []
    assert session.read("orders") == [b"before", b"behind"]


def test_a_topic_name_that_leads_out_of_the_store_is_never_a_path(open_session: OpenSession, root: Path) -> None:
    session = open_session()
    position = session.store.log_end
    session.end()
    evil = record_encode(body=b"x", topic=b"../../evil", log_position=position, born_ms=1, store_ms=1)
    write_at(root, position, evil)
    session = open_session()
    assert session.store.log_end == position + len(evil)
    assert session.events.named("recovery.unusable_topic")
    assert not (root.parent / "evil").exists() and not (root / "evil").exists()


def test_interrupted_file_creation_leaves_nothing(open_session: OpenSession, root: Path) -> None:
    open_session().end()
    left = root / f".commitlog.{file_name(1 << 16)}.tmp"
    left.write_bytes(b"half")
    open_session()
    assert not left.exists()


def test_an_unreadable_table_stops_recovery_before_anything_is_changed(open_session: OpenSession, root: Path) -> None:
    session = open_session()
    session.send("orders", b"x")
    session.save()
    session.end()
    for path in (root / "config").glob("consumerOffset.json*"):
        path.write_text("{")
    with pytest.raises(CorruptionError, match="consumerOffset"):
        open_session()


@pytest.mark.parametrize("kept", [0, 1, 5, 14, 19])
def test_a_record_whose_checksum_became_zeros_is_damaged_for_every_reader(
    open_session: OpenSession, root: Path, kept: int
) -> None:
    session = open_session()
    receipts = [session.send("orders", b"body %d" % number, tag="t", keys=["key"]) for number in range(3)]
    session.save()
    end = receipts[2].log_position
    write_at(root, end - 30, bytes(30 - kept))
    position, size = receipts[1].log_position, end - receipts[1].log_position
    assert not record_verify(read_at(root, position, size)[:size])
    with pytest.raises(Exception, match=r"."):
        session.store.message_at(position, size)


def test_recovering_twice_gives_no_offset_out_again_that_only_a_unit_remembers(
    open_session: OpenSession, root: Path
) -> None:
    """Units got to the disk and their sums did not; of their records one is lost and one has lost its end."""
    session = open_session()
    for number in range(5):
        session.send("orders", b"%d" % number, tag="t")
    session.save()
    lost, torn = (session.send("orders", b"%d" % number, tag="t") for number in (5, 6))
    behind = session.send("payments", b"behind")
    index = session.store.queue_index(session.store.topic_find("orders"), 0)
    units = KeeperStore(session.store).units_read(index, 5, 2)
    session.end()
    at = 5 * UNIT_BYTES
    with (root / "consumequeue/orders/0" / file_name(0)).open("r+b") as file:
        file.seek(at)
        file.write(units)
    write_at(root, lost.log_position, bytes(torn.log_position - lost.log_position))
    write_at(root, behind.log_position - 20, bytes(20))
    seen = []
    for _ in range(3):
        session = open_session()
        seen.append((session.queue("orders", 0), session.queue("payments", 0)))
        session.end()
    assert seen == [((0, 7), (0, 1))] * 3
    assert open_session().send("orders", b"next").offset == 7


@pytest.mark.parametrize(
    "change", [Path.unlink, lambda path: path.write_bytes(b""), lambda path: path.write_bytes(bytes(8192))]
)
def test_a_mark_that_is_missing_or_empty_is_said(
    open_session: OpenSession, root: Path, change: Callable[[Path], object]
) -> None:
    session = open_session()
    assert session.report.marks_restored == 0
    session.send("orders", b"kept")
    session.save()
    session.end()
    change(root / "shmq.durable")
    session = open_session()
    assert session.read("orders") == [b"kept"]
    assert session.report.marks_restored > 0
    assert len(session.events.named("recovery.mark_missing")) == 1
