"""One step along the log into an index file: what the keeper's index and its repairs have in common.

reached      the keys of every record below it are in the file, or there is damage that was stepped over
needs_file   the record there has keys, and there is no file
is_full      the file has no room for them
"""

from typing import NamedTuple

from shmq.daemon.event_log import EventLog
from shmq.errors import OffsetOutOfRange
from shmq.shm.core import (
    INDEX_DAMAGE,
    INDEX_DONE,
    INDEX_FULL,
    INDEX_NO_FILE,
    INDEX_NO_ROOM,
    KeeperStore,
    Store,
)
from shmq.store.commitlog import CommitLogFiles
from shmq.store.damage import LogWalk
from shmq.store.index.files import IndexFile

_STEP_BYTES = 8 << 20


class Reached(NamedTuple):
    """Where a step led; `store_ms` is the time of the last record with keys."""

    position: int
    keyed: int = 0
    store_ms: int = 0
    needs_file: bool = False
    is_full: bool = False


class IndexFollower:
    """Walks the log for the part that fills a file."""

    def __init__(self, store: Store, keeper_store: KeeperStore, commitlog: CommitLogFiles, log: EventLog) -> None:
        self._store = store
        self._keeper_store = keeper_store
        self._commitlog = commitlog
        self._log = log

    def step(self, file: IndexFile | None, position: int, until: int, end: int) -> Reached:
        """Take the keys of some records from `position` on into a file.

        Args:
            until: records that begin at or behind it are not taken.
            end: no record reaches beyond it.

        Raises:
            SegmentFull: the disk has no room for entries.
            StoreError, CoreError: the file or the log cannot be used.
        """
        position = max(position, self._store.log_begin)
        if position >= until:
            return Reached(position)
        until = min(until, position + _STEP_BYTES)
        try:
            if file is None:
                found = self._keeper_store.index_follow(position, until, end)
            else:
                found = file.follow(self._keeper_store, position, until, end)
        except OffsetOutOfRange:
            if self._store.log_begin <= position:
                raise
            return Reached(position)  # retention was faster
        reached = found.position
        if found.stop == INDEX_NO_ROOM:
            assert file is not None
            file.reserve(file.head().next_entry)
        elif found.stop == INDEX_DAMAGE:
            reached = self._behind_damage(reached, end)
        elif found.stop == INDEX_DONE and reached == position:
            reached = end  # less than a record is left
        return Reached(reached, found.keyed, found.store_ms, found.stop == INDEX_NO_FILE, found.stop == INDEX_FULL)

    def _behind_damage(self, position: int, end: int) -> int:
        walk = LogWalk(self._keeper_store, self._commitlog, durable_end=None, on_records=None, on_damage=lambda _: None)
        found = walk.next_record(position)
        after = end if found is None or found > end else found
        self._log("index.damage", log_position=position, end=after)
        return after
