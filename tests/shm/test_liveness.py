"""Who is alive: pid and start time together, and signals that cannot hit a successor."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from shmq.shm.core import process_died
from shmq.shm.liveness import ProcessMark, is_alive, mark_of, own_mark, signal_proven, status_of


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE)
    yield process
    process.kill()
    process.wait()
    assert process.stdin
    process.stdin.close()


def mark(process: subprocess.Popen[bytes]) -> ProcessMark:
    found = mark_of(process.pid)
    assert found
    return found


def test_we_are_alive() -> None:
    assert is_alive(own_mark())
    assert not is_alive(None)


def test_a_process_with_another_start_time_is_a_stranger(sleeper: subprocess.Popen[bytes]) -> None:
    assert is_alive(mark(sleeper))
    assert not is_alive(mark(sleeper)._replace(start=mark(sleeper).start - 1))


def test_without_a_start_time_any_process_of_the_number_is_alive(sleeper: subprocess.Popen[bytes]) -> None:
    assert not process_died(sleeper.pid, 0) and not process_died(sleeper.pid, mark(sleeper).start)
    assert process_died(sleeper.pid, mark(sleeper).start + 1)
    assert process_died(2**22 + 1, 0) and process_died(2**40, 0) and process_died(0, 0)


def test_a_zombie_is_dead(sleeper: subprocess.Popen[bytes]) -> None:
    seen = mark(sleeper)
    sleeper.kill()
    os.waitid(os.P_PID, sleeper.pid, os.WEXITED | os.WNOWAIT)
    assert not is_alive(seen) and process_died(sleeper.pid, 0)
    assert mark_of(sleeper.pid) is None


def test_a_signal_reaches_exactly_the_process_that_was_meant(sleeper: subprocess.Popen[bytes]) -> None:
    seen = mark(sleeper)
    assert not signal_proven(seen._replace(start=seen.start + 1), signal.SIGKILL)
    assert not signal_proven(seen, signal.SIGKILL, proof=lambda: False)
    assert sleeper.poll() is None
    assert signal_proven(seen, signal.SIGKILL)
    assert sleeper.wait() == -signal.SIGKILL
    assert not signal_proven(seen, signal.SIGKILL)


def test_the_status_of_a_stopped_process_says_so(sleeper: subprocess.Popen[bytes]) -> None:
    os.kill(sleeper.pid, signal.SIGSTOP)
    os.waitid(os.P_PID, sleeper.pid, os.WSTOPPED)
    assert status_of(sleeper.pid)["State"].startswith("T")
    assert status_of(2**22 + 1) == {}


@pytest.mark.skipif(os.geteuid() != 0, reason="mounts another /proc")
def test_a_proc_that_shows_processes_alone_is_refused_with_the_cure() -> None:
    program = "import shmq.shm.liveness as liveness; liveness.boot_id()"
    mounted = f"mount -t proc -o subset=pid proc /proc && {sys.executable} -P -c '{program}'"  # as ProcSubset=pid does
    done = subprocess.run(["unshare", "--mount", "sh", "-c", mounted], capture_output=True, text=True, check=False)
    assert "ForeignNamespace: /proc/sys/kernel/random/boot_id cannot be read (No such file or directory)" in done.stderr
    assert "ProcSubset=all" in done.stderr
