"""Delivers messages of a time of their own, and takes them back.

RocketMQ 5 keeps a wheel and a log of its own beside the topic where such messages wait. Here the units of the timer
topic's queue say the due times: a start reads 20 bytes a message, memory holds 8 (57 in the last hours), and while
messages wait nothing is written but words in shared memory (`progress.py`, `copies.py`). What is due is decided by the
least stamp an append can get now, a millisecond behind the clock, because appends do not look at the clock each time.

    timer topic, queue 0     … read before | new units …
         │ due time of each unit: no record is read
         ▼
    TimerQueue ── due ──▶ the record is read, copied to its topic, progress is moved
    far, oldest first ── stored for as long as is safe ──▶ stored anew, behind everything, with the same due time
    cancelled ── UNIQ_KEY of a message that was taken back ──▶ dropped when it is due

A start reads the units from the first that is stored: two words say which of them were delivered. Where a stock
RocketMQ broker opens our store, it finds no timer files of its own and takes every record of the timer topic that is
stored: what is due later is delivered once, what was delivered already within the time files are kept comes again.
Our start in a stock store knows no progress either, and does the same.

Invariants:
 1. Nothing is delivered before its due time on the clock that stamps records, which a delay ends at too: the copy is
    not stamped before it. Where that clock is set back, timers wait for it; set forward, what it says is due is
    delivered.
 2. Messages are delivered in the order of due time and queue offset. One that cannot be stored now stops all for a
    second, and is not lost.
 3. Killed anywhere, every message is copied exactly once: what a start finds copied is not copied again (`copies.py`).
 4. A recall that was answered with success keeps its message from ever being delivered: under synchronous flush it is
    answered when it is on disk.
 5. Units are taken as far as records are visible, so a record that cannot be read is damaged or deleted.
"""

from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress

from shmq.daemon.broker.log import Storage, retry_ms
from shmq.daemon.broker.records.property_text import fitting, property_of, with_properties
from shmq.daemon.broker.records.stored_record import StoredRecord, copy_of, stored_record
from shmq.daemon.broker.settings import BrokerSettings
from shmq.daemon.broker.timers.copies import Copies, name_of
from shmq.daemon.broker.timers.progress import TimerProgress
from shmq.daemon.broker.timers.real_place import real_place
from shmq.daemon.broker.timers.recall import CANCEL_SLACK_MS, CancelledTimers, Recalls
from shmq.daemon.broker.timers.timer_list import timers_body, wanted_count
from shmq.daemon.broker.timers.timer_queue import TimerQueue
from shmq.daemon.logic.alarm import Alarm
from shmq.daemon.logic.effects import Effect, Report
from shmq.daemon.logic.requests import Answer, Call, Handler, Part, WhenDurable
from shmq.delay_levels import REAL_TOPIC
from shmq.errors import ShmqError
from shmq.properties import parse_properties
from shmq.protocol.codes import Request
from shmq.timing import (
    CANCEL_BIT,
    CANCELLED_KEY,
    DEQUEUE_MS,
    ENQUEUE_MS,
    ROLL_TIMES,
    TIMER_COPIES_GROUP,
    TIMER_TOPIC,
    UNIQUE_KEY,
    cancel_key,
    code_of,
    code_time,
    due_ms,
    number_of,
)

_UNITS_PER_READ = 4096  # about 4 ms; the event loop serves others in between
_COPIES_PER_RUN = 250
_BYTES_PER_RUN = 4 << 20
_MOVES_PER_RUN = 4096
_REST_MS = 10  # between two looks at what others store
_TICK_MS = 1000
_NOTES_MAX = 256
_ROLL_MS_MAX = 2 * 86_400_000  # RocketMQ's timerRollWindowSlot


