"""The store lock: one broker, ours or a stock one, and its pid in the refusal."""

import errno
import fcntl
import os
import signal
import stat
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from shmq.errors import StoreError, StoreLocked
from shmq.shm.access import Access
from shmq.store.layout import StoreLayout
from shmq.store.lock import StoreLock, flock_owner
from tests.store.file_changes import NO_FILES
from tests.tables.rows import every_row

OWNER = """
import subprocess, sys
from pathlib import Path
from shmq.shm.access import Access
from shmq.store.layout import StoreLayout
from shmq.store.lock import StoreLock
lock = StoreLock.acquire(StoreLayout(Path(sys.argv[1]), Access(-1)))
if sys.argv[2] == "with-child":
    child = subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=sys.stdin,
                             pass_fds=lock.descriptors)
    print(child.pid, flush=True)
print("locked", flush=True)
sys.stdin.read()
"""

# What Java's FileChannel.tryLock(0, 1, false) does.
STOCK_BROKER = """
import fcntl, sys
file = open(sys.argv[1] + "/lock", "w")
fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 0)
print("locked", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def layout(tmp_path: Path) -> StoreLayout:
    return StoreLayout(tmp_path, Access(-1))


@pytest.fixture
def processes() -> Iterator[list[subprocess.Popen[str]]]:
    started: list[subprocess.Popen[str]] = []
    yield started
    for process in started:
        process.kill()
        process.communicate()


def started(processes: list[subprocess.Popen[str]], program: str, *arguments: str) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-c", program, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    processes.append(process)
    return process


def line(process: subprocess.Popen[str]) -> str:
    assert process.stdout
    return process.stdout.readline().strip()


@pytest.mark.parametrize("program", [OWNER, STOCK_BROKER])
def test_a_second_broker_is_refused_and_told_the_pid_of_the_first(
    layout: StoreLayout, processes: list[subprocess.Popen[str]], program: str
) -> None:
    owner = started(processes, program, str(layout.root), "alone")
    assert line(owner) == "locked"
    # A living owner is not waited for.
    with pytest.raises(StoreLocked, match=f"pid {owner.pid}"):
        StoreLock.acquire(layout, wait_seconds=3600)
    owner.kill()
    owner.wait()
    StoreLock.acquire(layout).release()


CHANGES: dict[str, Callable[[StoreLayout], object]] = {
    "removed": lambda layout: layout.lock.unlink(),
    "replaced": lambda layout: (layout.lock.unlink(), layout.lock.touch()),
    "moved": lambda layout: layout.lock.rename(layout.root / "moved"),
    "a hard link": lambda layout: (
        layout.lock.rename(layout.root / "linked"),
        os.link(layout.root / "linked", layout.lock),
    ),
    "the log's directory is another": lambda layout: (
        layout.lock.unlink(missing_ok=True),
        layout.commitlog.rename(layout.root / "old"),
        layout.commitlog.mkdir(),
    ),
    "the store's directory is another": lambda layout: (
        layout.root.rename(layout.root.with_name("old")),
        layout.root.mkdir(),
        (layout.root.with_name("old") / "old").rename(layout.commitlog),
    ),
}


def test_a_second_broker_is_refused_whatever_was_done_to_the_lock_file(
    tmp_path: Path, processes: list[subprocess.Popen[str]]
) -> None:
    layout = StoreLayout(tmp_path / "store", Access(-1))
    layout.prepare()
    owner = started(processes, OWNER, str(layout.root), "alone")
    assert line(owner) == "locked"

    @every_row("change", CHANGES)
    def each(change: str) -> None:
        CHANGES[change](layout)
        with pytest.raises(StoreLocked, match=f"pid {owner.pid}"):
            StoreLock.acquire(layout, wait_seconds=3600)

    each()
    owner.kill()
    owner.wait()
    StoreLock.acquire(layout).release()


def test_a_file_system_that_locks_no_directories_is_no_reason_not_to_start(
    layout: StoreLayout, monkeypatch: pytest.MonkeyPatch
) -> None:
    flock = fcntl.flock

    def as_nfs(descriptor: int, operation: int) -> None:
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise OSError(errno.EBADF, "Bad file descriptor")
        flock(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", as_nfs)
    lock = StoreLock.acquire(layout)
    assert lock.unlocked == "Bad file descriptor"
    lock.release()


def test_a_stock_broker_is_kept_out(layout: StoreLayout, processes: list[subprocess.Popen[str]]) -> None:
    lock = StoreLock.acquire(layout)
    assert os.pread(lock.descriptor, 8, 0) == b"lock"
    stock = started(processes, STOCK_BROKER, str(layout.root))
    assert line(stock) == ""
    assert stock.wait() != 0
    lock.release()


@pytest.mark.parametrize("is_removed", [False, True], ids=["", "the lock file is removed"])
def test_the_lock_stays_while_a_child_of_the_dead_owner_lives(
    layout: StoreLayout, processes: list[subprocess.Popen[str]], is_removed: bool
) -> None:
    owner = started(processes, OWNER, str(layout.root), "with-child")
    child = int(line(owner))
    assert line(owner) == "locked"
    owner.kill()
    owner.wait()
    if is_removed:
        layout.lock.unlink()  # the directories stay locked
    with pytest.raises(StoreLocked, match="dead broker"):
        StoreLock.acquire(layout)
    ender = threading.Timer(0.1, os.kill, (child, signal.SIGKILL))
    ender.start()
    StoreLock.acquire(layout, wait_seconds=30).release()
    ender.join()


def test_what_lies_in_place_of_the_lock_file_is_named_with_a_cure_that_works(layout: StoreLayout) -> None:
    @every_row("change", NO_FILES)
    def each(change: Callable[[Path], object]) -> None:
        layout.lock.touch()
        change(layout.lock)
        with pytest.raises(StoreError, match=r"the lock file .* it is a.* and no plain file") as refused:
            StoreLock.acquire(layout)
        assert refused.value.hint
        subprocess.run(refused.value.hint, shell=True, check=True)
        StoreLock.acquire(layout).release()
        for path in layout.root.iterdir():
            path.rmdir() if path.is_dir() else path.unlink()

    each()


def test_both_kinds_of_lock_are_held(layout: StoreLayout) -> None:
    lock = StoreLock.acquire(layout)
    other = os.open(layout.lock, os.O_RDWR)
    with pytest.raises(BlockingIOError):
        fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
    os.close(other)
    lock.release()


def test_an_owner_that_proc_hides_from_this_user_is_named_all_the_same(
    layout: StoreLayout, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os.path, "exists", lambda path: not str(path).startswith("/proc/"))
    descriptor = os.open(layout.root / "other", os.O_RDWR | os.O_CREAT)
    assert flock_owner(descriptor) == 0
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    assert flock_owner(descriptor) == os.getpid()
    os.close(descriptor)
