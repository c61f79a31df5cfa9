"""Log files that another process removes, replaces or changes: sends stop, and what is still open comes back."""

import errno
import fcntl
import os
import shutil
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from shmq.daemon.keeper.live import log as live_log
from shmq.daemon.keeper.live.held_files import FileNews, put_back_directories
from shmq.daemon.keeper.live.log import LiveLog
from shmq.errors import StoreError
from shmq.figures.changed_files import FILES_CHANGED
from shmq.shm.access import Access
from shmq.shm.core import READ_ONLY_FILES_LOST, CoreError, record_encode
from shmq.shm.counters import LooseCounters
from shmq.store.commitlog import FILE_BYTES_MIN, CommitLogFiles
from shmq.store.layout import StoreLayout
from tests.keeper.conftest import Events
from tests.tables.rows import every_row

IN_USE, OLDER, SPARE = 2 * FILE_BYTES_MIN, 0, 3 * FILE_BYTES_MIN
LOG_END = IN_USE + 1000
REMAINS = 100  # bytes of a file that is truncated


class Log:
    """Four files, the last one spare, and what a live log does with them."""

    def __init__(self, root: Path) -> None:
        self.layout = StoreLayout(root, Access(-1))
        self.layout.prepare()
        self.files = CommitLogFiles(self.layout, FILE_BYTES_MIN)
        for number in range(4):
            self.files.create_next()
            if number < 3:
                with self.files.path(number * FILE_BYTES_MIN).open("r+b") as file:
                    file.write(b"%d" % number * (FILE_BYTES_MIN if number < 2 else 1000))
        self.before = self.content()
        self.calls: list[Any] = []
        self.directories: list[tuple[int, int]] = []  # that the segments named
        self.events = Events()
        self.is_busy = False
        self.store = SimpleNamespace(log_begin=0, log_end=LOG_END, durable_end=LOG_END)
        keeper_store = SimpleNamespace(
            set_read_only=self.calls.append,
            set_log_directory=self._name,
            repair=self._repair,
            scan=lambda _, end, __: (end, [], ""),
        )
        self.live, self.keeper_store = self._made(keeper_store), keeper_store
        self.live.round(0.0)
        assert self.calls == [] and self.events.lines == []

    def _made(self, keeper_store: Any, directories: list[int] | None = None) -> LiveLog:
        news = FileNews(LooseCounters(), self.events)  # type: ignore[arg-type]
        return LiveLog(self.store, keeper_store, self.layout, self.files, news, directories or ())  # type: ignore[arg-type]

    def _name(self, descriptor: int) -> None:
        self.directories.append((os.fstat(descriptor).st_dev, os.fstat(descriptor).st_ino))

    def _repair(self, _seconds: float) -> None:
        self.calls.append("repair")
        if self.is_busy:
            raise CoreError(0, "held")

    def path(self, position: int) -> Path:
        return self.files.path(position)

    def content(self) -> dict[int, bytes]:
        return {position: self.path(position).read_bytes() for position in self.files.positions}

    @property
    def told(self) -> list[str]:
        return [name for name, _ in self.events.lines]


@pytest.fixture
def new_log(tmp_path: Path) -> Iterator[Callable[[], Log]]:
    made: list[Log] = []

    def make() -> Log:
        made.append(Log(tmp_path / str(len(made)) / "store"))
        return made[-1]

    yield make
    for log in made:
        log.live.close()


def put_a_copy(path: Path) -> None:
    copy = path.parent.parent / "copy"
    shutil.copy(path, copy)
    os.replace(copy, path)


def put_another(path: Path) -> None:
    path.unlink()
    path.write_bytes(bytes(FILE_BYTES_MIN))


def put_a_link(path: Path) -> None:
    path.symlink_to(shutil.move(path, path.parent.parent / "elsewhere"))


def append(path: Path) -> None:
    with path.open("ab") as file:
        file.write(b"more")


CHANGES: dict[str, Callable[[Path], object]] = {
    "removed": Path.unlink,
    "moved away": lambda path: shutil.move(path, path.parent.parent / "elsewhere"),
    "replaced by a copy": put_a_copy,
    "replaced by another": put_another,
    "replaced by a link": put_a_link,
    "grown": append,
}


@every_row(("change", "position"), [(change, position) for change in CHANGES for position in (IN_USE, OLDER, SPARE)])
def test_a_log_file_that_is_not_at_its_path_is_saved_there_after_sends_have_stopped(
    change: str, position: int, new_log: Callable[[], Log]
) -> None:
    log = new_log()
    CHANGES[change](log.path(position))
    log.live.round(1.0)
    assert log.calls == [READ_ONLY_FILES_LOST, "repair"] and log.told == ["file.saved"]
    assert log.content() == log.before and stat.S_ISREG(os.lstat(log.path(position)).st_mode)
    kept = sorted(log.layout.quarantine.glob("*")) if log.layout.quarantine.exists() else []
    assert len(kept) == (change not in ("removed", "moved away"))  # what was put there is kept
    log.live.round(2.0)
    assert log.told == ["file.saved"]


