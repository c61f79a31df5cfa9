"""Lets popped messages come again whose time is over.

They go to the pop retry topic of their group, and to the dead letters after the last try.

    tries of the message (reconsumeTimes)    stored as
    below the group's maximum                %RETRY%group+topic, queue 0, one try more
    the maximum, or more                     %DLQ%group, queue 0
    message, topic or group gone             nothing; the checkpoint is settled with a report

The copy keeps body, flags, birth and properties, and says where it was popped first (RETRY_TOPIC, ORIGIN_MESSAGE_ID,
1ST_POP_TIME). No other group has a topic of that name; what was popped under the old one, %RETRY%group_topic, goes
there too (`old_copies.py`). RocketMQ 5.3 lets the client drop a message after its last try; here it is kept, as in the
other retries.

A copy and the record that settles its checkpoint are one append: a kill leaves both or neither. After a power cut the
very last copy may be there alone; the successor looks for copies of what was due by their mark POP_COPY.
"""

from shmq.daemon.broker.groups.settings import GroupSettings
from shmq.daemon.broker.log import Entry, NewRecord, Storage, Stored, retry_ms
from shmq.daemon.broker.pop.checkpoints import Checkpoint
from shmq.daemon.broker.pop.old_copies import QUEUE_ID, is_copy
from shmq.daemon.broker.pop.state import PopState
from shmq.daemon.broker.records.property_text import fitting, property_of, with_properties
from shmq.daemon.broker.records.stored_record import StoredRecord, copy_of, kept_portions, records_of
from shmq.daemon.broker.sends.dead_letters import ORIGIN_MESSAGE_ID, DeadLetters
from shmq.daemon.broker.tables import Topic
from shmq.daemon.broker.topics import ensure_topic
from shmq.daemon.logic.effects import Effect, Report
from shmq.errors import BrokerBusy, ShmqError
from shmq.message import (
    POP_RETRY_OLD,
    RETRY_PREFIX,
    RETRY_TOPIC,
    dead_letter_topic,
    origin_topic,
    pop_retry_flag,
    popped_topic,
    retry_topic_of,
)
from shmq.protocol.message_id import message_id_text
from shmq.protocol.pop import FIRST_POP_PROPERTY, RECEIPT_PROPERTY

COPY_MARK = "POP_COPY"

_COPIES_PER_RUN = 200  # the event loop serves others in between
_BYTES_PER_RUN = 4 << 20
_NEVER_MS = 1 << 62
_SEARCHED = 1024  # records at the end of a queue that may be copies of what was due when a broker was killed


