"""The broker's key index as it is in the store's index files.

It implements `KeyIndex` of the broker over the hash files that the keeper fills.
"""

from collections.abc import Iterator
from pathlib import Path

from shmq.daemon.broker.log import Found
from shmq.shm.access import Access
from shmq.shm.core import Store
from shmq.store.index import IndexFiles, IndexReader
from shmq.store.layout import StoreLayout


class StoreIndex:
    """`shmq.daemon.broker.log.KeyIndex` over the index files of the store these segments belong to."""

    def __init__(self, store: Store, access: Access) -> None:
        self._reader = IndexReader(IndexFiles(StoreLayout(Path(store.head["store_path"]), access)))

    def search(self, topic: str, key: str, *, begin_ms: int, end_ms: int, count: int) -> Iterator[Found | None]:
        for answer in self._reader.search(topic, key, begin_ms=begin_ms, end_ms=end_ms, count=count):
            yield None if answer is None else Found(answer.positions, answer.last_ms, answer.last_position)

    def close(self) -> None:
        """Let go of the files."""
        self._reader.close()
