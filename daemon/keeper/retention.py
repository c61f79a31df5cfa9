"""Decides which log files go, and when: by age, by hour, and when the disk is too full.

    expired          its last change is `retention_hours` ago. It goes, consumed or not: in the hours of
                     `delete_hour`, or at any hour when none is named or the disk has reached its first mark
    disk_warn        empty spare files beyond the next one are given back; it is logged
    disk_force       files that have not expired go, as `when_full` says:
                       refuse            none
                       delete-consumed   while every group has consumed what is in the oldest one (`consumption.py`)
                       delete-oldest     the oldest one, consumed or not, as RocketMQ does
    disk_refuse      nothing is stored until there is room again; reading goes on

No room for the next log file counts as `disk_force`, however much of a large disk that file would have been.

A reader that plans takes a lease, a file `leases/<log position>.<random>` that lasts until its modification time:
deletion by age waits for it, a full disk does not. A table in shared memory would have to be cleaned of dead readers,
and a lock would end with the planning process, long before its tasks begin.

Rules: (1) the file in use, the one behind it and what is not durable stay; (2) log_begin moves before a name goes, in
the durable mark first, and while that cannot be written no file goes; clients keep what they have mapped; (3) what is
deleted before a group acknowledged it is counted for that group.
"""

import contextlib
import shutil
import time
from collections.abc import Callable
from typing import NamedTuple

from shmq.daemon.event_log import EventLog
from shmq.daemon.keeper.consumption import Consumption, Holder
from shmq.options.broker import Options
from shmq.shm.core import READ_ONLY_DISK_FULL, READ_ONLY_FOLLOWER, KeeperStore, Store, disk_full_word
from shmq.shm.lease import leased_position
from shmq.store.atomic import reason_of
from shmq.store.commitlog import CommitLogFiles
from shmq.store.durable import DurableMark

_CLEAN_SECONDS = 10.0
_DISK_SECONDS = 1.0
_REMOVED_PER_ROUND_MAX = 10  # RocketMQ's bound; the disk gets time in between


class _Disk(NamedTuple):
    percent: int
    free_bytes: int


