"""Fills the key index behind the log, and says on disk how far it can be trusted.

The files are RocketMQ's hash files, filled behind the log at 100 ns a record. An append of a record with properties
raises one word beside the log end, so a log without keys costs nothing here. A file is committed one record at a time
by its entry count, which a killed keeper's successor goes on from; after a host crash the file that was open is thrown
away and built again behind the running broker, as RocketMQ does it. `shmq.index` and the checkpoint's index time are
taken back before a synced file is written to again.

    settled    files and mark agree and are synced; nothing is written until the mark is taken back
    open       the newest file is being filled: after a host crash it is thrown away and built from its first record on

                    first key: mark taken back, then filled              10 s without a key: synced, then marked
    settled  ───────────────────────────────────────────────▶  open  ───────────────────────────────────────▶  settled
                                                                │  file full: synced beside the work, marked, next file

Rules: (1) the index follows the visible end, so it names nothing that a crash may take back; (2) the checkpoint's
index time is below the begin of a file that is open, so that a stock broker throws the same file away; (3) a full disk
stops the index and nothing else; (4) a keeper that finds living segments goes on in the file where its predecessor was
killed.
"""

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from shmq.daemon.event_log import EventLog
from shmq.daemon.keeper.index_start import IndexState, find_start
from shmq.errors import OffsetOutOfRange, ShmqError
from shmq.shm.core import (
    INDEX_DAMAGE,
    INDEX_DONE,
    INDEX_FULL,
    INDEX_NO_FILE,
    INDEX_NO_ROOM,
    KeeperStore,
    Store,
)
from shmq.store.checkpoint import read_checkpoint, write_checkpoint
from shmq.store.damage import LogWalk
from shmq.store.index import IndexFile, IndexFiles, IndexShape
from shmq.store.index_mark import IndexMark, read_index_mark, write_index_mark
from shmq.store.recovery import OpenFiles

_STEP_BYTES = 8 << 20
_ROUND_SECONDS = 0.02
_SETTLE_SECONDS = 10.0
_RETRY_SECONDS = 1.0
_STOP_SECONDS = 30.0


@dataclass
class _Sync:
    """Files on their way to the disk, and what may be said when they are there."""

    mark: IndexMark
    index_ms: int
    keyed: int | None  # valid only if no more keys came since; None: whatever came
    failure: str = ""
    thread: threading.Thread = field(default_factory=threading.Thread)


