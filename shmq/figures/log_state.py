"""The log, the append lock and the open claim, as the control segment and the mark files have them.

How long the lock is held is written nowhere, because a time stamp would cost every append. It is observed instead: the
same thread and the same lock count in two looks mean that the lock did not change hands in between.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

from shmq.errors import ShmqError
from shmq.figures.processes import state_of, thread_state
from shmq.figures.snapshot import Claim, Lock, Log
from shmq.shm.access import Access
from shmq.shm.core import ACK_CONFIRMED, Store, StoreFigures, process_died
from shmq.shm.liveness import ProcessMark, is_alive, mark_of, status_of
from shmq.store.durable import DurableMark
from shmq.store.index.mark import read_index_mark
from shmq.store.layout import StoreLayout, position_of

CLAIM_OPEN = 1  # enum shmq_claim_state
_LAYOUT_ACCESS = Access(-1)  # only paths are asked for


def keeper_silence_seconds(store: Store) -> float | None:
    """How long ago the store keeper made its last round; None before its first one."""
    beat_ns = store.keeper_beat_ns
    return max(0, time.monotonic_ns() - beat_ns) / 1e9 if beat_ns else None


def collect_log(store: Store, store_path: str) -> Log:
    """Return the state of the log; raises ShmqError when the segments are gone."""
    figures = StoreFigures(store)
    stats = figures.stats()
    begin, end, durable, allocated = store.log_begin, store.log_end, store.durable_end, store.allocated_end
    file_bytes = int(store.head["file_bytes"])
    in_use = end + (file_bytes - end % file_bytes if end % file_bytes or end == begin else 0)
    is_sync_master = store.head["ack_rule"] == ACK_CONFIRMED
    dispatched, indexed = _marks(StoreLayout(Path(store_path), _LAYOUT_ACCESS))
    return Log(
        begin=begin,
        end=end,
        durable_end=durable,
        allocated_end=allocated,
        file_bytes=file_bytes,
        files=_files(store_path),
        spare_files=max(0, allocated - in_use) // file_bytes,
        flush_behind_bytes=max(0, end - durable),
        dispatch_behind_bytes=None if dispatched is None else max(0, end - max(begin, dispatched)),
        index_behind_bytes=None if indexed is None else _index_behind(store, begin, end, indexed),
        units_behind=_units_behind(figures),
        appended=stats["appended"],
        appended_bytes=stats["appended_bytes"],
        busy=stats["busy"],
        deaths=stats["deaths"],
        frames_used=figures.frames_used,
        queues_taken=stats["queues_used"],
        queues_max=store.head["queue_max"],
        replicas_in_sync=store.in_sync_count if is_sync_master else None,
        unconfirmed_bytes=max(0, end - store.confirmed_end) if is_sync_master else 0,
    )


def _files(store_path: str) -> int:
    try:
        return sum(position_of(name) is not None for name in os.listdir(os.path.join(store_path, "commitlog")))
    except OSError:
        return 0


def _marks(layout: StoreLayout) -> tuple[int | None, int | None]:
    try:
        mark = DurableMark(layout).load()
    except (OSError, ShmqError):
        mark = None
    index = read_index_mark(layout)
    return mark.dispatched if mark else None, index.indexed if index else None


def _index_behind(store: Store, begin: int, end: int, indexed: int) -> int:
    """A stretch without properties has no keys, and so nothing for the index."""
    return max(0, min(end, store.described_end) - max(begin, indexed))


def _units_behind(figures: StoreFigures) -> int:
    behind, after = 0, -1
    while rows := figures.dirty_queues(4096, after):
        behind += sum(offset_max - persisted for _, persisted, offset_max in rows)
        after = rows[-1].queue
    return behind


class LockWatch:
    """Remembers the lock's holder at the last look, so that the next one can say for how long."""

    def __init__(self) -> None:
        self.seen = (0, -1)  # (TID, lock count)
        self.since = 0.0

    def look(self, figures: StoreFigures) -> Lock | None:
        """Return the holder, None while the lock is free."""
        stats = figures.stats()
        now = time.monotonic()
        seen = (stats["lock_tid"], stats["lock_count"])
        if seen != self.seen:
            self.seen, self.since = seen, now
        if not seen[0]:
            return None
        tid = seen[0]
        status = status_of(tid)
        mark = mark_of(int(status.get("Tgid", 0) or 0))
        if mark is None:
            state = "dead" if status or process_died(tid, 0) else "hidden"
            return Lock(tid, None, 0, status.get("Name", ""), state, now - self.since)
        return Lock(tid, mark.pid, mark.start, status.get("Name", ""), thread_state(tid, mark.pid), now - self.since)

    def settle(self, figures: StoreFigures, patience: float) -> Lock | None:
        """Look until the lock is seen to move, for so many seconds at most: what is left is a holder that stays."""
        held = self.look(figures)
        until = time.monotonic() + patience
        while held is not None and held.held < patience and time.monotonic() < until:
            time.sleep(patience / 20)
            held = self.look(figures)
            if held is not None and held.held == 0.0:
                return held  # it moves: another process has it now
        return held


def collect_claim(figures: StoreFigures) -> Claim | None:
    """Return the open claim, None when none is open."""
    stats = figures.stats()
    if stats["claim_state"] != CLAIM_OPEN:
        return None
    mark = ProcessMark(stats["claim_owner_pid"], stats["claim_owner_start"])
    age = max(0, time.monotonic_ns() - stats["claim_opened_ns"]) / 1e9
    return Claim(mark.pid, mark.start, is_alive(mark), state_of(mark), stats["claim_bytes"], age)