@every_row("change", ["removed", "moved away", "replaced by another"])
def test_every_file_that_is_lost_at_once_is_saved_one_after_the_other(change: str, new_log: Callable[[], Log]) -> None:
    log = new_log()
    for position in log.files.positions:
        CHANGES[change](log.path(position))
    log.live.round(1.0)
    while log.live.save_next(1.0):
        assert log.path(OLDER).exists()
    assert log.content() == log.before and log.told == ["file.saved"] * 4


def test_what_was_stored_in_a_copy_that_lay_at_the_path_is_saved_with_the_rest(new_log: Callable[[], Log]) -> None:
    log = new_log()
    first = record_encode(body=b"x", topic=b"t", log_position=SPARE, born_ms=1, store_ms=1)
    second = record_encode(body=b"y", topic=b"t", log_position=SPARE + len(first), born_ms=1, store_ms=1)
    for record, at in ((first, 0), (second, len(first))):
        with log.path(SPARE).open("r+b") as file:
            file.seek(at)
            file.write(record)
        if not at:
            put_a_copy(log.path(SPARE))
    log.store.log_end = SPARE + len(first + second)
    log.live.round(1.0)
    assert log.told == ["file.saved"]
    assert log.content()[SPARE] == (first + second).ljust(FILE_BYTES_MIN, b"\0")


def move_away(directory: Path) -> None:
    os.rename(directory, directory.with_name("moved"))


def make_anew(directory: Path) -> None:
    shutil.rmtree(directory)
    directory.mkdir()


def swap(directory: Path) -> None:
    move_away(directory)
    shutil.copytree(directory.with_name("moved"), directory)


@every_row(
    ("of", "change"),
    [(of, change) for of in ("commitlog", "store") for change in (shutil.rmtree, move_away, make_anew, swap)],
)
def test_a_directory_that_is_not_at_its_path_comes_back_with_the_log(
    of: str, change: Callable[[Path], None], new_log: Callable[[], Log]
) -> None:
    log = new_log()
    inodes = [log.path(position).stat().st_ino for position in log.files.positions]
    change(log.layout.commitlog if of == "commitlog" else log.layout.root)
    log.live.round(1.0)
    while log.live.save_next(1.0):
        pass
    assert log.calls[0] == READ_ONLY_FILES_LOST and not log.live.is_astray
    assert log.content() == log.before and "file.lost" not in log.told
    is_the_same = [log.path(position).stat().st_ino for position in log.files.positions] == inodes
    assert is_the_same == (change in (move_away, swap))  # what still has a name is renamed, not copied


@every_row(
    ("of", "change"),
    [(of, change) for of in ("commitlog", "store") for change in (shutil.rmtree, make_anew, move_away)],
)
def test_a_directory_that_was_made_anew_is_named_once_all_files_are_saved_in_it(
    of: str, change: Callable[[Path], None], new_log: Callable[[], Log]
) -> None:
    """Until then a process that opens a file would find none, or one that is not ours."""
    log = new_log()
    log.is_busy = True
    change(log.layout.commitlog if of == "commitlog" else log.layout.root)
    log.live.round(1.0)
    assert log.directories == []
    log.is_busy = False
    log.live.round(3.0)
    while log.live.save_next(3.0):
        assert log.directories == []
    made = os.stat(log.layout.commitlog)
    assert log.directories == ([] if change is move_away else [(made.st_dev, made.st_ino)])
    assert log.content() == log.before


@every_row("is_link", [False, True])
def test_before_a_keeper_starts_locked_directories_are_at_their_paths_again(is_link: bool, tmp_path: Path) -> None:
    place = tmp_path / f"at-{is_link}"
    layout = StoreLayout(place / "store", Access(-1))
    layout.prepare()
    if is_link:
        put_a_link(layout.commitlog)
    descriptors = [os.open(path, os.O_RDONLY) for path in (layout.root, layout.commitlog)]
    before = [os.stat(path) for path in (layout.root, layout.commitlog)]
    if is_link:
        os.rename(place / "elsewhere", place / "further")
    else:
        move_away(layout.commitlog)
    move_away(layout.root)
    layout.prepare()
    events = Events()
    put_back_directories(layout.root, descriptors, events)  # type: ignore[arg-type]
    for path, status, descriptor in zip((layout.root, layout.commitlog), before, descriptors, strict=True):
        assert os.path.samestat(os.stat(path), status)
        os.close(descriptor)
    assert layout.commitlog.is_symlink() == is_link
    assert [name for name, _ in events.lines] == ["file.saved"] * 2


