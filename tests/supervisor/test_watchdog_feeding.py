"""A service manager hears when the broker is ready, stops, and really works; a real socket plays the manager."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from shmq.daemon.service_manager import ServiceManager
from shmq.shm.instance import Instance, read_instance
from shmq.shm.liveness import is_alive
from shmq.shm.place import Place
from tests.deadline import eventually

DEADLINE_SECONDS = 60.0
WATCHDOG_SECONDS = 1.0


class Manager:
    """Reads all that the broker says, as it is said: what finds no room in a socket is dropped."""

    def __init__(self, path: Path) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(str(path))
        self.address = str(path)
        self.heard: list[str] = []
        self._reading = threading.Thread(target=self._read)
        self._reading.start()

    def _read(self) -> None:
        while said := self._socket.recv(4096):
            self.heard += said.decode().splitlines()

    def close(self) -> None:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as last:
            last.sendto(b"", self.address)
        self._reading.join()
        self._socket.close()

    def wait_for(self, wanted: Callable[[list[str]], bool], before: int | None = None) -> list[str]:
        """Wait until what is said, from now on or from line `before`, is what is wanted."""
        before = len(self.heard) if before is None else before
        eventually(lambda: wanted(self.heard[before:]), lambda: str(self.heard[before:]))
        return self.heard[before:]


@pytest.fixture(scope="module")
def manager(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Manager]:
    made = Manager(tmp_path_factory.mktemp("manager") / "notify")
    yield made
    made.close()


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Place:
    return Place(f"fed-{os.getpid()}", tmp_path_factory.mktemp("run") / "fed")


@pytest.fixture(scope="module")
def served(manager: Manager, place: Place) -> Iterator[subprocess.Popen[bytes]]:
    """A broker whose manager wants to be fed every second."""
    environment = {
        **os.environ,
        "NOTIFY_SOCKET": manager.address,
        "WATCHDOG_USEC": str(int(WATCHDOG_SECONDS * 1e6)),
    }
    command = [sys.executable, "-m", "shmq", "serve", "--no-tcp", "--file-size", "4M", "--log-format", "json"]
    command += ["--name", place.broker_name, "--runtime-dir", str(place.runtime_dir)]
    process = subprocess.Popen([*command, "--store", str(place.runtime_dir.parent / "store")], env=environment)
    yield process
    if process.poll() is None:
        process.terminate()
        process.wait(DEADLINE_SECONDS)


def instance_of(place: Place) -> Instance:
    instance = read_instance(place.instance_path)
    assert instance is not None
    return instance


@pytest.mark.slow
def test_it_says_ready_once_and_feeds_from_then_on(manager: Manager, served: subprocess.Popen[bytes]) -> None:
    said = manager.wait_for(lambda heard: heard.count("WATCHDOG=1") >= 3, before=0)
    assert said.count("READY=1") == 1 and said.index("READY=1") < said.index("WATCHDOG=1")


@pytest.mark.slow  # five seconds of silence make a process suspect
@pytest.mark.parametrize("role", ["bridge", "keeper"])
def test_a_stopped_process_starves_the_watchdog_and_is_named(
    manager: Manager, served: subprocess.Popen[bytes], place: Place, role: str
) -> None:
    manager.wait_for(lambda heard: "WATCHDOG=1" in heard)
    pid = instance_of(place).processes[role].pid
    os.kill(pid, signal.SIGSTOP)
    try:
        manager.wait_for(lambda heard: any("STATUS=no sign of life" in line and role in line for line in heard))
        starved = len(manager.heard)
        time.sleep(2 * WATCHDOG_SECONDS)  # not a wait: so long it hungers
        assert "WATCHDOG=1" not in manager.heard[starved:]
    finally:
        os.kill(pid, signal.SIGCONT)
    manager.wait_for(lambda heard: "WATCHDOG=1" in heard and "STATUS=serving" in heard)


@pytest.mark.slow
def test_a_killed_bridge_is_replaced_and_fed_again(
    manager: Manager, served: subprocess.Popen[bytes], place: Place
) -> None:
    killed = instance_of(place).processes["bridge"]
    os.kill(killed.pid, signal.SIGKILL)
    manager.wait_for(
        lambda heard: (
            "WATCHDOG=1" in heard and is_alive(now := instance_of(place).processes.get("bridge")) and now != killed
        )
    )


@pytest.mark.slow
def test_the_processes_it_starts_do_not_speak_for_it(served: subprocess.Popen[bytes], place: Place) -> None:
    for role, mark in instance_of(place).processes.items():
        if role != "supervisor":
            assert b"NOTIFY_SOCKET" not in Path(f"/proc/{mark.pid}/environ").read_bytes()


@pytest.mark.slow
def test_it_says_that_it_stops(manager: Manager, served: subprocess.Popen[bytes]) -> None:
    before = len(manager.heard)
    served.terminate()
    assert served.wait(DEADLINE_SECONDS) == 0
    manager.wait_for(lambda heard: "STOPPING=1" in heard, before)


def test_an_abstract_socket_is_spoken_to_and_a_foreign_watchdog_is_not_ours() -> None:
    name = f"@shmq-test-{os.getpid()}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind("\0" + name[1:])
        listener.settimeout(DEADLINE_SECONDS)
        environment = {"NOTIFY_SOCKET": name, "WATCHDOG_USEC": "4000000", "WATCHDOG_PID": "1"}
        speaker = ServiceManager(environment)
        speaker.ready("of two\nlines")
        assert listener.recv(100) == b"READY=1\nSTATUS=of two lines" and environment == {}
        assert speaker.feed_seconds == 0
        speaker.close()
    speaker = ServiceManager({"NOTIFY_SOCKET": name, "WATCHDOG_USEC": "4000000", "WATCHDOG_PID": str(os.getpid())})
    assert speaker.feed_seconds == 2.0
    speaker.feed()  # the listener is gone
    speaker.close()


def test_without_a_manager_nothing_is_said() -> None:
    speaker = ServiceManager({})
    speaker.ready("x")
    speaker.feed()
    assert speaker.feed_seconds == 0
