"""The store keeper: what happens when, and in which order it stops.

It has no rule of its own, its parts have them: space and retention (files), dead queues, units, index, marks, scrubber,
catalog (tables), flusher, watchdog, and what watches the files (live/).

    round   every 5 to 200 ms: spare file · pages · dead queues · units · frames · damages · index · marks · scrub ·
            tables; four times a second before that: log files · lock file · other files · append lock
    stop    retire · last units · last flush · mark · index · tables · abort removed, if everything before it worked

Rules: (1) `abort` goes last, and only if nothing failed, so that a stock broker knows what to expect;
(2) a keeper whose supervisor died leaves everything as it is: clients go on, the next keeper attaches again.
"""

import contextlib
import threading
import time
from collections.abc import Sequence

from shmq.daemon.event_log import EventLog
from shmq.daemon.keeper.attachment import Attached
from shmq.daemon.keeper.catalog import Catalog
from shmq.daemon.keeper.damages import DamageKeeper
from shmq.daemon.keeper.dead_queues import DeadQueues
from shmq.daemon.keeper.figures import KeeperFigures
from shmq.daemon.keeper.flusher import Flusher
from shmq.daemon.keeper.frames import FrameKeeper
from shmq.daemon.keeper.index import IndexKeeper
from shmq.daemon.keeper.live.file_system import FileSystemWatch
from shmq.daemon.keeper.live.files import LiveFiles
from shmq.daemon.keeper.live.held_files import FileNews
from shmq.daemon.keeper.live.lock import LiveLock
from shmq.daemon.keeper.live.log import LiveLog
from shmq.daemon.keeper.marks import MarkKeeper, MarkWriter
from shmq.daemon.keeper.retention import Retention
from shmq.daemon.keeper.scrubber import Scrubber
from shmq.daemon.keeper.space import LogSpace
from shmq.daemon.keeper.units import UnitWriter
from shmq.daemon.keeper.watchdog import Watchdog
from shmq.delay_levels import DelayLevels
from shmq.options.broker import Options
from shmq.shm.core import READ_ONLY_REASONS, CoreError, KeeperStore
from shmq.shm.counters import Counters, LooseCounters
from shmq.shm.signal_event import SignalEvent
from shmq.store.atomic import sync_directory
from shmq.store.consumequeue import Queue
from shmq.store.mounts import mounted_at
from shmq.store.quarantine import Quarantine
from shmq.store.scrub_state import ScrubState

_ROUND_SECONDS_MIN = 0.005
_BUSY_SECONDS = 0.02
_IDLE_SECONDS = 0.2
_MARK_SECONDS = 1.0
WATCH_SECONDS = 0.25
_FLUSH_STOP_SECONDS = 60.0
_ORPHAN_SECONDS = 0.3