def test_a_copy_that_lies_there_when_a_keeper_begins_is_no_locked_directory(new_log: Callable[[], Log]) -> None:
    for name in ("", "commitlog"):
        log = new_log()
        path = log.layout.root / name
        descriptors = [os.open(each, os.O_RDONLY) for each in (log.layout.root, log.layout.commitlog)]
        shutil.copytree(path, path.with_name("copy"))
        move_away(path)
        path.with_name("copy").rename(path)
        keeper = log._made(log.keeper_store, descriptors)
        for descriptor in descriptors:
            os.close(descriptor)
        keeper.round(1.0)
        assert log.calls == [READ_ONLY_FILES_LOST, "repair"] and log.told == ["file.saved"]
        assert log.content() == log.before and not keeper.is_astray
        keeper.close()


def test_a_directory_in_which_another_broker_works_is_left_alone(new_log: Callable[[], Log]) -> None:
    log = new_log()
    locked = [os.open(each, os.O_RDONLY) for each in (log.layout.root, log.layout.commitlog)]
    move_away(log.layout.root)
    StoreLayout(log.layout.root, Access(-1)).prepare()
    theirs = os.open(log.layout.root, os.O_RDONLY)
    fcntl.flock(theirs, fcntl.LOCK_EX)
    log.live.round(1.0)
    assert log.live.is_astray and log.calls[0] == READ_ONLY_FILES_LOST and log.told == ["file.lost"]
    [(_, values)] = log.events.lines
    events = Events()
    with pytest.raises(StoreError, match=f"{log.layout.root} was replaced: another .* in use") as refused:
        put_back_directories(log.layout.root, locked, events)  # type: ignore[arg-type]
    assert refused.value.hint == values["do"] and [name for name, _ in events.lines] == ["file.lost"]
    for descriptor in (theirs, *locked):
        os.close(descriptor)
    assert os.listdir(log.layout.commitlog) == []


@every_row(
    ("position", "fate", "end"), [(IN_USE, "lost", LOG_END), (OLDER, "lost", FILE_BYTES_MIN), (SPARE, "saved", 0)]
)
def test_a_truncated_file_has_its_size_again_and_what_is_lost_is_said(
    position: int, fate: str, end: int, new_log: Callable[[], Log]
) -> None:
    log = new_log()
    os.truncate(log.path(position), REMAINS)
    log.live.round(1.0)
    assert log.calls == [READ_ONLY_FILES_LOST, "repair"] and log.told == [f"file.{fate}"]
    assert log.content()[position] == log.before[position][:REMAINS].ljust(FILE_BYTES_MIN, b"\0")
    if fate == "lost":
        assert f"log positions {position + REMAINS} to {end} are lost" in log.events.lines[0][1]["what"]


