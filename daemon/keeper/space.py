"""The log's files: one ahead of the writers, pages present where they write next, the oldest ones gone in time.

Pages are made present ahead of the log end, 16 MiB when idle and up to 128 MiB while writers overtake it, and made anew
when half is used: a writer that has to make pages itself pays ten times what finding them costs. Old files go by age
and by disk marks. A reader that plans takes a lease, a file `leases/<log position>.<random>` that lasts until its
modification time: deletion by age waits for it, a full disk does not. A table in shared memory would have to be cleaned
of dead readers, and a lock would end with the planning process, long before its tasks begin.

    begin ……… files with records ……… end ┊ populated ┊ … rest of the file … ┊ one spare file
                                     log_end   +16 MiB, more while the log grows fast

Rules: (1) the file behind the one in use exists before it is needed, and no more than that one, unless files fill
within a second;
(2) a full disk is said once and tried again every second; nothing else stops;
(3) above `disk_refuse_percent` of the disk nothing is stored until there is room again;
(4) the last file is never removed; log_begin moves before a name goes; clients keep what they have mapped.
"""

import math
import shutil
from collections.abc import Callable

from shmq.daemon.event_log import EventLog
from shmq.daemon.options import Options
from shmq.errors import ShmqError
from shmq.shm.core import READ_ONLY_DISK_FULL, CoreError, Store, disk_full_word
from shmq.shm.lease import leased_position
from shmq.store.commitlog import CommitLogFiles

_RETRY_SECONDS = 1.0
_RETENTION_SECONDS = 10.0
_DISK_SECONDS = 1.0
_REMOVED_PER_ROUND_MAX = 10  # RocketMQ's bound; the disk gets time in between
_RATE_SECONDS = 0.02
_SPARE_MAX = 16
_POPULATE_ROUND_MAX = 32 << 20  # the keeper has other things to do between two steps
_WINDOW_MAX = 128 << 20


