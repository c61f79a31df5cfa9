"""A log that lacks something is refused with its numbers, and started with exactly these, once."""

import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import pytest

from shmq.errors import CorruptionError, UsageError
from shmq.shm.access import Access
from shmq.store.checkpoint import CHECKPOINT_BYTES, change_checkpoint
from shmq.store.durable import DurableMark
from shmq.store.layout import StoreLayout, file_name
from shmq.store.lineage.log_range import Range, parse_ranges
from tests.store.conftest import Session
from tests.store.file_changes import NO_FILES, SIZES, emptied, grown, halved, moved, zeroed
from tests.tables.rows import every_row

OpenSession = Callable[..., Any]
FILE = 64 << 10
FILES = 5  # that hold records; behind them there is a blank one
COUNT = 70


def copied(source: Path, target: Path) -> None:
    """Copy a store with its holes."""
    subprocess.run(["cp", "-a", "--sparse=always", source, target], check=True)


@pytest.fixture
def positions(open_session: OpenSession, root: Path, tmp_path: Path) -> list[int]:
    """Where the records of a store lie that was stopped; `again` puts it back as it was."""
    session = open_session()
    sent = [session.send("orders", bytes(4000), queue_id=number % 2).log_position for number in range(COUNT)]
    assert sent[-1] // FILE == FILES - 1
    session.save()
    session.end()
    copied(root, tmp_path / "kept")
    return sent


@pytest.fixture
def again(root: Path, tmp_path: Path) -> Callable[[], None]:
    def put_back() -> None:
        shutil.rmtree(root)
        copied(tmp_path / "kept", root)

    return put_back


def durable_end(root: Path) -> int:
    mark = DurableMark(StoreLayout(root, Access(-1))).load()
    assert mark is not None
    return mark.durable_end


MISSING = [
    ((0,), [(0, 1)]),
    ((0, 1), [(0, 2)]),
    ((0, 1, 2, 3), [(0, 4)]),
    ((2,), [(2, 3)]),
    ((1, 2), [(1, 3)]),
    ((1, 3), [(1, 2), (3, 4)]),
    ((4, 5), [(4, None)]),
    ((3, 4, 5), [(3, None)]),
    ((0, 4, 5), [(0, 1), (4, None)]),
    ((0, 2, 4, 5), [(0, 1), (2, 3), (4, None)]),
    ((0, 1, 2, 3, 4, 5), [(0, None)]),
]


@every_row("files, lost", MISSING)
def test_what_is_missing_is_reported_and_only_that_is_accepted_and_only_once(
    open_session: OpenSession,
    root: Path,
    again: Callable[[], None],
    positions: list[int],
    files: tuple[int, ...],
    lost: list[tuple[int, int | None]],
) -> None:
    again()
    for number in files:
        (root / "commitlog" / file_name(number * FILE)).unlink()
    end, before = durable_end(root), state(root)
    ranges = [Range(first * FILE, end if then is None else then * FILE) for first, then in lost]
    numbers = ",".join(map(str, ranges))
    for wrong in ("", f"{ranges[0].begin}-{ranges[0].end + 1}", f"{numbers},{8 * FILE}-{9 * FILE}"):
        with pytest.raises(CorruptionError, match="were on disk") as caught:
            open_session(accept_loss=wrong)
        assert f"--accept-loss {numbers};" in caught.value.hint
        assert all(file_name(number * FILE) in caught.value.reason for number in files[:4] if number < FILES)
        assert state(root) == before
    session = open_session(accept_loss=numbers)
    assert session.report.lost == ranges
    left = [at for at in positions if not any(each.begin <= at < each.end for each in ranges)]
    assert session.report.log_end == end
    # Offsets of what is lost are not given out again, and what is left keeps its own.
    assert session.send("orders", b"next", queue_id=0).offset == COUNT // 2
    session.save()
    for accept in ("", numbers):
        session = open_session(accept_loss=accept)
        assert session.report.lost == []
        first, behind = session.queue("orders", 0)
        assert behind == COUNT // 2 + 1
        assert first == next(n for n, at in enumerate(positions[::2]) if at >= session.store.log_begin)
        for at in left:
            assert session.store.message_at(at, positions[1] - positions[0]).body == bytes(4000)


