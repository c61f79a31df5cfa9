"""The log's files ahead of the writers: the next one is there before it is needed, with pages where they write next.

Pages are made present ahead of the log end, 16 MiB when idle and up to 128 MiB while writers overtake it, and made anew
when half is used: a writer that has to make pages itself pays ten times what finding them costs. `retention.py`
says which files go.

    begin ……… files with records ……… end ┊ populated ┊ … rest of the file … ┊ one spare file
                                     log_end   +16 MiB, more while the log grows fast

Rules: (1) the file behind the one in use exists before it is needed, and no more than that one, unless files fill
within a second and the disk has room;
(2) a full disk is logged once and tried again every second; nothing else stops.
"""

import math
from collections.abc import Callable

from shmq.daemon.event_log import EventLog
from shmq.errors import ShmqError
from shmq.options.broker import Options
from shmq.shm.core import CoreError, KeeperStore, Store
from shmq.store.commitlog import CommitLogFiles

_RETRY_SECONDS = 1.0
_RATE_SECONDS = 0.02
_SPARE_MAX = 16
_POPULATE_ROUND_MAX = 32 << 20  # the keeper has other things to do between two steps
_WINDOW_MAX = 128 << 20


class LogSpace:
    """The keeper's part for log files.

    Args:
        is_short: asked whether the disk is so full that no file beyond the next one is made.
    """

    def __init__(
        self,
        store: Store,
        keeper_store: KeeperStore,
        files: CommitLogFiles,
        options: Options,
        *,
        is_short: Callable[[], bool],
        log: EventLog,
    ) -> None:
        self._store = store
        self._keeper_store = keeper_store
        self._files = files
        self._options = options
        self._is_short = is_short
        self._log = log
        self._populated_end = 0
        self._window = options.populate_bytes
        self._filling = True
        self._window_seen = store.log_end
        self._retry_at = 0.0
        self._refused = False
        self._rate = 0.0  # bytes a second
        self._measured_at = 0.0
        self._measured_end = store.log_end

    @property
    def has_room(self) -> bool:
        """Whether the last attempt to create a file worked."""
        return not self._refused

    def round(self, now: float) -> None:
        """Do what is due; `now` is monotonic seconds."""
        self._keep_spare(now)
        self._populate()

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
            self._keeper_store.set_allocated_end(end)
            self._log("log.file_created", files=len(self._files.positions), allocated_end=end)
            self._refused = False

    def _spare_count(self, now: float, log_end: int) -> int:
        """One, or as many as hold a second of the present rate, which small files need."""
        seconds = now - self._measured_at
        if seconds >= _RATE_SECONDS:
            self._rate = (log_end - self._measured_end) / seconds
            self._measured_at, self._measured_end = now, log_end
            self._store.forget_pages()
        most = 1 if self._is_short() else _SPARE_MAX
        return max(1, min(most, math.ceil(self._rate / self._files.file_bytes)))

    def _populate(self) -> None:
        """Make the pages present that writers reach next, so that they meet minor faults only.

        Writers that overtake us make the pages themselves, at several times the cost of finding them; so the window
        doubles when it was used up faster than it was filled, and shrinks again while the log grows slowly. It is
        filled when half of it is used up, so that a burst that fits into it has the processors to itself.
        """
        log_end = self._store.log_end
        first = self._populated_end == 0
        self._populated_end = min(self._populated_end, self._files.end)  # spares may have gone
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
                self._keeper_store.populate(begin, size)
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
