"""A log in lists whose records are RocketMQ's bytes, for parts that look into records."""

from collections.abc import Sequence

from shmq.daemon.broker.log import Entry, NewRecord, Stored
from shmq.daemon.broker.records.stored_record import stored_record
from shmq.daemon.broker.tables import QueueBounds, Topic
from shmq.properties import parse_properties
from shmq.shm.core import record_encode, tag_hash
from shmq.shm.unit import Unit
from tests.broker.memory_log import MemoryLog

STORE_HOST = bytes((10, 0, 0, 1, 0, 0, 0x2A, 0x9F))


class RecordLog(MemoryLog):
    """As its base; records get the oldest stamp that may be. `hidden` are log positions that are not visible."""

    def append(self, topic: Topic, queue_id: int, record: NewRecord) -> Stored:
        if self.error is not None:
            raise self.error
        queue = topic.queues[queue_id]
        held = self.records.setdefault(queue, [])
        data = record_encode(
            body=record.body,
            topic=topic.name.encode(),
            properties=record.properties,
            queue_id=queue_id,
            queue_offset=len(held),
            log_position=self.end,
            flag=record.flag,
            sys_flag=record.sys_flag,
            born_ms=record.born_ms,
            store_ms=self.tables.stamp_ms,
            reconsume_times=record.reconsume_times,
            prepared_position=record.prepared_position,
            born_host=record.born_host,
            store_host=STORE_HOST,
        )
        tag = parse_properties(record.properties.decode()).get("TAGS", "")
        held.append((data, record, tag_hash(tag) if tag else 0))
        position, self.end = self.end, self.end + len(data)
        self.tables.bounds[queue] = QueueBounds(self.tables.queue_bounds(queue).offset_min, len(held))
        return Stored(len(held) - 1, position, self.tables.stamp_ms, self.end)

    def record_at(self, log_position: int) -> bytes | None:
        for held in self.records.values():
            for data, _, _ in held:
                if int.from_bytes(data[28:36], "big") == log_position:
                    return data
        return None

    def bodies(self, topic: Topic, queue_id: int) -> list[bytes]:
        """What is stored in a queue."""
        return [record.body for _, record, _ in self.records.get(topic.queues[queue_id], [])]

    def stored(self, topic: Topic, queue_id: int) -> list[NewRecord]:
        """The records of a queue."""
        return [record for _, record, _ in self.records.get(topic.queues[queue_id], [])]

    # -- what transactions need beside it

    fence = 0
    walked = 0  # how often a part of the log was looked through for copies

    def append_together(self, entries: Sequence[Entry]) -> list[Stored]:
        if self.error is not None:
            raise self.error
        return [self.append(*entry) for entry in entries]

    def raise_fence(self, log_position: int) -> None:
        self.fence = max(self.fence, log_position)

    def settled(self, queue: int, queue_offset: int) -> tuple[int, list[int]]:
        bodies = [record.body for _, record, _ in self.records.get(queue, [])[queue_offset : queue_offset + 3]]
        return queue_offset + len(bodies), [int(word) for body in bodies for word in body.split(b",") if word.isdigit()]

    def committed(self, log_position: int, count: int) -> tuple[int | None, list[int]]:
        found = (stored_record(data) for held in self.records.values() for data, _, _ in held)
        behind = sorted(
            (record for record in found if record is not None and record.log_position >= log_position),
            key=lambda record: record.log_position,
        )
        halves = [record.prepared_position for record in behind[:count] if record.sys_flag & 12 == 8]
        return (behind[count].log_position if len(behind) > count else None), halves

    def copies(self, log_position: int, end: int, count: int) -> tuple[int | None, list[tuple[int, int]]]:
        self.walked += 1
        found = (stored_record(data) for held in self.records.values() for data, _, _ in held)
        behind = sorted(
            (record.log_position, record.prepared_position)
            for record in found
            if record is not None and log_position <= record.log_position < end
        )
        named = [pair for pair in behind[:count] if pair[1] > 0]
        return (behind[count][0] if len(behind) > count else None), named

    def units(self, queue: int, queue_offset: int, count: int) -> list[Unit]:
        """As `Tables.units`: what is in the queue, as it lies in this log."""
        held = self.records.get(queue, [])[queue_offset : queue_offset + count]
        return [Unit(int.from_bytes(data[28:36], "big"), len(data), tag) for data, _, tag in held]
