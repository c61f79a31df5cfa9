"""Copies of popped messages under the first name of their retry topic, %RETRY%group_topic.

That name belongs to several: to group `a` that pops `b_c`, to `a_b` that pops `c`, and to the retries of the group
`a_b_c`. Copies are stored under %RETRY%group+topic, so only earlier versions and RocketMQ brokers have left any under
the first name. A pop takes them from there until there are none.

    record of the topic's queue 0                       is
    without 1ST_POP_TIME                                a retry of the group with that name
    with it, RETRY_TOPIC is the topic that is popped    a copy for these pops
    with it, without RETRY_TOPIC                        a copy of a RocketMQ broker, which does not say for whom
    behind where the queue ended at the first look      no copy, whatever it says

Invariant: where no copy lies, a group gets no offset: what others store there never counts as its lag.
"""

from shmq.daemon.broker.log import Log
from shmq.daemon.broker.records.property_text import property_of
from shmq.daemon.broker.records.stored_record import StoredRecord, records_of
from shmq.daemon.broker.tables import GroupProgress, Topic, committed_of
from shmq.message import POP_RETRY_OLD, RETRY_TOPIC, popped_topic
from shmq.protocol.pop import FIRST_POP_PROPERTY

QUEUE_ID = 0  # every broker stores copies there

_LOOKS_MAX = 16  # at one time; the next request goes on
_READ_COUNT = 512
_READ_BYTES = 256 << 10


def is_copy(record: StoredRecord, topic: str) -> bool:
    """Say whether a record under the first name is a copy of what was popped from a topic."""
    first_topic = property_of(record.properties, RETRY_TOPIC)
    return first_topic in (None, topic) and property_of(record.properties, FIRST_POP_PROPERTY) is not None


class OldCopies:
    """Finds the old copies."""

    def __init__(self, tables: GroupProgress, log: Log) -> None:
        self._tables = tables
        self._log = log
        self._ends: dict[int, int] = {}  # by queue: its end at the first look
        self._searched: dict[tuple[str, int], int] = {}  # by group and queue: how far
        self._copy_at: dict[tuple[str, int], int] = {}  # by group and queue: the last copy that was found

    def topic(self, group: str, topic: str) -> Topic | None:
        """Return the topic of the first name while copies lie in it that a group's pops of a topic have not taken."""
        found = self._tables.topic(popped_topic(group, topic, POP_RETRY_OLD))
        if found is None:
            return None
        queue = found.queues[QUEUE_ID]
        low, high = self._tables.queue_bounds(queue)
        end = self._ends.setdefault(queue, high)
        committed, key = committed_of(self._tables, group, queue), (group, queue)
        first = max(low, committed)
        if self._copy_at.get(key, -1) >= first:
            return found
        searched = max(first, self._searched.get(key, 0))
        searched, is_found = self._search(queue, searched, end, topic)
        self._searched[key] = searched
        if is_found:
            self._copy_at[key] = searched
            return found
        if searched >= end and 0 <= committed < high:
            self._pass_over(group, queue, high)
        return None

    def is_wanted(self, queue: int, record: StoredRecord, topic: str) -> bool:
        """Say whether a record of a queue (by index) that `topic` returned is one of the copies."""
        return record.queue_offset < self._ends.get(queue, 0) and is_copy(record, topic)

    def _search(self, queue: int, offset: int, end: int, topic: str) -> tuple[int, bool]:
        """Return where the next copy is, and True, or how far there is none."""
        for _ in range(_LOOKS_MAX):
            if offset >= end:
                break
            pulled = self._log.read(queue, offset, count_max=_READ_COUNT, bytes_max=_READ_BYTES)
            if pulled.next_offset <= offset:
                break  # stored, but not on disk yet
            for record in records_of(pulled.body):
                if self.is_wanted(queue, record, topic):
                    return record.queue_offset, True
            offset = pulled.next_offset
        return offset, False

    def _pass_over(self, group: str, queue: int, high: int) -> None:
        """Move the group, which has an offset because it popped a copy, over what is not its own."""
        index = self._tables.group(group)
        slot = self._tables.offset_slot(index, queue) if index is not None else None
        if slot is not None and not self._tables.offset_owned(slot):
            self._tables.set_committed(slot, high)
