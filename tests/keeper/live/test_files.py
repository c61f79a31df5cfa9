"""Files beside the log that another process removes, replaces or changes are written again, and reported once."""

import errno
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from shmq.errors import CorruptionError
from shmq.shm.core import READ_ONLY_FILES_LOST, BrokerTables, CoreError
from shmq.shm.instance import read_instance
from shmq.shm.segment import open_store
from shmq.store.commitlog import CommitLogFiles
from shmq.store.index.files import IndexFiles, IndexReader
from shmq.store.lineage.epochs import load_epochs, store_epochs
from tests.keeper.conftest import SMALL
from tests.keeper.live.test_log import put_a_link
from tests.store.file_changes import NO_FILES, directory, pipe
from tests.tables.rows import every_row

StartKeeper = Callable[..., Any]
Eventually = Callable[..., Any]

COUNT = 300
FILE_BYTES = SMALL["file_bytes"]
UNITS = "consumequeue/orders/0/00000000000000000000"
INDEX = "index/*"
LOG = "commitlog/00000000000000000000"
TABLES = ("topics.json", "topics.json.bak", "shmq.json", "subscriptionGroup.json")
FILES = ("shmq.durable", "checkpoint", "shmq.units", "shmq.index", UNITS, *(f"config/{name}" for name in TABLES))


class Scene:
    """A keeper whose rounds the test does itself, with a store in which every kind of file is there."""

    def __init__(self, running: Any, eventually: Eventually) -> None:
        self.running = running
        BrokerTables(running.store).group_put("billing")
        for number in range(COUNT):
            running.send("orders", b"x", key=f"key-{number}")
        mark = running.attached.files.mark
        eventually(lambda: mark.current.dispatched == running.store.log_end and self._are_all_there())
        running.halt()
        self.now = 1e9

    def _are_all_there(self) -> bool:
        return all(list(self.running.root.glob(name)) for name in (*FILES, INDEX))

    def path(self, name: str) -> Path:
        [path] = self.running.root.glob(name)
        return path

    def rounds(self, count: int = 6) -> None:
        """What the keeper does within some seconds; its threads have ended after each."""
        for _ in range(count):
            self.now += 0.7
            self.running.keeper.round(self.now)
            self.running.keeper._marks.step(wait=True)

    def told(self) -> list[tuple[str, str]]:
        """Events about files since it was asked last: the event and what file."""
        lines, self.running.events.lines = self.running.events.lines, []
        return [(event, values["file"]) for event, values in lines if event.startswith("file.")]


@pytest.fixture
def scene(start_keeper: StartKeeper, eventually: Eventually) -> Scene:
    return Scene(start_keeper(flush_interval_ms=20), eventually)


def put_a_copy(path: Path) -> None:
    copy = path.parent.parent / "copy"
    shutil.copy2(path, copy)
    os.replace(copy, path)


def put_nothing(path: Path) -> None:
    path.unlink()
    path.touch()


def grow(path: Path) -> None:
    with path.open("ab") as file:
        file.write(b"more")


CHANGES: dict[str, Callable[[Path], object]] = {
    "removed": Path.unlink,
    "replaced by a copy": put_a_copy,
    "replaced by an empty file": put_nothing,
    "replaced by a link": lambda path: put_a_link(path),
    "replaced by a directory": directory,
    "replaced by a FIFO": pipe,
    "truncated": lambda path: os.truncate(path, 10),
    "grown": grow,
}


def test_what_another_process_does_to_a_file_is_undone_and_reported_once(scene: Scene) -> None:
    @every_row(("name", "change"), [(name, change) for name in FILES for change in CHANGES])
    def each(name: str, change: str) -> None:
        path = scene.path(name)
        before = path.read_bytes()
        scene.told()
        CHANGES[change](path)
        scene.rounds()
        assert scene.told() == [("file.restored", str(path))]
        assert not path.is_symlink() and path.stat().st_size > 10
        assert name.startswith(("shmq.", "checkpoint")) or name.endswith(".bak") or path.read_bytes() == before
        path.with_name("elsewhere").unlink(missing_ok=True)

    each()
    _assert_whole(scene)