class Keeper:
    """Keeps the store of one broker.

    Args:
        directories: descriptors of the store and of its commitlog/, which the supervisor has locked.
    """

    def __init__(
        self,
        attached: Attached,
        options: Options,
        log: EventLog,
        counters: Counters | None = None,
        directories: Sequence[int] = (),
    ) -> None:
        store, files = attached.store, attached.files
        self._attached, self._store = attached, store
        self._keeper_store = keeper_store = KeeperStore(store)
        self._log = log
        self._wake = SignalEvent()
        counters = counters or LooseCounters()
        self._figures = KeeperFigures(counters, options, attached.report)
        self._frames = FrameKeeper(store, keeper_store, memory_bytes=options.unit_memory_bytes, log=log)
        self._dead_queues = DeadQueues(store, keeper_store, self._frames, log)
        self._units = UnitWriter(
            store,
            keeper_store,
            files.consumequeue,
            files.commitlog,
            self._frames,
            levels=DelayLevels(options.delay_levels),
            born={name: record.born for name, record in attached.tables.tables.topics.items()},
            close_dead=self._dead_queues.close,
            stored=self._figures.stored,
            log=log,
        )
        quarantine = Quarantine(files.layout)
        self._damages = DamageKeeper(store, keeper_store, files.commitlog, self._units, quarantine, counters, log)
        self._index = IndexKeeper(store, keeper_store, files, warm=attached.report is None, log=log)
        self._retention = Retention(
            store, keeper_store, files.commitlog, options, mark=files.mark, on_begin_moved=self._begin_moved, log=log
        )
        self._space = LogSpace(
            store, keeper_store, files.commitlog, options, is_short=lambda: self._retention.is_short, log=log
        )
        self._mark_writer = MarkWriter(store, keeper_store, files.mark, files.config, log)
        self._flusher = Flusher(keeper_store, options, on_bell=self._wake.set, log=log, counters=counters)
        self._marks = MarkKeeper(store, keeper_store, files, self._units, self._flusher, log)
        self._catalog = Catalog(store, keeper_store, files.config, attached.tables, self._units, log)
        save = self._catalog.save_again
        self._scrubber = Scrubber(
            store, keeper_store, files, self._units, self._index, counters, on_table_removed=save, log=log
        )
        news = FileNews(counters, log)
        news.repeat(attached.changed)
        self._live_log = LiveLog(store, keeper_store, files.layout, files.commitlog, news, directories)
        self._live_lock = LiveLock(files.layout, news, stop_sends=self._live_log.stop_sends)
        self._live_files = LiveFiles(files, self._units, self._marks, self._index, news)
        self._watchdog = Watchdog(store, keeper_store, lease_seconds=options.lease_ms / 1000, log=log)
        root = str(files.layout.root)
        self._file_system = FileSystemWatch(keeper_store, lambda: mounted_at(root), log)
        self._mark_at = self._watch_at = 0.0
        self._seen_end, self.rounds = -1, 0
        self._read_only = store.read_only

    def start(self) -> None:
        """Make room for writers and begin to flush, before the broker is announced as ready."""
        self._keeper_store.keeper_beat()
        if self._attached.report is None:
            self._take_over()
        self._space.round(time.monotonic())
        self._retention.round(time.monotonic(), self._store.clock_ms / 1000, has_room=self._space.has_room)
        self._live_log.follow()
        self._units.round()
        self._frames.round()
        self._catalog.save_tables()
        self._flusher.start()
        self._mark_writer.start()

    def _take_over(self) -> None:
        files, tables = self._attached.files, self._attached.tables.tables
        born = {name: record.born for name, record in tables.topics.items()}
        is_sound = files.consumequeue.sums.load(born, tables.deleted, sequence=files.mark.current.unit_sums)
        if not is_sound:
            files.consumequeue.sums.start_anew()
        self._units.take_over(is_sound=is_sound, has_file=self._live_files.has_units)

    def wake(self) -> None:
        """End the present pause, or the next one; any thread and any handler of a signal may call it."""
        self._wake.set()

    def run(self, stopping: threading.Event) -> None:
        """Work until `stopping` is set, or the segments are given up: a slave's log has to begin elsewhere."""
        while not stopping.is_set() and not self._store.retired:
            assert self._flusher.is_alive, "a keeper that does not flush has to be started again"
            began = time.monotonic()
            busy = self.round(began)
            self._wake.wait(_BUSY_SECONDS if busy else _IDLE_SECONDS)
            self._wake.clear()
            if not stopping.is_set():
                # A writer that finds too little room rings again and again; rounds need not follow as fast.
                time.sleep(max(0.0, began + _ROUND_SECONDS_MIN - time.monotonic()))

    def round(self, now: float) -> bool:
        """Do what is due; True when there is more to do soon."""
        self.rounds += 1
        self._figures.beat()
        if now >= self._watch_at:
            self._watch_at = now + WATCH_SECONDS
            self._watch(now)
        if self._live_log.is_astray:
            return False  # what lies at the store's path is not ours to change
        log_end = self._store.log_end
        busy = log_end != self._seen_end
        self._seen_end = log_end
        self._space.round(now)
        self._retention.round(now, self._store.clock_ms / 1000, has_room=self._space.has_room)
        self._live_log.follow()
        busy |= self._live_log.save_next(now)
        self._dead_queues.round()
        more = self._units.round()
        self._figures.dispatched(now, log_end, is_complete=not more)
        busy |= more
        self._frames.round()
        busy |= self._damages.round()
        busy |= self._index.round(now)
        self._figures.indexed(self._index.position)
        if now >= self._mark_at:
            self._mark_at = now + _MARK_SECONDS
            self._marks.begin()
        self._marks.step()
        busy |= self._scrubber.round(now, time.time())
        self._catalog.round(now)
        return busy or self._marks.is_syncing

    def _watch(self, now: float) -> None:
        """Look at what others may do to the store and to the lock of its log, before anything is done there."""
        self._live_log.round(now)
        if not self._live_log.is_astray:
            self._live_lock.round()
            self._live_files.round()
        self._watchdog.round(now)
        self._file_system.round(now)
        self._log.tick()
        self._tell_read_only()

    def _begin_moved(self, log_begin: int) -> None:
        self._marks.store_sums()
        self._units.begin_moved(log_begin)
        self._index.begin_moved(log_begin)

    def _tell_read_only(self) -> None:
        reason = self._store.read_only
        if reason != self._read_only:
            self._read_only = reason
            self._log("store.read_only" if reason else "store.writable", reason=READ_ONLY_REASONS.get(reason, reason))

    def stop(self) -> bool:
        """Retire the segments and bring everything to disk; False when something could not be saved."""
        self._keeper_store.set_retired()
        try:
            self._keeper_store.repair(_BUSY_SECONDS)  # an append under way ends before the last flush
        except CoreError:
            self._log("lock.busy", reason="an append was not finished when the broker stopped")
        self._flusher.ask_to_stop()  # both sleep for up to 0.2 s, at the same time and beside what follows
        self._mark_writer.ask_to_stop()
        saved_end = self._live_log.finish()
        self._scrubber.close(keeps_place=not self._live_log.is_astray)
        if self._live_log.is_astray:
            self._flusher.stop(_ORPHAN_SECONDS)
            self._mark_writer.stop()
            self._marks.close()
            return self._end(saved=False)
        self._live_files.round()
        saved = self._flusher.stop(_FLUSH_STOP_SECONDS) and self._flusher.flush()
        self._mark_writer.stop()
        saved &= self._marks.finish()
        with contextlib.suppress(OSError):  # offsets of messages that were lost are not given again
            self._attached.files.mark.advance(durable_end=saved_end)
        saved &= self._index.finish()
        saved &= self._catalog.finish()
        layout = self._attached.files.layout
        if saved:
            layout.abort.unlink(missing_ok=True)
            sync_directory(layout.root)
        return self._end(saved=saved)

    def _end(self, *, saved: bool) -> bool:
        self._log("keeper.stopped", saved=saved, log_end=self._store.log_end, durable_end=self._store.durable_end)
        self.close()
        return saved

    def abandon(self) -> None:
        """Leave everything as it is: the supervisor died, and the next keeper goes on from here."""
        self._flusher.stop(_ORPHAN_SECONDS)
        self._scrubber.close()
        self._mark_writer.stop()
        self._marks.close()
        self.close()

    def clean(self, wall_seconds: float) -> int:
        """Apply the retention now; returns how many log files went."""
        return self._retention.clean(wall_seconds, has_room=self._space.has_room)

    def rebuild_units(self, queue: Queue, first: int, count: int) -> int:
        """Write units of a queue again from the log; returns how many. Raises OSError, CoreError."""
        return self._units.rebuild_units(queue, first, count)

    @property
    def scrub_state(self) -> ScrubState:
        """How far the scrubber came, and what it found."""
        return self._scrubber.state

    @property
    def frames_used(self) -> int:
        """Unit frames in memory."""
        return self._frames.used

    @property
    def has_room(self) -> bool:
        """Whether the last attempt to create a log file worked."""
        return self._space.has_room

    def close(self) -> None:
        """Let go of segments and files and leave them as they are."""
        self._index.close()
        self._live_log.close()
        self._live_lock.close()
        self._attached.files.close()
        self._store.close()
