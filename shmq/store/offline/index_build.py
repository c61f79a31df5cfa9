"""Writes the whole index again, from the first record of the log to the last.

    settled index    files, mark and checkpoint agree and are synced
    while it runs    no mark, and index time 0: a broker that starts after a crash here throws the files away

Rule: every file is synced before the checkpoint or the mark speaks of it.
"""

from __future__ import annotations

from dataclasses import replace

from shmq.errors import StoreError
from shmq.shm.core import INDEX_DAMAGE, INDEX_FULL, INDEX_NO_FILE, INDEX_NO_ROOM, KeeperStore
from shmq.store.atomic import sync_directory
from shmq.store.checkpoint import change_checkpoint
from shmq.store.commitlog import CommitLogFiles
from shmq.store.damage import LogWalk
from shmq.store.index.files import IndexFile, IndexFiles
from shmq.store.index.mark import IndexMark, write_index_mark
from shmq.store.index.sums import IndexSums, make_sums
from shmq.store.layout import StoreLayout

_STEP_BYTES = 64 << 20


def remove_index(layout: StoreLayout) -> None:
    """Remove every file, and what says that there are some. Raises OSError, StoreError."""
    layout.index_mark.unlink(missing_ok=True)
    sync_directory(layout.root)
    change_checkpoint(layout, lambda known: replace(known, index_ms=0))
    files = IndexFiles(layout)
    files.remove_temporaries()
    for name in files.names():
        files.remove(name)
    sums = IndexSums(layout)
    for name in sums.names():
        sums.remove(name)


def mark_index(layout: StoreLayout, log_begin: int, log_end: int) -> None:
    """Say that the files hold every key of the log. Raises OSError, ShmqError."""
    files, sums, end_ms = IndexFiles(layout), IndexSums(layout), 0
    names = files.names()
    for name in {*sums.names()} - {*names}:
        sums.remove(name)
    begins = [log_begin]
    for name in names[1:]:
        file = files.open(name)
        begins.append(max(file.head().begin_position, begins[-1]))
        file.close()
    for name, begin, end in zip(names, begins, [*begins[1:], log_end], strict=False):
        file = files.open(name)
        try:
            file.sync()
            sums.store(make_sums(file, begin, end))
            end_ms = file.head().end_ms
        finally:
            file.close()
    change_checkpoint(layout, lambda known: replace(known, index_ms=end_ms))
    write_index_mark(layout, IndexMark(log_end, names[-1] if names else ""))


class IndexBuild:
    """One pass over the log into new files."""

    def __init__(self, layout: StoreLayout, keeper_store: KeeperStore, commitlog: CommitLogFiles) -> None:
        self._keeper_store = keeper_store
        self._commitlog = commitlog
        self._files = IndexFiles(layout)
        self._file: IndexFile | None = None

    def run(self, begin: int, log_end: int) -> None:
        """Fill the files.

        Raises:
            StoreError: the disk has no room, or refused.
        """
        position = begin
        try:
            while position < log_end:
                position = self._step(position, log_end)
        finally:
            if self._file is not None:
                self._file.close()

    def _step(self, position: int, log_end: int) -> int:
        """Follow the log for a while, or do what stands in the way; returns how far the index goes."""
        until, file = min(log_end, position + _STEP_BYTES), self._file
        if file is None:
            reached = self._keeper_store.index_follow(position, until, log_end)
        else:
            reached = file.follow(self._keeper_store, position, until, log_end)
        if reached.stop == INDEX_NO_FILE:
            self._file = self._files.create()
        elif reached.stop == INDEX_FULL:
            if file is None:
                raise StoreError(f"a record at byte {reached.position} has more keys than an index file holds")
            file.close()
            self._file = self._files.create(after=file.name)
        elif reached.stop == INDEX_NO_ROOM and file is not None:
            file.reserve(file.head().next_entry)
        elif reached.stop == INDEX_DAMAGE:
            return self._behind_damage(reached.position, log_end)
        elif reached.position == position:
            return log_end  # less than a record is left
        return reached.position

    def _behind_damage(self, position: int, log_end: int) -> int:
        walk = LogWalk(self._keeper_store, self._commitlog, durable_end=None, on_records=None, on_damage=lambda _: None)
        found = walk.next_record(position)
        return log_end if found is None or found > log_end else found
