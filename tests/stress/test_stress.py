"""The rules of the stress run: what it does to a keeper, and what it says of a run."""

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from shmq.testing import Broker
from tests.deadline import eventually
from tests.stress.disturbances import BUSY_PROCESSES, keepers_of

ROOT = Path(__file__).resolve().parents[2]
COUNTING = """
import threading, time

def count():
    while True:
        time.sleep(0.001)  # not a wait: the work
        print(flush=True)

threading.Thread(target=count).start()
count()
"""
HOLDING = """
import sys
from tests.stress.disturbances import held

with held(int(sys.argv[1])) as is_held:
    print(is_held, flush=True)
    input()
"""
PROGRAM = f"""
import os

import psutil
import pytest

def test_that_passes():
    assert os.environ["SHMQ_TEST_PATIENCE"] == "300"

def test_that_is_disturbed():
    run = psutil.Process(os.getppid())
    assert len([child for child in run.children() if "tests.stress" in child.cmdline()]) == {BUSY_PROCESSES} + 2

@pytest.mark.slow
def test_of_another_suite(): assert False

def test_that_fails(): assert False
"""


class Counting:
    """A process whose two threads work without end; `written` is how often."""

    def __init__(self, output: Path) -> None:
        self._output = output
        with open(output, "wb") as file:
            self.process = subprocess.Popen([sys.executable, "-c", COUNTING], stdout=file)

    @property
    def written(self) -> int:
        return self._output.stat().st_size

    def goes_on(self) -> None:
        before = self.written
        eventually(lambda: self.written > before, "the process goes on")

    def states(self) -> set[str]:
        tasks = Path(f"/proc/{self.process.pid}/task").iterdir()
        return {(task / "stat").read_text().rpartition(") ")[2][0] for task in tasks}


@pytest.fixture
def counting(tmp_path: Path) -> Iterator[Counting]:
    made = Counting(tmp_path / "written")
    try:
        eventually(lambda: made.written and len(os.listdir(f"/proc/{made.process.pid}/task")) == 2)
        yield made
    finally:
        made.process.kill()
        made.process.wait()


@contextlib.contextmanager
def held(pid: int) -> Iterator[subprocess.Popen[bytes]]:
    """A process that holds another one, or says that it cannot."""
    command = [sys.executable, "-c", HOLDING, str(pid)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT) as holder:
        assert holder.stdout
        if holder.stdout.readline() != b"True\n":
            raise NotHeld
        yield holder
        holder.communicate(b"\n")


class NotHeld(Exception):
    pass


@pytest.fixture(scope="module", autouse=True)
def _may_trace() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        try:
            with held(process.pid):
                pass
        except NotHeld:
            pytest.skip("this user may not trace: that needs CAP_SYS_PTRACE, or kernel.yama.ptrace_scope=0")
        finally:
            process.kill()


def test_no_thread_of_a_held_process_works_and_all_go_on_afterwards(counting: Counting) -> None:
    with held(counting.process.pid):
        assert counting.states() == {"t"}
    counting.goes_on()


def test_a_held_process_that_is_stopped_stays_stopped(counting: Counting) -> None:
    with held(counting.process.pid):
        counting.process.send_signal(signal.SIGSTOP)
    eventually(lambda: counting.states() == {"T"})
    counting.process.send_signal(signal.SIGCONT)
    counting.goes_on()


def test_a_stopped_process_that_is_held_stays_stopped(counting: Counting) -> None:
    counting.process.send_signal(signal.SIGSTOP)
    eventually(lambda: counting.states() == {"T"})
    with held(counting.process.pid):
        assert counting.states() == {"t"}
    eventually(lambda: counting.states() == {"T"})


def test_a_held_process_can_be_killed(counting: Counting) -> None:
    with held(counting.process.pid):
        counting.process.kill()
    assert counting.process.wait(60) == -signal.SIGKILL


def test_a_process_goes_on_when_the_one_that_holds_it_dies(counting: Counting) -> None:
    with held(counting.process.pid) as holder:
        holder.kill()
    counting.goes_on()


def test_a_process_that_is_traced_or_has_ended_is_not_held(counting: Counting) -> None:
    with held(counting.process.pid), pytest.raises(NotHeld), held(counting.process.pid):
        pass
    counting.process.kill()
    counting.process.wait()
    with pytest.raises(NotHeld), held(counting.process.pid):
        pass


def test_the_keepers_of_a_run_are_found() -> None:
    with Broker() as broker:
        assert keepers_of(os.getpid()) == [broker.processes["keeper"].pid]
    assert keepers_of(os.getpid()) == []


def test_what_fails_is_reported_with_the_seed_that_repeats_it(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(PROGRAM)
    (tmp_path / "conftest.py").write_text("pytest_plugins = ('tests.suites',)\n")
    (tmp_path / "pytest.ini").write_text("[pytest]\naddopts = --strict-markers\nmarkers = slow: takes long\n")
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "SHMQ_TEST_SEED": "7"}
    command = [sys.executable, "-P", "-m", "tests.stress", "test_it.py"]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    told = [line for line in done.stdout.splitlines() if line.startswith("failed: ")]
    assert (done.returncode, told) == (1, ["failed: SHMQ_TEST_SEED=7 test_it.py::test_that_fails"]), done.stdout
    assert "2 passed" in done.stdout and "warning" not in done.stdout
    assert not [child for child in psutil.Process().children(recursive=True) if "tests.stress" in child.cmdline()]
