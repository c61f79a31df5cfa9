"""Which of the log files that lost their name are still the log's."""

from __future__ import annotations

import contextlib
import mmap
import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from shmq.daemon.keeper.live.held_files import find_open
from shmq.shm.access import Access
from shmq.store.commitlog import CommitLogFiles
from shmq.store.layout import StoreLayout

FILE_BYTES = 64 << 10


@pytest.fixture
def layout(tmp_path: Path) -> StoreLayout:
    made = StoreLayout(tmp_path, Access(-1))
    made.prepare()
    return made


@pytest.fixture
def files(layout: StoreLayout) -> CommitLogFiles:
    """A log of two files."""
    made = CommitLogFiles(layout, FILE_BYTES)
    made.create_missing(0, 2 * FILE_BYTES)
    return made


@contextlib.contextmanager
def open_in_a_client(files: CommitLogFiles, position: int) -> Iterator[None]:
    """Have a file open in this process, which has memory of a broker mapped."""
    with tempfile.TemporaryFile(dir="/dev/shm") as memory, files.path(position).open("rb"):
        memory.truncate(mmap.PAGESIZE)
        with contextlib.closing(mmap.mmap(memory.fileno(), 0)):
            yield


def by_another_program(files: CommitLogFiles) -> None:
    files.path(FILE_BYTES).unlink()


def replaced_by_another_program(files: CommitLogFiles) -> None:
    copy = files.path(FILE_BYTES).with_name("copy")
    copy.write_bytes(files.path(FILE_BYTES).read_bytes())
    copy.replace(files.path(FILE_BYTES))


@pytest.mark.parametrize("change", [by_another_program, replaced_by_another_program])
def test_what_another_program_took_the_name_of_is_found(
    layout: StoreLayout, files: CommitLogFiles, change: Callable[[CommitLogFiles], object]
) -> None:
    with open_in_a_client(files, FILE_BYTES):
        assert find_open(layout) == {}
        change(files)
        assert [os.readlink(link) for link in find_open(layout).values()] == [f"{files.path(FILE_BYTES)} (deleted)"]


@pytest.mark.parametrize(
    "change",
    [
        lambda files: files.renew(FILE_BYTES, until=2 * FILE_BYTES),
        lambda files: files.remove_behind(0),
        lambda files: files.remove_last(),
        lambda files: files.remove_all(),
    ],
    ids=["renewed", "cut-off", "unused", "emptied"],
)
def test_what_the_store_itself_took_the_name_of_is_in_no_log(
    layout: StoreLayout, files: CommitLogFiles, change: Callable[[CommitLogFiles], object]
) -> None:
    with open_in_a_client(files, FILE_BYTES):
        change(files)
        assert find_open(layout) == {}
        assert not any(path.stat().st_mode & 0o7000 for path in layout.commitlog.iterdir())


@pytest.mark.parametrize("is_lower", [False, True])
def test_of_what_lost_its_name_twice_the_last_one_counts(
    is_lower: bool, layout: StoreLayout, files: CommitLogFiles
) -> None:
    """Messages of a program hold what was saved before, and the descriptor of either may be the lower one."""
    path = files.path(FILE_BYTES)
    room = os.open("/dev/null", os.O_RDONLY)
    with path.open("rb") as former:
        path.unlink()
        files.create_missing(FILE_BYTES, 2 * FILE_BYTES)
        if is_lower:
            os.close(room)
        with path.open("rb") as last:
            path.unlink()
            while os.fstat(last.fileno()).st_ctime_ns == os.fstat(former.fileno()).st_ctime_ns:
                os.fchmod(last.fileno(), 0o640)  # both in one tick of a coarse clock
            [link] = find_open(layout).values()
            assert os.path.samestat(os.stat(link), os.fstat(last.fileno()))
    if not is_lower:
        os.close(room)
