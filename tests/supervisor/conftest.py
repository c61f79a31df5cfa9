"""Fixtures of the supervisor tests: real brokers as real processes."""

import json
import os
import secrets
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from shmq.shm.core import BrokerTables, Producer, Store
from shmq.shm.instance import Instance, read_instance
from shmq.shm.liveness import ProcessMark, is_alive
from shmq.shm.presence import attach_presence, detach_presence
from shmq.shm.segment import SHM_DIRECTORY, open_store
from shmq.waits import is_ready
from tests.deadline import eventually
from tests.supervisor.told_faults import look_at

DEADLINE_SECONDS = 40.0
SMALL = {
    "file_bytes": 256 << 10,
    "topic_max": 256,
    "queue_max": 1024,
    "frame_max": 4096,
    "client_max": 16,
    "group_max": 16,
    "offset_max": 1024,
    "populate_bytes": 65536,
    "disk_warn_percent": 100,  # how full the disk of the tests is says nothing of the broker
    "disk_force_percent": 100,
    "disk_refuse_percent": 100,
}


def daemon_words(role: str, *words: str, **settings: Any) -> list[str]:
    """What starts a process of the daemon that says as JSON when it is ready."""
    options = json.dumps(settings, default=str)  # places
    return [sys.executable, "-P", "-m", "shmq.daemon", role, "--json", "--options", options, *words]


class Served:
    """One `serve` process."""

    def __init__(
        self,
        name: str,
        runtime: Path,
        store: Path,
        *arguments: str,
        wait: bool = True,
        pass_fds: tuple[int, ...] = (),
        **settings: Any,
    ) -> None:
        self.runtime = runtime
        self.store_path = store
        self.log = runtime.parent / f"{name}.{secrets.token_hex(3)}.log"
        places = {"broker_name": name, "runtime_dir": runtime, "store": store}
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                daemon_words("serve", *arguments, **{**places, "tcp": False, **SMALL, **settings}),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                cwd=runtime.parent,
                pass_fds=pass_fds,
            )
        self.announced: dict[str, Any] = self.announcement() if wait else {}

    def announcement(self) -> dict[str, Any]:
        """The one JSON line on stdout."""
        assert self.process.stdout
        output = self.process.stdout
        line = output.readline() if is_ready(output.fileno(), DEADLINE_SECONDS) else b""
        assert line, self.text()
        answer: dict[str, Any] = json.loads(line)
        return answer

    def text(self) -> str:
        """The log so far."""
        return self.log.read_text()

    @property
    def instance(self) -> Instance:
        found = read_instance(self.runtime / "instance.json")
        assert found
        return found

    def mark(self, role: str) -> ProcessMark:
        """A process of the broker, from instance.json."""
        return self.instance.processes[role]

    def kill(self, role: str) -> ProcessMark:
        """SIGKILL one process and wait for its end."""
        mark = self.mark(role)
        os.kill(mark.pid, signal.SIGKILL)
        if role == "supervisor":
            self.process.wait()
        eventually(lambda: not is_alive(mark))
        return mark

    def stop(self) -> int:
        """SIGTERM; returns the exit status."""
        self.process.terminate()
        return self.wait()

    def wait(self) -> int:
        """Wait for the end; returns the exit status."""
        try:
            return self.process.wait(DEADLINE_SECONDS)
        finally:
            assert self.process.stdout
            self.process.stdout.close()

    def end(self) -> None:
        """Whatever still runs ends: in order, since a killed broker needs another one that takes away what it left."""
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(DEADLINE_SECONDS)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        look_at(self.text())


class Client:
    """A process' view of the broker: attached segments and a producer."""

    def __init__(self, served: Served) -> None:
        self._instance = served.instance
        self.store: Store = open_store(self._instance, writable=True)
        attach_presence(self._instance)  # as every client does: segments with attached processes are not swept
        self._producer = Producer(self.store, resolve=self._resolve, timeout=5.0)

    def leave(self) -> None:
        """End the attachment."""
        self.store.close()
        detach_presence(self._instance)

    def _resolve(self, name: str) -> int:
        index = self.store.topic_find(name)
        return index if index >= 0 else BrokerTables(self.store).topic_put(name, read_queues=1, write_queues=1)

    def send(self, body: bytes) -> int:
        """Append; returns the queue offset."""
        return self._producer.send("orders", body, queue_id=0).offset

    @property
    def sent(self) -> int:
        """Messages in the queue."""
        return self.store.queue(self.store.queue_index(self.store.topic_find("orders"), 0))[1]


Serve = Callable[..., Served]


@pytest.fixture
def broker_name() -> str:
    """A name that no other test uses."""
    return f"test-{secrets.token_hex(4)}"


@pytest.fixture
def left(broker_name: str, tmp_path: Path) -> Callable[[], list[str]]:
    """What a broker left outside of its store."""

    def find() -> list[str]:
        found = [name for name in os.listdir(SHM_DIRECTORY) if broker_name in name]
        return sorted(found) + sorted(os.listdir(tmp_path / "run"))

    return find


@pytest.fixture
def serve(broker_name: str, tmp_path: Path) -> Iterator[Serve]:
    """Starts brokers on one runtime directory and store; at the end nothing of them is left."""
    started: list[Served] = []

    def start(*arguments: str, name: str = broker_name, **settings: Any) -> Served:
        runtime, store = settings.pop("runtime", tmp_path / "run"), settings.pop("store", tmp_path / "store")
        started.append(Served(name, runtime, store, *arguments, **settings))
        return started[-1]

    yield start
    for served in started:
        served.end()
    # Orphans leave by themselves; what a killed broker left goes with a clean stop of its successor.
    for runtime, store in {(served.runtime, served.store_path) for served in started}:
        if (runtime / "instance.json").exists():
            last = Served(broker_name, runtime, store, wait=False)
            last.announcement()
            last.stop()
    assert not [name for name in os.listdir(SHM_DIRECTORY) if broker_name in name]


@pytest.fixture(name="eventually")
def eventually_fixture() -> Callable[..., Any]:
    """Waiting for a condition."""
    return eventually


@pytest.fixture
def attach() -> Callable[[Served], Client]:
    """Attaches this process to a broker."""
    return Client