def test_sums_that_are_cut_where_they_were_extended_are_written_again(scene: Scene) -> None:
    path = scene.path("shmq.units")
    written = path.stat().st_size
    while path.stat().st_size <= written:
        scene.running.send("orders", b"more")
        scene.rounds()
    scene.told()
    os.truncate(path, path.stat().st_size - 1)
    scene.rounds()
    assert scene.told() == [("file.restored", str(path))]
    files = scene.running.attached.files
    assert path.stat().st_size == files.consumequeue.sums.file_bytes


def test_an_index_file_is_built_again_whatever_lies_in_its_place(scene: Scene) -> None:
    @every_row("change", list(CHANGES))
    def each(change: str) -> None:
        path = scene.path(INDEX)
        scene.told()
        CHANGES[change](path)
        scene.rounds()
        assert scene.told() == [("file.restored", str(path))]
        assert scene.path(INDEX).is_file() and not scene.path(INDEX).is_symlink()

    each()
    _assert_whole(scene)


def test_directories_beside_the_log_are_filled_again(scene: Scene) -> None:
    @every_row("name", ["config", "consumequeue", "index"])
    def each(name: str) -> None:
        names = {path.relative_to(scene.running.root) for path in scene.path(name).rglob("*")}
        shutil.rmtree(scene.path(name))
        scene.rounds()
        found = {path.relative_to(scene.running.root) for path in scene.path(name).rglob("*")}
        assert name == "index" or names <= found  # offsets may be saved for the first time meanwhile

    each()
    _assert_whole(scene)


def test_the_sign_that_a_broker_runs_and_the_lineage_come_back(scene: Scene) -> None:
    layout = scene.running.attached.files.layout
    store_epochs(layout, load_epochs(layout))
    layout.identity.write_bytes(b"of this copy")
    files = (layout.abort, layout.epochs, layout.identity)
    content = [path.read_bytes() for path in files]
    scene.rounds()
    for change in (Path.unlink, *NO_FILES):
        for path in files:
            change(path)
        scene.rounds()
        assert [path.read_bytes() for path in files] == content and not any(path.is_symlink() for path in files)
        assert scene.told() == [("file.restored", str(path)) for path in files]


def test_what_the_keeper_writes_and_removes_itself_is_no_alarm(scene: Scene) -> None:
    for number in range(5):
        BrokerTables(scene.running.store).topic_put(f"t{number}", read_queues=1, write_queues=1)
        scene.running.send(f"t{number}", b"x", key="k")
        scene.rounds(2)
    BrokerTables(scene.running.store).topic_delete("t0")
    scene.running.attached.files.config.discard("topics.json")
    scene.running.keeper._catalog.save_again()
    scene.rounds()
    assert scene.told() == []


@every_row("name", [*FILES, INDEX, "config", "consumequeue", "index"])
def test_what_may_not_be_read_any_more_is_said_with_the_command(name: str, scene: Scene) -> None:
    scene.rounds(1)
    path = scene.path(name)
    mode = path.stat().st_mode & 0o777
    path.chmod(mode & 0o400 | (mode & 0o100) * path.is_dir())
    scene.running.events.lines.clear()
    scene.rounds(2)
    [values] = scene.running.events.named("file.access")
    assert values["do"] == f"chmod {mode:o} {path}"
    path.chmod(mode)


@every_row("name", ["index", INDEX, UNITS])
def test_what_may_not_be_read_when_the_keeper_looks_at_it_first_is_said(
    name: str, start_keeper: StartKeeper, eventually: Eventually
) -> None:
    running = start_keeper(flush_interval_ms=20)
    running.halt()
    running.keeper._live_files.round()
    running.send("orders", b"x", key="key")
    keeper = running.keeper
    eventually(lambda: keeper._units.round() or keeper._index.round(0.0) or list(running.root.glob(name)))
    [path] = running.root.glob(name)
    mode = path.stat().st_mode & 0o777
    path.chmod(0)
    keeper._live_files.round()
    [values] = running.events.named("file.access")
    assert values["do"] == f"chmod {mode:o} {path}"
    path.chmod(mode)
    running.stop()
    shutil.rmtree(running.root)


