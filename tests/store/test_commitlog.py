"""The log files: whole or not there, contiguous, zero behind the end."""

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from shmq.errors import CorruptionError, StoreError, UsageError
from shmq.shm.access import Access
from shmq.store.commitlog import CommitLogFiles
from shmq.store.layout import StoreLayout, file_name

FILE_BYTES = 64 << 10


@pytest.fixture
def layout(tmp_path: Path) -> StoreLayout:
    layout = StoreLayout(tmp_path / "store", Access(-1))
    layout.prepare()
    return layout


@pytest.fixture
def files(layout: StoreLayout) -> CommitLogFiles:
    return CommitLogFiles(layout, FILE_BYTES)


def test_a_new_file_is_full_sized_reserved_and_private(layout: StoreLayout, files: CommitLogFiles) -> None:
    before = os.umask(0o777)
    assert files.create_next() == FILE_BYTES
    os.umask(before)
    status = (layout.commitlog / file_name(0)).stat()
    assert (status.st_size, stat.S_IMODE(status.st_mode)) == (FILE_BYTES, 0o600)
    assert status.st_blocks * 512 >= FILE_BYTES
    assert files.create_next() == 2 * FILE_BYTES
    assert not list(layout.root.glob(".*"))


def test_files_are_found_again_in_order(layout: StoreLayout, files: CommitLogFiles) -> None:
    for _ in range(3):
        files.create_next(5 * FILE_BYTES)
    (layout.commitlog / "readme.txt").touch()
    again = CommitLogFiles(layout, FILE_BYTES)
    again.load()
    assert again.positions == [5 * FILE_BYTES, 6 * FILE_BYTES, 7 * FILE_BYTES]
    assert (again.begin, again.end) == (5 * FILE_BYTES, 8 * FILE_BYTES)


def test_a_name_that_is_no_multiple_of_the_size_is_refused(layout: StoreLayout, files: CommitLogFiles) -> None:
    files.create_next()
    (layout.commitlog / file_name(0)).rename(layout.commitlog / file_name(4096))
    with pytest.raises(CorruptionError, match="no multiple"):
        files.load()


def test_an_empty_last_file_of_a_dead_stock_broker_is_removed(layout: StoreLayout, files: CommitLogFiles) -> None:
    files.create_next()
    (layout.commitlog / file_name(FILE_BYTES)).touch()
    files.load()
    assert files.positions == [0]
    assert os.listdir(layout.commitlog) == [file_name(0)]


def test_an_empty_only_file_is_refused(layout: StoreLayout, files: CommitLogFiles) -> None:
    (layout.commitlog / file_name(0)).touch()
    with pytest.raises(UsageError, match="has 0 bytes"):
        files.load()


def test_sparse_files_of_a_stock_broker_get_their_blocks(layout: StoreLayout, files: CommitLogFiles) -> None:
    path = layout.commitlog / file_name(0)
    path.touch()
    os.truncate(path, FILE_BYTES)
    assert path.stat().st_blocks == 0
    files.load()
    files.reserve_blocks()
    assert path.stat().st_blocks * 512 >= FILE_BYTES


def test_zeroing_reaches_over_files_and_changes_nothing_before(layout: StoreLayout, files: CommitLogFiles) -> None:
    for _ in range(3):
        files.create_next()
    for position in range(0, 3 * FILE_BYTES, FILE_BYTES):
        files.path(position).write_bytes(b"\x01" * FILE_BYTES)
    files.zero_from(FILE_BYTES + 100)
    content = b"".join(files.path(position).read_bytes() for position in files.positions)
    assert content == b"\x01" * (FILE_BYTES + 100) + bytes(2 * FILE_BYTES - 100)
    assert files.zero_from(FILE_BYTES + 100) == 0


def test_zeroing_does_not_read_what_was_never_written(files: CommitLogFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    files.create_next()
    reads: list[int] = []
    real = os.pread
    monkeypatch.setattr(os, "pread", lambda *arguments: (reads.append(arguments[1]), real(*arguments))[1])
    assert files.zero_from(0) == 0
    assert reads == []


def test_what_was_read_once_does_not_make_the_rest_of_the_file_be_read(
    layout: StoreLayout, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A page that was read counts as data, and read-ahead reads the next one: together they once read a whole file.
    files = CommitLogFiles(layout, 64 << 20)
    files.create_next()
    files.path(0).open("rb").read(4096)
    reads: list[int] = []
    real = os.pread
    monkeypatch.setattr(os, "pread", lambda *arguments: (reads.append(arguments[1]), real(*arguments))[1])
    assert files.zero_from(0) == 0
    assert sum(size for _, size in files.data_ranges(0)) < 8 << 20
    assert sum(reads) < 8 << 20


def test_writing_again_changes_no_byte(files: CommitLogFiles) -> None:
    for _ in range(2):
        files.create_next()
    content = os.urandom(FILE_BYTES)
    for position in files.positions:
        files.path(position).write_bytes(content)
    files.write_again(100, FILE_BYTES + 500)
    assert [files.path(position).read_bytes() for position in files.positions] == [content, content]


def test_the_oldest_file_goes_and_the_last_never(layout: StoreLayout, files: CommitLogFiles) -> None:
    for _ in range(2):
        files.create_next()
    assert files.remove_first() == FILE_BYTES
    assert os.listdir(layout.commitlog) == [file_name(FILE_BYTES)]
    with pytest.raises(AssertionError):
        files.remove_first()


FULL_DISK = """
import os, sys
from pathlib import Path
from shmq.errors import SegmentFull
from shmq.shm.access import Access
from shmq.store.commitlog import CommitLogFiles
from shmq.store.layout import StoreLayout
root = Path(sys.argv[1])
os.system(f"mount -t tmpfs -o size=1m tmpfs {root}")
layout = StoreLayout(root, Access(-1))
layout.prepare()
files = CommitLogFiles(layout, 256 << 10)
try:
    while True:
        files.create_next()
except SegmentFull as error:
    print(len(files.positions), "files", error.limit, bool(error.hint))
print(sorted(os.listdir(root)))
sizes = {path.stat().st_size for path in layout.commitlog.iterdir()}
print(sizes)
files.remove_first()
print(files.create_next() // (256 << 10))
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small file system needs root")
def test_a_full_disk_is_an_error_at_creation_and_leaves_nothing_half(tmp_path: Path) -> None:
    (tmp_path / "small").mkdir()
    result = subprocess.run(
        ["unshare", "--mount", sys.executable, "-c", FULL_DISK, str(tmp_path / "small")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout.splitlines() == [
        "4 files 262144 True",
        "['commitlog', 'config', 'consumequeue']",
        "{262144}",
        "5",
    ]


def test_a_directory_that_cannot_be_written_is_an_error_with_its_name(
    layout: StoreLayout, files: CommitLogFiles
) -> None:
    layout.commitlog.rmdir()
    with pytest.raises(StoreError, match=str(layout.commitlog)):
        files.create_next()
