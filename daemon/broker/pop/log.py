"""The log of what POP has to remember: appended here, read again by the next primary bridge.

It is the revive topic, whose queues say what is written, how far it was read and how far it is needed.

    revive queue   … no longer needed | live ……… | written since the last look | end
                                     ^ offset of the group CID_RMQ_SYS_REVIVE_GROUP: the last that is not needed

Invariants:
 1. A record is in the log before it takes effect, so a killed broker's successor knows all that its clients know.
 2. Every record is read once by a broker, in the order of its queue; those that others wrote as well.
 3. All records of one `append` are stored together or not at all.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from shmq.daemon.broker.log import Entry, Log, NewRecord, Stored
from shmq.daemon.broker.records.property_text import property_of
from shmq.daemon.broker.records.stored_record import records_of
from shmq.daemon.broker.tables import Tables, Topic, committed_of
from shmq.daemon.broker.topics import ensure_topic
from shmq.protocol.pop import REVIVE_TOPIC_PREFIX
from shmq.protocol.system_topics.pop_records import (
    OWN_QUEUE,
    REVIVE_GROUP,
    REVIVE_KNOWN_GROUP,
    REVIVE_QUEUES,
    Record,
    decode_record,
    encode_record,
)

_READ_COUNT = 512
_READ_BYTES = 256 << 10


class Place(NamedTuple):
    """Where a record lies: queue id of the revive topic, and queue offset."""

    queue_id: int
    offset: int


class Written(NamedTuple):
    """A record and its place."""

    place: Place
    record: Record


class PopLog:
    """Writes and reads records of the revive topic."""

    def __init__(self, tables: Tables, log: Log, *, cluster: str) -> None:
        self._tables = tables
        self._log = log
        self._name = f"{REVIVE_TOPIC_PREFIX}{cluster}"
        self._read: dict[int, int] = {}  # queue id -> the next offset to read
        self.end = 0
        """Log position behind the last record that was stored here."""

    def append(self, records: Sequence[Record]) -> list[Written]:
        """Store records, in order and without others between them.

        Raises:
            BrokerBusy, LogFull and the other errors of a send: nothing is stored.
        """
        topic = ensure_topic(self._tables, self._name, queues=REVIVE_QUEUES)
        new = list(map(_new, records))
        stored = self._log.append_batch(topic, OWN_QUEUE, new)
        return [self._written(record, each) for record, each in zip(records, stored, strict=True)]

    def append_with(self, entry: Entry, record: Record) -> tuple[Stored, Written]:
        """Store a message and a record about it, both or neither; a power cut may keep the message alone.

        Raises:
            BrokerBusy, LogFull and the other errors of a send: nothing is stored.
        """
        topic = ensure_topic(self._tables, self._name, queues=REVIVE_QUEUES)
        message, stored = self._log.append_together([entry, Entry(topic, OWN_QUEUE, _new(record))])
        return message, self._written(record, stored)

    def _written(self, record: Record, stored: Stored) -> Written:
        if self._read.get(OWN_QUEUE) == stored.queue_offset:
            self._read[OWN_QUEUE] += 1  # no other process wrote in between
        self.end = stored.end
        return Written(Place(OWN_QUEUE, stored.queue_offset), record)

    @property
    def has_news(self) -> bool:
        """Whether there are records that `news` has not returned."""
        topic = self._tables.topic(self._name)
        return topic is not None and any(
            self._next(topic, queue_id) < self._tables.queue_bounds(queue).offset_max
            for queue_id, queue in enumerate(topic.queues)
        )

    def news(self) -> Iterator[Written]:
        """Yield the records that were not read yet, as far as they are visible."""
        topic = self._tables.topic(self._name)
        for queue_id, queue in enumerate(topic.queues if topic else ()):
            while (offset := self._next(topic, queue_id)) < self._tables.queue_bounds(queue).offset_max:
                pulled = self._log.read(queue, offset, count_max=_READ_COUNT, bytes_max=_READ_BYTES)
                for stored in records_of(pulled.body):
                    tag = property_of(stored.properties, "TAGS") or ""
                    if record := decode_record(tag, stored.body):
                        yield Written(Place(queue_id, stored.queue_offset), record)
                if pulled.next_offset <= offset:
                    break
                self._read[queue_id] = pulled.next_offset

    def _next(self, topic: Topic | None, queue_id: int) -> int:
        found = self._read.get(queue_id)
        if found is None:
            assert topic is not None
            queue = topic.queues[queue_id]
            done = committed_of(self._tables, REVIVE_GROUP, queue)
            found = self._read[queue_id] = max(self._tables.queue_bounds(queue).offset_min, done + 1)
        return found

    def untold_from(self) -> int | None:
        """Return the offset in the own queue from which a new master did not get the progress behind a pop."""
        topic = self._tables.topic(self._name)
        first = committed_of(self._tables, REVIVE_KNOWN_GROUP, topic.queues[OWN_QUEUE]) if topic else -1
        return first if first >= 0 else None

    def forget_untold(self) -> None:
        """Take note that the progress stands behind every pop now."""
        if self._tables.group(REVIVE_KNOWN_GROUP) is not None:
            self._tables.group_delete(REVIVE_KNOWN_GROUP)

    def length(self, oldest: Place) -> int:
        """Return how many records a successor would have to read from `oldest` on."""
        return self._read.get(oldest.queue_id, 0) - oldest.offset

    def forget(self, oldest: dict[int, int]) -> None:
        """Take note of what is needed no longer: everything before these offsets, by queue id, or before what was
        read where there is none."""
        topic = self._tables.topic(self._name)
        if topic is None:
            return
        for queue_id, end in self._read.items():
            done = oldest.get(queue_id, end) - 1  # RocketMQ notes the last record that is done, not the next
            if done < 0 or queue_id >= len(topic.queues):
                continue
            slot = self._tables.offset_put(self._tables.group_put(REVIVE_GROUP), topic.queues[queue_id])
            if self._tables.committed(slot) < done:
                self._tables.set_committed(slot, done)


def _new(record: Record) -> NewRecord:
    return NewRecord(encode_record(record), f"TAGS\x01{record.tag}\x02".encode())
