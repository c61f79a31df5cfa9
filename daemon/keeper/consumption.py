"""Which groups still need the front of the log: the first message there that one of them has not consumed.

    log       begin ……………………… file border ……………………… end
    queue a   consumed ────────────────────▶ next
    queue b   consumed ──▶ next                              queue b holds the file

A message is consumed when every group of its topic has passed it, and there is such a group. A group belongs to a topic
when it has an offset on one of its queues; a queue of that topic where it has none is one it has not begun.

    a group's messages       below its offset are consumed, except those that are popped and not settled
    topic without a group    nothing is consumed. Topics that a broker fills for itself and reads by no group (traces,
                             copies of replies, the event of a moved offset) hold nothing
    delayed, half, staged    the offsets of the broker's own groups are the progress, as for any group
    timed                    the four words of `daemon/broker/timers/progress.py` say what is delivered; a cancellation
                             is needed as long as what it cancels

What is not known counts as not consumed, so an error here costs disk space and no message.

Invariants: (1) offsets are read before the log of the pops: a pop writes its checkpoint before it moves an offset, so
what an offset passed by a pop is found there; (2) nothing here waits or writes.
"""

import contextlib
from collections.abc import Iterator
from typing import Any, NamedTuple

from shmq.delay_levels import SCHEDULE_TOPIC
from shmq.errors import ShmqError
from shmq.message import is_broker_topic
from shmq.protocol.pop import REVIVE_TOPIC_PREFIX
from shmq.protocol.system_topics import transaction
from shmq.protocol.system_topics.pop_records import (
    REVIVE_GROUP,
    AckRecord,
    CheckpointRecord,
    PopKey,
    decode_record,
)
from shmq.protocol.system_topics.row_marks import STAGED_TOPIC
from shmq.shm.core import TOPIC_LIVE, Message, Store, StoreFigures
from shmq.shm.unit import units_of
from shmq.timing import TIMER_AT_GROUP, TIMER_DUE_GROUP, TIMER_GROUP, TIMER_TOPIC, code_time, due_ms

_UNITS_PER_READ = 4096
_UNITS_PER_LOOK = 262_144  # of timers; some 100 ms, and what they tell is kept
_POP_RECORDS_MAX = 65_536  # a broker writes its checkpoints anew long before there are so many
_MARK_BITS = 20  # daemon/broker/timers/progress.py

_READ_BY_THE_BROKER = frozenset({SCHEDULE_TOPIC, transaction.HALF_TOPIC, transaction.OP_TOPIC, STAGED_TOPIC})

_Offsets = dict[int, dict[int, int]]  # queue index -> group number -> next queue offset, -1 when it has none


class Holder(NamedTuple):
    """The first message of the log that is needed; `group` is "" where no group reads the topic."""

    log_position: int
    topic: str
    queue_id: int
    queue_offset: int
    group: str


class _Needed(NamedTuple):
    """The first message of a queue that is needed."""

    queue_offset: int
    group: str


