"""Fills the key index behind the log, and says on disk how far it can be trusted.

The files are RocketMQ's hash files, filled behind the log at 100 ns a record. An append of a record with properties
raises one word beside the log end, so a log without keys costs nothing here. A file is committed one record at a time
by its entry count, which a killed keeper's successor goes on from; after a host crash the file that was open is thrown
away and built again behind the running broker, as RocketMQ does it. So is one whose checksums do not hold
(index_repair.py). `shmq.index` and the checkpoint's index time are taken back before a synced file is written to again.

    settled    files, sums and mark agree and are synced; nothing is written until the mark is taken back
    open       the newest file is being filled: after a host crash it is thrown away and built from its first record on

                    first key: mark taken back, then filled              10 s without a key: synced, then marked
    settled  ───────────────────────────────────────────────▶  open  ───────────────────────────────────────▶  settled
                                                                │  file full: synced beside the work, marked, next file

Rules: (1) the index follows the visible end, so it names nothing that a crash may take back; (2) the checkpoint's
index time is below the begin of a file that is open, so that a stock broker throws the same file away; (3) a full disk
stops the index and nothing else; (4) a keeper that finds living segments goes on in the file where its predecessor was
killed; (5) a sync that failed is final for what it covered: these files are removed and filled again from the log.
"""

import threading
import time
from array import array
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from shmq.daemon.event_log import EventLog
from shmq.daemon.keeper.index_follow import IndexFollower
from shmq.daemon.keeper.index_repair import IndexRepair
from shmq.daemon.keeper.index_start import IndexGap, find_start
from shmq.daemon.keeper.live.held_files import make_room
from shmq.errors import CorruptionError, ShmqError
from shmq.shm.core import KeeperStore, Store
from shmq.store.atomic import fault_of, forget
from shmq.store.checkpoint import change_checkpoint, read_checkpoint
from shmq.store.index.files import IndexFile, IndexFiles, IndexShape
from shmq.store.index.mark import IndexMark, write_index_mark
from shmq.store.index.sums import BLOCK_BYTES as SUM_BLOCK_BYTES
from shmq.store.index.sums import FileSums, IndexSums, make_sums
from shmq.store.recovery import OpenFiles

_ROUND_SECONDS = 0.02
_SETTLE_SECONDS = 10.0
_RETRY_SECONDS = 1.0
_STOP_SECONDS = 30.0
_DOUBLED_MOST = 6  # how often the pause before the next sync is doubled while they fail