def test_offsets_of_a_log_that_is_lost_before_its_units_were_marked_are_not_given_again(
    open_session: OpenSession, root: Path
) -> None:
    layout, session = StoreLayout(root, Access(-1)), open_session()
    first = {path: path.read_bytes() for path in (layout.durable_mark, layout.unit_sums)}
    for _ in range(COUNT):
        session.send("orders", bytes(4000), queue_id=0)
    session.save()
    end = durable_end(root)
    for path, content in first.items():
        path.write_bytes(content)
    mark = DurableMark(layout)
    mark.load()
    mark.advance(durable_end=end)  # and no more: the next mark, with the units, is written a second later
    mark.close()
    shutil.rmtree(layout.commitlog)
    session = open_session(accept_loss=f"0-{end}")
    assert session.send("orders", b"next", queue_id=0).offset == COUNT


def test_a_store_whose_mark_does_not_say_where_it_begins_begins_with_its_first_file_from_then_on(
    open_session: OpenSession, root: Path, positions: list[int]
) -> None:
    path = root / "shmq.durable"
    content = bytearray(path.read_bytes())
    for slot in (0, 4096):
        content[slot + 52 : slot + 72] = bytes(20)  # as a broker leaves it that knows no beginning
    path.write_bytes(content)
    (root / "commitlog" / file_name(0)).unlink()
    assert open_session().store.log_begin == FILE
    open_session().end()
    (root / "commitlog" / file_name(FILE)).unlink()
    with pytest.raises(CorruptionError, match="1 log file is missing") as caught:
        open_session()
    assert f"--accept-loss {FILE}-{2 * FILE};" in caught.value.hint


def test_a_file_that_was_given_up_and_is_still_there_is_read_as_before(
    open_session: OpenSession, root: Path, positions: list[int]
) -> None:
    # The keeper was killed between the mark and the name: retention takes the file in its next round.
    mark = DurableMark(StoreLayout(root, Access(-1)))
    mark.load()
    mark.advance(log_begin=2 * FILE)
    mark.close()
    assert open_session().store.log_begin == 0
    for number in (0, 1):
        (root / "commitlog" / file_name(number * FILE)).unlink()
        assert open_session().store.log_begin == (number + 1) * FILE
    (root / "commitlog" / file_name(2 * FILE)).unlink()
    with pytest.raises(CorruptionError):
        open_session()


def test_what_the_retention_of_a_stock_broker_removed_is_not_missing(
    open_session: OpenSession, root: Path, positions: list[int]
) -> None:
    layout = StoreLayout(root, Access(-1))
    change_checkpoint(layout, lambda known: known)
    content = layout.checkpoint.read_bytes()
    later = (int.from_bytes(content[:8], "big") + 60_000).to_bytes(8, "big")
    (root / "commitlog" / file_name(0)).unlink()
    for changed in (b"\0" * CHECKPOINT_BYTES, content, bytes(8) + content[8:], content[:300]):
        layout.checkpoint.write_bytes(changed)
        with pytest.raises(CorruptionError):
            open_session()
    layout.checkpoint.write_bytes(later + content[8:])
    session = open_session()
    assert session.store.log_begin == FILE
    assert [values["was"] for values in session.events.named("recovery.begins_later")] == [0]
    session.end()
    # It removes no other file.
    layout.checkpoint.write_bytes((int.from_bytes(later, "big") + 60_000).to_bytes(8, "big") + content[8:])
    (root / "commitlog" / file_name(2 * FILE)).unlink()
    with pytest.raises(CorruptionError):
        open_session()


@every_row("text", ["1", "-", "1-", "-2", "2-1", "3-3", "a-b", "1-2;3-4", "1-2-3", "１-２"])
def test_what_is_no_range_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="accept_loss"):
        parse_ranges(text)


def test_ranges_are_read_as_they_are_reported() -> None:
    assert parse_ranges("") == []
    assert parse_ranges("0-65536, 131072-131073") == [(0, 65536), (131072, 131073)]


