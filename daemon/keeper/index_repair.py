"""Builds a part of the index again whose file was damaged or is missing, from the log, beside the keeper's other work.

The new file gets the name of the old one when it is filled and synced and has its sums, so a search finds what is left
of the old one meanwhile.

    gap ─▶ filled, a step a round ─▶ a thread syncs it and stores its sums ─▶ named ─▶ the rest of the gap, or done

Rule: what a failed sync covered is thrown away and built again.
"""

import threading
import time
from dataclasses import dataclass, field, replace

from shmq.daemon.event_log import EventLog
from shmq.daemon.keeper.index_follow import IndexFollower
from shmq.daemon.keeper.index_start import IndexGap
from shmq.errors import ShmqError
from shmq.store.index.files import IndexFile, IndexFiles, index_name
from shmq.store.index.sums import IndexSums, make_sums

_RETRY_SECONDS = 5.0


@dataclass
class _Sync:
    """A file on its way to the disk."""

    failure: str = ""
    thread: threading.Thread = field(default_factory=threading.Thread)


class IndexRepair:
    """One gap."""

    def __init__(
        self, follower: IndexFollower, files: IndexFiles, sums: IndexSums, gap: IndexGap, log: EventLog
    ) -> None:
        self._follower = follower
        self._files = files
        self._sums = sums
        self._log = log
        self._gap = gap  # what is left of it
        self._position = gap.begin
        self._file: IndexFile | None = None
        self._sync: _Sync | None = None
        self._retry_at = 0.0
        self._unused = list(gap.names)
        self._last_name = gap.after

    @property
    def is_waiting(self) -> bool:
        """Whether it goes on only when the disk has answered, or later."""
        return self._sync is not None or time.monotonic() < self._retry_at

    def step(self) -> bool:
        """Go on a little; True when the gap is closed. Raises OSError, ShmqError; the next step begins again."""
        if self.is_waiting and not self._is_synced():
            return False
        if self._sync is not None:
            self._publish()
        try:
            return self._fill()
        except (OSError, ShmqError):
            self._begin_again()
            raise

    def close(self) -> None:
        """Let go of the file; what is there of it is removed at the next start."""
        if self._sync is not None:
            self._sync.thread.join()
        if self._file is not None:
            self._file.close()

    def _fill(self) -> bool:
        if self._position >= self._gap.end:
            if self._file is not None:
                self._begin_sync(self._file, self._gap.end)
                return False
            for name in self._unused:  # nothing that retention left has keys of these
                self._files.remove(name)
            self._log("index.rebuilt", begin=self._gap.begin, end=self._gap.end, file=self._last_name)
            return True
        reached = self._follower.step(self._file, self._position, self._gap.end, self._gap.end)
        self._position = reached.position
        if reached.needs_file:
            self._file = self._files.begin(self._next_name())
        elif reached.is_full:
            assert self._file is not None
            self._begin_sync(self._file, self._position)
        return False

    def _next_name(self) -> str:
        name = self._unused[0] if self._unused else index_name(int(self._last_name or 0) + 1)
        if not self._last_name < name < self._gap.before:
            raise ShmqError(f"there is no name for an index file between {self._last_name} and {self._gap.before}")
        return name

    def _begin_sync(self, file: IndexFile, end: int) -> None:
        sync = _Sync()

        def run() -> None:
            try:
                file.sync()
                self._sums.store(make_sums(file, self._gap.begin, end))
            except (OSError, ShmqError) as error:
                sync.failure = str(error)

        sync.thread = threading.Thread(target=run, name="index-repair", daemon=True)
        sync.thread.start()
        self._sync = sync

    def _is_synced(self) -> bool:
        sync = self._sync
        if sync is None or sync.thread.is_alive():
            return False
        sync.thread.join()
        if sync.failure:
            self._log("index.not_synced", reason=sync.failure)
            self._begin_again()
            return False
        return True

    def _publish(self) -> None:
        file, self._file, self._sync = self._file, None, None
        assert file is not None
        file.close()
        self._files.publish(file)
        self._last_name = file.name
        self._unused = [name for name in self._unused if name > file.name]
        self._gap = replace(self._gap, begin=self._position)

    def _begin_again(self) -> None:
        """Throw the file away that is being filled."""
        self._retry_at = time.monotonic() + _RETRY_SECONDS
        self._sync = None
        if self._file is not None:
            self._file.close()
            self._file.path.unlink(missing_ok=True)
            self._file = None
        self._position = self._gap.begin
