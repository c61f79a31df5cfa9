"""A process of a run of the tests has /dev/shm and System V objects of its own, or says that it has the host's."""

import ctypes
import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.shm import private_memory
from tests.supervisor.test_namespaces import needs_namespaces

SPACES = ("mnt", "ipc")
SHOW = f"import os; print(*[os.readlink(f'/proc/self/ns/{{name}}') for name in {SPACES}])"


def spaces(process: str | int) -> list[str]:
    return [os.readlink(f"/proc/{process}/ns/{name}") for name in SPACES]


@needs_namespaces
def test_the_memory_is_not_that_of_the_process_that_started_this_one(tmp_path: Path) -> None:
    parent = os.getppid()
    assert not {*spaces("self")} & {*spaces(parent)}
    mark = Path("/dev/shm", f"mark-{tmp_path.name}-{os.getpid()}")
    mark.touch()
    try:
        assert not Path(f"/proc/{parent}/root{mark}").exists()
    finally:
        mark.unlink()


def test_all_threads_and_all_that_they_start_have_the_same_memory() -> None:
    seen: list[list[str]] = []

    def look() -> None:
        seen.extend(spaces(f"self/task/{thread}") for thread in os.listdir("/proc/self/task"))
        seen.append(
            subprocess.run([sys.executable, "-c", SHOW], capture_output=True, text=True, check=True).stdout.split()
        )

    looking = threading.Thread(target=look)
    looking.start()
    looking.join()
    assert len(seen) > 2 and all(each == spaces("self") for each in seen), seen


@needs_namespaces
@pytest.mark.parametrize(("may", "is_own"), [("+sys_admin", True), ("-sys_admin", False)])
def test_who_may_not_enter_goes_on_in_the_memory_of_the_host(may: str, is_own: bool) -> None:
    entering = [sys.executable, "-P", private_memory.__file__, "-c", SHOW]
    command = ["setpriv", f"--bounding-set={may}", *entering]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert (done.stdout.split() != spaces("self")) == is_own and not done.stderr


@needs_namespaces
def test_where_nothing_can_be_mounted_there_is_no_half_of_a_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    class Kernel(ctypes.CDLL):
        def mount(self, *_: object) -> int:
            return -1

    monkeypatch.setattr(private_memory.ctypes, "CDLL", Kernel)
    with ThreadPoolExecutor(1) as thread:  # this thread stays where it is
        entered = thread.submit(lambda: (private_memory.enter(), spaces("thread-self"), os.getcwd())).result()
    assert entered == (False, spaces("self"), os.getcwd())