class Consumption:
    """What of one store's log is consumed."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._figures = StoreFigures(store)
        self._timers_done = 0  # every timer below this offset is delivered
        self._timers_born = -1

    def holder(self) -> Holder | None:
        """Return who needs the oldest message that is needed; None when nothing is."""
        topics = [topic for topic in self._store.topics() if topic["state"] == TOPIC_LIVE]
        names = dict(self._store.groups())
        offsets = self._offsets(names)
        popped = self._popped(topics, names, offsets)
        found: Holder | None = None
        for topic in topics:
            name, queues = topic["name"], topic["queues"]
            needed = self._timers(topic, names, offsets) if name == TIMER_TOPIC else self._needed(topic, names, offsets)
            for queue_id, queue in enumerate(queues):
                candidates = [each[queue_id] for each in (needed, popped.get(name, {})) if queue_id in each]
                if candidates:
                    offset, group = min(candidates)
                    position = self._position(queue, offset)
                    if found is None or position < found.log_position:
                        found = Holder(position, name, queue_id, offset, group)
        return found

    def _offsets(self, names: dict[int, str]) -> _Offsets:
        found: _Offsets = {}
        words = memoryview(self._figures.offset_counts()).cast("Q")
        for at in range(0, len(words), 2):
            group, queue = divmod(words[at + 1], 1 << 32)
            if group in names:
                # RocketMQ notes the last record of the pops that is done, not the next.
                found.setdefault(queue, {})[group] = words[at] - (names[group] != REVIVE_GROUP)
        return found

    def _needed(self, topic: dict[str, Any], names: dict[int, str], offsets: _Offsets) -> dict[int, _Needed]:
        """By queue id, what a group of the topic has not passed."""
        queues = topic["queues"]
        groups = {group for queue in queues for group, offset in offsets.get(queue, {}).items() if offset >= 0}
        if not groups and is_broker_topic(topic["name"], topic["perm"]) and not _is_read_here(topic["name"]):
            return {}
        found = {}
        for queue_id, queue in enumerate(queues):
            first, end = self._bounds(queue)
            known = offsets.get(queue, {})
            offset, group = min(((known.get(each, -1), names[each]) for each in groups), default=(-1, ""))
            if first < end and offset < end:
                found[queue_id] = _Needed(max(first, offset), group)
        return found

    def _position(self, queue: int, queue_offset: int) -> int:
        """Where a message lies; 0, which holds everything, where its unit is nowhere."""
        return next((unit.log_position for unit in units_of(self._store.units_stored(queue, queue_offset, 1))), 0)

    # -- popped messages
    def _popped(
        self, topics: list[dict[str, Any]], names: dict[int, str], offsets: _Offsets
    ) -> dict[str, dict[int, _Needed]]:
        """By topic and queue id, the first message that is popped and not settled."""
        open_pops: dict[PopKey, set[int]] = {}
        for topic in topics:
            if topic["name"].startswith(REVIVE_TOPIC_PREFIX):
                for queue in topic["queues"]:
                    self._read_pops(queue, _of_group(REVIVE_GROUP, queue, names, offsets), open_pops)
        queues = {topic["name"]: topic["queues"] for topic in topics}
        found: dict[str, dict[int, _Needed]] = {}
        for key, unsettled in open_pops.items():
            if unsettled and key.queue_id < len(queues.get(key.topic, ())):
                first, end = self._bounds(queues[key.topic][key.queue_id])
                needed, of_topic = _Needed(max(first, min(unsettled)), key.group), found.setdefault(key.topic, {})
                if needed.queue_offset < end:
                    of_topic[key.queue_id] = min(needed, of_topic.get(key.queue_id, needed))
        return found

    def _bounds(self, queue: int) -> tuple[int, int]:
        row = self._store.queue(queue)
        return row.offset_min, row.offset_max

    def _read_pops(self, queue: int, begin: int, open_pops: dict[PopKey, set[int]]) -> None:
        first, end = self._bounds(queue)
        at = max(first, begin)
        for message in self._messages(queue, at, min(end, at + _POP_RECORDS_MAX)):
            record = decode_record(message.tag or "", message.body)
            if isinstance(record, CheckpointRecord):
                offsets = (record.so + step for index, step in enumerate(record.d) if not record.bm >> index & 1)
                open_pops[record.key] = set(offsets)
            elif isinstance(record, AckRecord) and record.key in open_pops:
                open_pops[record.key] -= {record.ao, *record.aol}

    def _messages(self, queue: int, begin: int, end: int) -> Iterator[Message]:
        while begin < end:
            units = list(units_of(self._store.units_stored(queue, begin, min(_UNITS_PER_READ, end - begin))))
            if not units:
                return
            for unit in units:
                with contextlib.suppress(ShmqError):  # the bridge passes over what is damaged, too
                    yield self._store.message_at(unit.log_position, unit.record_bytes)
            begin += len(units)

    # -- timed messages
    def _timers(self, topic: dict[str, Any], names: dict[int, str], offsets: _Offsets) -> dict[int, _Needed]:
        """The first timed message that is not delivered; below it all are, which is not asked again."""
        queue = topic["queues"][0]
        first, end = self._bounds(queue)
        if self._timers_born != topic["born_position"]:
            self._timers_born, self._timers_done = topic["born_position"], 0
        read, due, at = (
            max(0, _of_group(group, queue, names, offsets)) for group in (TIMER_GROUP, TIMER_DUE_GROUP, TIMER_AT_GROUP)
        )
        mark = (1 << _MARK_BITS) - 1
        delivered = due, at >> _MARK_BITS if at & mark == due & mark else 0
        offset = max(first, self._timers_done)
        stop = min(end, read, offset + _UNITS_PER_LOOK)
        while offset < stop:
            units = list(units_of(self._store.units_stored(queue, offset, min(_UNITS_PER_READ, stop - offset))))
            if not units:
                break
            for unit in units:
                due_at = code_time(unit.tag_code)
                if due_at is None:
                    due_at = self._due_of(unit.log_position, unit.record_bytes)
                if due_at is None or (due_at, offset) >= delivered:
                    stop = offset
                    break
                offset += 1
        self._timers_done = offset
        return {0: _Needed(offset, TIMER_GROUP)} if offset < end else {}

    def _due_of(self, log_position: int, record_bytes: int) -> int | None:
        try:
            message = self._store.message_at(log_position, record_bytes)
        except ShmqError:
            return None
        return due_ms(message.properties, message.store_ms)


def _of_group(name: str, queue: int, names: dict[int, str], offsets: _Offsets) -> int:
    """The offset of a group on a queue, -1 when it has none."""
    return next((offset for group, offset in offsets.get(queue, {}).items() if names[group] == name), -1)


def _is_read_here(topic: str) -> bool:
    """Say whether a group of the broker's own reads a topic, whether or not it has begun."""
    return topic in _READ_BY_THE_BROKER or topic.startswith(REVIVE_TOPIC_PREFIX)
