"""Cutting a log: what is below stays, what is above is kept, and a process that mapped the old file changes nothing."""

from __future__ import annotations

import errno
import json
import mmap
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from shmq.errors import StoreError
from shmq.shm.access import Access
from shmq.shm.core import BrokerTables
from shmq.store.durable import DurableMark
from shmq.store.layout import StoreLayout, file_name
from shmq.store.lineage.beginning import begin_as_wished, wish_beginning
from shmq.store.lineage.cutting import check_room, cut_as_wished, renew_end, tails, unread_of, wish_cut
from shmq.store.lineage.epochs import Epoch, load_epochs, store_epochs
from shmq.store.recovery import OpenFiles
from tests.store.bad_pages import PAGE, gives_no_pages

OpenSession = Callable[..., Any]
FILE_BYTES = 64 << 10
END = 1 << 40  # of the log that was judged; whether it has grown since is the keeper's question


def layout_of(root: Path) -> StoreLayout:
    return StoreLayout(root, Access(-1))


def files_of(root: Path) -> OpenFiles:
    return OpenFiles.of(layout_of(root), file_bytes=FILE_BYTES, log=lambda *_, **__: None)


def cut(root: Path) -> None:
    files = files_of(root)
    assert cut_as_wished(files.layout, files.commitlog, files.mark) is not None
    files.close()


def filled(open_session: OpenSession, records: int, body: bytes = b"b" * 900) -> tuple[Any, list[int]]:
    session = open_session()
    ends = [
        session.send("orders", b"%d" % number + body, queue_id=number % 2).log_position for number in range(records)
    ]
    session.end()
    return session, ends


def test_a_cut_log_is_that_of_before_and_goes_on_from_there(open_session: OpenSession, root: Path) -> None:
    _, positions = filled(open_session, 200)
    whole = b"".join(path.read_bytes() for path in sorted((root / "commitlog").iterdir()))
    open_session().end()  # the marks say that all of it is on the disk
    at = positions[90]
    wish_cut(layout_of(root), at, 3, end=END)
    cut(root)
    session = open_session()
    assert session.store.log_end == at
    assert session.queue("orders", 0) == (0, 45)
    assert session.report.damages == []
    now = b"".join(path.read_bytes() for path in sorted((root / "commitlog").iterdir()))
    assert now[:at] == whole[:at]
    assert session.send("orders", b"another").log_position == at
    session.save()
    assert session.read("orders", 0)[-1] == b"another"
    [tail] = tails(layout_of(root))
    assert (tail.begin, tail.epoch) == (at, 3)
    kept = b"".join(path.read_bytes() for path in sorted(tail.path.iterdir()) if path.name.isdecimal())
    base = at - at % FILE_BYTES
    assert kept[at - base : tail.end - base] == whole[at : tail.end]


def test_a_cut_that_was_interrupted_is_done_again(open_session: OpenSession, root: Path) -> None:
    _, positions = filled(open_session, 200)
    at = positions[30]
    wish_cut(layout_of(root), at, 1, end=END)
    wish = layout_of(root).cut.read_bytes()
    cut(root)
    layout_of(root).cut.write_bytes(wish)  # killed before the last step
    cut(root)
    session = open_session()
    assert session.store.log_end == at
    assert len(tails(layout_of(root))) == 1


def test_a_cut_at_the_end_keeps_no_tail(open_session: OpenSession, root: Path) -> None:
    session = open_session()
    session.send("orders", b"x")
    end = session.store.log_end
    session.end()
    wish_cut(layout_of(root), end, 1, end=END)
    cut(root)
    assert open_session().store.log_end == end
    assert tails(layout_of(root)) == []


