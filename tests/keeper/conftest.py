"""Fixtures of the keeper tests: a keeper that runs in a thread over a real store and real segments."""

import secrets
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from shmq.daemon.keeper.attachment import Attached, attach
from shmq.daemon.keeper.keeper import Keeper
from shmq.daemon.keeper.live.held_files import put_back_directories
from shmq.figures.changed_files import FILES_CHANGED
from shmq.options.broker import Options
from shmq.shm.core import BrokerTables, Producer, Receipt, Store
from shmq.shm.counters import LooseCounters
from shmq.shm.place import prepare_runtime
from shmq.shm.segment import unlink_segments, write_instance
from tests.deadline import eventually

SMALL = {
    "file_bytes": 256 << 10,
    "topic_max": 256,
    "queue_max": 1024,
    "frame_max": 4096,
    "client_max": 16,
    "group_max": 16,
    "offset_max": 1024,
    "populate_bytes": 64 << 10,
    "disk_warn_percent": 100,  # how full the disk of the tests is says nothing of the keeper
    "disk_force_percent": 100,
    "disk_refuse_percent": 100,
}


@dataclass
class Events:
    """An event log that remembers."""

    lines: list[tuple[str, dict[str, Any]]] = field(default_factory=list)

    def __call__(self, event: str, **values: Any) -> None:
        self.lines.append((event, values))

    def tick(self) -> None:
        """Leave nothing out."""

    def named(self, event: str) -> list[dict[str, Any]]:
        """Values of every event of that name."""
        return [values for name, values in self.lines if name == event]


class Running:
    """A keeper in a thread."""

    def __init__(self, options: Options, directories: Sequence[int] = ()) -> None:
        self.options = options
        self.events = Events()
        put_back_directories(options.store_path, directories, self.events)  # type: ignore[arg-type]
        self.attached: Attached = attach(options, self.events, directories=directories)  # type: ignore[arg-type]
        write_instance(options.place.instance_path, self.attached.instance, mode=0o600, gid=-1)
        self.counters = LooseCounters()
        self.keeper = Keeper(self.attached, options, self.events, self.counters)  # type: ignore[arg-type]
        self.keeper.start()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self.keeper.run, args=(self._stopping,))
        self._thread.start()
        self._producer = Producer(self.store, resolve=self.topic)
        self.is_running = True

    @property
    def store(self) -> Store:
        return self.attached.store

    @property
    def root(self) -> Path:
        return self.options.store_path

    def tells(self, file: Path, fate: str, what: str, do: str = "") -> bool:
        """Whether health has this of a file of the store."""
        return self.counters.counter(FILES_CHANGED, file=str(file), fate=fate, what=what, do=do).value == 1

    def topic(self, name: str) -> int:
        """Index of a topic, which is made when there is none."""
        index = self.store.topic_find(name)
        return index if index >= 0 else BrokerTables(self.store).topic_put(name, read_queues=2, write_queues=2)

    def send(self, topic: str, body: bytes, **values: Any) -> Receipt:
        """Append through the real path."""
        return self._producer.send(topic, body, **{"queue_id": 0, **values})

    def send_batch(self, topic: str, bodies: list[bytes], **values: Any) -> list[Receipt]:
        """Append many."""
        return self._producer.send_batch(topic, bodies, **{"queue_id": 0, **values})

    def queue_index(self, topic: str, queue_id: int = 0) -> int:
        return self.store.queue_index(self.store.topic_find(topic), queue_id)

    def halt(self) -> None:
        """End the thread."""
        if self.is_running:
            self.is_running = False
            self._stopping.set()
            self.keeper.wake()
            self._thread.join()

    def stop(self) -> bool:
        """Stop in order, as on SIGTERM."""
        self.halt()
        saved = self.keeper.stop()
        self._unlink()
        return saved

    def abandon(self) -> None:
        """Leave segments and files as a keeper does whose supervisor died."""
        self.halt()
        self.keeper.abandon()

    def end(self) -> None:
        """End as a broker does whose processes were all killed and whose memory is lost."""
        self.abandon()
        self._unlink()

    def _unlink(self) -> None:
        unlink_segments(self.attached.instance)


@pytest.fixture(name="eventually")
def eventually_fixture() -> Callable[..., Any]:
    """Waiting for a condition."""
    return eventually


StartKeeper = Callable[..., Running]


@pytest.fixture
def options(tmp_path: Path) -> Options:
    """A broker of its own, with small files and tables."""
    options = Options(
        broker_name=f"test-{secrets.token_hex(4)}",
        runtime_dir=str(tmp_path / "run"),
        store=str(tmp_path / "store"),
        **SMALL,
    )
    prepare_runtime(options.place, mode=0o700, gid=-1)
    return options


@pytest.fixture
def start_keeper(options: Options) -> Iterator[StartKeeper]:
    """Starts keepers; those that still run at the end are ended."""
    started: list[Running] = []

    def start(directories: Sequence[int] = (), **values: Any) -> Running:
        started.append(Running(options.replaced(**values), directories))
        return started[-1]

    yield start
    for running in started:
        running.end()
