"""Keeps the config files up to date with topics, groups and consumer offsets in shared memory.

It writes RocketMQ's topics.json, subscriptionGroup.json, consumerOffset.json and their like, whichever process changed
the tables.

    table_version moved           topics.json, shmq.json, subscriptionGroup.json, at most every 100 ms
    every 5 s and at the stop     consumerOffset.json, delayOffset.json, lostMessages.json, as soon as the log is on
                                  disk that far

Rules: (1) a topic's unit files go after its tombstone is on disk, and after them its entry in shared memory is let to
others; (2) what could not be written is tried again, and said once; (3) progress is written after everything is on disk
that was in the log when it was read: a host that crashes takes the last half second of the log along, and with it
copies of delayed messages, retries, and the checkpoints of what was popped. Progress that was ahead of them would lose
the messages they stand for.
"""

import time

from shmq.daemon.event_log import EventLog
from shmq.daemon.keeper.units import UnitWriter
from shmq.errors import StoreError
from shmq.shm.core import CoreError, KeeperStore, Store, StoreFigures
from shmq.store.config import ConfigFiles
from shmq.store.table_entries import LossTable, OffsetTable
from shmq.store.tables import LiveTables

_TABLES_SECONDS = 0.1
_OFFSETS_SECONDS = 5.0
_RETRY_SECONDS = 1.0
_COST_FACTOR = 10.0


class Catalog:
    """The keeper's part for the config directory."""

    def __init__(
        self,
        store: Store,
        keeper_store: KeeperStore,
        config: ConfigFiles,
        tables: LiveTables,
        units: UnitWriter,
        log: EventLog,
    ) -> None:
        self._store = store
        self._keeper_store = keeper_store
        self._figures = StoreFigures(store)
        self._config = config
        self._tables = tables
        self._units = units
        self._log = log
        self._saved_version = -1
        self._buried: dict[int, int] = {}  # number -> version of deleted topics whose entries are to be free
        self._tables_at = 0.0
        self._offsets_at = 0.0
        # The log's end before and after they were read, offsets, and what cleaning took.
        self._progress: tuple[int, int, OffsetTable, LossTable] | None = None
        self._failed = False

    def round(self, now: float) -> None:
        """Save what is due; `now` is monotonic seconds."""
        self._free_entries()
        if now >= self._tables_at and self._store.table_version != self._saved_version:
            began = time.monotonic()
            pause = _TABLES_SECONDS if self.save_tables() else _RETRY_SECONDS
            # Thousands of topics take a while to look at; they must not take all of the keeper's time.
            self._tables_at = now + max(pause, _COST_FACTOR * (time.monotonic() - began))
        if now >= self._offsets_at:
            self._offsets_at = now + (_OFFSETS_SECONDS if self.save_offsets() else _RETRY_SECONDS)
        elif not self._save_progress():
            self._offsets_at = now + _RETRY_SECONDS

    def save_again(self) -> None:
        """Write every table soon, as one of the files was removed."""
        self._saved_version = -1
        self._tables_at = self._offsets_at = 0.0

    def save_tables(self) -> bool:
        """Write topics and groups where they changed; False when the disk refused."""
        version = self._store.table_version
        live = self._tables
        found, deleted = live.collect_topics(self._store)
        groups = live.collect_groups(self._store)
        try:
            self._config.save_topics(found, deleted)
            self._config.save_groups(groups)
        except StoreError as error:
            return self._complain(error)
        for name, position in deleted.items():
            if name not in live.tables.deleted:
                self._log("topic.removed", topic=name)
            if position != live.tables.deleted.get(name):
                self._units.forget_topic(name)
        live.tables.topics, live.tables.deleted, live.tables.groups = found, deleted, groups
        self._buried |= live.buried
        self._saved_version = -1 if live.unburied else version
        self._failed = False
        return True

    def _free_entries(self) -> None:
        """Let others have the entries of topics whose queues are free by now."""
        for number, version in list(self._buried.items()):
            try:
                if self._keeper_store.topic_free(number, version):
                    del self._buried[number]
            except CoreError:
                return  # the lock of the tables is taken; the next round comes soon

    def save_offsets(self) -> bool:
        """Note the offsets, and write what was noted when the log ended where it is durable now; False when the disk
        refused."""
        before = self._store.log_end
        offsets = self._tables.collect_progress(self._store, self._figures)
        saved = self._save_progress()
        losses = self._tables.collect_losses(self._store)
        self._progress = self._progress or (before, self._store.log_end, offsets, losses)
        return self._save_progress() and saved

    def finish(self) -> bool:
        """Save everything, with backups that are as new as the tables; False when the disk refused."""
        saved = self.save_tables()
        if not self.save_offsets() or not saved:
            return False
        try:
            self._config.save_backups()
        except StoreError as error:
            return self._complain(error)
        return True

    def _save_progress(self) -> bool:
        """Write what was noted once the log is on disk that far; where the disk refused, newer offsets are noted."""
        if self._progress is None or self._progress[1] > self._store.durable_end:
            return True
        (before, _, offsets, losses), self._progress = self._progress, None
        try:
            self._config.save_offsets(offsets, before)
            self._config.save_delays(offsets)
            self._config.save_losses(losses)
        except StoreError as error:
            return self._complain(error)
        return True

    def _complain(self, error: StoreError) -> bool:
        if not self._failed:
            self._log("config.not_saved", reason=str(error), hint=error.hint)
        self._failed = True
        return False
