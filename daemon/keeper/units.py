"""Writes ConsumeQueue units from shared memory into their files, and corrects the queues' minimums.

`marks.py` then says how far they are on disk. Units that a failed sync covered, and those that turn out to be wrong in
their files, are written again here: from memory, or from the records of the log.

Rules: (1) a unit leaves memory only after it is in its file; (2) units of a queue whose topic was deleted are dropped;
the queues of the old life are closed (`dead_queues.py`) and its directory goes before the first unit of the new one is
written, so the new one's files are never read for the old; (3) a unit
that is missing in memory, or cannot be written, keeps its own queue from going on, and the mark, but no other queue.
"""

import errno
from collections.abc import Callable, Iterator
from typing import Any

from shmq.daemon.event_log import EventLog
from shmq.daemon.keeper.frames import FrameKeeper
from shmq.daemon.keeper.losses import Losses
from shmq.delay_levels import DelayLevels
from shmq.shm.core import TOPIC_LIVE, UNIT_BYTES, CoreError, KeeperStore, QueueEntry, Store
from shmq.shm.unit import is_pre_blank
from shmq.store.atomic import reason_of
from shmq.store.commitlog import CommitLogFiles
from shmq.store.consumequeue import FILE_UNITS, ConsumeQueueFiles, Queue, UnitRange
from shmq.store.damage import Damage
from shmq.store.dispatch import Dispatch
from shmq.store.tables import NO_TOPIC
from shmq.store.unit_repair import UnitFault, UnitRepair

_QUEUES_PER_ROUND = 4096
_UNITS_PER_READ = 16384
_MINIMUMS_PER_ROUND = 256
_UNITS_PER_MEND = 1024


