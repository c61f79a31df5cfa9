"""Moves the durable mark and the checkpoint forward, beside the keeper's other work.

A mark says that bytes of the log, units and their sums are on disk, so it moves only after they are. How far the log is
on disk is said at once, by a thread of its own: it waits for nothing but the flush. How far the units are takes as many
syncs as there are dirty files, and may take long or fail, without holding up the other.

    MarkWriter   durable end risen, or every 200 ms ─▶ durable_end, at most every 20 ms
    MarkKeeper   idle ─▶ noted: E = log end, append lock taken once, units written, dirty files and their sums taken
                      ─▶ a thread syncs the files, then stores the sums, then writes the mark (dispatched = E) and the
                         checkpoint ─▶ idle

Rules: (1) the lock is taken once after E was read: an append that had moved the log end but not yet its queue's maximum
is finished then, so every unit below E is among the units written; (2) the mark is written after the last sync;
(3) what a failed sync covered is written again before the next one, as the kernel would call it clean; (4) a checkpoint
that was written before the log below its mark was flushed is written again after that, also if no message comes.
"""

import threading
from dataclasses import dataclass, field

from shmq.daemon.event_log import EventLog
from shmq.daemon.keeper.flusher import Flusher
from shmq.daemon.keeper.units import UnitWriter
from shmq.errors import StoreError
from shmq.shm.core import ACK_CONFIRMED, CoreError, KeeperStore, Store
from shmq.store.atomic import reason_of
from shmq.store.checkpoint import Checkpoint, change_checkpoint, read_checkpoint
from shmq.store.config import ConfigFiles
from shmq.store.consumequeue import UnitSync
from shmq.store.durable import DurableMark
from shmq.store.recovery import OpenFiles

_LOCK_SECONDS = 0.1
_PAUSE_SECONDS = 0.02
_LOOK_SECONDS = 0.2