@dataclass
class _Sync:
    """Files on their way to the disk, and the mark that holds when they are there."""

    mark: IndexMark
    index_ms: int
    keyed: int | None  # valid only if no more keys came since; None: whatever came
    files: list[tuple[str, int, int]]  # name, and the part of the log it answers for
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
        self._layout = files.layout
        self._files = IndexFiles(files.layout, shape)
        self._sums = IndexSums(files.layout)
        self._follower = IndexFollower(store, keeper_store, files.commitlog, log)
        self._log = log
        state = find_start(store, files.layout, self._files, warm=warm, log=log)
        self.faults = tuple(state.faults)  # what was found wrong at the start
        self._position = state.position
        self._begin = state.begin  # of the log whose keys the next file will hold
        self._described_from = store.log_end  # of what was there before it is unknown whether it has properties
        self._is_settled = state.is_settled
        self._unsynced = state.unsynced  # name, and where in the log its keys begin
        self._mark = state.mark
        self._gaps = state.gaps
        self._repair: IndexRepair | None = None
        self._files.adopt_all()
        self._file: IndexFile | None = None
        self._before: FileSums | None = None  # of the open file, when it was synced last
        self._failures = 0  # of syncs, one after the other
        self._settle_seconds = settle_seconds
        self._keyed = 0
        self._now = 0.0  # of the round: one clock for all that is compared
        self._keyed_at = 0.0
        self._mark_at = 0.0
        self._retry_at = 0.0
        self._sync: _Sync | None = None
        self._complaint = ""

    @property
    def shape(self) -> IndexShape:
        """How large a file is."""
        return self._files.shape

    @property
    def paths(self) -> list[Path]:
        """Where its files are."""
        return [self._files.directory / name for name in sorted(self._files.known)]

    @property
    def is_mending(self) -> bool:
        """Whether a part is missing that is built again."""
        return bool(self._gaps) or self._repair is not None

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
            behind |= self._mend()
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
                self._sums.remove(name)
                self._unsynced.pop(name, None)
                self._log("index.file_removed", file=name, log_begin=log_begin)
            except (ShmqError, OSError) as error:
                self._complain(error)
                return

    def settled_sums(self) -> list[FileSums]:
        """Return the sums of every file that is not written to. Raises OSError."""
        found = []
        for name in self._sums.names():
            try:
                sums = self._sums.load(name) if self._is_at_rest(name) else None
            except CorruptionError:
                sums = FileSums(name, 0, 0, 0, array("I"))  # holds for no file
            if sums is not None:
                found.append(sums)
        return found

    def rebuild(self, name: str, reason: str) -> bool:
        """Build a file again that is not what its sums say; False when it is being written to, or is gone.

        Raises:
            StoreError, OSError: the disk refused.
        """
        if not self._is_at_rest(name):
            return False
        names = self._files.names()
        later = [other for other in names if other > name]
        if not later:
            self._drop_newest(name, reason)
            return True
        earlier = [other for other in names if other < name]
        begin, end = self._ends_of(earlier[-1:], 1, self._store.log_begin), self._ends_of(later[:1], 0, self._position)
        self._log("index.file_dropped", file=name, reason=reason)
        self._sums.remove(name)
        self._gaps.insert(0, IndexGap(begin, end, earlier[-1] if earlier else "", later[0], (name,)))
        return True

    def put_right(self) -> list[tuple[Path, str]]:
        """Build again what another process removed or replaced; returns each file, and what happened to it."""
        found = []
        for name in sorted(self._files.known):
            path = self._files.directory / name
            fault = fault_of(path, bytes_most=self.shape.file_bytes)
            if not fault:
                continue
            self._end_sync(wait=True)
            make_room(self._layout, path)
            if name in self._unsynced:
                self._drop_unsynced()
            elif self._is_at_rest(name):
                self.rebuild(name, fault)
            else:
                continue  # it is being built
            forget(path)
            self._files.known.discard(name)
            found.append((path, fault))
        if fault := fault_of(self._layout.index_mark):
            make_room(self._layout, self._layout.index_mark)
            write_index_mark(self._layout, self._mark)
            found.append((self._layout.index_mark, fault))
        return found

    def _is_at_rest(self, name: str) -> bool:
        is_gap = any(name in gap.names for gap in self._gaps) or self._repair is not None
        return not is_gap and name <= self._mark.last and name not in self._unsynced

    def _ends_of(self, names: list[str], side: int, default: int) -> int:
        """Begin (0) or end (1) of the part of the log that a neighbour answers for."""
        if not names:
            return default
        if names[0] in self._unsynced:
            return self._unsynced[names[0]]
        with suppress(CorruptionError):
            sums = self._sums.load(names[0])
            if sums is not None:
                return (sums.begin, sums.end)[side]
        return default

    def finish(self) -> bool:
        """Follow to the end and bring everything to disk; False when the disk refused."""
        until = time.monotonic() + _STOP_SECONDS
        try:
            while self._follow(time.monotonic() + _ROUND_SECONDS) and time.monotonic() < until:
                pass
            self._end_sync(wait=True)
            if self._is_settled:
                self._advance_mark()
            else:
                self._begin_sync(self._mark_here(), self._end_ms(), keyed=self._keyed)
            self._end_sync(wait=True)
        except (ShmqError, OSError) as error:
            self._complain(error)
            return False
        if self._position < self._store.visible_end:
            self._log("index.behind", position=self._position, log_end=self._store.visible_end)
        return self._is_settled and not self._failures

    def close(self) -> None:
        """Let go of the file."""
        if self._sync is not None:
            self._sync.thread.join()
        if self._repair is not None:
            self._repair.close()
        self._close_file()

    # -- following

    def _follow(self, until_seconds: float) -> bool:
        end = self._store.visible_end
        described_end = self._store.described_end
        while self._position < end:
            if self._position >= max(self._described_from, described_end):
                self._position = end  # nothing from here on has a property
                break
            self._step(end)
            if time.monotonic() >= until_seconds:
                break
        return self._position < self._store.visible_end

    def _step(self, end: int) -> None:
        file = None if self._is_settled else self._file
        reached = self._follower.step(file, self._position, end, end)
        self._position = reached.position
        if reached.keyed:
            self._keyed += reached.keyed
            self._keyed_at = self._now
        if reached.needs_file:
            self._open(reached.store_ms)
        elif reached.is_full:
            self._roll(reached.store_ms)

    def _mend(self) -> bool:
        """Go on with what has to be built again; True when there is more to do at once."""
        if self._repair is None and self._gaps:
            self._repair = IndexRepair(self._follower, self._files, self._sums, self._gaps.pop(), self._log)
        if self._repair is None:
            return False
        if self._repair.step():
            self._repair = None
            return bool(self._gaps)
        return not self._repair.is_waiting

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
            sums = self._believed(file)
            if sums is None:
                self._drop_newest(file.name, "its checksums do not hold")
                return
            self._before = sums
            names = self._files.names()
            older = names[: names.index(file.name)]
            head = file.head()
            begin = (self._position, first_ms) if head.is_empty else (head.begin_position, head.begin_ms)
            self._take_back(IndexMark(begin[0], older[-1] if older else ""), begin[1])
            self._unsynced = {file.name: sums.begin}

    def _believed(self, file: IndexFile) -> FileSums | None:
        """The sums of a file that is to be written to again, if they hold where entries will change it."""
        try:
            sums = self._sums.load(file.name)
        except CorruptionError:
            return None
        if sums is None or sums.next_entry != file.head().next_entry:
            return None
        entries = -(-file.shape.entries_at // SUM_BLOCK_BYTES)
        last = len(sums.sums) - 1
        is_right = sums.wrong_block(file, 0, entries) is None and sums.wrong_block(file, last) is None
        return sums if is_right else None

    def _begin_file(self, first_ms: int, *, after: str) -> None:
        if self._is_settled:
            self._take_back(IndexMark(self._position, after), first_ms)
        self._file = self._files.create(after=after)
        self._before = None
        self._unsynced[self._file.name] = self._begin
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
        if self._file is not full:
            return  # that sync failed
        end_ms = full.head().end_ms
        full.close()
        self._file, self._begin = None, self._position
        # Equal times would let a start after a crash take the new file for a synced one.
        if not self._failures:
            self._begin_sync(IndexMark(self._position, full.name), min(end_ms, first_ms - 1), keyed=None)
        self._begin_file(first_ms, after=full.name)

    def _drop_newest(self, name: str, reason: str) -> None:
        """Remove the newest file, all of which are settled; what it held is followed again."""
        try:
            sums = self._sums.load(name)
        except CorruptionError:
            sums = None
        names = self._files.names()
        older = [other for other in names if other < name]
        before = self._sums.load(older[-1]) if older else None
        begin = sums.begin if sums is not None else before.end if before is not None else self._store.log_begin
        self._log("index.file_dropped", file=name, reason=reason)
        self._write(IndexMark(begin, older[-1] if older else ""), 0)
        self._close_file()
        self._files.remove(name)
        self._sums.remove(name)
        self._position = self._begin = begin

    def _drop_unsynced(self) -> None:
        """Remove what a failed sync covered: which bytes are on disk is unknown, so all of it is written anew."""
        self._failures += 1
        self._close_file()
        for name in self._unsynced:
            self._files.remove(name)
            self._sums.remove(name)
        self._begin = min([self._position, *self._unsynced.values()])
        self._position = max(self._begin, min(self._position, self._mark.indexed))
        self._unsynced.clear()
        self._is_settled = True

    def _close_file(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    # -- settling

    def _settle(self, now: float) -> None:
        self._end_sync(wait=False)
        pause = self._settle_seconds * (1 << min(self._failures, _DOUBLED_MOST))
        if self._is_settled:
            if now >= self._mark_at:
                self._mark_at = now + self._settle_seconds
                self._advance_mark()
        elif self._sync is None and now - self._keyed_at >= pause:
            self._begin_sync(self._mark_here(), self._end_ms(), keyed=self._keyed)

    def _advance_mark(self) -> None:
        if self._mark.indexed < self._position <= self._store.durable_end:
            mark = self._mark._replace(indexed=self._position)
            write_index_mark(self._layout, mark)
            self._mark = mark

    def _mark_here(self) -> IndexMark:
        return IndexMark(self._position, max(self._unsynced, default=self._mark.last))

    def _end_ms(self) -> int:
        if not self._unsynced:
            return read_checkpoint(self._layout).index_ms
        file = self._file or self._files.open(max(self._unsynced))
        try:
            return file.head().end_ms
        finally:
            if file is not self._file:
                file.close()

    def _begin_sync(self, mark: IndexMark, index_ms: int, *, keyed: int | None) -> None:
        begins = sorted(self._unsynced.items())
        ends = [begin for _, begin in begins[1:]] + [mark.indexed]
        sync = _Sync(mark, index_ms, keyed, [(*begin, end) for begin, end in zip(begins, ends, strict=True)])
        sync.thread = threading.Thread(target=self._run_sync, args=(sync, self._before), name="index-sync", daemon=True)
        sync.thread.start()
        self._sync = sync

    def _run_sync(self, sync: _Sync, before: FileSums | None) -> None:
        """Sync the files; runs in a thread."""
        for name, begin, end in sync.files:
            try:
                file = self._files.open(name)
            except FileNotFoundError:
                continue
            except (ShmqError, OSError) as error:
                sync.failure = str(error)
                return
            try:
                file.sync()
                self._sums.store(make_sums(file, begin, end, before if before and before.name == name else None))
            except (ShmqError, OSError) as error:
                sync.failure = str(error)
                return
            finally:
                file.close()

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
            self._drop_unsynced()
            return
        self._failures = 0
        if sync.mark.indexed <= self._store.durable_end and sync.keyed in (None, self._keyed):
            self._write(sync.mark, sync.index_ms)
            self._unsynced = {name: begin for name, begin in self._unsynced.items() if name > sync.mark.last}
            self._is_settled = sync.keyed is not None

    def _write(self, mark: IndexMark, index_ms: int) -> None:
        # Also where it says so already: an earlier sync of it may have failed.
        change_checkpoint(self._layout, lambda known: replace(known, index_ms=index_ms))
        write_index_mark(self._layout, mark)
        self._mark = mark

    def _complain(self, error: Exception) -> None:
        """Say it once, not in every round."""
        if str(error) != self._complaint:
            self._log("index.stopped", reason=str(error))
        self._complaint = str(error)