class UnitWriter:
    """The keeper's part for queues.

    Args:
        born: topic -> birth position of the life whose units are in the files.
        close_dead: closes the queues of deleted topics; False when it could not now.
        stored: told the topic and the units that were written.
    """

    def __init__(
        self,
        store: Store,
        keeper_store: KeeperStore,
        files: ConsumeQueueFiles,
        commitlog: CommitLogFiles,
        frames: FrameKeeper,
        *,
        levels: DelayLevels,
        born: dict[str, int],
        close_dead: Callable[[], bool],
        stored: Callable[[str, bytes], None],
        log: EventLog,
    ) -> None:
        self._store = store
        self._keeper_store = keeper_store
        self._files = files
        self._commitlog = commitlog
        self._levels = levels
        self._frames = frames
        self._born = born
        self._close_dead = close_dead
        self._stored = stored
        self._log = log
        self._names: dict[int, Queue | None] = {}
        self._names_version = -1
        self._failed = False  # in the round before
        self._failing = False  # in this one
        self._is_lost = False  # what a failed sync covered could not be written again the last time
        self._log_begin = store.log_begin
        self._losses = Losses(store, keeper_store, log)
        self._behind: list[int] = []  # queues whose minimum may point at a file that is gone

    def round(self) -> bool:
        """Write what is new; True when there may be more at once."""
        full = self.write_all(queues_max=_QUEUES_PER_ROUND)
        self._correct_minimums()
        return not full or bool(self._behind)

    def begin_moved(self, log_begin: int) -> None:
        """Correct the minimum of every queue, a part in each round, after the log lost its oldest file."""
        self._log_begin = log_begin
        self._behind = [index for topic in self._store.topics() for index in topic["queues"]]
        self._losses.begin()

    def _correct_minimums(self) -> None:
        for index in self._behind[:_MINIMUMS_PER_ROUND]:
            queue = self.queue_of(index)
            if queue is None:
                continue
            row = self._store.queue(index)
            found = self._files.bisect(
                queue,
                lambda position, size: size == 0 or is_pre_blank(position, size) or position < self._log_begin,
                high=row.persisted,
            )
            if found > row.offset_min:
                self._losses.count(index, row.offset_min, min(found, row.persisted))
                self._keeper_store.set_offset_min(index, min(found, row.persisted))
                self._files.remove_below(queue, found)
        del self._behind[:_MINIMUMS_PER_ROUND]

    def write_all(self, *, queues_max: int = 1 << 30) -> bool:
        """Write every unit that was complete when the call began; False when the limit or the disk stopped it."""
        after, complete = -1, True
        self._failing = False
        while queues_max > 0:
            dirty = self._keeper_store.dirty_queues(min(queues_max, _QUEUES_PER_ROUND), after)
            for index, persisted, offset_max in dirty:
                try:
                    complete &= self._write(index, persisted, offset_max)
                except OSError as error:
                    complete = False
                    self._complain("units.not_written", file=str(error.filename), reason=reason_of(error))
            if len(dirty) < min(queues_max, _QUEUES_PER_ROUND):
                break
            after = dirty[-1].queue
            queues_max -= len(dirty)
        else:
            complete = False
        self._failed = self._failing
        return complete

    def take_over(self, *, is_sound: bool, has_file: Callable[[Queue, int], bool]) -> None:
        """Begin where a keeper of this boot was killed: what it had written since its last mark is not believed.

        Args:
            is_sound: the sums that were read say all that the mark speaks of.
            has_file: whether the newest file of a queue is there, of which the offset of the first unit is given.
        """
        for queue, row in self._rows():
            offset_min, persisted = row.offset_min, row.persisted
            if not persisted:
                continue
            known = self._files.sums.end(queue) if is_sound else persisted
            newest = persisted - 1 - (persisted - 1) % FILE_UNITS
            first = max(offset_min, known if has_file(queue, newest) else min(known, newest))
            if first < persisted:
                self._rewrite(UnitRange(queue, first, persisted))
            if not is_sound:
                self._files.sums.adopt(queue, offset_min, persisted)

    def _rows(self) -> Iterator[tuple[Queue, QueueEntry]]:
        for topic in self._store.topics():
            for index in topic["queues"]:
                queue = self.queue_of(index)
                if queue is not None:
                    yield queue, self._store.queue(index)

    def rewrite_lost(self) -> bool:
        """Write again what a failed sync covered; False when the disk or the log refused."""
        try:
            for lost in self._files.lost:
                self._rewrite(lost)
        except (OSError, CoreError) as error:
            if not self._is_lost:
                self._log("units.not_rewritten", reason=str(error))
            self._is_lost = True
            return False
        self._is_lost = False
        return True

    def rebuild_units(self, queue: Queue, first: int, count: int) -> int:
        """Write units again from the log while the broker runs; returns how many. Raises OSError, CoreError."""
        index = self._store.topic_find(queue[0])
        queues = self._store.topic(index)["queues"] if index >= 0 else []
        if queue[1] >= len(queues):
            return 0
        first, end = self._files.reopen(queue, first, first + count)
        end = min(end, self._store.queue(queues[queue[1]]).persisted)
        return self._repair(queue[0]).run([UnitFault(queue, first, end)]) if first < end else 0

    def mend(self, index: int, first: int) -> tuple[int, list[Damage]]:
        """Write a unit, and those right behind it that are wrong too, again from the log, in memory and in their file.

        Returns how many, and the damage of the log that stands where records of others should be. Raises OSError,
        CoreError.
        """
        queue = self.queue_of(index)
        row = self._store.queue(index)
        offset_min, offset_max, persisted = row.offset_min, row.offset_max, row.persisted
        if queue is None or not offset_min <= first < offset_max:
            return 0, []
        repair, end = self._repair(queue[0]), first + 1
        while end < min(offset_max, first + _UNITS_PER_MEND):
            if repair.is_right(queue, end, self._store.units_stored(index, end, 1)):
                break
            end += 1
        units, damages = repair.found(queue, first, end)
        for offset, unit in sorted(units.items()):
            if offset < persisted:
                self._files.write(queue, offset, unit)
            if self._keeper_store.units_read(index, offset, 1):
                self._keeper_store.units_restore(index, offset, unit)
        return len(units) if first in units else 0, damages

    def _rewrite(self, lost: UnitRange) -> None:
        topic = self._store.topic_find(lost.queue[0])
        index = self._store.queue_index(topic, lost.queue[1])
        persisted = self._store.queue(index).persisted
        at, parts = lost.first, list[bytes]()
        while at < min(lost.end, persisted):
            units = self._keeper_store.units_read(index, at, min(_UNITS_PER_READ, lost.end - at))
            if not units:  # they left memory since
                end = min(lost.end, persisted)
                units = self._repair(lost.queue[0]).units(lost.queue, at, end)
                # Below the log's begin they are not needed.
                units += self._files.read(
                    lost.queue, at + len(units) // UNIT_BYTES, end - at - len(units) // UNIT_BYTES
                )
                units = units.ljust((end - at) * UNIT_BYTES, b"\0")
            parts.append(units)
            at += len(units) // UNIT_BYTES
        size = (lost.end - lost.first) * UNIT_BYTES
        self._files.rewrite(lost, b"".join(parts)[:size].ljust(size, b"\0"))
        self._log(
            "units.rewritten", topic=lost.queue[0], queue_id=lost.queue[1], first=lost.first, count=at - lost.first
        )

    def _repair(self, topic: str) -> UnitRepair:
        dispatch = Dispatch(born={topic: self._born.get(topic, 0)}, deleted={}, levels=self._levels, log=self._log)
        return UnitRepair(self._keeper_store, self._commitlog, self._files, dispatch, log_end=self._store.log_end)

    def forget_topic(self, topic: str) -> None:
        """Remove the unit files of a topic that was deleted."""
        self._born.pop(topic, None)
        self._files.remove_topic(topic)
        self._names.clear()

    def messages_within(self, begin: int, end: int) -> int:
        """Return how many units in files point into a range of the log."""
        return self._files.messages_within(begin, end)

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
        row = self._store.queue(index)
        if row.topic == NO_TOPIC:
            return None
        topic, queue_id = self._store.topic(row.topic), row.queue_id
        queues = topic["queues"]
        if topic["state"] != TOPIC_LIVE or queue_id >= len(queues) or queues[queue_id] != index:
            return None
        name, born = topic["name"], topic["born_position"]
        if self._born.get(name) != born:
            if not self._close_dead():
                raise OSError(errno.EBUSY, "the queues of the topic's former life cannot be closed now", name)
            # A keeper that was killed may have written units of this life before it saved the topic's birth.
            if not any(self._store.queue(other).persisted for other in queues):
                self._files.remove_topic(name, born=born)
            self._files.sums.set_born(name, born)
            self._born[name] = born
        return name, queue_id

    def _write(self, index: int, persisted: int, offset_max: int) -> bool:
        queue = self.queue_of(index)
        if queue is None:
            return True
        while persisted < offset_max:
            units = self._keeper_store.units_read(index, persisted, min(_UNITS_PER_READ, offset_max - persisted))
            if not units:
                self._complain("units.missing", topic=queue[0], queue_id=queue[1], queue_offset=persisted)
                return False
            self._files.write(queue, persisted, units)
            persisted += len(units) // UNIT_BYTES
            self._keeper_store.set_persisted(index, persisted)
            self._stored(queue[0], units)
        self._frames.grew(index, offset_max)
        return True

    def _complain(self, event: str, **values: Any) -> None:
        """Say it once, not in every round."""
        if not self._failed and not self._failing:
            self._log(event, **values)
        self._failing = True
