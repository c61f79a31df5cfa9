"""A real store for tests of the extension: three memory segments, one or two preallocated log files, nothing mocked.

It does not know brokers: no daemon runs, so the test itself plays the keeper where one is needed.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any

import posix_ipc

from shmq.bindings import _core
from shmq.shm.presence import create_presence, presence_key_of, remove_presence
from tests.deadline import eventually

STORE_HOST = b"\x7f\0\0\1\0\0\x2a\x9f"
FILE_BYTES = 1 << 20
SIZES = {
    "file_bytes": FILE_BYTES,
    "topic_max": 16,
    "queue_max": 64,
    "frame_max": 512,
    "client_max": 8,
    "group_max": 8,
    "offset_max": 64,
}
until = eventually


class LiveStore:
    """One formatted store with `files` log files; a context manager that leaves nothing behind."""

    def __init__(
        self, *, files: int = 1, flush_sync: bool = False, confirms: bool = False, frame_ready: int = 512, **sizes: int
    ) -> None:
        self._attached: list[_core.Store] = []
        self._semaphores: list[str] = []
        # As a living broker: without it the start of any other broker here sweeps our semaphores away.
        self._generation = next(
            generation
            for generation in iter(lambda: int.from_bytes(os.urandom(6)), 0)
            if create_presence(presence_key_of(generation), mode=0o600, gid=-1)
        )
        self.sizes = SIZES | sizes
        self.path = Path(tempfile.mkdtemp(prefix="shmq-binding-"))
        (self.path / "commitlog").mkdir()
        for number in range(files):
            self.add_file(number)
        self.descriptors = [os.memfd_create("shmq-binding") for _ in range(3)]
        for descriptor, size in zip(self.descriptors, _core.layout_bytes(**self.sizes), strict=True):
            os.ftruncate(descriptor, size)
        layout = {
            **self.sizes,
            "generation": self._generation,
            "ack_rule": 2 if confirms else int(flush_sync),
            "store_host": STORE_HOST,
            "broker_name": f"binding-{os.getpid()}",
            "store_path": str(self.path),
            "frame_ready": frame_ready,
        }
        self.store = self.attach(writable=True, format=layout)
        self.keeper, self.figures = _core.KeeperStore(self.store), _core.StoreFigures(self.store)
        self.tables, self.log = _core.BrokerTables(self.store), _core.BrokerLog(self.store)
        self.keeper.set_allocated_end(files * self.sizes["file_bytes"])

    def add_file(self, number: int) -> Path:
        """Preallocate log file `number`."""
        path = self.path / "commitlog" / f"{number * self.sizes['file_bytes']:020d}"
        with path.open("wb") as file:
            os.posix_fallocate(file.fileno(), 0, self.sizes["file_bytes"])
        return path

    def attach(self, *, writable: bool, **options: Any) -> _core.Store:
        """Another handle, as another process would have one."""
        store = _core.Store(*self.descriptors, writable=writable, **options)
        self._attached.append(store)
        return store

    def use_client(self, store: _core.Store | None = None) -> int:
        """Register `store` as a client of its own, with the semaphore the bridge would make."""
        store = store or self.store
        slot = self.tables.client_put(os.getpid(), _core.process_start(os.getpid()), 3)
        head = store.head
        name = f"/shmq.{head['broker_name']}.{head['generation']:016x}.w{slot}"
        posix_ipc.Semaphore(name, posix_ipc.O_CREX, mode=0o600).close()
        self._semaphores.append(name)
        store.use_client(slot, self.tables.client_generation(slot))
        return slot

    def taken_word(self, slot: int) -> int:
        """The word that shows how far the reader of an offset slot was handed messages."""
        slots = memoryview(self.figures.offset_counts()).cast("Q")[1::2].tolist()
        return int(memoryview(self.figures.offsets_taken()).cast("Q")[slots.index(slot)])

    def topic(self, name: str = "orders", queues: int = 4, **options: int) -> list[int]:
        """Make a topic; its queue indexes."""
        index = self.tables.topic_put(name, read_queues=queues, write_queues=queues, **options)
        return list(self.store.topic(index)["queues"])

    def producer(self, store: _core.Store | None = None, **options: Any) -> _core.Producer:
        store = store or self.store
        return _core.Producer(store, resolve=store.topic_find, **options)

    def reader(self, topic: str = "orders", store: _core.Store | None = None, **options: Any) -> _core.Reader:
        """A reader of every queue of a topic from its first message."""
        store = store or self.store
        reader = _core.Reader(store, **options)
        for queue_id, queue in enumerate(store.topic(store.topic_find(topic))["queues"]):
            reader.assign(topic, queue, queue_id, 0)
        return reader

    def close(self) -> None:
        for store in self._attached:
            store.close()
        for descriptor in self.descriptors:
            os.close(descriptor)
        for name in self._semaphores:
            with contextlib.suppress(posix_ipc.ExistentialError):
                posix_ipc.unlink_semaphore(name)
        remove_presence(presence_key_of(self._generation), uid=os.geteuid())
        shutil.rmtree(self.path)

    def __enter__(self) -> LiveStore:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


@contextlib.contextmanager
def raises_status(status: int, text: str = "") -> Iterator[None]:
    """Expect a CoreError of one status whose message holds `text`."""
    try:
        yield
    except _core.CoreError as error:
        assert error.args[0] == status, error.args
        assert text in error.args[1], error.args[1]
    else:
        raise AssertionError(f"no CoreError with status {status}")
