"""Fixtures of the store tests: a store directory that is filled through the real append path, and recovered."""

import secrets
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from shmq.shm.access import Access
from shmq.shm.core import BrokerTables, KeeperStore, Producer, Receipt, Store, StoreFigures
from shmq.shm.instance import Instance
from shmq.shm.segment import SegmentSizes, create_segments, unlink_segments
from shmq.store.layout import StoreLayout
from shmq.store.lineage.log_range import parse_ranges
from shmq.store.recovery import OpenFiles, RecoveryReport, recover
from shmq.store.tables import LiveTables

FILE_BYTES = 64 << 10


@dataclass
class Events:
    """An event log that remembers."""

    lines: list[tuple[str, dict[str, Any]]] = field(default_factory=list)

    def __call__(self, event: str, **values: Any) -> None:
        self.lines.append((event, values))

    def named(self, event: str) -> list[dict[str, Any]]:
        """Values of every event of that name."""
        return [values for name, values in self.lines if name == event]


class Session:
    """One life of a broker on the store: segments, recovered from the files, and no keeper."""

    def __init__(self, root: Path, *, file_bytes: int = FILE_BYTES, accept_loss: str = "") -> None:
        self.events = Events()
        layout = StoreLayout(root, Access(-1))
        layout.prepare()
        self.files = OpenFiles.of(layout, file_bytes=file_bytes, log=self.events)
        sizes = SegmentSizes(
            file_bytes=file_bytes,
            topic_max=256,
            queue_max=1024,
            frame_max=4096,
            client_max=16,
            group_max=16,
            offset_max=1024,
        )
        self.instance: Instance
        self.store: Store
        self.instance, self.store = create_segments(f"test-{secrets.token_hex(4)}", store_path=root, sizes=sizes)
        try:
            self.tables: LiveTables
            self.report: RecoveryReport
            self.tables, self.report = recover(
                self.store, self.files, default_queues=4, accepted=parse_ranges(accept_loss), log=self.events
            )
        except BaseException:
            self.end()
            raise
        self._born = {name: record.born for name, record in self.tables.tables.topics.items()}
        self._producer = Producer(self.store, resolve=self.topic)

    def topic(self, name: str) -> int:
        """Index of a topic, which is made when there is none."""
        index = self.store.topic_find(name)
        return index if index >= 0 else BrokerTables(self.store).topic_put(name, read_queues=2, write_queues=2)

    def send(self, topic: str, body: bytes, *, queue_id: int = 0, **values: Any) -> Receipt:
        """Append through the real path, with a new log file when one is needed."""
        while self.files.commitlog.end - self.store.log_end <= self.files.commitlog.file_bytes:
            KeeperStore(self.store).set_allocated_end(self.files.commitlog.create_next())
        return self._producer.send(topic, body, queue_id=queue_id, **values)

    def queue(self, topic: str, queue_id: int) -> tuple[int, int]:
        """(offset_min, offset_max) of a queue."""
        index = self.store.queue_index(self.store.topic_find(topic), queue_id)
        return self.store.queue(index)[:2]

    def save(self) -> None:
        """What a keeper's round does: units to files, tables to JSON, the mark."""
        for index, persisted, offset_max in StoreFigures(self.store).dirty_queues(1024):
            _, _, _, topic, queue_id, _ = self.store.queue(index)
            name, born = self.store.topic(topic)["name"], self.store.topic(topic)["born_position"]
            if self._born.get(name) != born:
                self._born[name] = born
                self.files.consumequeue.remove_topic(name, born=born)
            units = KeeperStore(self.store).units_read(index, persisted, offset_max - persisted)
            self.files.consumequeue.write((name, queue_id), persisted, units)
            KeeperStore(self.store).set_persisted(index, offset_max)
        self.files.consumequeue.sync_all()
        self.save_tables()
        end, sums = self.store.log_end, self.files.consumequeue.store_sums()
        self.files.mark.advance(durable_end=KeeperStore(self.store).flush(), dispatched=end, unit_sums=sums)

    def save_tables(self) -> None:
        """Write the config directory."""
        live = self.tables
        found, deleted = live.collect_topics(self.store)
        self.files.config.save_topics(found, deleted)
        self.files.config.save_groups(live.collect_groups(self.store))
        self.files.config.save_offsets(live.collect_offsets(self.store, StoreFigures(self.store)))
        self.files.mark.advance(config_files=self.files.config.written)
        live.tables.topics, live.tables.deleted = found, deleted

    def end(self) -> None:
        """End as a killed broker does: nothing is saved. Twice is harmless."""
        self.files.close()
        self.store.close()
        unlink_segments(self.instance)

    def read(self, topic: str, queue_id: int = 0) -> list[bytes]:
        """Bodies a consumer of the queue gets, by units."""
        index = self.store.queue_index(self.store.topic_find(topic), queue_id)
        first, end = self.store.queue(index)[:2]
        units = self.files.consumequeue.read((topic, queue_id), first, end - first)
        places = [(int.from_bytes(units[at : at + 8], "big"), at) for at in range(0, len(units), 20)]
        return [
            self.store.message_at(place, int.from_bytes(units[at + 8 : at + 12], "big")).body for place, at in places
        ]


OpenSession = Callable[..., Session]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """The store directory."""
    return tmp_path / "store"


@pytest.fixture
def open_session(root: Path) -> Iterator[OpenSession]:
    """Opens sessions on the store; a session that is still open ends when the next one begins."""
    sessions: list[Session] = []

    def opened(**values: Any) -> Session:
        while sessions:
            sessions.pop().end()
        sessions.append(Session(root, **values))
        return sessions[-1]

    yield opened
    while sessions:
        sessions.pop().end()


@pytest.fixture
def tree(root: Path) -> Callable[[], dict[str, bytes]]:
    """Reads every byte of the store."""

    def read() -> dict[str, bytes]:
        return {str(path.relative_to(root)): path.read_bytes() for path in sorted(root.rglob("*")) if path.is_file()}

    return read
