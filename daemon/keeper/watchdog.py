"""Watches the append lock: a process that was stopped while it held the lock stops every producer of the host.

A dead holder is no case for it: the next taker of the lock repairs.

    holder (TID in the mutex word) and lock count unchanged for longer than the lease:
    gone                             take the lock once, so that the repair runs
    runs, or waits for the disk      said once; it will come back
    hidden by /proc from our user    said once: whether it is stopped cannot be seen
    stopped, ours to kill            SIGKILL through a pidfd, proven to be the holder; then the repair
    stopped, not ours to kill        read-only with a reason, until the holder moves on

Rules: (1) no process loses its work while it may still go on with it: only a dead process' work is repaired;
(2) the proof is repeated after the pidfd is open: same TID in the mutex, same count, same start time, and the thread
belongs to the process.
"""

import os
import signal
from pathlib import Path
from typing import Any

from shmq.daemon.event_log import EventLog
from shmq.shm.core import CoreError, KeeperStore, Store, process_died
from shmq.shm.liveness import STOPPED_STATES, ProcessMark, is_frozen, mark_of, signal_proven, status_of

STOPPED_HOLDER = 3  # SHMQ_READ_ONLY_STOPPED_HOLDER
_WRITABLE = 0
_REPAIR_SECONDS = 0.5


class Watchdog:
    """The keeper's part for the append lock.

    Args:
        lease_seconds: how long the lock may stay with one holder without any progress.
    """

    def __init__(self, store: Store, keeper_store: KeeperStore, *, lease_seconds: float, log: EventLog) -> None:
        self._store = store
        self._keeper_store = keeper_store
        self._lease_seconds = lease_seconds
        self._log = log
        self._seen = (0, 0)  # (TID, lock count)
        self._since = 0.0
        self._told = False

    def round(self, now: float) -> None:
        """Look at the lock; `now` is monotonic seconds."""
        stats = self._keeper_store.stats()
        seen = (stats["lock_tid"], stats["lock_count"])
        if seen[0] == 0 or seen != self._seen:
            self._seen, self._since, self._told = seen, now, False
            self._allow_appends()
        elif now - self._since > self._lease_seconds:
            self._since = now
            self._act(*seen)

    def _allow_appends(self) -> None:
        if self._store.read_only == STOPPED_HOLDER:
            self._keeper_store.set_read_only(_WRITABLE)
            self._log("lock.moved_on")

    def _act(self, tid: int, lock_count: int) -> None:
        status = status_of(tid)
        if not status and not process_died(tid, 0):
            self._tell("lock.held_long", tid=tid, state="hidden")
            return
        mark = mark_of(int(status.get("Tgid", 0)))
        if mark is None:
            self._repair("lock.holder_gone", tid)
            return
        stopped = status.get("State", "?")[0] in STOPPED_STATES or is_frozen(mark.pid)
        if not stopped or mark.pid == os.getpid():
            self._tell("lock.held_long", tid=tid, pid=mark.pid, state=status.get("State", "?"))
            return
        uid = int(status["Uid"].split()[1])
        if os.geteuid() not in (0, uid):
            self._keeper_store.set_read_only(STOPPED_HOLDER)
            self._tell("lock.holder_stopped", pid=mark.pid, uid=uid, consequence="read-only until it goes on or ends")
            return
        killed = signal_proven(mark, signal.SIGKILL, proof=lambda: self._holds(mark, tid, lock_count))
        self._log("lock.holder_killed" if killed else "lock.holder_not_killed", pid=mark.pid, tid=tid, uid=uid)
        if killed:
            self._repair("lock.repaired", tid)

    def _holds(self, mark: ProcessMark, tid: int, lock_count: int) -> bool:
        stats = self._keeper_store.stats()
        return (stats["lock_tid"], stats["lock_count"]) == (tid, lock_count) and Path(
            f"/proc/{mark.pid}/task/{tid}"
        ).exists()

    def _repair(self, event: str, tid: int) -> None:
        try:
            self._keeper_store.repair(_REPAIR_SECONDS)
        except CoreError as error:
            self._tell("lock.not_taken", tid=tid, reason=str(error.args[1]))
        else:
            self._log(event, tid=tid)
            self._allow_appends()

    def _tell(self, event: str, **values: Any) -> None:
        """Say it once for one holder."""
        if not self._told:
            self._log(event, **values)
        self._told = True
