"""Frees the queues of deleted topics, so that other topics can have their entries of the queue table.

    no topic has it ──▶ closed: no process writes to it or reads it any more ──▶ its frames are given back ──▶ free

`bindings/core/segments/queue.c` has the rules of the entries. What of this a killed keeper had done lies in shared
memory, and its successor goes on from there.

Invariant: a queue is free only when no frame has units of it.
"""

from shmq.daemon.event_log import EventLog
from shmq.daemon.keeper.frames import FrameKeeper
from shmq.shm.core import CoreError, KeeperStore, Store

_LOCK_SECONDS = 0.2
_QUEUES_PER_CLOSE = 4096  # what one call of the core closes at most


class DeadQueues:
    """The keeper's part for queues that no topic has any more."""

    def __init__(self, store: Store, keeper_store: KeeperStore, frames: FrameKeeper, log: EventLog) -> None:
        self._store = store
        self._keeper_store = keeper_store
        self._frames = frames
        self._log = log
        self._seen_version = -1
        self._failed = False

    def round(self) -> None:
        """Free what has to go since the tables changed."""
        version = self._store.table_version  # before the look: what changes meanwhile is looked at in the next round
        if version != self._seen_version and self.close():
            self._seen_version = version

    def close(self) -> bool:
        """Free the queues that no topic has now; False when a lock could not be had, and some may be open."""
        try:
            while dead := self._keeper_store.queues_close(_LOCK_SECONDS):
                for queue, offset_max in dead:
                    if not self._frames.drop(queue, offset_max):
                        return False
                    self._keeper_store.queue_free(queue)
                if len(dead) < _QUEUES_PER_CLOSE:
                    break
        except CoreError as error:
            if not self._failed:
                self._log("queues.not_freed", reason=str(error.args[1]))
            self._failed = True
            return False
        self._failed = False
        return True
