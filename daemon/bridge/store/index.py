"""The broker's key index as it is in the store's index files.

It implements `KeyIndex` of the broker over the hash files that the keeper fills. How far they are is a word among the
keeper's counters, and a bell makes it go on.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from shmq.daemon.broker.log import Found
from shmq.errors import SegmentError
from shmq.metrics.family import DISPATCHED
from shmq.shm.access import Access
from shmq.shm.core import BrokerLog, Store
from shmq.shm.counter_reader import CounterReader, CounterWord, open_counters
from shmq.shm.counters import KEEPER
from shmq.shm.instance import Instance
from shmq.store.index.files import IndexFiles, IndexReader
from shmq.store.layout import StoreLayout


class StoreIndex:
    """`shmq.daemon.broker.log.KeyIndex` over the index files of the store these segments belong to."""

    def __init__(self, store: Store, instance: Instance, access: Access) -> None:
        self._store = store
        self._log = BrokerLog(store)
        self._instance = instance
        self._counters: CounterReader | None = None
        self._filled: CounterWord | None = None
        self._reader = IndexReader(IndexFiles(StoreLayout(Path(store.head["store_path"]), access)))

    def search(
        self, topic: str, key: str, *, begin_ms: int, end_ms: int, count: int, oldest_from: int | None = None
    ) -> Iterator[Found | None]:
        wanted = {"begin_ms": begin_ms, "end_ms": end_ms, "count": count}
        for answer in self._reader.search(topic, key, **wanted, oldest_from=oldest_from):
            yield None if answer is None else Found(answer.positions, answer.last_ms, answer.last_position)

    @property
    def wanted_end(self) -> int:
        return self._store.visible_end  # what is not visible yet need not be found

    def has_reached(self, log_position: int) -> bool:
        if self._filled is None:
            try:
                self._counters = open_counters(self._instance)
            except SegmentError:
                return True  # there is no room to count, so it is unknown
            self._filled = self._counters.word(KEEPER, DISPATCHED)
        if self._filled.value >= log_position:
            return True
        self._log.ring_keeper()
        return False

    def close(self) -> None:
        """Let go of the files."""
        self._reader.close()
        if self._counters is not None:
            self._counters.close()
