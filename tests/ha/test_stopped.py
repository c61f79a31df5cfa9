"""Processes that were stopped on the old master and go on after the switch: nothing they do reaches the living log."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from shmq.shm.core import StoreFigures
from shmq.testing import Broker
from tests.deadline import attempts, eventually
from tests.ha.pair import assert_equal, send, settled_end
from tests.ha.test_switch import demote, fixed, promote, read, slave_of
from tests.shm.looking import looking

pytestmark = pytest.mark.slow

SCRIPT = Path(__file__).with_name("stopped.py")
FILE_BYTES = 4 << 20


class Stopped:
    """Such a process, and what it said."""

    def __init__(self, broker: Broker, what: str) -> None:
        command = [sys.executable, "-P", str(SCRIPT), str(broker.place.runtime_dir), broker.url, what]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.said: list[str] = []
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()
        eventually(lambda: self.said, lambda: str(self.process.poll()))

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.said.append(line.rstrip("\n"))

    def stop(self) -> None:
        """Wherever it is."""
        os.kill(self.process.pid, signal.SIGSTOP)
        self.wait_until_stopped()

    def wait_until_stopped(self) -> None:
        os.waitid(os.P_PID, self.process.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)

    def go_on(self) -> str:
        """Let it do what it was about to; return what came of it."""
        os.kill(self.process.pid, signal.SIGCONT)
        assert self.process.wait(60) is not None
        self._thread.join(60)
        return self.said[-1]

    def maps_of(self, folder: Path) -> list[str]:
        """The log files that it has mapped."""
        lines = Path(f"/proc/{self.process.pid}/maps").read_text().splitlines()
        return [line for line in lines if f"{folder}/commitlog/" in line]

    def end(self) -> None:
        self.process.kill()
        self.process.communicate(timeout=60)


@contextlib.contextmanager
def stopped(broker: Broker, what: str) -> Iterator[Stopped]:
    process = Stopped(broker, what)
    try:
        if what == "append":
            stop_inside_the_lock(broker, process)
        process.wait_until_stopped()
        yield process
    finally:
        process.end()


def stop_inside_the_lock(broker: Broker, process: Stopped) -> None:
    """SIGSTOP again and again until it hits the locked section."""
    with looking(broker) as store:
        for _ in attempts():
            process.stop()
            if StoreFigures(store).stats()["lock_tid"] == process.process.pid:
                return
            os.kill(process.process.pid, signal.SIGCONT)
    raise AssertionError("the appender was never met inside the lock")


def file_name(line: str) -> str:
    """The file of a line of maps."""
    return Path(line.split()[5]).name


def files_of(broker: Broker) -> dict[str, bytes]:
    """The whole log files, also what lies behind the log's end."""
    files = Path(broker.store, "commitlog").iterdir()
    return {path.name: path.read_bytes() for path in files if path.name.isdecimal()}


@pytest.mark.parametrize("what", ["append", "reserve", "group"])
def test_who_was_stopped_on_the_old_master_changes_no_byte_of_the_living_log(what: str) -> None:
    # An hour: no watchdog ends it before the switch.
    with Broker(**fixed(), lease_ms=600_000, file_bytes=FILE_BYTES) as old, slave_of(old) as new:
        send(old, range(1), topic="held")
        send(old, range(20))
        settled_end(old, new)
        with stopped(old, what) as process:
            assert process.maps_of(old.store)
            done = demote(old, new)
            assert done["lock_was_free"] == (what != "append")
            promote(new)
            send(new, range(20, 40))
            assert_equal(new, old)
            kept = [line for line in process.maps_of(old.store) if not line.endswith("(deleted)")]
            ends = [int(file_name(line)) + FILE_BYTES for line in kept]
            assert all(end <= done["log_end"] for end in ends), "it may write at the log's end, and not into this log"
            before = [files_of(broker) for broker in (old, new)]
            said = process.go_on()
            assert [files_of(broker) for broker in (old, new)] == before, said
            assert said != "ready" and (what == "group" or said != "done"), said
        send(new, range(40, 60))
        assert_equal(new, old)
        assert read(new, 60, "readers") == read(old, 60, "readers-there") == list(range(60))
