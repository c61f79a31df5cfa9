"""What a supervisor must own alone, and what it may end to get it."""

import os
import secrets
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from shmq.daemon.guard import Guard
from shmq.errors import StoreLocked
from shmq.options.broker import Options
from shmq.shm.access import Access
from shmq.shm.instance import Instance, segment_names, write_instance
from shmq.shm.liveness import ProcessMark, is_alive, mark_of
from shmq.store.layout import StoreLayout

# A supervisor with one child that holds the store lock and does not leave when the supervisor dies.
BROKER = """
import subprocess, sys
from pathlib import Path
from shmq.shm.access import Access
from shmq.store.layout import StoreLayout
from shmq.store.lock import StoreLock
lock = StoreLock.acquire(StoreLayout(Path(sys.argv[1]), Access(-1)))
child = subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=sys.stdin,
                         pass_fds=lock.descriptors)
print(child.pid, flush=True)
sys.stdin.read()
"""


def nothing(event: str, **values: object) -> None:
    """An event log that is not read."""


@pytest.fixture
def options(tmp_path: Path) -> Options:
    return Options(broker_name="guarded", runtime_dir=str(tmp_path / "run"), store=str(tmp_path / "store"))


def broker_that_died(options: Options) -> tuple[subprocess.Popen[str], ProcessMark, ProcessMark]:
    """(the process to clean up, marks of the supervisor and its child)."""
    StoreLayout(options.store_path, Access(-1)).prepare()
    process = subprocess.Popen(
        [sys.executable, "-c", BROKER, options.store], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout
    child = mark_of(int(process.stdout.readline()))
    supervisor = mark_of(process.pid)
    assert child and supervisor
    process.send_signal(signal.SIGKILL)
    process.wait()
    return process, supervisor, child


def record(options: Options, **processes: ProcessMark) -> None:
    """Write instance.json as the dead broker left it."""
    generation = secrets.randbits(63)
    options.place.runtime_dir.mkdir(parents=True)
    instance = Instance(
        broker_name="guarded",
        generation=generation,
        kind="posix",
        segments=segment_names("guarded", generation),
        segment_bytes=(1, 1, 1),
        presence_key=1,
        store_path=options.store,
        uid=os.geteuid(),
        mode=0o600,
        boot_id="",
        pid_namespace=0,
    )
    write_instance(options.place.instance_path, instance.with_processes(**processes), mode=0o600, gid=-1)


def test_a_recorded_child_of_a_dead_supervisor_that_does_not_leave_is_ended(options: Options) -> None:
    process, supervisor, child = broker_that_died(options)
    record(options, supervisor=supervisor, keeper=child)
    Guard.take(options, nothing).release()  # type: ignore[arg-type]
    assert not is_alive(child)
    process.communicate()


def test_an_unknown_process_that_holds_the_store_is_not_ended(options: Options) -> None:
    process, supervisor, child = broker_that_died(options)
    # The pid is the child's, the start time is not: a number that was used again.
    record(options, supervisor=supervisor, keeper=ProcessMark(child.pid, child.start + 1))
    with pytest.raises(StoreLocked, match="dead broker"):
        Guard.take(options, nothing)  # type: ignore[arg-type]
    assert is_alive(child)
    process.communicate()


def test_a_second_supervisor_is_refused_where_the_lock_file_was_removed(options: Options) -> None:
    StoreLayout(options.store_path, Access(-1)).prepare()
    owner = subprocess.Popen(
        [sys.executable, "-c", BROKER, options.store], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert owner.stdout and owner.stdout.readline()
    (options.store_path / "lock").unlink()
    with pytest.raises(StoreLocked, match=f"pid {owner.pid}"):
        Guard.take(options, nothing)  # type: ignore[arg-type]
    owner.communicate()


def test_both_locks_are_free_after_the_release(options: Options) -> None:
    Guard.take(options, nothing).release()  # type: ignore[arg-type]
    Guard.take(options, nothing).release()  # type: ignore[arg-type]
