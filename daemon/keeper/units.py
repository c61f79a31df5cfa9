"""Writes ConsumeQueue units from shared memory into their files, and keeps memory for new ones.

It does not know the log's files nor when a mark is written.

Rules: (1) a unit leaves memory only after it is in its file; (2) units of a queue whose topic was deleted are dropped,
and the directory of the old life goes before the first unit of the new one is written; (3) at least FRAMES_FREE_MIN
frames are ready for writers, in small steps, so that an idle broker stays small.
"""

from __future__ import annotations

import os
from collections.abc import Iterable

from shmq.daemon.event_log import EventLog

from shmq.shm.core import FRAME_BYTES, FRAME_UNITS, UNIT_BYTES, CoreError, Store
from shmq.store.consumequeue import ConsumeQueueFiles, Queue, is_pre_blank

FRAMES_FREE_MIN = 1024
_FRAMES_STEP = 512
_QUEUES_PER_ROUND = 4096
_UNITS_PER_READ = 16384
_RELEASE_PER_LOCK = 64
_MINIMUMS_PER_ROUND = 256
_LOCK_SECONDS = 0.2


class UnitWriter:
    """The keeper's part for queues.

    Args:
        born: topic -> birth position of the life whose units are in the files.
        memory_bytes: how much memory persisted frames may keep.
    """

    def __init__(
        self,
        store: Store,
        files: ConsumeQueueFiles,
        *,
        born: dict[str, int],
        memory_bytes: int,
        log: EventLog,
    ) -> None:
        self._store = store
        self._files = files
        self._born = born
        self._frames_kept = memory_bytes // FRAME_BYTES
        self._log = log
        self._names: dict[int, Queue | None] = {}
        self._names_version = -1
        self._released: dict[int, int] = {}  # queue index -> first frame ordinal that may still be in memory
        self._failed = False
        self._log_begin = store.log_begin
        self._behind: list[int] = []  # queues whose minimum may point at a file that is gone
        self._frame_max = int(store.head["frame_max"])

    def round(self) -> bool:
        """Write what is new; True when there may be more at once."""
        full = self.write_all(queues_max=_QUEUES_PER_ROUND)
        self._keep_frames()
        self._correct_minimums()
        return not full or bool(self._behind)

    def begin_moved(self, log_begin: int) -> None:
        """Correct the minimum of every queue, a part in each round, after the log lost its oldest file."""
        self._log_begin = log_begin
        self._behind = [index for topic in self._store.topics() for index in topic["queues"]]

    def _correct_minimums(self) -> None:
        for index in self._behind[:_MINIMUMS_PER_ROUND]:
            queue = self.queue_of(index)
            if queue is None:
                continue
            offset_min, _, persisted, _, _, _ = self._store.queue(index)
            found = self._files.bisect(
                queue,
                lambda position, size: size == 0 or is_pre_blank(position, size) or position < self._log_begin,
                high=persisted,
            )
            if found > offset_min:
                self._store.set_offset_min(index, min(found, persisted))
                self._files.remove_below(queue, found)
        del self._behind[:_MINIMUMS_PER_ROUND]

    def write_all(self, *, queues_max: int = 1 << 30) -> bool:
        """Write every unit that was complete when the call began; False when the limit or the disk stopped it."""
        start = 0
        while queues_max > 0:
            dirty = self._store.dirty_queues(min(queues_max, _QUEUES_PER_ROUND), start)
            for index, persisted, offset_max in dirty:
                if not self._write(index, persisted, offset_max):
                    return False
            if len(dirty) < min(queues_max, _QUEUES_PER_ROUND):
                return True
            start = dirty[-1][0] + 1
            queues_max -= len(dirty)
        return False

    def forget_topic(self, topic: str) -> None:
        """Remove the unit files of a topic that was deleted."""
        self._born.pop(topic, None)
        self._files.remove_topic(topic)
        self._names.clear()

    def drop_queues(self, indexes: Iterable[int]) -> None:
        """Give back the memory of queues whose topic was deleted."""
        for index in indexes:
            _, offset_max, persisted, _, _, _ = self._store.queue(index)
            # Rounded up, so that the last frame can be given back too.
            frames = -(-offset_max // FRAME_UNITS)
            self._store.set_persisted(index, frames * FRAME_UNITS)
            begin = self._released.pop(index, max(0, persisted // FRAME_UNITS - self._frame_max))
            for at in range(begin, frames, _RELEASE_PER_LOCK):
                self._store.frames_release(index, at, min(_RELEASE_PER_LOCK, frames - at), _LOCK_SECONDS)

    def queue_of(self, index: int) -> Queue | None:
        """Return topic and queue id of a queue index, or None when its topic was deleted or made anew."""
        version = self._store.table_version
        if version != self._names_version:
            self._names.clear()
            self._names_version = version
        if index not in self._names:
            self._names[index] = self._look_up(index)
        return self._names[index]

    def _look_up(self, index: int) -> Queue | None:
        _, _, _, topic_index, queue_id, _ = self._store.queue(index)
        topic = self._store.topic(topic_index)
        queues = topic["queues"]
        if topic["state"] != 1 or queue_id >= len(queues) or queues[queue_id] != index:
            return None
        name, born = topic["name"], topic["born_position"]
        if self._born.get(name) != born:
            self._files.remove_topic(name)
            self._born[name] = born
        return name, queue_id

    def _write(self, index: int, persisted: int, offset_max: int) -> bool:
        queue = self.queue_of(index)
        if queue is None:
            self.drop_queues([index])
            return True
        while persisted < offset_max:
            units = self._store.units_read(index, persisted, min(_UNITS_PER_READ, offset_max - persisted))
            if not units:
                self._complain("units.missing", topic=queue[0], queue_id=queue[1], queue_offset=persisted)
                return False
            try:
                self._files.write(queue, persisted, units)
            except OSError as error:
                self._complain(
                    "units.not_written", topic=queue[0], queue_id=queue[1], reason=os.strerror(error.errno or 0)
                )
                return False
            persisted += len(units) // UNIT_BYTES
            self._store.set_persisted(index, persisted)
        self._failed = False
        return True

    def _complain(self, event: str, **values: object) -> None:
        """Say it once, not in every round."""
        if not self._failed:
            self._log(event, **values)
        self._failed = True

    def _keep_frames(self) -> None:
        stats = self._store.stats()
        ready, used = stats["frame_ready"], stats["frame_used"]
        if ready - used < FRAMES_FREE_MIN and ready < self._frame_max:
            try:
                self._store.frames_grow(_FRAMES_STEP)
            except CoreError as error:
                self._complain("frames.not_grown", reason=str(error.args[1]))
        pressed = ready - used < FRAMES_FREE_MIN and ready >= self._frame_max
        if used > self._frames_kept or pressed:
            self._release(max(used - self._frames_kept, FRAMES_FREE_MIN if pressed else 0), used)

    def _release(self, wanted: int, used: int) -> None:
        """Give back the oldest persisted frames, queue by queue, those with most of them first."""
        held: list[tuple[int, int, int]] = []
        for topic in self._store.topics():
            for index in topic["queues"]:
                persisted = self._store.queue(index)[2]
                end = persisted // FRAME_UNITS
                begin = self._released.get(index, max(0, end - used))
                if end > begin:
                    held.append((end - begin, index, begin))
        for count, index, begin in sorted(held, reverse=True):
            if wanted <= 0:
                return
            at = begin
            while at < begin + count and wanted > 0:
                step = min(_RELEASE_PER_LOCK, begin + count - at)
                wanted -= self._store.frames_release(index, at, step, _LOCK_SECONDS)
                at += step
            self._released[index] = at
