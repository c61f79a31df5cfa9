"""The log files: whole or not there, contiguous, zero behind the end."""

import os
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from shmq.errors import CorruptionError, StoreError, UsageError
from shmq.shm.access import Access
from shmq.store.commitlog import CommitLogFiles
from shmq.store.layout import StoreLayout, file_name
from tests.store.file_changes import dangling, directory, linked, pipe
from tests.tables.rows import every_row

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
    with pytest.raises(CorruptionError, match="has 0 bytes") as caught:
        files.load()
    assert "truncate -s" in caught.value.hint


@every_row(
    "sizes, helps", [((3, 3), "--file-size 196608"), ((1, 3), "truncate -s 65536"), ((0, 0), "truncate -s 65536")]
)
def test_the_size_that_all_files_have_is_the_brokers_to_take_and_any_other_is_the_files(
    layout: StoreLayout, sizes: tuple[int, ...], helps: str
) -> None:
    for number, size in enumerate(sizes):
        path = layout.commitlog / file_name(number * 3 * FILE_BYTES)
        path.touch()
        os.truncate(path, size * FILE_BYTES)
    with pytest.raises((CorruptionError, UsageError)) as caught:
        CommitLogFiles(layout, FILE_BYTES).load()
    assert helps in caught.value.hint


FALSE_NAMES = [
    (linked, "symbolic link to .*moved", "mv "),
    (dangling, "which is not there", "restore"),
    (directory, "a directory", "away"),
    (pipe, "a FIFO", "away"),
]


@every_row("change, says, cure", FALSE_NAMES)
def test_a_name_that_is_no_plain_file_is_refused_whichever_it_is(
    tmp_path: Path, change: Callable[[Path], None], says: str, cure: str
) -> None:
    for number in range(3):
        layout = StoreLayout(tmp_path / f"{change.__name__}{number}", Access(-1))
        layout.prepare()
        files = CommitLogFiles(layout, FILE_BYTES)
        for _ in range(3):
            files.create_next()
        path = files.path(number * FILE_BYTES)
        change(path)
        with pytest.raises(CorruptionError, match=says) as caught:
            CommitLogFiles(layout, FILE_BYTES).load()
        assert caught.value.path == path
        assert cure in caught.value.hint


def test_a_file_that_may_not_be_read_is_refused_by_name(
    layout: StoreLayout, files: CommitLogFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    files.create_next()
    monkeypatch.setattr(os, "access", lambda path, mode, **_: False)  # root may read everything
    with pytest.raises(CorruptionError, match=f"read and written by uid {os.geteuid()}") as caught:
        files.load()
    assert "chmod u+rw" in caught.value.hint


def test_the_directory_of_the_log_may_be_a_link(tmp_path: Path) -> None:
    layout, elsewhere = StoreLayout(tmp_path / "store", Access(-1)), tmp_path / "disk"
    layout.root.mkdir()
    elsewhere.mkdir()
    layout.commitlog.symlink_to(elsewhere)
    layout.prepare()
    files = CommitLogFiles(layout, FILE_BYTES)
    files.create_next()
    files.create_next()
    files.sync(0, 2 * FILE_BYTES)
    assert files.remove_first() == FILE_BYTES
    assert os.listdir(elsewhere) == [file_name(FILE_BYTES)]
    elsewhere.rename(tmp_path / "away")
    with pytest.raises(StoreError, match="which is not there"):
        layout.prepare()


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
root = root.with_name("linked")
root.mkdir()
(root / "commitlog").symlink_to(layout.commitlog)  # on a disk of its own
files = CommitLogFiles(StoreLayout(root, Access(-1)), 256 << 10)
files.load()
files.remove_first()
print(files.create_next() // (256 << 10), sorted(os.listdir(root)))
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
        "6 ['commitlog']",
    ]


def test_a_directory_that_cannot_be_written_is_an_error_with_its_name(
    layout: StoreLayout, files: CommitLogFiles
) -> None:
    layout.commitlog.rmdir()
    with pytest.raises(StoreError, match=str(layout.commitlog)):
        files.create_next()