class IndexKeeper:
    """The keeper's part for the key index.

    Args:
        warm: the segments were alive, so the files are as a keeper of this boot left them.
        settle_seconds: how long no key came until the files are synced.
    """

    def __init__(
        self,
        store: Store,
        keeper_store: KeeperStore,
        files: OpenFiles,
        *,
        warm: bool,
        log: EventLog,
        shape: IndexShape | None = None,
        settle_seconds: float = _SETTLE_SECONDS,
    ) -> None:
        self._store = store
        self._keeper_store = keeper_store
        self._layout = files.layout
        self._commitlog = files.commitlog
        self._files = IndexFiles(files.layout, shape)
        self._log = log
        state: IndexState = find_start(store, files.layout, self._files, warm=warm, log=log)
        self._position = state.position
        self._described_from = store.log_end  # what was there before us: nobody says whether it has properties
        self._is_settled = state.is_settled
        self._unsynced = list(state.unsynced)
        self._mark = read_index_mark(files.layout) or IndexMark()
        self._file: IndexFile | None = None
        self._settle_seconds = settle_seconds
        self._keyed = 0
        self._now = 0.0  # of the round: one clock for all that is compared
        self._keyed_at = 0.0
        self._mark_at = 0.0
        self._retry_at = 0.0
        self._sync: _Sync | None = None
        self._complaint = ""

    @property
    def position(self) -> int:
        """Every key below this log position is in the index."""
        return self._position

    def round(self, now: float) -> bool:
        """Follow the log for a short while; True when there is more to do at once."""
        self._now = now
        if now < self._retry_at:
            return False
        try:
            behind = self._follow(time.monotonic() + _ROUND_SECONDS)
            self._settle(now)
        except (ShmqError, OSError) as error:
            self._retry_at = now + _RETRY_SECONDS
            self._complain(error)
            return False
        self._complaint = ""
        return behind

    def begin_moved(self, log_begin: int) -> None:
        """Remove files that only name records which are gone; never the newest."""
        for name in self._files.names()[:-1]:
            try:
                file = self._files.open(name)
                end_position = file.head().end_position
                file.close()
                if end_position >= log_begin:
                    return
                self._files.remove(name)
                self._unsynced = [other for other in self._unsynced if other != name]
                self._log("index.file_removed", file=name, log_begin=log_begin)
            except (ShmqError, OSError) as error:
                self._complain(error)
                return

    def finish(self) -> bool:
        """Follow to the end and bring everything to disk; False when the disk refused."""
        until = time.monotonic() + _STOP_SECONDS
        try:
            while self._follow(time.monotonic() + _ROUND_SECONDS) and time.monotonic() < until:
                pass
            if self._sync is not None:
                self._sync.thread.join()
                self._sync = None
            if not self._is_settled:
                self._begin_sync(self._unsynced, self._mark_here(), self._end_ms(), keyed=self._keyed)
            else:
                self._advance_mark()
            self._end_sync(wait=True)
        except (ShmqError, OSError) as error:
            self._complain(error)
            return False
        if self._position < self._store.visible_end:
            self._log("index.behind", position=self._position, log_end=self._store.visible_end)
        return self._is_settled

    def close(self) -> None:
        """Let go of the file."""
        if self._sync is not None:
            self._sync.thread.join()
        if self._file is not None:
            self._file.close()
            self._file = None

    # -- following

    def _follow(self, until_seconds: float) -> bool:
        end = self._store.visible_end
        described_end = self._store.described_end
        while self._position < end:
            if self._position >= max(self._described_from, described_end):
                self._position = end  # nothing from here on has a property
                break
            self._position = max(self._position, self._store.log_begin)
            self._step(min(end, self._position + _STEP_BYTES), end)
            if time.monotonic() >= until_seconds:
                break
        return self._position < self._store.visible_end

    def _step(self, until: int, end: int) -> None:
        file = None if self._is_settled else self._file
        try:
            if file is None:
                reached = self._keeper_store.index_follow(self._position, until, end)
            else:
                reached = file.follow(self._keeper_store, self._position, until, end)
        except OffsetOutOfRange:
            if self._store.log_begin <= self._position:
                raise
            return  # retention was faster
        before, self._position = self._position, reached.position
        stop, store_ms, keyed = reached.stop, reached.store_ms, reached.keyed
        if keyed:
            self._keyed += keyed
            self._keyed_at = self._now
        if stop == INDEX_NO_FILE:
            self._open(store_ms)
        elif stop == INDEX_NO_ROOM:
            assert file is not None
            file.reserve(file.head().next_entry)
        elif stop == INDEX_FULL:
            self._roll(store_ms)
        elif stop == INDEX_DAMAGE:
            self._step_over(end)
        elif stop == INDEX_DONE and self._position == before:
            self._position = end  # less than a record is left

    def _step_over(self, end: int) -> None:
        walk = LogWalk(self._keeper_store, self._commitlog, durable_end=None, on_records=None, on_damage=lambda _: None)
        found = walk.next_record(self._position)
        after = end if found is None or found > end else found
        self._log("index.damage", log_position=self._position, end=after)
        self._position = after

    # -- files

    def _open(self, first_ms: int) -> None:
        """Make a file ready for the record at our position, stored at `first_ms`."""
        if self._file is None:
            names = self._files.names()
            if names:
                self._file = self._files.open(names[-1], writable=True)
        file = self._file
        if file is None:
            self._begin_file(first_ms, after="")
        elif self._is_settled:
            names = self._files.names()
            older = names[: names.index(file.name)]
            head = file.head()
            begin = (self._position, first_ms) if head.is_empty else (head.begin_position, head.begin_ms)
            self._take_back(IndexMark(begin[0], older[-1] if older else ""), begin[1])
            self._unsynced = [file.name]

    def _begin_file(self, first_ms: int, *, after: str) -> None:
        if self._is_settled:
            self._take_back(IndexMark(self._position, after), first_ms)
        self._file = self._files.create(after=after)
        self._unsynced.append(self._file.name)
        self._log("index.file_created", file=self._file.name)

    def _take_back(self, mark: IndexMark, begin_ms: int) -> None:
        """Say that the file which begins at `begin_ms` cannot be trusted, before it is written to."""
        self._write(mark, min(read_checkpoint(self._layout).index_ms, max(0, begin_ms - 1)))
        self._is_settled = False
        self._keyed_at = self._now

    def _roll(self, first_ms: int) -> None:
        full = self._file
        assert full is not None
        self._end_sync(wait=True)
        synced = list(self._unsynced)
        end_ms = full.head().end_ms
        full.close()
        self._file = None
        # Equal times would let a start after a crash take the new file for a synced one.
        self._begin_sync(synced, IndexMark(self._position, full.name), min(end_ms, first_ms - 1), keyed=None)
        self._begin_file(first_ms, after=full.name)

    # -- settling

    def _settle(self, now: float) -> None:
        self._end_sync(wait=False)
        if self._is_settled:
            if now >= self._mark_at:
                self._mark_at = now + self._settle_seconds
                self._advance_mark()
        elif self._sync is None and now - self._keyed_at >= self._settle_seconds:
            self._begin_sync(self._unsynced, self._mark_here(), self._end_ms(), keyed=self._keyed)

    def _advance_mark(self) -> None:
        if self._mark.indexed < self._position <= self._store.durable_end:
            self._mark = self._mark._replace(indexed=self._position)
            write_index_mark(self._layout, self._mark)

    def _mark_here(self) -> IndexMark:
        return IndexMark(self._position, self._unsynced[-1] if self._unsynced else self._mark.last)

    def _end_ms(self) -> int:
        if not self._unsynced:
            return read_checkpoint(self._layout).index_ms
        file = self._file or self._files.open(self._unsynced[-1])
        try:
            return file.head().end_ms
        finally:
            if file is not self._file:
                file.close()

    def _begin_sync(self, names: Sequence[str], mark: IndexMark, index_ms: int, *, keyed: int | None) -> None:
        sync = _Sync(mark, index_ms, keyed)
        sync.thread = threading.Thread(target=self._run_sync, args=(sync, list(names)), name="index-sync", daemon=True)
        sync.thread.start()
        self._sync = sync

    def _run_sync(self, sync: _Sync, names: list[str]) -> None:
        for name in names:
            try:
                file = self._files.open(name)
                file.sync()
                file.close()
            except FileNotFoundError:
                continue
            except (ShmqError, OSError) as error:
                sync.failure = str(error)
                return

    def _end_sync(self, *, wait: bool) -> None:
        sync = self._sync
        if sync is None or (sync.thread.is_alive() and not wait):
            return
        sync.thread.join()
        if not sync.failure and sync.mark.indexed > self._store.durable_end and not wait:
            return  # what it names is not on disk yet
        self._sync = None
        if sync.failure:
            self._log("index.not_synced", reason=sync.failure)
            self._keyed_at = self._now
        elif sync.mark.indexed <= self._store.durable_end and sync.keyed in (None, self._keyed):
            self._write(sync.mark, sync.index_ms)
            self._unsynced = [name for name in self._unsynced if name > sync.mark.last]
            self._is_settled = sync.keyed is not None

    def _write(self, mark: IndexMark, index_ms: int) -> None:
        before = read_checkpoint(self._layout)
        if before.index_ms != index_ms:
            write_checkpoint(self._layout, replace(before, index_ms=index_ms))
        write_index_mark(self._layout, mark)
        self._mark = mark

    def _complain(self, error: Exception) -> None:
        """Say it once, not in every round."""
        if str(error) != self._complaint:
            self._log("index.stopped", reason=str(error))
        self._complaint = str(error)
