"""Delivers delayed messages when they are due, level by level.

Progress is the committed offset of a group of our own on the schedule topic's queues: it outlives the bridge in shared
memory and costs no file of its own. The keeper writes it as RocketMQ's delayOffset.json, and only after the copies it
speaks of are on disk. Where the clock is set back, a delay is counted on the steady clock; RocketMQ delivers
at once then, which is early.

    queue of a level   … delivered | head: due at store time + delay | …
                                   ^ committed offset, moved behind each copy

Invariants:
 1. Nothing is delivered before its due time on the clock that stamps records: no copy is stamped earlier. If that
    clock was set back, a message goes out when its delay has passed since we saw it, on the steady clock: no
    message waits for years.
 2. A level's messages are delivered in their order; one that cannot be stored now stops its level only, for a second,
    or for 20 ms where only the append lock was taken.
 3. Killed anywhere, every message is copied exactly once: what a start finds copied is not copied again (`copies.py`).
 4. What is not visible yet is waited for; only a damaged record, or a deleted one, is passed over.
"""

from collections import deque
from collections.abc import Iterator, Mapping, Sequence

from shmq.daemon.broker.log import Storage, retry_ms
from shmq.daemon.broker.records.stored_record import StoredRecord, copy_of, records_of
from shmq.daemon.broker.tables import committed_of
from shmq.daemon.broker.timers.copies import Copies, name_of
from shmq.daemon.broker.timers.real_place import real_place
from shmq.daemon.logic.alarm import Alarm
from shmq.daemon.logic.effects import Effect, Report
from shmq.daemon.logic.requests import Answer, Call, Part, serves
from shmq.delay_levels import SCHEDULE_COPIES_GROUP, SCHEDULE_GROUP, SCHEDULE_TOPIC, DelayLevels
from shmq.errors import ShmqError
from shmq.protocol.codes import Request

_READ_COUNT = 32
_READ_BYTES = 256 << 10
_COPIES_PER_RUN = 500  # the event loop serves others in between
_BYTES_PER_RUN = 4 << 20
_SET_BACK_MS = 1000  # how far the clock has to be behind before it is not believed any more
_TICK_MS = 1000  # what is due later than that is seen by the next tick
_SIGHTINGS_MAX = 4096


class _Level:
    """One queue of the schedule topic."""

    def __init__(self, level: int, queue: int, slot: int) -> None:
        self.level = level
        self.queue = queue
        self.slot = slot
        self.head: tuple[int, int] | None = None  # queue offset, due_ms
        self.paused_until_ms = 0
        self.is_unseen = False  # what stands at its progress is not visible yet
        # (offset_max, now_ms): everything below that offset was there at that time
        self.sightings: deque[tuple[int, int]] = deque()

    def sighted(self, offset_max: int, now_ms: int) -> None:
        """Note how far the queue goes now."""
        if self.sightings and self.sightings[-1][0] >= offset_max:
            return
        if len(self.sightings) >= _SIGHTINGS_MAX:  # coarser, and so later, never earlier
            self.sightings = deque(list(self.sightings)[1::2])
        self.sightings.append((offset_max, now_ms))

    def seen_ms(self, offset: int) -> int | None:
        """When the message at an offset was there for certain; older notes are dropped."""
        while self.sightings and self.sightings[0][0] <= offset:
            self.sightings.popleft()
        return self.sightings[0][1] if self.sightings else None