@pytest.mark.parametrize("expired", [False, True])
def test_a_log_that_is_dropped_leaves_nothing_and_begins_anywhere(
    expired: bool, open_session: OpenSession, root: Path
) -> None:
    _, positions = filled(open_session, 200)
    layout = layout_of(root)
    begin = FILE_BYTES if expired else 0
    if expired:  # retention took its first file
        (root / "commitlog" / file_name(0)).unlink()
        files = files_of(root)
        files.mark.load()
        files.mark.advance(log_begin=begin)
        files.close()
    assert positions[-1] > 2 * FILE_BYTES
    wish_cut(layout, begin, 3, end=END, drops=True)
    wish = layout.cut.read_bytes()
    cut(root)
    assert tails(layout) == [] and [path.name for path in (root / "commitlog").iterdir()] == [file_name(begin)]
    assert not any((root / "commitlog" / file_name(begin)).read_bytes())
    layout.cut.write_bytes(wish)  # killed before the last step
    cut(root)
    wish_beginning(layout, 8 * FILE_BYTES)
    files = files_of(root)
    assert begin_as_wished(layout, files.commitlog, files.mark) == 8 * FILE_BYTES
    files.close()
    session = open_session()
    assert (session.store.log_begin, session.store.log_end) == (8 * FILE_BYTES, 8 * FILE_BYTES)
    assert session.report.damages == []
    assert session.send("orders", b"x", queue_id=0).log_position == 8 * FILE_BYTES
    assert session.queue("orders", 0) == (0, 1), "no unit of before is left"


def test_the_epochs_of_what_was_cut_go(open_session: OpenSession, root: Path) -> None:
    _, positions = filled(open_session, 50)
    store_epochs(layout_of(root), (Epoch(0, 0), Epoch(1, positions[5]), Epoch(2, positions[40])))
    wish_cut(layout_of(root), positions[20], 3, end=END)
    cut(root)
    assert load_epochs(layout_of(root)) == (Epoch(0, 0), Epoch(1, positions[5]))


def test_nothing_is_cut_without_a_wish(open_session: OpenSession, root: Path) -> None:
    filled(open_session, 5)
    files = files_of(root)
    assert cut_as_wished(files.layout, files.commitlog, files.mark) is None


@pytest.mark.parametrize("cuts", [False, True])
def test_a_mapping_of_the_old_file_belongs_to_no_log(open_session: OpenSession, root: Path, cuts: bool) -> None:
    _, positions = filled(open_session, 30)
    path = root / "commitlog" / file_name(0)
    with path.open("r+b") as file, mmap.mmap(file.fileno(), FILE_BYTES) as stopped:
        before = bytes(stopped)
        files = files_of(root)
        if cuts:
            wish_cut(layout_of(root), positions[20], 1, end=END)
            cut_as_wished(files.layout, files.commitlog, files.mark)
        else:
            assert renew_end(files.commitlog, files.mark) >= 1
        files.close()
        stopped[:] = b"\xff" * FILE_BYTES
        end = positions[20] if cuts else positions[29]
        assert path.read_bytes()[:end] == before[:end]
    assert open_session().report.damages == []


def test_the_durable_mark_falls(root: Path) -> None:
    layout = layout_of(root)
    layout.prepare()
    mark = DurableMark(layout)
    mark.advance(durable_end=5000, dispatched=4000, unit_sums=7)
    mark.set_back(4500)
    assert (mark.current.durable_end, mark.current.dispatched) == (4500, 4000)
    mark.set_back(9000)
    assert mark.current.durable_end == 4500
    mark.close()


