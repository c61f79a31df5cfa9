"""Watches the locks in shared memory: a process that was stopped while it holds one stops all others that need it.

    append   each send of the host
    table    whatever makes or changes topics, groups and members
    flush    whatever waits for the disk

A dead holder is no case for it: the next taker of a lock repairs.

    the same holder (TID in the mutex word) for longer than the lease, and of the append lock the same count:
    gone                             append: take the lock once, so that the repair runs
    runs, or waits for the disk      append: said once; it will come back
    hidden by /proc from our user    append: said once: whether it is stopped cannot be seen
    stopped, ours to kill            SIGKILL through a pidfd, proven to be the holder; then the repair
    stopped, not ours to kill        said once; append: read-only with a reason, until the holder moves on

The append lock alone counts how often it was taken. One of the others may be met with the same holder again by chance:
it has to be found stopped at two looks, a lease apart.

Rules: (1) no process loses its work while it may still go on with it: only a dead process' work is repaired;
(2) the proof is repeated after the pidfd is open: same TID in the mutex, same count, same start time, and the thread
belongs to the process.
"""

import os
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from shmq.daemon.event_log import EventLog
from shmq.shm.core import CoreError, KeeperStore, Store, process_died
from shmq.shm.liveness import STOPPED_STATES, ProcessMark, is_frozen, mark_of, signal_proven, status_of

STOPPED_HOLDER = 3  # SHMQ_READ_ONLY_STOPPED_HOLDER
_WRITABLE = 0
_REPAIR_SECONDS = 0.5


class Watched(NamedTuple):
    """One of the locks; `holder` and `counter` are names in the core's figures, `counter` "" where it has none."""

    name: str
    holder: str
    counter: str
    consequence: str


APPEND = Watched("append", "lock_tid", "lock_count", "read-only until it goes on or ends")
LOCKS = (
    APPEND,
    Watched("table", "table_lock_tid", "", "topics, groups and members stay as they are until it goes on or ends"),
    Watched("flush", "flush_lock_tid", "", "what waits for the disk waits until it goes on or ends"),
)


class Watchdog:
    """The keeper's part for the locks.

    Args:
        lease_seconds: how long a lock may stay with one holder without any progress.
    """

    def __init__(self, store: Store, keeper_store: KeeperStore, *, lease_seconds: float, log: EventLog) -> None:
        self._keeper_store = keeper_store
        self._watches = [_Watch(lock, store, keeper_store, lease_seconds, log) for lock in LOCKS]

    def round(self, now: float) -> None:
        """Look at the locks; `now` is monotonic seconds."""
        stats = self._keeper_store.stats()
        for watch in self._watches:
            watch.look(stats, now)


class _Watch:
    """What was seen of one lock."""

    def __init__(
        self, lock: Watched, store: Store, keeper_store: KeeperStore, lease_seconds: float, log: EventLog
    ) -> None:
        self._lock = lock
        self._store = store
        self._keeper_store = keeper_store
        self._lease_seconds = lease_seconds
        self._log = log
        self._seen = (0, 0)  # (TID, count)
        self._since = 0.0
        self._told = False
        self._is_sure = False  # that the holder made no progress meanwhile

    def look(self, stats: Mapping[str, int], now: float) -> None:
        seen = self._holder_in(stats)
        if seen[0] == 0 or seen != self._seen:
            self._seen, self._since, self._told = seen, now, False
            self._is_sure = bool(self._lock.counter)
            self._allow_appends()
        elif now - self._since > self._lease_seconds:
            self._since = now
            self._act(*seen)

    def _holder_in(self, stats: Mapping[str, int]) -> tuple[int, int]:
        return stats[self._lock.holder], stats[self._lock.counter] if self._lock.counter else 0

    def _allow_appends(self) -> None:
        if self._lock is APPEND and self._store.read_only == STOPPED_HOLDER:
            self._keeper_store.set_read_only(_WRITABLE)
            self._log("lock.moved_on")

    def _act(self, tid: int, count: int) -> None:
        status = status_of(tid)
        if not status and not process_died(tid, 0):
            self._tell_of_append("lock.held_long", tid=tid, state="hidden")
            return
        mark = mark_of(int(status.get("Tgid", 0)))
        if mark is None:
            self._repair("lock.holder_gone", tid)
            return
        stopped = status.get("State", "?")[0] in STOPPED_STATES or is_frozen(mark.pid)
        if not stopped or mark.pid == os.getpid():
            self._is_sure = bool(self._lock.counter)
            self._tell_of_append("lock.held_long", tid=tid, pid=mark.pid, state=status.get("State", "?"))
            return
        if not self._is_sure:
            self._is_sure = True
            return
        uid = int(status["Uid"].split()[1])
        if os.geteuid() not in (0, uid):
            if self._lock is APPEND:
                self._keeper_store.set_read_only(STOPPED_HOLDER)
            self._tell("lock.holder_stopped", pid=mark.pid, uid=uid, consequence=self._lock.consequence)
            return
        killed = signal_proven(mark, signal.SIGKILL, proof=lambda: self._holds(mark, tid, count))
        event = "lock.holder_killed" if killed else "lock.holder_not_killed"
        self._log(event, lock=self._lock.name, pid=mark.pid, tid=tid, uid=uid)
        if killed:
            self._repair("lock.repaired", tid)

    def _holds(self, mark: ProcessMark, tid: int, count: int) -> bool:
        has_thread = Path(f"/proc/{mark.pid}/task/{tid}").exists()
        return has_thread and self._holder_in(self._keeper_store.stats()) == (tid, count)

    def _repair(self, event: str, tid: int) -> None:
        if self._lock is not APPEND:
            return  # the next taker does it, and no other waits for that
        try:
            self._keeper_store.repair(_REPAIR_SECONDS)
        except CoreError as error:
            self._tell("lock.not_taken", tid=tid, reason=str(error.args[1]))
        else:
            self._log(event, tid=tid)
            self._allow_appends()

    def _tell_of_append(self, event: str, **values: Any) -> None:
        if self._lock is APPEND:
            self._tell(event, **values)

    def _tell(self, event: str, **values: Any) -> None:
        """Say it once for one holder."""
        if not self._told:
            self._log(event, lock=self._lock.name, **values)
        self._told = True