class LogSpace:
    """The keeper's part for log files.

    Args:
        on_begin_moved: told the new begin of the log after old files were given up, before they are unlinked.
    """

    def __init__(
        self,
        store: Store,
        files: CommitLogFiles,
        options: Options,
        *,
        on_begin_moved: Callable[[int], None],
        log: EventLog,
    ) -> None:
        self._store = store
        self._files = files
        self._options = options
        self._on_begin_moved = on_begin_moved
        self._log = log
        self._populated_end = 0
        self._window = options.populate_bytes
        self._filling = True
        self._window_seen = store.log_end
        self._retry_at = 0.0
        self._retention_at = 0.0
        self._disk_at = 0.0
        self._refused = False
        self._told_percent = 0
        self._told_leased = -1
        self._rate = 0.0  # bytes a second
        self._measured_at = 0.0
        self._measured_end = store.log_end

    @property
    def has_room(self) -> bool:
        """Whether the last attempt to create a file worked."""
        return not self._refused

    def round(self, now: float, wall_seconds: float) -> None:
        """Do what is due.

        Args:
            now: monotonic seconds.
            wall_seconds: seconds since the epoch, as file times are.
        """
        self._keep_spare(now)
        self._populate()
        if now >= self._disk_at:
            self._disk_at = now + _DISK_SECONDS
            self._watch_disk()
        if now >= self._retention_at:
            self._retention_at = now + _RETENTION_SECONDS
            self.clean(wall_seconds)

    def _keep_spare(self, now: float) -> None:
        log_end = self._store.log_end
        ahead = self._files.file_bytes * self._spare_count(now, log_end)
        while self._files.end - log_end <= ahead and now >= self._retry_at:
            try:
                end = self._files.create_next(log_end - log_end % self._files.file_bytes)
            except ShmqError as error:
                self._retry_at = now + _RETRY_SECONDS
                if not self._refused:
                    self._log("log.no_spare", reason=str(error), hint=error.hint)
                self._refused = True
                return
            self._store.set_allocated_end(end)
            self._log("log.file_created", files=len(self._files.positions), allocated_end=end)
            self._refused = False

    def _spare_count(self, now: float, log_end: int) -> int:
        """One, or as many as hold a second of the present rate, which small files need."""
        seconds = now - self._measured_at
        if seconds >= _RATE_SECONDS:
            self._rate = (log_end - self._measured_end) / seconds
            self._measured_at, self._measured_end = now, log_end
            self._store.forget_pages()
        return max(1, min(_SPARE_MAX, math.ceil(self._rate / self._files.file_bytes)))

    def _populate(self) -> None:
        """Make the pages present that writers reach next, so that they meet minor faults only.

        Writers that overtake us make the pages themselves, at several times the cost of finding them; so the window
        doubles when it was used up faster than it was filled, and shrinks again while the log grows slowly. It is
        filled when half of it is used up, so that a burst that fits into it has the processors to itself.
        """
        log_end = self._store.log_end
        first = self._populated_end == 0
        self._size_window(log_end)
        left = self._populated_end - log_end
        if left < self._window // 2:
            self._filling = True
        wanted = min(log_end + self._window, self._files.end)
        begin = max(self._populated_end, log_end)
        if not self._filling or wanted <= begin:
            self._filling = False
            return
        step = wanted if first else min(wanted, begin + _POPULATE_ROUND_MAX)
        self._filling = step < wanted
        while begin < step:
            size = min(step, begin - begin % self._files.file_bytes + self._files.file_bytes) - begin
            try:
                self._store.populate(begin, size)
            except CoreError as error:
                self._log("log.not_populated", log_position=begin, reason=str(error.args[1]))
                break
            begin += size
        self._populated_end = step

    def _size_window(self, log_end: int) -> None:
        grown = log_end - self._window_seen
        self._window_seen = log_end
        least = self._options.populate_bytes
        if self._populated_end < log_end and least:
            self._window = max(least, min(2 * self._window, _WINDOW_MAX))
        elif grown < self._window // 64:
            self._window = max(least, self._window - self._window // 64)

    def _watch_disk(self) -> None:
        """Refuse appends while the disk is too full for them, and say so with the numbers; reading goes on.

        Room that the log has reserved already is used up first by whoever appends; but what is beside it on this
        disk, units, index and configuration, needs room of its own.
        """
        limit = self._options.disk_refuse_percent
        usage = shutil.disk_usage(self._files.path(self._files.begin).parent)
        percent = 100 * usage.used // usage.total if usage.total else 0
        is_refused = self._store.read_only == READ_ONLY_DISK_FULL
        if percent > limit:
            if self._store.read_only in (0, READ_ONLY_DISK_FULL):
                self._store.set_read_only(disk_full_word(percent, limit))
            if not is_refused:
                self._log("disk.full", percent=percent, limit=limit, free_bytes=usage.free)
        elif is_refused:
            self._store.set_read_only(0)
            self._log("disk.room", percent=percent, limit=limit, free_bytes=usage.free)

    def clean(self, wall_seconds: float) -> int:
        """Remove files that expired, and the oldest ones when the disk is too full; returns how many."""
        removed = 0
        usage = shutil.disk_usage(self._files.path(self._files.begin).parent)
        percent = 100 * usage.used // usage.total if usage.total else 0
        while len(self._files.positions) > 1 and removed < _REMOVED_PER_ROUND_MAX:
            first = self._files.positions[0]
            # The file in use and the spare behind it stay, whatever their age.
            if first + self._files.file_bytes > self._store.log_end - self._store.log_end % self._files.file_bytes:
                break
            # A flush of bytes whose file is gone fails, and a failed flush makes the store read-only.
            if first + self._files.file_bytes > self._store.durable_end:
                break
            age_seconds = wall_seconds - self._files.modified_seconds(first)
            expired = age_seconds > self._options.retention_hours * 3600
            if percent < self._options.disk_force_percent and (not expired or self._is_leased(first, wall_seconds)):
                break
            begin = self._files.positions[1]
            self._store.set_log_begin(begin)
            self._on_begin_moved(begin)
            self._files.remove_first()
            removed += 1
            self._log("log.file_removed", log_begin=begin, expired=expired, disk_percent=percent)
            usage = shutil.disk_usage(self._files.path(begin).parent)
            percent = 100 * usage.used // usage.total if usage.total else 0
        if percent >= self._options.disk_warn_percent and percent != self._told_percent:
            self._told_percent = percent
            self._log("disk.filling", percent=percent, free_bytes=usage.free)
        return removed

    def _is_leased(self, first: int, wall_seconds: float) -> bool:
        leased = leased_position(self._files.path(first).parent.parent, wall_seconds)
        is_leased = leased is not None and leased < first + self._files.file_bytes
        if is_leased and self._told_leased != first:
            self._told_leased = first
            self._log("log.file_leased", log_position=first, leased_from=leased)
        return is_leased