def state(root: Path) -> dict[Path, tuple[int, ...]]:
    """Each name's mode, inode, size and time: equal unless it was changed."""
    found = ((path, path.lstat()) for path in root.rglob("*"))
    return {path: (at.st_mode, at.st_ino, at.st_size, at.st_mtime_ns) for path, at in found}


@pytest.fixture
def changed(root: Path) -> Callable[[Path, Callable[[Path], None]], AbstractContextManager[None]]:
    """Changes a file for the length of a with block."""

    @contextmanager
    def change_for(path: Path, change: Callable[[Path], None]) -> Iterator[None]:
        kept = root.with_name("aside")
        copied(path, kept)
        change(path)
        yield
        path.rmdir() if path.is_dir() and not path.is_symlink() else path.unlink(missing_ok=True)
        moved(path).unlink(missing_ok=True)
        kept.rename(path)

    return change_for


@every_row("change", NO_FILES)
def test_each_name_of_a_store_that_is_no_plain_file_is_refused_and_nothing_is_changed(
    open_session: OpenSession, root: Path, positions: list[int], changed: Any, change: Callable[[Path], None]
) -> None:
    paths = [path for path in sorted(root.rglob("*")) if path.is_file()]
    names = {path.relative_to(root).parts[0] for path in paths}
    assert names == {"abort", "checkpoint", "commitlog", "config", "consumequeue", "shmq.durable", "shmq.units"}
    for path in paths:
        with changed(path, change):
            layout = StoreLayout(root, Access(-1))
            assert [fault.path for fault in layout.faults()] == [path]
            before = state(root)
            with pytest.raises(CorruptionError) as caught:
                open_session()
            assert (caught.value.path, bool(caught.value.hint)) == (path, True)
            assert state(root) == before


@every_row("change", SIZES)
def test_a_log_file_of_a_wrong_size_is_refused_by_name_and_any_other_file_costs_no_message(
    open_session: OpenSession,
    again: Callable[[], None],
    root: Path,
    positions: list[int],
    change: Callable[[Path], None],
) -> None:
    names = [f"commitlog/{file_name(number * FILE)}" for number in (0, 2, FILES - 1, FILES)]
    names += [f"consumequeue/orders/1/{file_name(0)}", "config/topics.json", "shmq.durable", "shmq.units", "checkpoint"]
    for path in map(root.joinpath, names):
        again()
        change(path)
        number = int(path.name) // FILE if path.parent.name == "commitlog" else FILES
        if number < FILES and change is not zeroed:
            before = state(root)
            with pytest.raises(CorruptionError, match=path.name) as caught:
                open_session()
            assert caught.value.hint and (change is emptied or state(root) == before)
        elif number == FILES and path.parent.name == "commitlog" and change in (halved, grown):
            with pytest.raises(CorruptionError, match=path.name):
                open_session()
        else:
            session = open_session()
            assert [session.queue("orders", queue_id) for queue_id in (0, 1)] == [(0, COUNT // 2)] * 2
            left = [at for at in positions if number == FILES or at // FILE != number]
            assert {session.store.message_at(at, positions[1] - positions[0]).body for at in left} == {bytes(4000)}


def test_a_file_that_is_blank_or_of_another_store_is_reported_at_the_start_with_the_messages_that_lay_there(
    open_session: OpenSession, again: Callable[[], None], root: Path, tmp_path: Path, positions: list[int]
) -> None:
    other = Session(tmp_path / "other")
    for _ in range(COUNT):
        other.send("others", bytes(4000))
    other.end()
    layout = StoreLayout(root, Access(-1))
    for number in range(FILES - 1):
        path = layout.commitlog / file_name(number * FILE)
        lay_there = sum(at // FILE == number for at in positions)
        foreign = (tmp_path / "other/commitlog" / path.name).read_bytes()
        for content, said in ((bytes(FILE), (1, lay_there, 0)), (foreign, (0, 0, 1))):
            again()
            path.write_bytes(content)
            report = open_session().report
            assert (len(report.damages), report.damaged_messages, report.foreign_files) == said, number
    again()
    report = open_session().report
    assert (report.damages, report.foreign_files) == ([], 0)