class MarkWriter:
    """Owns the thread that says on disk how far the log is on disk."""

    def __init__(
        self, store: Store, keeper_store: KeeperStore, mark: DurableMark, config: ConfigFiles, log: EventLog
    ) -> None:
        self._store = store
        self._keeper_store = keeper_store
        self._mark = mark
        self._config = config
        self._log = log
        self._seen = 0
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="mark", daemon=True)
        self._failed = False

    def start(self) -> None:
        """Begin to follow."""
        self._thread.start()

    def ask_to_stop(self) -> None:
        """Let the thread end when it looks next."""
        self._stopping.set()

    def stop(self) -> None:
        """End the thread, when the sync it may be in has returned, and say what the last flush reached."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join()
            self._write()

    def _run(self) -> None:
        while not self._stopping.is_set():
            self._keeper_store.durable_follow(self._seen, _LOOK_SECONDS)
            self._seen = self._store.durable_end
            self._write()
            self._stopping.wait(_PAUSE_SECONDS)  # what is flushed meanwhile rides on the next mark

    def _write(self) -> None:
        try:
            self._mark.advance(durable_end=self._store.durable_end, config_files=self._config.written)
            self._failed = False
        except OSError as error:
            if not self._failed:
                self._log("mark.not_written", reason=reason_of(error))
            self._failed = True


@dataclass
class _Noted:
    """A mark on its way."""

    dispatched: int
    noted_ms: int
    sync: UnitSync
    batch: bytes
    is_whole: bool
    unit_sums: int
    failure: str = ""
    thread: threading.Thread = field(default_factory=threading.Thread)


class MarkKeeper:
    """Writes the marks of one store."""

    def __init__(
        self,
        store: Store,
        keeper_store: KeeperStore,
        files: OpenFiles,
        units: UnitWriter,
        flusher: Flusher,
        log: EventLog,
    ) -> None:
        self._store = store
        self._keeper_store = keeper_store
        self._files = files
        self._units = units
        self._flusher = flusher
        self._log = log
        self._noted: _Noted | None = None
        self._is_wanted = False
        self._failed = False
        self._is_confirmed = store.head["ack_rule"] == ACK_CONFIRMED
        told = read_checkpoint(files.layout)
        self._told_ends = told.flushed, told.confirmed

    @property
    def is_syncing(self) -> bool:
        """Whether a mark was begun and is not written yet."""
        return self._noted is not None

    def write_again(self) -> None:
        """Have the next mark written, whether or not there is something new to say."""
        self._is_wanted = True

    def begin(self) -> None:
        """Note a position if the mark or the checkpoint is behind; harmless while one is under way."""
        now_ms = self._store.clock_ms  # before the log end is read: what came up to then lies below it
        log_end = self._store.log_end
        is_noted = self._files.mark.current.dispatched >= log_end and self._told_ends == self._safe_ends()
        if self.is_syncing or (is_noted and not self._files.consumequeue.is_dirty and not self._is_wanted):
            return
        try:
            self._keeper_store.repair(_LOCK_SECONDS)
        except CoreError:
            return  # another process holds the lock; the watchdog looks after that
        if self._units.write_all() and self._units.rewrite_lost():
            self._start(log_end, now_ms)

    def _start(self, log_end: int, now_ms: int) -> None:
        files = self._files.consumequeue
        try:
            batch, is_whole = files.sums.batch(files.read)
        except OSError as error:
            self._complain(reason_of(error))
            return
        noted = _Noted(log_end, now_ms, files.begin_sync(), batch, is_whole, files.sums.sequence)
        self._is_wanted = False
        noted.thread = threading.Thread(target=self._run, args=(noted,), name="unit-mark", daemon=True)
        self._noted = noted
        noted.thread.start()

    def _run(self, noted: _Noted) -> None:
        """In a thread: sync what was taken, and say so if everything worked."""
        try:
            noted.sync.run()
            if noted.sync.failed:
                return
            self._files.consumequeue.sums.store(noted.batch, whole=noted.is_whole)
            self._write(noted)
        except (OSError, StoreError) as error:
            noted.failure = reason_of(error) if isinstance(error, OSError) else str(error)

    def _safe_ends(self) -> tuple[int, int]:
        """How far the log is on this disk, and on those of its replicas; the same where none has to confirm."""
        confirmed_end = self._store.confirmed_end if self._is_confirmed else self._store.durable_end
        durable_end = self._store.durable_end  # read behind it, so never below
        return durable_end, min(confirmed_end, durable_end)

    def _write(self, noted: _Noted) -> None:
        durable_end, confirmed_end = self._safe_ends()
        self._files.mark.advance(durable_end=durable_end, dispatched=noted.dispatched, unit_sums=noted.unit_sums)
        # A replica flushes too, and tells no time: that of the mark holds once all that lies below it is flushed.
        flushed_ms = noted.noted_ms if durable_end >= noted.dispatched else self._flusher.flushed_ms
        change_checkpoint(
            self._files.layout,
            lambda known: Checkpoint(
                physic_ms=max(known.physic_ms, flushed_ms),
                logics_ms=max(known.logics_ms, noted.noted_ms),
                index_ms=known.index_ms,
                flushed=durable_end,
                confirmed=confirmed_end,
            ),
        )
        self._told_ends = durable_end, confirmed_end

    def step(self, *, wait: bool = False) -> None:
        """Take the outcome of the syncs, if they have ended."""
        noted = self._noted
        if noted is None or (noted.thread.is_alive() and not wait):
            return
        noted.thread.join()
        self._noted = None
        try:
            self._files.consumequeue.end_sync(noted.sync)
        except OSError as error:
            noted.failure = reason_of(error)
        if noted.failure:
            self._complain(noted.failure)
        else:
            self._failed = False

    def _complain(self, reason: str) -> None:
        """Say it once, not at every attempt."""
        if not self._failed:
            self._log("mark.not_written", reason=reason)
        self._failed = True

    def store_sums(self) -> None:
        """Say on disk how far the queues go, before the log loses records that could say it."""
        self.step(wait=True)
        try:
            self._files.consumequeue.store_sums()
        except OSError as error:
            self._complain(reason_of(error))

    def finish(self) -> bool:
        """Bring the mark to the present end, however long it takes; False when that failed."""
        self.step(wait=True)
        self._failed = False
        self.begin()
        self.step(wait=True)
        mark = self._files.mark.current
        return not self._failed and mark.dispatched >= self._store.log_end

    def close(self) -> None:
        """Wait for the thread, which uses the files."""
        self.step(wait=True)
