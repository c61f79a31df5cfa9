"""Moves the durable mark and the checkpoint forward, in small steps between other work.

A mark says that units are in files and bytes on disk, so it moves only after they are.

    idle -> noted: E = log end, append lock taken once, units written, dirty files listed
         -> syncing: one file after the other, as long as the step may take
         -> written: mark (durable_end, dispatched = E), checkpoint -> idle

Rules: (1) the lock is taken once after E was read: an append that had moved the log end but not yet its queue's maximum
is finished then, so every unit below E is among the units written; (2) the mark is written after the last sync.
"""

import os
import time
from pathlib import Path

from shmq.daemon.event_log import EventLog
from shmq.daemon.keeper.flusher import Flusher
from shmq.daemon.keeper.units import UnitWriter
from shmq.errors import StoreError
from shmq.shm.core import CoreError, Store
from shmq.store.checkpoint import read_checkpoint, write_checkpoint
from shmq.store.recovery import OpenFiles

_LOCK_SECONDS = 0.1
_STEP_SECONDS = 0.02


class MarkKeeper:
    """Writes the marks of one store."""

    def __init__(self, store: Store, files: OpenFiles, units: UnitWriter, flusher: Flusher, log: EventLog) -> None:
        self._store = store
        self._files = files
        self._units = units
        self._flusher = flusher
        self._log = log
        self._noted: int | None = None
        self._noted_ms = 0
        self._pending: list[Path] = []
        self._failed = False

    @property
    def is_syncing(self) -> bool:
        """Whether a mark was begun and is not written yet."""
        return self._noted is not None

    def begin(self) -> None:
        """Note a position if the present mark is behind; harmless while one is under way."""
        log_end = self._store.log_end
        mark = self._files.mark.current
        if self.is_syncing or (mark.dispatched >= log_end and mark.durable_end >= self._store.durable_end):
            return
        now_ms = int(time.time() * 1000)
        try:
            self._store.repair(_LOCK_SECONDS)
        except CoreError:
            return  # somebody holds the lock; the watchdog looks after that
        if self._units.write_all():
            self._noted, self._noted_ms = log_end, now_ms
            self._pending = self._files.consumequeue.dirty_paths()

    def step(self, seconds: float = _STEP_SECONDS) -> None:
        """Sync for about that long, and write the mark when everything is synced."""
        if self._noted is None:
            return
        until = time.monotonic() + seconds
        try:
            while self._pending and time.monotonic() < until:
                self._files.consumequeue.sync(self._pending.pop())
            if not self._pending:
                self._write(self._noted)
        except (OSError, StoreError) as error:
            if not self._failed:
                reason = os.strerror(error.errno or 0) if isinstance(error, OSError) else str(error)
                self._log("mark.not_written", reason=reason)
            self._failed = True
            self._noted = None

    def finish(self) -> bool:
        """Bring the mark to the present end, however long it takes; False when that failed."""
        while self.is_syncing and not self._failed:
            self.step(60.0)
        self.begin()
        while self.is_syncing and not self._failed:
            self.step(60.0)
        mark = self._files.mark.current
        return not self._failed and mark.dispatched >= self._store.log_end

    def _write(self, dispatched: int) -> None:
        durable_end = self._store.durable_end
        self._files.mark.advance(durable_end=durable_end, dispatched=dispatched)
        before = read_checkpoint(self._files.layout)
        after = type(before)(
            physic_ms=max(before.physic_ms, self._flusher.flushed_ms),
            logics_ms=max(before.logics_ms, self._noted_ms),
            index_ms=before.index_ms,
            flushed=durable_end,
            confirmed=durable_end,
        )
        write_checkpoint(self._files.layout, after)
        self._noted = None
        self._failed = False