class DelayService(Part):
    """Delivers what waits in the schedule topic."""

    hears_arrivals = True

    def __init__(self, storage: Storage, levels: DelayLevels) -> None:
        self._tables, self._log, self._arrived = storage
        self._delays = levels
        self._levels: dict[int, _Level] = {}
        self._alarm = Alarm()
        self._is_running = False
        self._unseen: tuple[tuple[int, int], ...] = ()
        self._copies: Copies | None = None
        self._first_queue = -1
        self._count = 0
        self._bytes = 0

    def tick(self, now_ms: int) -> Sequence[Effect]:
        """Deliver what is due, and ask to be woken for what is due before the next tick."""
        self._alarm.stop()
        return self._run(now_ms)

    def woken(self, now_ms: int) -> Sequence[Effect]:
        """The time that was asked for has come."""
        return self._alarm.ring(now_ms, self._run)

    @property
    def wanted(self) -> Mapping[int, int]:
        """Queues and offsets whose becoming visible the broker reports to this part."""
        return dict(self._unseen)

    @property
    def wanted_version(self) -> object:
        """A value that differs when `wanted` does."""
        return self._unseen

    def arrived(self, queues: Sequence[int], now_ms: int) -> Sequence[Effect]:
        """Deliver what was not on disk before and may be due already."""
        if not self._unseen or not any(queue in queues for queue, _ in self._unseen):
            return ()
        return self._run(now_ms)

    def _run(self, now_ms: int) -> list[Effect]:
        if self._is_running:
            return []  # a copy of ours has arrived
        self._is_running = True
        for level in self._levels.values():
            level.is_unseen = False
        try:
            return self._deliver_all(now_ms)
        finally:
            self._is_running = False
            unseen = (level for level in self._levels.values() if level.is_unseen)
            self._unseen = tuple((level.queue, self._tables.committed(level.slot)) for level in unseen)

    def _deliver_all(self, now_ms: int) -> list[Effect]:
        effects: list[Effect] = []
        self._count = self._bytes = 0
        copies = self._open()
        if copies is None:
            return effects
        if not copies.walk():
            return [self._alarm.set(now_ms, 1)]
        next_ms: int | None = None
        for level in self._waiting(now_ms):
            wait_ms = self._deliver(level, copies, now_ms, effects)
            if wait_ms is not None and (next_ms is None or wait_ms < next_ms):
                next_ms = wait_ms
        copies.end()
        if next_ms is not None and next_ms < _TICK_MS:
            effects.append(self._alarm.set(now_ms, next_ms))
        return effects

    def _open(self) -> Copies | None:
        """What was copied before this process came; None while there is no schedule topic."""
        topic = self._tables.topic(SCHEDULE_TOPIC)
        first = topic.queues[0] if topic is not None and topic.queues else -1
        if first != self._first_queue:
            place = SCHEDULE_TOPIC, first, SCHEDULE_COPIES_GROUP
            has_words = topic is not None and any(
                committed_of(self._tables, SCHEDULE_GROUP, queue) > 0 for queue in topic.queues
            )
            self._copies = (
                Copies(self._tables, self._log, place, has_words=has_words, is_covered=self._is_covered)
                if first >= 0
                else None
            )
            self._first_queue = first
        return self._copies

    def _is_covered(self, record: StoredRecord) -> bool:
        topic = self._tables.topic(SCHEDULE_TOPIC)
        if topic is None or not 0 <= record.queue_id < len(topic.queues):
            return True
        return record.queue_offset < committed_of(self._tables, SCHEDULE_GROUP, topic.queues[record.queue_id])

    def _waiting(self, now_ms: int) -> Iterator[_Level]:
        """Levels whose queue holds messages."""
        topic = self._tables.topic(SCHEDULE_TOPIC)
        for queue_id, queue in enumerate(topic.queues if topic else ()):
            bounds = self._tables.queue_bounds(queue)
            if bounds.offset_max == 0:
                continue
            level = self._levels.get(queue)
            if level is None:
                slot = self._tables.offset_put(self._tables.group_put(SCHEDULE_GROUP), queue)
                level = self._levels[queue] = _Level(queue_id + 1, queue, slot)
            level.sighted(bounds.offset_max, now_ms)
            if self._tables.committed(level.slot) < bounds.offset_min:
                self._tables.set_committed(level.slot, bounds.offset_min)
            if self._tables.committed(level.slot) < bounds.offset_max and now_ms >= level.paused_until_ms:
                yield level

    def _deliver(self, level: _Level, copies: Copies, now_ms: int, effects: list[Effect]) -> int | None:
        """Deliver what is due of a level; return in how many ms there is more to do, None if that is unknown."""
        queues: dict[int, None] = {}
        wait_ms: int | None = 0
        while wait_ms == 0:
            offset = self._tables.committed(level.slot)
            if level.head is not None and level.head[0] == offset:
                wait_ms = self._wait_ms(level, *level.head, now_ms)
                if wait_ms:
                    break
            if self._count >= _COPIES_PER_RUN or self._bytes >= _BYTES_PER_RUN:
                wait_ms = 1
                break
            pulled = self._log.read(level.queue, offset, count_max=_READ_COUNT, bytes_max=_READ_BYTES)
            if not pulled.record_count:
                if pulled.next_offset <= offset:
                    level.is_unseen = True
                    wait_ms = None
                    break
                self._tables.set_committed(level.slot, pulled.next_offset)  # what is damaged was reported
                continue
            wait_ms = self._copy(level, copies, pulled.body, now_ms, queues, effects)
        copies.passed(level.level - 1, self._tables.committed(level.slot))
        if queues:
            effects += self._arrived(tuple(queues), now_ms)
        return wait_ms

    def _copy(
        self,
        level: _Level,
        copies: Copies,
        body: bytes,
        now_ms: int,
        queues: dict[int, None],
        effects: list[Effect],
    ) -> int:
        for record in records_of(body):
            due_ms = self._delays.due_ms(level.level - 1, record.store_ms)
            wait_ms = self._wait_ms(level, record.queue_offset, due_ms, now_ms)
            if wait_ms:
                level.head = record.queue_offset, due_ms
                return wait_ms
            try:
                if not copies.take(record.queue_id, record.queue_offset):
                    copies.begin()
                    effects += self._store(record, queues)
            except ShmqError as error:
                level.paused_until_ms = now_ms + retry_ms(error)
                effects.append(Report(f"level {level.level}: a message due is not delivered yet: {error}"))
                return retry_ms(error)
            self._tables.set_committed(level.slot, record.queue_offset + 1)
            self._count += 1
            self._bytes += len(record.body)
        return 0

    def _wait_ms(self, level: _Level, offset: int, due_ms: int, now_ms: int) -> int:
        wait_ms = max(0, due_ms - self._tables.stamp_ms)
        seen_ms = level.seen_ms(offset)
        if wait_ms and seen_ms is not None:
            patience_ms = seen_ms + self._delays.delay_ms(level.level) + _SET_BACK_MS - now_ms
            return max(0, min(wait_ms, patience_ms))
        return wait_ms

    def _store(self, record: StoredRecord, queues: dict[int, None]) -> list[Effect]:
        """Append the copy to where the message belongs; a message that belongs nowhere any more is dropped."""
        place = real_place(self._tables, record)
        if isinstance(place, str):
            return [Report(f"a delayed message for topic {place[:127]!r} is dropped: there is no such topic")]
        copy = copy_of(record, record.properties, names=name_of(record))
        self._log.append(place.topic, place.queue_id, copy)
        queues[place.queue] = None
        return []

    @serves(Request.GET_ALL_DELAY_OFFSET)
    def _progress(self, call: Call) -> Answer:
        """What a slave copies: RocketMQ's delayOffset.json."""
        topic = self._tables.topic(SCHEDULE_TOPIC)
        table: list[str] = []
        for queue_id, queue in enumerate(topic.queues if topic else ()):
            table.append(f"{queue_id + 1}:{max(0, committed_of(self._tables, SCHEDULE_GROUP, queue))}")
        return Answer(body=f'{{"offsetTable":{{{",".join(table)}}}}}'.encode())
