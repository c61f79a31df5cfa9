"""The semaphore of a client slot: at zero, ours, with the right mode."""

import os
import secrets
import stat
from collections.abc import Iterator
from pathlib import Path

import posix_ipc  # type: ignore[import-untyped,import-not-found,unused-ignore]
import pytest

from shmq.daemon.bridge.store.semaphore import SEMAPHORE_DIRECTORY, prepare_semaphore
from shmq.errors import SegmentError


@pytest.fixture
def name() -> Iterator[str]:
    chosen = f"/shmq.test.{secrets.token_hex(8)}.w0"
    yield chosen
    path_of(chosen).unlink(missing_ok=True)


def path_of(name: str) -> Path:
    return SEMAPHORE_DIRECTORY / f"sem.{name[1:]}"


def value_of(name: str) -> int:
    semaphore = posix_ipc.Semaphore(name)
    value = semaphore.value
    semaphore.close()
    return int(value)


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o077])
def test_a_new_semaphore_has_its_mode_whatever_the_umask(name: str, umask: int) -> None:
    before = os.umask(umask)
    try:
        prepare_semaphore(name, mode=0o660, gid=os.getegid())
    finally:
        os.umask(before)
    status = path_of(name).stat()
    assert stat.S_IMODE(status.st_mode) == 0o660
    assert (status.st_uid, status.st_gid) == (os.geteuid(), os.getegid())
    assert value_of(name) == 0


def test_posts_for_an_earlier_holder_are_drained_and_the_semaphore_stays_the_same(name: str) -> None:
    prepare_semaphore(name, mode=0o600, gid=-1)
    inode = path_of(name).stat().st_ino
    writer = posix_ipc.Semaphore(name)
    for _ in range(5):
        writer.release()
    prepare_semaphore(name, mode=0o600, gid=-1)
    assert value_of(name) == 0
    assert path_of(name).stat().st_ino == inode, "a writer that has it open must still wake the new holder"
    writer.release()
    assert value_of(name) == 1
    writer.close()


def test_a_semaphore_with_another_mode_is_refused(name: str) -> None:
    prepare_semaphore(name, mode=0o600, gid=-1)
    path_of(name).chmod(0o666)
    with pytest.raises(SegmentError, match="mode 0666"):
        prepare_semaphore(name, mode=0o600, gid=-1)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make another user's file")
def test_a_semaphore_of_another_user_is_refused(name: str) -> None:
    prepare_semaphore(name, mode=0o600, gid=-1)
    os.chown(path_of(name), 65534, -1)
    with pytest.raises(SegmentError, match="uid 65534"):
        prepare_semaphore(name, mode=0o600, gid=-1)


def test_a_link_or_a_foreign_thing_under_the_name_is_refused(name: str, tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_bytes(bytes(32))
    path_of(name).symlink_to(victim)
    with pytest.raises(SegmentError):
        prepare_semaphore(name, mode=0o600, gid=-1)
    assert victim.read_bytes() == bytes(32)
    path_of(name).unlink()
    path_of(name).write_bytes(b"short")
    path_of(name).chmod(0o600)
    with pytest.raises(SegmentError):
        prepare_semaphore(name, mode=0o600, gid=-1)
