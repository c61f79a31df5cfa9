"""A small file is replaced as a whole; what a killed writer left of one goes, what a living one writes stays."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from shmq.errors import StoreError
from shmq.shm.replacing import remove_unfinished, replace_text, writing_path


def test_a_file_is_replaced_with_its_mode_and_nothing_stays_beside_it(tmp_path: Path) -> None:
    path = tmp_path / "instance.json"
    for text in ("one", "two"):
        replace_text(path, text, mode=0o640, gid=os.getgid())
    assert (path.read_text(), path.stat().st_mode & 0o777) == ("two", 0o640)
    assert list(tmp_path.iterdir()) == [path]


def test_a_file_that_cannot_be_replaced_leaves_nothing(tmp_path: Path) -> None:
    path = tmp_path / "tcp.json"
    path.mkdir()
    with pytest.raises(StoreError, match=f"{path} cannot be written: Is a directory"):
        replace_text(path, "text", mode=0o640, gid=os.getgid())
    assert list(tmp_path.iterdir()) == [path]


def test_only_what_dead_writers_left_is_removed(tmp_path: Path) -> None:
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    kept = [writing_path(tmp_path / "instance.json"), tmp_path / "control.sock", tmp_path / f".lock{dead.pid}"]
    for path in (*kept, tmp_path / f".instance.json.{dead.pid}", tmp_path / f".s.{dead.pid}"):
        path.touch()
    remove_unfinished(tmp_path)
    assert sorted(tmp_path.iterdir()) == sorted(kept)