class Revival:
    """Copies what is due."""

    def __init__(self, storage: Storage, groups: GroupSettings, state: PopState) -> None:
        self._tables, self._log, self._arrived = storage
        self._dead_letters = DeadLetters(self._tables, self._log)
        self._groups = groups
        self._state = state
        self._marks: dict[int, set[str]] = {}  # queue -> copies found at its end
        self._failed: list[tuple[int, Checkpoint]] = []  # to be tried again at these times

    def run(self, now_ms: int) -> tuple[list[Effect], set[str], bool]:
        """Copy what is due; return too whose messages came again, and whether there is more to do at once."""
        effects: list[Effect] = []
        queues: dict[int, None] = {}
        groups: set[str] = set()
        steady_ms = self._tables.steady_ms(now_ms)
        self._retry(now_ms, steady_ms)
        copies = copied_bytes = 0
        while (found := self._state.checkpoints.due(steady_ms)) is not None:
            if copies >= _COPIES_PER_RUN or copied_bytes >= _BYTES_PER_RUN:
                break
            try:
                count, size = self._revive(found, now_ms, queues, effects)
            except ShmqError as error:
                self._state.checkpoints.postpone(found, _NEVER_MS)
                self._failed.append((now_ms + retry_ms(error), found))
                effects.append(Report(f"messages popped by {found.key.group} do not come again yet: {error}"))
                continue
            copies, copied_bytes = copies + count, copied_bytes + size
            groups.add(found.key.group)
        if queues:
            effects += self._arrived(tuple(queues), now_ms)
        return effects, groups, found is not None

    @property
    def retry_at_ms(self) -> int | None:
        """When what failed is tried again: what is in its way passes in real time, whatever the broker's clock does."""
        return min((at_ms for at_ms, _ in self._failed), default=None)

    def _retry(self, now_ms: int, steady_ms: int) -> None:
        failed, self._failed = self._failed, []
        for at_ms, found in failed:
            if at_ms <= now_ms:
                self._state.checkpoints.postpone(found, steady_ms)
            else:
                self._failed.append((at_ms, found))

    def _revive(
        self, found: Checkpoint, now_ms: int, queues: dict[int, None], effects: list[Effect]
    ) -> tuple[int, int]:
        """Copy one checkpoint's messages and settle it; return how many and how large."""
        group, name, queue_id, *_ = found.key
        topic = self._tables.topic(name)
        offsets = sorted(found.unsettled)
        size = 0
        if topic is None or queue_id >= len(topic.queues) or self._tables.group(group) is None:
            effects.append(Report(f"{len(offsets)} messages that {group} popped from {name} are gone with it"))
        else:
            for offset in offsets:
                record = self._record(topic.queues[queue_id], offset)
                if record is None:
                    effects.append(Report(f"{name}, queue {queue_id}: message {offset} is gone, and stays so"))
                    continue
                queues[self._store(found, record, now_ms)] = None
                size += len(record.body)
        self._state.settle(found, offsets, now_ms)  # what is gone, or was copied already
        return len(offsets), size

    def _record(self, queue: int, offset: int) -> StoredRecord | None:
        low, high = self._tables.queue_bounds(queue)
        if not low <= offset < high:
            return None
        if offset >= self._log.visible(queue):
            raise BrokerBusy(f"message {offset} is not on disk yet")  # it was handed out by another; it is not gone
        pulled = self._log.read(queue, offset, count_max=1, bytes_max=0)
        for record in records_of(pulled.body):
            return record if record.queue_offset == offset else None
        return None

    def _store(self, found: Checkpoint, record: StoredRecord, now_ms: int) -> int:
        """Append the copy of one message and that it is settled; return the queue the copy is in."""

        def append(topic: Topic, queue_id: int, copy: NewRecord) -> Stored:
            return self._state.settle_with(found, record.queue_offset, Entry(topic, queue_id, copy), now_ms)

        group, name = found.key.group, found.key.topic
        is_dead = record.reconsume_times >= self._groups.of(group).retryMaxTimes
        first_name = _first_name(group, record)
        target = dead_letter_topic(group) if is_dead else retry_topic_of(group, first_name)
        topic = ensure_topic(self._tables, target, queues=1)
        mark = f"{pop_retry_flag(name)} {record.queue_id} {record.queue_offset} {found.key.pop_ms}"
        if is_dead:
            self._dead_letters.store(topic, _copy_of(record, found, mark), append=append)
        elif not found.is_inherited or mark not in self._copies(topic, popped_topic(group, first_name, POP_RETRY_OLD)):
            append(topic, 0, _copy_of(record, found, mark))
        return topic.queues[0]

    def _copies(self, topic: Topic, old_name: str) -> set[str]:
        """Return the marks of copies in a retry topic; a predecessor may have stored them under the old name."""
        old = self._tables.topic(old_name)
        return self._copies_in(topic.queues[0]) | (self._copies_in(old.queues[QUEUE_ID]) if old else set())

    def _copies_in(self, queue: int) -> set[str]:
        marks = self._marks.get(queue)
        if marks is None:
            marks = self._marks[queue] = set()
            low, high = self._tables.queue_bounds(queue)
            first = max(low, high - _SEARCHED)
            for pulled in kept_portions(self._tables, self._log, queue, first):
                marks |= {property_of(record.properties, COPY_MARK) or "" for record in records_of(pulled.body)}
        return marks


def _first_name(group: str, record: StoredRecord) -> str:
    """Return the topic that a group popped, by a record that it popped from there or from its retry topic."""
    name = origin_topic(group, record.topic)
    is_other = pop_retry_flag(record.topic) == POP_RETRY_OLD and not is_copy(record, name)
    return record.topic if is_other else name  # it popped the retry topic of another group by its name


def _copy_of(record: StoredRecord, found: Checkpoint, mark: str) -> NewRecord:
    properties = record.properties
    is_again = record.topic.startswith(RETRY_PREFIX)
    own_id = message_id_text(record.store_host, record.log_position)
    changes: dict[str, str | None] = {
        RECEIPT_PROPERTY: None,
        COPY_MARK: mark,
        # What a sender writes there about its message's first topic is ignored: groups are distinguished by it.
        RETRY_TOPIC: (is_again and property_of(properties, RETRY_TOPIC)) or record.topic,
        ORIGIN_MESSAGE_ID: property_of(properties, ORIGIN_MESSAGE_ID) or own_id,
        FIRST_POP_PROPERTY: property_of(properties, FIRST_POP_PROPERTY) or str(found.key.pop_ms),
    }
    return copy_of(record, fitting(with_properties(properties, changes)), reconsume_times=record.reconsume_times + 1)