class Retention:
    """The keeper's part for files that go.

    Args:
        on_begin_moved: told the new begin of the log after old files were given up, before they are unlinked.
    """

    def __init__(
        self,
        store: Store,
        keeper_store: KeeperStore,
        files: CommitLogFiles,
        options: Options,
        *,
        mark: DurableMark,
        on_begin_moved: Callable[[int], None],
        log: EventLog,
    ) -> None:
        self._store = store
        self._keeper_store = keeper_store
        self._files = files
        self._options = options
        self._mark = mark
        self._on_begin_moved = on_begin_moved
        self._log = log
        self._consumption = Consumption(store)
        self._clean_at = 0.0
        self._disk_at = 0.0
        self._percent = 0  # when it was last looked at
        self._told_percent = 0
        self._told_leased = -1
        self._told_unmarked = False
        self._told_holder: tuple[str, int, str] | None = None

    @property
    def is_short(self) -> bool:
        """Whether the disk has reached its first mark, so that no file is made before it is needed."""
        return self._percent >= self._options.disk_warn_percent

    def round(self, now: float, wall_seconds: float, *, has_room: bool) -> None:
        """Do what is due.

        Args:
            now: monotonic seconds.
            wall_seconds: seconds since the epoch, as file times are.
            has_room: whether the next log file could be made.
        """
        with contextlib.suppress(FileNotFoundError):  # another process removed a file; live/log.py deals with that
            if now >= self._disk_at:
                self._disk_at = now + _DISK_SECONDS
                self.watch_disk()
            if now >= self._clean_at:
                self._clean_at = now + _CLEAN_SECONDS
                self.clean(wall_seconds, has_room=has_room)

    def watch_disk(self) -> None:
        """Refuse appends while the disk is too full for them, and say so with the numbers; reading goes on.

        Appends first use up the room that the log has reserved already; but what is beside it on this disk, units,
        index and configuration, needs room of its own.
        """
        limit = self._options.disk_refuse_percent
        disk = self._disk()
        is_refused = self._store.read_only == READ_ONLY_DISK_FULL
        if disk.percent > limit:
            if self._store.read_only in (0, READ_ONLY_DISK_FULL, READ_ONLY_FOLLOWER):
                self._keeper_store.set_read_only(disk_full_word(disk.percent, limit))
            if not is_refused:
                self._log("disk.full", percent=disk.percent, limit=limit, free_bytes=disk.free_bytes)
        elif is_refused:
            self._keeper_store.set_read_only(0)
            self._log("disk.room", percent=disk.percent, limit=limit, free_bytes=disk.free_bytes)

    def clean(self, wall_seconds: float, *, has_room: bool = True) -> int:
        """Remove files that expired, and others when the disk is too full; returns how many."""
        removed = 0
        disk = self._disk()
        if disk.percent >= self._options.disk_warn_percent:
            disk = self._give_back_spares(disk)
        holder, is_known = None, False
        while removed < _REMOVED_PER_ROUND_MAX and self._may_go():
            first, behind = self._files.positions[:2]
            expired = self._is_due(first, wall_seconds, disk.percent)
            if not expired:
                if has_room and disk.percent < self._options.disk_force_percent:
                    break
                if not is_known and self._options.when_full == "delete-consumed":
                    holder, is_known = self._consumption.holder(), True
                if not self._may_be_freed(behind, holder):
                    break
            if not self._remove(behind, expired=expired, percent=disk.percent):
                break
            removed += 1
            has_room = True  # one file went: it is tried again
            disk = self._disk()
        if disk.percent >= self._options.disk_warn_percent and disk.percent != self._told_percent:
            self._told_percent = disk.percent
            self._log("disk.filling", percent=disk.percent, free_bytes=disk.free_bytes)
        return removed

    def _may_go(self) -> bool:
        """Whether the oldest file is not in use any more, for writing or for flushing."""
        if len(self._files.positions) < 2:
            return False
        behind = self._files.positions[1]
        in_use = self._store.log_end - self._store.log_end % self._files.file_bytes
        # A flush of bytes whose file is gone fails, and a failed flush makes the store read-only.
        return behind <= in_use and behind <= self._store.durable_end

    def _is_due(self, first: int, wall_seconds: float, percent: int) -> bool:
        """Whether a file has expired and may go at this hour."""
        age_seconds = wall_seconds - self._files.modified_seconds(first)
        if age_seconds <= self._options.retention_hours * 3600:
            return False
        hours = self._options.delete_hours
        if hours and percent < self._options.disk_warn_percent and time.localtime(wall_seconds).tm_hour not in hours:
            return False
        return percent >= self._options.disk_force_percent or not self._is_leased(first, wall_seconds)

    def _may_be_freed(self, behind: int, holder: Holder | None) -> bool:
        """Whether a full disk may cost the file before a log position."""
        if self._options.when_full != "delete-consumed":
            return self._options.when_full == "delete-oldest"
        if holder is None or holder.log_position >= behind:
            self._told_holder = None
            return True
        if (holder.topic, holder.queue_id, holder.group) != self._told_holder:
            self._told_holder = holder.topic, holder.queue_id, holder.group
            self._log("disk.held", **holder._asdict())
        return False

    def _remove(self, begin: int, *, expired: bool, percent: int) -> bool:
        """Give up the files before a log position; False when that cannot be noted, for then the files were lost."""
        try:
            self._mark.advance(log_begin=begin)
        except OSError as error:
            if not self._told_unmarked:
                self._log("log.file_kept", log_begin=begin, reason=f"the durable mark: {reason_of(error)}")
            self._told_unmarked = True
            return False
        self._told_unmarked = False
        self._keeper_store.set_log_begin(begin)
        self._on_begin_moved(begin)
        self._files.remove_first()
        self._log("log.file_removed", log_begin=begin, expired=expired, disk_percent=percent)
        return True

    def _give_back_spares(self, disk: _Disk) -> _Disk:
        """Remove empty files behind the next one: what holds nothing goes before what holds messages."""
        given = 0
        while self._files.end - self._store.log_end > 2 * self._files.file_bytes:
            if not self._keeper_store.give_back(self._files.end - self._files.file_bytes):
                break
            self._files.remove_last()
            given += 1
        if given:
            disk = self._disk()
            self._log("log.spares_removed", files=given, allocated_end=self._files.end, disk_percent=disk.percent)
        return disk

    def _disk(self) -> _Disk:
        usage = shutil.disk_usage(self._files.path(self._files.begin).parent)
        self._percent = 100 * usage.used // usage.total if usage.total else 0
        return _Disk(self._percent, usage.free)

    def _is_leased(self, first: int, wall_seconds: float) -> bool:
        leased = leased_position(self._files.path(first).parent.parent, wall_seconds)
        is_leased = leased is not None and leased < first + self._files.file_bytes
        if is_leased and self._told_leased != first:
            self._told_leased = first
            self._log("log.file_leased", log_position=first, leased_from=leased)
        return is_leased