class TimerService(Part):
    """Delivers what waits in the timer topic."""

    hears_arrivals = True

    def __init__(self, storage: Storage, settings: BrokerSettings, *, when_durable: WhenDurable) -> None:
        self._tables, self._log, self._arrived = storage
        self._broker_name = settings.broker_name
        retention_ms = settings.retention_hours * 3_600_000
        self._roll_ms = min(_ROLL_MS_MAX, retention_ms * 2 // 3)
        self._young_ms = retention_ms - self._roll_ms  # what is due so soon outlives its record's time to be rolled
        self._cancelled = CancelledTimers()
        self._recalls = Recalls(storage, settings, self._cancelled, when_durable=when_durable)
        self.delivered = 0  # since the start, for people
        self._empty(-1)
        self._seen_version = -1
        self._is_running = False
        self._alarm = Alarm()
        self._rest_until_ms = 0
        self._paused_until_ms = 0

    def handlers(self) -> dict[int, Handler]:
        """Return what is served here, by request code."""
        return {Request.RECALL_MESSAGE: self._recalls.serve, Request.TIMERS: self._list}

    # -- when

    @property
    def wanted(self) -> Mapping[int, int]:
        """The queue and offset whose arrival the broker reports to this part."""
        if self._queue < 0 or self._rest_until_ms:
            return {}
        return {self._queue: self._next}

    @property
    def wanted_version(self) -> object:
        """A value that differs when `wanted` does."""
        if self._seen_version != self._tables.version:  # the topic may have come into being
            with suppress(ShmqError):  # the next tick tries again, and says why not
                self._open()
        return self._queue, self._rest_until_ms == 0 and self._next

    @property
    def pending(self) -> int:
        """How many messages wait."""
        return len(self._timers) + len(self._far)

    def tick(self, now_ms: int) -> Sequence[Effect]:
        """Read what is new, deliver what is due, and ask to be woken for what is due before the next tick."""
        return self._run(now_ms)

    def woken(self, now_ms: int) -> Sequence[Effect]:
        """The time that was asked for has come."""
        return self._alarm.ring(now_ms, self._run)

    def arrived(self, queues: Sequence[int], now_ms: int) -> Sequence[Effect]:
        """A timed message was stored; many come together, so there is a pause between two looks."""
        if self._is_running or self._queue not in queues or self._rest_until_ms:
            return ()
        return self._run(now_ms)

    def _run(self, now_ms: int) -> list[Effect]:
        self._alarm.stop()
        self._rest_until_ms = 0
        if not self._open():
            return []
        self._is_running = True
        effects: list[Effect] = []
        queues: dict[int, None] = {}
        try:
            wait_ms = self._work(now_ms, queues, effects)
            self._tell()
        finally:
            self._is_running = False
        if queues:
            effects += self._arrived(tuple(queues), now_ms)
        if wait_ms < _TICK_MS:
            effects.append(self._alarm.set(now_ms, wait_ms))
        return effects

    def _work(self, now_ms: int, queues: dict[int, None], effects: list[Effect]) -> int:
        """Do a portion of everything; return in how many ms there is more to do."""
        before = self._next
        if self._read(effects):
            return 1
        if self._next < self._known_at_start:
            return _TICK_MS  # nothing is delivered before everything that may be due before it is known
        if not self._copies.walk():
            return 1
        if now_ms < self._paused_until_ms:
            return self._paused_until_ms - now_ms
        try:
            self._roll(effects)
            is_filling = self._timers.advance(self._tables.clock_ms, _MOVES_PER_RUN)
            wait_ms = self._deliver(queues, effects)
        except ShmqError as error:
            self._paused_until_ms = now_ms + retry_ms(error)
            effects.append(Report(f"timed messages that are due are not delivered yet: {error}"))
            return retry_ms(error)
        first = self._timers.first()
        self._cancelled.forget(min(self._tables.clock_ms, first[0]) if first else self._tables.clock_ms)
        if is_filling:
            wait_ms = min(wait_ms, _REST_MS)
        if self._next != before:
            self._rest_until_ms = now_ms + _REST_MS
            wait_ms = min(wait_ms, _REST_MS)
        return wait_ms

    def _empty(self, queue: int) -> None:
        self._queue = queue
        self._timers = TimerQueue()
        self._far: deque[int] = deque()
        self._far_due_ms = -1  # when the first of them is to be stored anew
        self._late: deque[int] = deque()
        self._late_done: set[int] = set()
        self._notes: deque[tuple[int, int]] = deque()  # (n, e): copies of messages from n on lie from e on in the log
        self._next = self._known_at_start = 0
        self._is_caught_up = False

    def _open(self) -> bool:
        """Whether there is a timer topic; a start, or a new topic of that name, begins with what its queue holds."""
        self._seen_version = self._tables.version
        topic = self._tables.topic(TIMER_TOPIC)
        queue = topic.queues[0] if topic is not None and topic.queues else -1
        if queue != self._queue:
            self._empty(-1)  # until everything is there: the tables may have no room for the words
            if queue >= 0:
                self._progress = TimerProgress(self._tables, queue)
                place = TIMER_TOPIC, queue, TIMER_COPIES_GROUP
                self._copies = Copies(
                    self._tables,
                    self._log,
                    place,
                    has_words=self._progress.is_written,
                    is_covered=self._is_covered,
                )
                self._queue = queue
                bounds = self._tables.queue_bounds(queue)
                if self._progress.read > bounds.offset_max:  # the end of the log was lost, and other messages will come
                    self._progress.known(bounds.offset_max)
                self._next = bounds.offset_min
                self._known_at_start = self._progress.read
        return queue >= 0

    # -- reading

    def _read(self, effects: list[Effect]) -> bool:
        """Take a portion of the new units; True when there are more."""
        bounds = self._tables.queue_bounds(self._queue)
        # What is not durable yet is read when it is: here only damage and retention may keep a record from us.
        end = self._log.visible(self._queue)
        self._next = max(self._next, bounds.offset_min)
        if self._next >= end:
            self._is_caught_up = True
            return False
        clock_ms, add = self._tables.clock_ms, self._timers.add
        least, most = max(clock_ms, self._progress.due), clock_ms + self._young_ms
        is_new = self._next >= self._known_at_start
        first = self._next
        codes = self._tables.tag_codes(self._queue, first, min(_UNITS_PER_READ, end - first))
        if not codes:
            effects.append(Report(f"the timer queue has no units at {self._next}; they are tried again"))
            return False
        for offset, code in enumerate(codes, first):
            # The plain case: new, and due within the time records are kept for certain.
            if is_new and least < code < most:
                add(code, offset)
            else:
                self._next = offset  # a record that cannot be read now is read again, what is before it is taken
                self._take(offset, code, clock_ms, effects)
        self._next = first + len(codes)
        self._note_known()
        self._is_caught_up = self._is_caught_up or self._next >= end
        return self._next < end

    def _take(self, offset: int, code: int, clock_ms: int, effects: list[Effect]) -> None:
        """Take a unit that needs a closer look."""
        due = code_time(code)
        is_cancel = due is not None and code & CANCEL_BIT != 0
        is_known = offset < self._known_at_start
        if is_cancel and is_known and due is not None and due + CANCEL_SLACK_MS < min(clock_ms, self._progress.due):
            return  # what it took back is long over
        record: StoredRecord | None = None
        if due is None or is_cancel:
            record = self._record(offset)
            properties = parse_properties(record.properties.decode(errors="replace")) if record else {}
            if due is None and record is not None:
                due = due_ms(properties, record.store_ms)
            if record is None:
                effects.append(Report(f"the record of the timer queue at {offset} cannot be read and is passed over"))
            if due is None:
                return  # damaged, or no timed message: nothing is ever delivered
            if key := properties.get(CANCELLED_KEY):
                self._cancelled.add(key, due)
                is_cancel = True
        if self._progress.is_delivered(due, offset):
            if not is_known and not is_cancel:
                self._late.append(offset)
                self._timers.add(due, offset)
            return
        if due - clock_ms > self._young_ms or offset < self._progress.rolled:
            store_ms = record.store_ms if record else self._store_ms(offset, clock_ms, is_new=not is_known)
            if due - store_ms > self._roll_ms:
                if offset >= self._progress.rolled:
                    self._far.append(offset)
                return
        if not is_cancel:
            self._timers.add(due, offset)

    def _store_ms(self, offset: int, clock_ms: int, *, is_new: bool) -> int:
        """When a record was stored. One that came while we were there is not read for it."""
        if is_new and self._is_caught_up:
            return clock_ms
        return self._tables.store_ms(self._queue, offset)

    def _note_known(self) -> None:
        if self._next >= self._known_at_start:
            self._progress.known(self._late[0] if self._late else self._next)

    def _record(self, offset: int) -> StoredRecord | None:
        pulled = self._log.read(self._queue, offset, count_max=1, bytes_max=1)
        record = stored_record(pulled.body) if pulled.record_count else None
        return record if record is not None and record.queue_offset == offset else None

    # -- delivering

    def _deliver(self, queues: dict[int, None], effects: list[Effect]) -> int:
        """Deliver what is due; return in how many ms there is more to do."""
        clock_ms, stamp_ms = self._tables.clock_ms, self._tables.stamp_ms
        copies = copied_bytes = 0
        while (first := self._timers.first()) is not None:
            due, offset = first
            if due > stamp_ms:
                return min(due - stamp_ms, _TICK_MS)
            if copies >= _COPIES_PER_RUN or copied_bytes >= _BYTES_PER_RUN:
                return 1
            record = self._record(offset)
            if record is None:
                self._copies.take(0, offset)
                effects.append(Report(f"the timed message at {offset} cannot be read any more and is passed over"))
            elif not self._copies.take(0, offset) and not self._is_cancelled(record):
                self._copy(record, clock_ms, queues, effects)
                copied_bytes += len(record.body)
            copies += 1
            self._timers.pop()
            self._settle(due, offset)
        return _TICK_MS

    def _copy(self, record: StoredRecord, clock_ms: int, queues: dict[int, None], effects: list[Effect]) -> None:
        place = real_place(self._tables, record)
        if isinstance(place, str):
            effects.append(Report(f"a timed message for topic {place[:127]!r} is dropped: there is no such topic"))
            return
        # As in RocketMQ the copy still says where it belongs; TIMER_OUT_MS keeps it from waiting a second time.
        changes = {ENQUEUE_MS: str(record.store_ms), DEQUEUE_MS: str(clock_ms)}
        self._copies.begin()
        copy = copy_of(record, fitting(with_properties(record.properties, changes)), names=name_of(record))
        self._log.append(place.topic, place.queue_id, copy)
        queues[place.queue] = None
        self.delivered += 1

    def _is_cancelled(self, record: StoredRecord) -> bool:
        if not self._cancelled:
            return False
        topic, unique = (property_of(record.properties, name) or "" for name in (REAL_TOPIC, UNIQUE_KEY))
        return cancel_key(topic, unique) in self._cancelled

    def _settle(self, due: int, offset: int) -> None:
        """Write down that a message is delivered, or nothing to be delivered any more."""
        if not self._progress.is_delivered(due, offset):
            self._progress.delivered(due, offset)
            return
        self._late_done.add(offset)
        while self._late and self._late[0] in self._late_done:
            self._late_done.remove(self._late.popleft())
        self._note_known()

    def _list(self, call: Call) -> Answer:
        """What waits, for people; messages that wait for longer than files are kept are counted only."""
        found: list[tuple[int, StoredRecord]] = []
        for due, offset in self._timers.soonest(wanted_count(call)):
            record = self._record(offset)
            if record is not None and not self._is_cancelled(record):
                found.append((due, record))
        return Answer(body=timers_body(self._broker_name, self.pending, found))

    def _tell(self) -> None:
        """Say from where on the log may hold copies that progress does not tell of, now that the words are written."""
        if not self._late:
            self._notes.clear()
            self._copies.end()
            return
        # Everything that was delivered from the first late one on is such a copy.
        if not self._notes or self._notes[-1][0] < self._next:
            if len(self._notes) >= _NOTES_MAX:  # coarser, and so a longer walk
                self._notes = deque(list(self._notes)[::2])
            self._notes.append((self._next, self._log.end))
        mark = 0
        while self._notes and self._notes[0][0] <= self._late[0]:
            mark = self._notes.popleft()[1]
        if mark:
            self._copies.end(mark)

    def _is_covered(self, record: StoredRecord) -> bool:
        """Whether progress tells that a message was delivered, or stored anew."""
        due = code_time(self._code(record) or 0)
        offset = record.queue_offset
        if due is None:
            return True
        if due - record.store_ms > self._roll_ms:
            return offset < self._progress.rolled
        return offset < self._known_at_start and self._progress.is_delivered(due, offset)

    # -- storing anew

    def _roll(self, effects: list[Effect]) -> None:
        """Store messages anew whose records would be gone before they are due."""
        topic = self._tables.topic(TIMER_TOPIC)
        for _ in range(_COPIES_PER_RUN):
            if not self._far or topic is None:
                return
            offset = self._far[0]
            if self._far_due_ms < 0:
                self._far_due_ms = self._tables.store_ms(self._queue, offset) + self._roll_ms
            if self._tables.clock_ms < self._far_due_ms:
                return
            record = self._record(offset)
            if record is None:
                self._copies.take(0, offset)
                effects.append(Report(f"the timed message at {offset} was gone before it was stored anew"))
            elif not self._copies.take(0, offset) and not self._is_cancelled(record):
                times = number_of(property_of(record.properties, ROLL_TIMES)) or 0
                properties = fitting(with_properties(record.properties, {ROLL_TIMES: str(times + 1)}))
                self._copies.begin()
                copy = copy_of(record, properties, tag_code=self._code(record), names=name_of(record))
                self._log.append(topic, 0, copy)
            self._far.popleft()
            self._far_due_ms = -1
            self._progress.stored_anew(offset + 1)

    def _code(self, record: StoredRecord) -> int | None:
        """The tag code of a record's unit, or the one it would have if it had been written here."""
        for unit in self._tables.units(self._queue, record.queue_offset, 1):
            if code_time(unit.tag_code) is not None:
                return unit.tag_code
        properties = parse_properties(record.properties.decode(errors="replace"))
        due = due_ms(properties, record.store_ms)
        return None if due is None else code_of(due, cancels=CANCELLED_KEY in properties)
