"""Names inside the store directory."""

import os
import stat
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from shmq.errors import StoreError
from shmq.shm.access import Access
from shmq.store.commitlog import FILE_BYTES_MIN, CommitLogFiles
from shmq.store.index.files import IndexFiles, IndexShape
from shmq.store.layout import StoreLayout, file_name, is_safe_name, position_of
from tests.tables.rows import every_row


def test_a_file_is_named_by_its_first_byte_in_twenty_digits() -> None:
    assert file_name(1 << 30) == "00000000001073741824"
    assert position_of("00000000001073741824") == 1 << 30


@pytest.mark.parametrize(
    "name", ["0", "0000000000107374182x", "000000000010737418240", "-0000000001073741824", "٠" * 20]
)
def test_other_files_are_not_taken_for_log_files(name: str) -> None:
    assert position_of(name) is None


@every_row("name", ["", ".", "..", "a/b", "a\0b", "x" * 256, "ä" * 128])
def test_a_name_that_is_no_single_path_component_is_unsafe(name: str) -> None:
    assert not is_safe_name(name)


@pytest.mark.parametrize("name", ["T", "%RETRY%g", "...", "x" * 255])
def test_topic_names_are_safe(name: str) -> None:
    assert is_safe_name(name)


def test_directories_get_their_mode_whatever_the_umask(tmp_path: Path) -> None:
    before = os.umask(0o077)
    try:
        StoreLayout(tmp_path / "store", Access(os.getegid())).prepare()
    finally:
        os.umask(before)
    for name in ("", "commitlog", "consumequeue", "config"):
        assert stat.S_IMODE((tmp_path / "store" / name).stat().st_mode) == 0o750


def test_a_store_that_cannot_be_made_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StoreError, match="file/store"):
        StoreLayout(tmp_path / "file" / "store", Access(-1)).prepare()


@pytest.mark.skipif(
    os.stat("/dev/shm").st_dev == os.stat("/tmp").st_dev, reason="both directories lie on one file system"
)
def test_directories_on_a_disk_of_their_own_get_their_files_there_and_leave_nothing_behind(tmp_path: Path) -> None:
    layout = StoreLayout(tmp_path / "store", Access(-1))
    layout.root.mkdir()
    with TemporaryDirectory(dir="/dev/shm") as disk:
        for directory in (layout.commitlog, layout.index):
            target = Path(disk, directory.name)
            target.mkdir()
            directory.symlink_to(target)
        layout.prepare()
        files = CommitLogFiles(layout, FILE_BYTES_MIN)
        files.create_next()
        files.renew(0, until=FILE_BYTES_MIN)
        index = IndexFiles(layout, IndexShape(slots=4, entries=4)).create()
        index.close()
        assert {path.name for path in Path(disk).rglob("*") if path.is_file()} == {file_name(0), index.name}
        assert not list(layout.faults())
        for directory in (layout.commitlog, layout.index):
            (directory / f".{directory.name}.1.tmp").touch()
        files.remove_temporaries()
        IndexFiles(layout).remove_temporaries()
        assert not [path for path in Path(disk).rglob(".*")]


def test_what_may_not_be_opened_is_a_fault_by_name_and_nothing_below_it_is_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    layout = StoreLayout(tmp_path / "store", Access(-1))
    layout.prepare()
    (layout.consumequeue / "orders/0").mkdir(parents=True)
    CommitLogFiles(layout, FILE_BYTES_MIN).create_next()
    paths = [layout.commitlog, layout.config, layout.consumequeue / "orders", layout.consumequeue / "orders/0"]
    paths += [layout.commitlog / file_name(0), layout.durable_mark, layout.consumequeue / "orders/0" / file_name(0)]
    layout.durable_mark.touch()
    paths[-1].touch()
    access, scandir = os.access, os.scandir
    for refused in paths:

        def listed(path: str, refused: Path = refused) -> Any:
            if Path(path) == refused:
                raise PermissionError(path)
            return scandir(path)

        monkeypatch.setattr(os, "access", lambda path, mode, no=refused, **_: Path(path) != no and access(path, mode))
        monkeypatch.setattr(os, "scandir", listed)
        [fault] = layout.faults()
        assert fault.path == refused and f"uid {os.geteuid()}" in fault.reason and "chmod u+rw" in fault.cure
    monkeypatch.undo()
    paths[-1].unlink()
    (layout.consumequeue / "orders/0").rmdir()
    (layout.consumequeue / "orders").rmdir()
    layout.consumequeue.rmdir()
    layout.consumequeue.touch()
    assert [fault.reason for fault in layout.faults()] == ["it is no directory"]
    layout.consumequeue.unlink()
    layout.consumequeue.symlink_to("/nowhere")
    assert [fault.reason for fault in layout.faults()] == ["it is a symbolic link to /nowhere, which is not there"]