def test_a_file_whose_rights_go_right_after_the_keeper_has_written_it_is_said_too(scene: Scene) -> None:
    scene.rounds(1)
    path = scene.path("config/topics.json")
    mode = path.stat().st_mode & 0o777
    BrokerTables(scene.running.store).topic_put("late", read_queues=1, write_queues=1)
    assert scene.running.keeper._catalog.save_tables()
    path.chmod(0)
    scene.running.events.lines.clear()
    scene.rounds(2)
    [values] = scene.running.events.named("file.access")
    assert values["do"] == f"chmod {mode:o} {path}"


def test_what_is_lost_of_a_truncated_log_file_begins_with_the_record_that_was_cut(scene: Scene) -> None:
    positions = [scene.running.send("orders", bytes(100)).log_position for _ in range(10)]
    end = scene.running.store.log_end
    os.truncate(scene.path(LOG), positions[5] + 90)
    scene.rounds()
    [values] = scene.running.events.named("file.lost")
    assert f"log positions {positions[5]} to {end} are lost" in values["what"]


def test_what_could_not_be_saved_by_the_orderly_stop_is_refused_at_the_next_start(
    start_keeper: StartKeeper, eventually: Eventually, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The mark says up to where messages were given out; what was never flushed is no exception."""
    first = start_keeper(flush_interval_ms=60_000)
    first.send("orders", b"of a file that stays")
    while first.store.log_end < FILE_BYTES + 1000:
        lost = first.send("orders", bytes(900))
    end = first.store.log_end
    eventually(lambda: first.attached.files.commitlog.path(FILE_BYTES).exists())
    first.halt()

    def refuse(*_: Any, **__: Any) -> None:
        raise OSError(errno.ENOSPC, "full")

    with monkeypatch.context() as patched:
        patched.setattr(CommitLogFiles, "put", refuse)
        first.attached.files.commitlog.path(FILE_BYTES).unlink()
        assert not first.stop()
    [values] = first.events.named("file.lost")
    assert f"log positions {FILE_BYTES} to {end} are lost" in values["what"]
    with pytest.raises(CorruptionError) as refused:
        start_keeper()
    [numbers] = re.findall(r"--accept-loss ([0-9,-]+)", refused.value.hint)
    assert numbers.startswith(f"{FILE_BYTES}-")
    again = start_keeper(accept_loss=numbers)
    assert again.send("orders", b"x").offset > lost.offset


def test_a_program_that_reads_does_not_wait_for_a_fifo_in_place_of_a_log_file(scene: Scene) -> None:
    instance = read_instance(scene.running.options.place.instance_path)
    assert instance is not None
    reader = open_store(instance, writable=False)
    pipe(scene.path(LOG))
    try:
        with pytest.raises(CoreError):
            reader.message_at(0)
    finally:
        reader.close()


def _assert_whole(scene: Scene) -> None:
    """The keeper goes on, stops clean, and the next one finds nothing to repair."""
    running = scene.running
    assert running.store.read_only != READ_ONLY_FILES_LOST
    running.send("orders", b"x", key="last")
    scene.rounds()
    assert running.stop()
    again = type(running)(running.options)
    try:
        report = again.attached.report
        assert report is not None and report.clean and not report.damages
        assert (report.units_repaired, report.tables_restored, report.marks_restored) == (0, 0, 0)
        assert again.store.queue(again.queue_index("orders"))[1] == COUNT + 1
        again.halt()
        while again.keeper.round(1e9):
            pass
        reader = IndexReader(IndexFiles(again.attached.files.layout))
        for key in ("key-0", f"key-{COUNT - 1}", "last"):
            assert len(reader.find("orders", key, begin_ms=0, end_ms=1 << 60, count=10).positions) == 1
        reader.close()
    finally:
        again.end()
