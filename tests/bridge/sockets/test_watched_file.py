"""A file with secrets is read only when no other user can reach it, and again when it changed."""

import os
from pathlib import Path

import pytest

from shmq.daemon.bridge.sockets.watched_file import FILE_BYTES_MAX, WatchedFile
from shmq.errors import UsageError


def secret(path: Path, content: bytes = b"x", mode: int = 0o600) -> Path:
    path.write_bytes(content)
    path.chmod(mode)
    return path


def test_a_private_file_is_read(tmp_path: Path) -> None:
    assert WatchedFile(secret(tmp_path / "f", b"content")).read() == b"content"
    os.symlink(tmp_path / "f", tmp_path / "link")
    assert WatchedFile(tmp_path / "link").read() == b"content"


@pytest.mark.parametrize("mode", [0o640, 0o620, 0o610, 0o604, 0o602, 0o601])
def test_a_file_that_others_reach_is_refused_and_the_hint_mends_it(tmp_path: Path, mode: int) -> None:
    path = secret(tmp_path / "f", mode=mode)
    with pytest.raises(UsageError, match=f"mode {mode:04o}") as caught:
        WatchedFile(path).read()
    assert caught.value.hint == f"chmod 600 {path}"
    assert WatchedFile(path, is_secret=False).read() == b"x"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_a_file_of_another_user_is_refused(tmp_path: Path) -> None:
    path = secret(tmp_path / "f")
    os.chown(path, 65534, -1)
    with pytest.raises(UsageError, match="belongs to uid 65534"):
        WatchedFile(path).read()


def test_what_is_no_file_or_too_long_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo", 0o600)
    with pytest.raises(UsageError, match="it is a FIFO and no plain file"):
        WatchedFile(tmp_path / "fifo").read()
    with pytest.raises(UsageError, match="it is a directory and no plain file"):
        WatchedFile(tmp_path).read()
    with pytest.raises(UsageError, match="No such file"):
        WatchedFile(tmp_path / "absent").read()
    path = secret(tmp_path / "long")
    os.truncate(path, FILE_BYTES_MAX + 1)
    with pytest.raises(UsageError, match="bytes"):
        WatchedFile(path).read()


def test_a_change_is_seen_once_and_a_file_that_vanished_is_reported(tmp_path: Path) -> None:
    path = secret(tmp_path / "f")
    watched = WatchedFile(path)
    assert watched.has_changed()
    watched.read()
    assert not watched.has_changed()
    secret(tmp_path / "new", b"y")
    os.replace(tmp_path / "new", path)
    assert watched.has_changed()
    assert watched.read() == b"y" and not watched.has_changed()
    path.chmod(0o644)
    assert watched.has_changed()
    with pytest.raises(UsageError):
        watched.read()
    assert not watched.has_changed()  # one report for each wrong state, not one a second
    path.unlink()
    with pytest.raises(UsageError, match="cannot be looked at: No such file"):
        watched.has_changed()
