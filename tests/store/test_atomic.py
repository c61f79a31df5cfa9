"""Replacing a file: the old content or the new one, and the old one beside it."""

import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from shmq.store.atomic import adopt, fault_of, forget, write_atomically
from tests.tables.rows import every_row


def test_the_previous_content_is_kept_as_backup(tmp_path: Path) -> None:
    path = tmp_path / "topics.json"
    for content in (b"1", b"2", b"3"):
        write_atomically(path, content, mode=0o640, backup=True)
    assert path.read_bytes() == b"3"
    assert (tmp_path / "topics.json.bak").read_bytes() == b"2"
    assert sorted(os.listdir(tmp_path)) == ["topics.json", "topics.json.bak"]


def test_the_mode_does_not_depend_on_the_umask(tmp_path: Path) -> None:
    before = os.umask(0o777)
    try:
        write_atomically(tmp_path / "file", b"", mode=0o640)
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "file").stat().st_mode) == 0o640


def test_a_write_that_fails_leaves_the_old_content(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "topics.json"
    write_atomically(path, b"old", mode=0o600, backup=True)

    def refused(_descriptor: int) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "fsync", refused)
    with pytest.raises(OSError, match="Input/output"):
        write_atomically(path, b"new", mode=0o600, backup=True)
    assert path.read_bytes() == b"old"
    assert sorted(os.listdir(tmp_path)) == ["topics.json", "topics.json.bak"]
    assert (tmp_path / "topics.json.bak").read_bytes() == b"old"


def test_the_content_is_synced_before_it_gets_the_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    real_fsync, real_replace = os.fsync, os.replace
    monkeypatch.setattr(os, "fsync", lambda descriptor: (calls.append("sync"), real_fsync(descriptor))[1])
    monkeypatch.setattr(os, "replace", lambda *names: (calls.append("rename"), real_replace(*names))[1])
    write_atomically(tmp_path / "file", b"x", mode=0o600)
    assert calls == ["sync", "rename", "sync"]


@every_row(
    ("change", "fault"),
    [
        (lambda path: None, ""),
        (lambda path: path.chmod(0o640), ""),
        (lambda path: write_atomically(path, b"newer", mode=0o600, backup=True), ""),
        (Path.unlink, "was removed"),
        (lambda path: os.replace(path.with_name("file.bak"), path), "was replaced"),
        (lambda path: path.symlink_to(path.rename(path.with_name("x"))), "was replaced"),
        (lambda path: os.truncate(path, 0), "was changed"),
        (lambda path: path.write_bytes(b"NEW"), "was changed"),
    ],
)
def test_what_others_do_to_a_file_differs_from_what_this_process_does(
    change: Callable[[Path], object], fault: str, tmp_path: Path
) -> None:
    path = tmp_path / "file"
    for content in (b"old", b"new"):
        write_atomically(path, content, mode=0o600, backup=True)
    os.utime(path, (0, 0))
    adopt(path)
    change(path)
    assert fault_of(path) == fault
    forget(path)
    assert fault_of(path) == "" == fault_of(path, written_bytes=3)
    for name in os.listdir(tmp_path):
        (tmp_path / name).unlink()


@every_row(("size", "fault"), [(10, ""), *((size, "was truncated") for size in (9, 4, 2)), (11, "has grown")])
def test_a_file_that_this_process_extends_has_all_that_it_wrote(size: int, fault: str, tmp_path: Path) -> None:
    path = tmp_path / "file"
    write_atomically(path, b"new", mode=0o600)
    with path.open("ab") as file:
        file.write(b" batch.")
    os.truncate(path, size)
    assert fault_of(path, written_bytes=10) == fault
    forget(path)