def test_the_records_before_a_cut_are_read_some_in_each_round(new_log: Callable[[], Log]) -> None:
    """A file has millions of them, and what the keeper does in its rounds does not wait for all."""

    @every_row(
        ("record_bytes", "way"), [(size, way) for size in (100, 60_000, 4 << 20) for way in ("rounds", "finish")]
    )
    def each(record_bytes: int, way: str) -> None:
        log = new_log()
        asked: list[int] = []

        def scan(position: int, end: int, count: int) -> tuple[int, list[Any], str]:
            records = min(count, (end - position) // record_bytes)
            asked.append(records)
            assert records * record_bytes <= 16 << 20
            return position + records * record_bytes, [], ""

        log.keeper_store.scan = scan
        log.live._cuts[0], log.store.log_end = (0, (1 << 30) - 1), 1 << 30
        log.live._files.file_bytes = 1 << 30
        if way == "finish":
            log.live.finish()
        now = 1.0
        while log.live._cuts:
            before = len(asked)
            assert log.live.save_next(now := now + 0.02) or not log.live._cuts
            assert len(asked) == before + 1
        assert max(asked) <= 10_000
        lost = ((1 << 30) - 1) // record_bytes * record_bytes
        [values] = log.events.named("file.lost")
        assert f"log positions {lost} to {1 << 30} are lost" in values["what"]

    each()


def test_a_file_that_is_truncated_again_meanwhile_is_read_up_to_the_first_cut(new_log: Callable[[], Log]) -> None:
    log = new_log()
    log.keeper_store.scan = lambda position, end, _: (min(position + 10, end), [], "")
    for size in (REMAINS, REMAINS // 2):
        os.truncate(log.path(OLDER), size)
        log.live.round(1.0)
        assert log.told == [] and log.path(OLDER).stat().st_size == FILE_BYTES_MIN
    while log.live.save_next(1.0):
        pass
    [values] = log.events.named("file.lost")
    assert values["what"].startswith(f"was truncated to {REMAINS // 2} bytes; log positions {REMAINS // 2} to")


def test_a_file_whose_first_record_was_written_over_stops_sends(new_log: Callable[[], Log]) -> None:
    log = new_log()
    with log.path(OLDER).open("r+b") as file:
        file.write(bytes(8))
    log.live.round(1.0)
    assert log.calls == [READ_ONLY_FILES_LOST, "repair"] and log.told == ["file.lost"]


def test_files_that_the_keeper_makes_and_removes_are_no_alarm(new_log: Callable[[], Log]) -> None:
    log = new_log()
    log.files.create_next()
    log.live.follow()
    log.files.remove_first()
    log.files.remove_last()
    log.live.follow()
    log.live.round(1.0)
    log.live.finish()
    assert log.calls == [] and log.events.lines == []


def test_nothing_is_copied_while_an_append_may_be_under_way(new_log: Callable[[], Log]) -> None:
    log = new_log()
    log.is_busy = True
    log.path(IN_USE).unlink()
    log.live.round(1.0)
    assert log.calls[0] == READ_ONLY_FILES_LOST and not log.path(IN_USE).exists()
    log.is_busy = False
    log.live.round(3.0)
    assert log.content() == log.before


def test_a_file_that_cannot_be_saved_is_said_to_be_lost_and_tried_again(
    new_log: Callable[[], Log], monkeypatch: pytest.MonkeyPatch
) -> None:
    log = new_log()

    def refuse(*_: Any, **__: Any) -> None:
        raise OSError(errno.ENOSPC, "full")

    with monkeypatch.context() as patched:
        patched.setattr(CommitLogFiles, "put", refuse)
        log.path(IN_USE).unlink()
        for now in (1.0, 3.0, 5.0):
            log.live.round(now)
    [(event, values)] = log.events.lines
    assert event == "file.lost" and f"log positions {IN_USE} to {LOG_END} are lost" in values["what"]
    log.live.round(7.0)
    assert log.content() == log.before and log.told == ["file.lost", "file.saved"]


@every_row("change", ["grown", "replaced by a copy", "replaced by a link"])
def test_what_lies_at_the_path_stays_there_until_the_copy_takes_its_name(
    change: str, new_log: Callable[[], Log], monkeypatch: pytest.MonkeyPatch
) -> None:
    log = new_log()
    CHANGES[change](log.path(OLDER))
    found = log.path(OLDER).read_bytes()

    def refuse(*_: Any, **__: Any) -> None:
        assert log.path(OLDER).read_bytes() == found  # as a killed keeper would leave it
        raise OSError(errno.ENOSPC, "full")

    with monkeypatch.context() as patched:
        patched.setattr(CommitLogFiles, "put", refuse)
        log.live.round(1.0)
    assert log.path(OLDER).read_bytes() == found and not list(log.layout.quarantine.glob("*"))
    log.live.round(3.0)
    assert log.content() == log.before and len(list(log.layout.quarantine.glob("*"))) == 1


def test_what_another_process_has_open_is_saved_where_the_keeper_holds_too_many_files(
    new_log: Callable[[], Log], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live_log, "_HELD_MAX", 1)
    log = new_log()
    reader = os.open(log.path(OLDER), os.O_RDONLY)
    log.path(OLDER).unlink()
    log.path(FILE_BYTES_MIN).unlink()
    log.live.round(1.0)
    log.live.round(3.0)
    os.close(reader)
    assert log.path(OLDER).read_bytes() == log.before[OLDER]
    assert sorted(log.told) == ["file.lost", "file.saved"]  # no process has the other one


@every_row("of", ["file", "commitlog", "store"])
def test_what_may_not_be_opened_any_more_is_said_with_the_command_until_it_is_mended(
    of: str, new_log: Callable[[], Log]
) -> None:
    log = new_log()
    counters = LooseCounters()
    log.live._news._counters = counters
    path = {"file": log.path(IN_USE), "commitlog": log.layout.commitlog, "store": log.layout.root}[of]
    mode = stat.S_IMODE(path.stat().st_mode)
    path.chmod(mode & 0o500)
    log.live.round(1.0)
    log.live.round(2.0)
    [(event, values)] = log.events.lines
    assert (event, values["do"]) == ("file.access", f"chmod {mode:o} {path}") and log.calls == []
    told = counters.counter(FILES_CHANGED, file=str(path), fate="access", what=values["what"], do=values["do"])
    assert told.value == 1
    path.chmod(mode)
    log.live.round(3.0)
    assert told.value == 0
