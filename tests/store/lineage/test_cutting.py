"""Cutting a log: what is below stays, what is above is kept, and a process that mapped the old file changes nothing."""

from __future__ import annotations

import mmap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from shmq.shm.access import Access
from shmq.store.durable import DurableMark
from shmq.store.layout import StoreLayout, file_name
from shmq.store.lineage.beginning import begin_as_wished, wish_beginning
from shmq.store.lineage.cutting import cut_as_wished, renew_end, tails, wish_cut
from shmq.store.lineage.epochs import Epoch, load_epochs, store_epochs
from shmq.store.recovery import OpenFiles

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
