"""Counts the unit frames in memory, reserves new ones ahead of need and frees old ones.

A frame may go as soon as the queue's `persisted` is past it.

    of each queue   [begin, end) frame ordinals in memory; begin moves when frames are freed, end with the queue
    used            the sum over all queues; ready - used frames are free

Rules: (1) at least FRAMES_FREE_MIN frames are free for writers while the segment may still grow, in small steps, so
that an idle broker stays small; (2) beyond the memory budget the oldest frames of the longest queues go first; the
last frame of a queue stays, as the next append writes into it.
"""

from shmq.daemon.event_log import EventLog
from shmq.shm.core import FRAME_BYTES, FRAME_UNITS, CoreError, KeeperStore, Store

FRAMES_FREE_MIN = 1024
_FRAMES_STEP = 512
_RELEASE_PER_LOCK = 64
_LOCK_SECONDS = 0.2


class FrameKeeper:
    """The keeper's part for unit memory.

    Args:
        memory_bytes: how much memory persisted frames may keep.
    """

    def __init__(self, store: Store, keeper_store: KeeperStore, *, memory_bytes: int, log: EventLog) -> None:
        self._store = store
        self._keeper_store = keeper_store
        self._kept = memory_bytes // FRAME_BYTES
        self._log = log
        self._frame_max = int(store.head["frame_max"])
        self._held: dict[int, tuple[int, int]] = {}
        self._refused = False
        self.used = 0
        for topic in store.topics():
            for queue in topic["queues"]:
                offset_max = store.queue(queue).offset_max
                if offset_max:
                    self._note(queue, self._first_held(queue, offset_max), -(-offset_max // FRAME_UNITS))

    def grew(self, queue: int, offset_max: int) -> None:
        """Note that a queue has reached `offset_max`."""
        begin, _ = self._held.get(queue, (0, 0))
        self._note(queue, begin, -(-offset_max // FRAME_UNITS))

    def round(self) -> None:
        """Reserve or free what is due."""
        ready = self._keeper_store.stats()["frame_ready"]
        if ready - self.used < FRAMES_FREE_MIN and ready < self._frame_max:
            self._grow()
            ready = self._keeper_store.stats()["frame_ready"]
        lacking = FRAMES_FREE_MIN - (ready - self.used)
        wanted = max(self.used - self._kept, lacking)
        if wanted > 0:
            self._release(wanted)

    def drop(self, queue: int, offset_max: int) -> bool:
        """Free the memory of a queue that is closed; False when the lock could not be had."""
        end = -(-offset_max // FRAME_UNITS)
        begin, noted = self._held.get(queue, (0, 0))
        if self._give_back(queue, begin, end, end - begin) < end:
            return False
        self._held.pop(queue, None)
        self.used -= noted - begin
        return True

    def _note(self, queue: int, begin: int, end: int) -> None:
        before = self._held.get(queue, (0, 0))
        self._held[queue] = (begin, end)
        self.used += (end - begin) - (before[1] - before[0])

    def _first_held(self, queue: int, offset_max: int) -> int:
        """First frame ordinal in memory; frames of a queue are freed oldest first, so bisection finds it."""
        low, high = 0, -(-offset_max // FRAME_UNITS)
        while low < high:
            middle = (low + high) // 2
            if self._keeper_store.units_read(queue, middle * FRAME_UNITS, 1):
                high = middle
            else:
                low = middle + 1
        return low

    def _grow(self) -> None:
        try:
            self._keeper_store.frames_grow(_FRAMES_STEP)
            self._refused = False
        except CoreError as error:
            if not self._refused:
                self._log("frames.not_reserved", reason=str(error.args[1]))
            self._refused = True

    def _release(self, wanted: int) -> None:
        longest = sorted(((end - begin, queue) for queue, (begin, end) in self._held.items() if end - begin > 1))
        while wanted > 0 and longest:
            _, queue = longest.pop()
            begin, end = self._held[queue]
            full = self._store.queue(queue).persisted // FRAME_UNITS
            reached = self._give_back(queue, begin, min(full, end - 1), wanted)
            wanted -= reached - begin
            self._note(queue, reached, end)

    def _give_back(self, queue: int, begin: int, end: int, wanted: int) -> int:
        """Release up to `wanted` frames from `begin`; returns the first ordinal that was not released."""
        at = begin
        while at < end and at - begin < wanted:
            step = min(_RELEASE_PER_LOCK, end - at)
            if self._keeper_store.frames_release(queue, at, step, _LOCK_SECONDS) < 0:
                break
            at += step
        return at