def taken_by_halves(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let each call read or write half of what it is asked for, as the system may."""
    pread, pwrite = os.pread, os.pwrite
    monkeypatch.setattr(os, "pread", lambda file, size, at: pread(file, size - size // 2, at))
    monkeypatch.setattr(os, "pwrite", lambda file, data, at: pwrite(file, data[: len(data) - len(data) // 2], at))


def test_what_is_taken_by_parts_is_kept_whole(
    open_session: OpenSession, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, positions = filled(open_session, 200)
    whole = b"".join(path.read_bytes() for path in sorted((root / "commitlog").iterdir()))
    at = positions[90]
    wish_cut(layout_of(root), at, 3, end=END)
    with monkeypatch.context() as halved:
        taken_by_halves(halved)
        cut(root)
    session = open_session()
    assert (root / "commitlog" / file_name(0)).read_bytes() == whole[:FILE_BYTES]
    assert session.report.damages == [] and session.queue("orders", 0) == (0, 45)
    assert session.read("orders", 0)[-1] == b"88" + b"b" * 900
    [tail] = tails(layout_of(root))
    kept = b"".join(path.read_bytes() for path in sorted(tail.path.iterdir()) if path.name.isdecimal())
    base = at - at % FILE_BYTES
    assert kept[at - base : tail.end - base] == whole[at : tail.end]


def test_pages_that_cannot_be_read_are_named_and_kept_as_zeros(
    open_session: OpenSession, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, positions = filled(open_session, 200)
    whole = b"".join(path.read_bytes() for path in sorted((root / "commitlog").iterdir()))
    at = positions[30]
    wish_cut(layout_of(root), at, 3, end=END)
    files = files_of(root)
    with monkeypatch.context() as broken:
        gives_no_pages(broken, root / "commitlog" / file_name(FILE_BYTES), 3, 4, 9)
        done = cut_as_wished(files.layout, files.commitlog, files.mark)
    assert done is not None
    files.close()
    [tail] = tails(layout_of(root))
    lost = [(FILE_BYTES + 3 * PAGE, FILE_BYTES + 5 * PAGE), (FILE_BYTES + 9 * PAGE, FILE_BYTES + 10 * PAGE)]
    assert list(tail.unread) == lost == list(unread_of(layout_of(root), done))
    kept = b"".join(path.read_bytes() for path in sorted(tail.path.iterdir()) if path.name.isdecimal())
    left = bytearray(whole)
    for begin, end in lost:
        left[begin:end] = bytes(end - begin)
    assert kept[at : tail.end] == left[at : tail.end] and tail.end == len(whole.rstrip(b"\0"))
    assert open_session().store.log_end == at


def test_a_cut_that_the_disk_refuses_says_which_file_and_what_to_do(
    open_session: OpenSession, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, positions = filled(open_session, 60)
    before = (root / "commitlog" / file_name(0)).read_bytes()
    wish_cut(layout_of(root), positions[20], 3, end=END)
    with monkeypatch.context() as broken, pytest.raises(StoreError) as caught:
        gives_no_pages(broken, root / "commitlog" / file_name(0), 2)  # below the cut
        cut(root)
    assert str(root / "commitlog" / file_name(0)) in str(caught.value)
    assert "smartctl" in str(caught.value.hint)
    assert (root / "commitlog" / file_name(0)).read_bytes() == before

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with (
        monkeypatch.context() as broken,
        pytest.raises(StoreError, match=r"takes up to \d+ bytes in .*, and \d+ are free") as caught,
    ):
        broken.setattr(os, "posix_fallocate", full)
        cut(root)
    assert ".commitlog." in str(caught.value) and "free disk space" in str(caught.value.hint)
    cut(root)
    assert open_session().store.log_end == positions[20]


def test_a_log_is_not_to_be_cut_where_there_is_no_room_for_its_tail(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    layout_of(root).prepare()
    usage = shutil.disk_usage(root)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=FILE_BYTES + 1000))
    check_room(layout_of(root), 5000, 6000, FILE_BYTES)
    with pytest.raises(StoreError, match=f"takes {FILE_BYTES + 1001} bytes in {root}"):
        check_room(layout_of(root), 5000, 6001, FILE_BYTES)
    with pytest.raises(StoreError, match=f"takes {2 * FILE_BYTES - 5000} bytes in {root}"):
        check_room(layout_of(root), 5000, FILE_BYTES, FILE_BYTES)
    behind = layout_of(root).commitlog / file_name(FILE_BYTES)
    with open(behind, "wb") as file:  # goes before the file of the cut is copied
        os.posix_fallocate(file.fileno(), 0, FILE_BYTES)
    check_room(layout_of(root), 5000, FILE_BYTES + 6000, FILE_BYTES)
    with pytest.raises(StoreError, match=f"takes {FILE_BYTES + 1001} bytes in {root}"):
        check_room(layout_of(root), 5000, FILE_BYTES + 6001, FILE_BYTES)


def changed_behind(
    open_session: OpenSession, root: Path, *, is_made_again: bool, is_at: bool, is_noted: bool
) -> tuple[int, list[bytes]]:
    """A topic whose life ends at or behind a position; that position, and what it holds below it."""
    session = open_session()
    bodies = [b"%d" % number for number in range(50)]
    for body in bodies:
        session.send("orders", body)
    slot = BrokerTables(session.store).offset_put(BrokerTables(session.store).group_put("group"), 0)
    session.store.offset_set(slot, 30)
    session.save()
    position = session.store.log_end
    if not is_at:
        session.send("others", b"what is cut off")
    BrokerTables(session.store).topic_delete("orders")
    if is_noted:
        session.save()
    if is_made_again:
        for number in range(60):
            session.send("orders", b"of the later life %d" % number)
        queue = session.store.queue_index(session.store.topic_find("orders"), 0)
        session.store.offset_set(BrokerTables(session.store).offset_put(session.store.group_find("group"), queue), 45)
    session.send("others", b"what is cut off, too")
    session.save()
    session.end()
    return position, bodies


@pytest.mark.parametrize("is_made_again", [False, True])
@pytest.mark.parametrize("is_at", [False, True])
@pytest.mark.parametrize("is_noted", [False, True])
def test_a_topic_that_ended_in_what_is_cut_off_lives(
    is_made_again: bool, is_at: bool, is_noted: bool, open_session: OpenSession, root: Path
) -> None:
    position, bodies = changed_behind(open_session, root, is_made_again=is_made_again, is_at=is_at, is_noted=is_noted)
    cut_twice(root, position)
    session = open_session()
    assert session.queue("orders", 0) == (0, 50)
    assert session.read("orders") == bodies
    assert session.tables.tables.deleted == {} and session.tables.tables.topics["orders"].born == 0
    read = session.tables.tables.offsets.get(("orders", "group"), {0: 0})
    assert read == {0: 0}, "what was read of the later life is no progress in this one"


def cut_twice(root: Path, position: int) -> None:
    """Cut a log and its tables, and do it again as if the process had been killed before the last step."""
    wish_cut(layout_of(root), position, 3, end=END)
    wish = layout_of(root).cut.read_bytes()
    for _ in range(2):
        layout_of(root).cut.write_bytes(wish)
        files = files_of(root)
        forget = files.config.forget_lives
        assert cut_as_wished(files.layout, files.commitlog, files.mark, forget_lives=forget) is not None
        files.close()


@pytest.mark.parametrize("is_known", [True, False])
def test_a_life_that_ended_below_the_cut_stays_ended_where_the_topic_was_made_again_behind(
    is_known: bool, open_session: OpenSession, root: Path
) -> None:
    session = open_session()
    session.send("orders", b"gone")
    session.save()
    BrokerTables(session.store).topic_delete("orders")
    session.save()
    session.send("others", b"stays")
    at = session.store.log_end
    session.send("others", b"is cut off")
    session.send("orders", b"is cut off")
    session.save()
    session.end()
    if not is_known:  # as a version before wrote it
        path = root / "config" / "shmq.json"
        own = json.loads(path.read_bytes())
        del own["topics"]["orders"]["ended"], own["shmqCrc32"]
        path.write_text(json.dumps(own))
    cut_twice(root, at)
    session = open_session()
    assert session.store.topic_find("orders") == -1 or session.queue("orders", 0) == (0, 0)
    assert (session.store.topic_find("orders") == -1) is is_known
    assert session.queue("others", 0) == (0, 1)
    assert session.send("orders", b"of another life", queue_id=0).log_position == at
    session.save()
    assert session.read("orders", 0) == [b"of another life"]


def test_a_life_that_ended_below_the_cut_stays_ended(open_session: OpenSession, root: Path) -> None:
    session = open_session()
    session.send("orders", b"gone")
    session.save()
    BrokerTables(session.store).topic_delete("orders")
    session.save()
    session.send("others", b"stays")
    at = session.store.log_end
    session.send("others", b"is cut off")
    session.end()
    wish_cut(layout_of(root), at, 3, end=END)
    files = files_of(root)
    cut_as_wished(files.layout, files.commitlog, files.mark, forget_lives=files.config.forget_lives)
    files.close()
    session = open_session()
    assert session.store.topic_find("orders") == -1 and session.queue("others", 0) == (0, 1)
