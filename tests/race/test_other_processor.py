"""The core on another processor, whose programs qemu runs here.

What an emulator does not show is another order of memory accesses: that the C11 orders suffice is the part of
ThreadSanitizer, in `test_race.py`.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest
from core_build import program

from shmq.bindings import _core
from tests.bindings.live_store import LiveStore

COMPILER = "aarch64-linux-gnu-gcc"
QEMU = "qemu-aarch64-static"
RUN = (QEMU, "-L", "/usr/aarch64-linux-gnu")
ROUNDS = 300


@pytest.fixture(autouse=True)
def compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    missing = [name for name in (COMPILER, QEMU) if shutil.which(name) is None]
    if missing and os.environ.get("SHMQ_REQUIRE_INTEROP"):
        pytest.fail(f"{missing} is not on the path")
    if missing:
        pytest.skip(f"{missing} is not on the path; on Debian: apt install gcc-aarch64-linux-gnu qemu-user-static")
    monkeypatch.setenv("CC", COMPILER)


def emulated(executable: Path, *arguments: object) -> subprocess.CompletedProcess[str]:
    command = [*RUN, str(executable), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)


def printed(executable: Path, *arguments: object) -> str:
    done = emulated(executable, *arguments)
    assert done.returncode == 0, f"{done.stdout}{done.stderr}"
    return done.stdout


def test_its_programs_are_refused_on_this_hosts_segments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # A mutex of the C library has 40 bytes here and 48 there.
    segments = [tmp_path / part for part in ("control", "units", "readers")]
    left = iter(segments)
    monkeypatch.setattr(os, "memfd_create", lambda _: os.open(next(left), os.O_RDWR | os.O_CREAT, 0o600))
    hello = program("hello-elsewhere", ("../examples/c/hello.c",))
    with LiveStore() as live:
        live.topic()
        done = emulated(hello, "orders", "from there", *segments)
        assert (done.returncode, done.stderr) == (1, f"opening the segments: status {_core.FOREIGN_ABI}\n")
        assert live.reader().poll() == []


def test_a_process_has_the_start_time_that_others_see() -> None:
    # Others take one whose mark differs for dead. qemu makes up what a process reads of itself, up to a tick beside it.
    itself = program("process-start-elsewhere", ("race/process_start.c",))
    with subprocess.Popen([*RUN, str(itself)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        pid, start = map(int, process.stdout.readline().split())
        assert pid == process.pid
        assert start == _core.process_start(pid)


def test_no_wake_up_is_lost_there() -> None:
    wake = program("wake-elsewhere", ("race/wake.c", "crash/check.c", "crash/arena.c"))
    scenarios = [json.loads(line) for line in printed(wake, ROUNDS).splitlines()]
    assert not [line for line in scenarios if line["lost"]]
    assert sum(line["wakes"] for line in scenarios) > ROUNDS / 20, "no process slept, so nothing is proved"


def test_threads_of_every_kind_read_what_was_written_there() -> None:
    threads = program("threads-elsewhere", ("race/threads.c", "crash/check.c", "crash/arena.c"))
    counts = json.loads(printed(threads, ROUNDS))
    assert counts["wrong"] == 0
    assert counts["units_seen"] > 0 and counts["claimed"] > 0
