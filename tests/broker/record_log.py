"""A log in lists whose records are RocketMQ's bytes, for parts that look into records."""

from shmq.daemon.broker.log import NewRecord, Stored
from shmq.daemon.broker.tables import QueueBounds, Topic
from shmq.message import parse_properties
from shmq.shm.core import record_encode, tag_hash
from tests.broker.memory_log import MemoryLog

STORE_HOST = bytes((10, 0, 0, 1, 0, 0, 0x2A, 0x9F))


class RecordLog(MemoryLog):
    """As its base; records are stored at `tables.clock`. `hidden` are log positions that are not visible."""

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
            store_ms=self.tables.clock,
            reconsume_times=record.reconsume_times,
            prepared_position=record.prepared_position,
            born_host=record.born_host,
            store_host=STORE_HOST,
        )
        tag = parse_properties(record.properties.decode()).get("TAGS", "")
        held.append((data, record, tag_hash(tag) if tag else 0))
        position, self.end = self.end, self.end + len(data)
        self.tables.bounds[queue] = QueueBounds(self.tables.queue_bounds(queue).offset_min, len(held))
        return Stored(len(held) - 1, position, self.tables.clock, self.end)

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
