"""Keeps which transactions are open: the half messages that no op record names.

`Halves` reads both queues, and writes down how far they are settled.

    half queue   … base      | open or not | seen = offset_max        base: the first that may be open
    op queue     … op base   | named here  | seen                     what names a half from base on is behind op base

Both bases are offsets of a group, as in RocketMQ: the next primary bridge reads from there.

Rules: (1) ops are read before the end of the half queue is looked at, so every half they name is known by then.
(2) A half is old when it was seen long enough ago, on the steady clock.
(3) What retention has deleted is not open.
"""

from collections import deque
from collections.abc import Iterable
from typing import NamedTuple

from shmq.daemon.broker.log import Log
from shmq.daemon.broker.records.stored_record import StoredRecord, kept_record_at
from shmq.daemon.broker.tables import GroupProgress, Topic
from shmq.daemon.broker.topics import ensure_topic
from shmq.protocol.system_topics import transaction

_READS_MAX = 2000  # of 204 op records each, before others have their turn
_SIGHTINGS_MAX = 4096


class _Sighting(NamedTuple):
    now_ms: int
    op_max: int
    half_max: int  # looked at after op_max


class Halves:
    """The open halves of one broker, by queue offset."""

    def __init__(self, tables: GroupProgress, log: Log) -> None:
        self._tables = tables
        self._log = log
        self.open: set[int] = set()
        self.op_topic: Topic | None = None
        self.half_topic: Topic | None = None
        self._half_slot = self._op_slot = -1
        self._half_seen = self._op_seen = 0
        self._sightings: deque[_Sighting] = deque()

    def locate(self) -> bool:
        """Say whether there are such queues; begin where the last one stopped."""
        if self._half_slot >= 0:
            return True
        half_topic, op_topic = (self._tables.topic(name) for name in (transaction.HALF_TOPIC, transaction.OP_TOPIC))
        if half_topic is None or op_topic is None or not half_topic.queues or not op_topic.queues:
            return False
        self.half_topic, self.op_topic = half_topic, op_topic
        group = self._tables.group_put(transaction.TRANSACTION_GROUP)
        self._half_queue, self._op_queue = half_topic.queues[0], op_topic.queues[0]
        self._op_slot = self._tables.offset_put(group, self._op_queue)
        self._half_slot = self._tables.offset_put(group, self._half_queue)
        self._op_seen = max(0, self._tables.committed(self._op_slot))
        self._half_seen = max(0, self._tables.committed(self._half_slot))
        self._sightings.append(_Sighting(0, self._op_seen, self._half_seen))
        return True

    def make(self) -> None:
        """Create the topics of transactions."""
        for name in (transaction.HALF_TOPIC, transaction.OP_TOPIC):
            ensure_topic(self._tables, name, queues=transaction.QUEUES)
        self.locate()

    def refresh(self) -> bool:
        """Read what is new; False when there is more."""
        seen = max(self._op_seen, self._tables.queue_bounds(self._op_queue).offset_min)
        named: list[int] = []
        complete = False
        for _ in range(_READS_MAX):
            next_offset, numbers = self._log.settled(self._op_queue, seen)
            named += numbers
            if next_offset <= seen:
                complete = True
                break
            seen = next_offset
        offset_min, offset_max = self._tables.queue_bounds(self._half_queue)
        if self._half_seen < offset_max:
            self.open.update(range(max(self._half_seen, offset_min), offset_max))
            self._half_seen = offset_max
        self.open.difference_update(named)
        self._op_seen = seen  # a read that failed before leaves all of them to be read again
        if offset_min:
            self.settle([offset for offset in self.open if offset < offset_min])
        return complete

    def settle(self, offsets: Iterable[int]) -> None:
        """Forget halves that are not open any more."""
        self.open.difference_update(offsets)

    def opened(self, offset: int) -> None:
        """We have stored a half ourselves; others may have, before it."""
        self.open.update(range(self._half_seen, offset + 1))
        self._half_seen = max(self._half_seen, offset + 1)

    def old_end(self, now_ms: int, age_ms: int) -> int:
        """Note how far the queues go, and return below which offset every half is of an age at least."""
        sightings = self._sightings
        if len(sightings) >= _SIGHTINGS_MAX:  # coarser, and so later, never earlier
            self._sightings = sightings = deque(list(sightings)[::2])
        sightings.append(_Sighting(now_ms, self._op_seen, self._half_seen))
        old = [sighting.half_max for sighting in sightings if now_ms - sighting.now_ms >= age_ms]
        return old[-1] if old else 0

    def save(self) -> None:
        """Write down how far everything is settled."""
        base = min(self.open, default=self._half_seen)
        while len(self._sightings) > 1 and self._sightings[1].half_max <= base:
            self._sightings.popleft()
        for slot, offset in ((self._op_slot, self._sightings[0].op_max), (self._half_slot, base)):
            if self._tables.committed(slot) < offset:
                self._tables.set_committed(slot, offset)

    def record(self, offset: int) -> StoredRecord | None:
        """Return the half at an offset, durable or not; None when it is deleted, or damaged."""
        position = self.position(offset)
        record = kept_record_at(self._log, position) if position is not None else None
        is_ours = record is not None and (record.topic, record.queue_offset) == (transaction.HALF_TOPIC, offset)
        return record if is_ours else None

    def position(self, offset: int) -> int | None:
        """Return where the half at an offset lies, as its unit says; None when it is deleted."""
        for unit in self._tables.units(self._half_queue, offset, 1):
            return unit.log_position
        return None
