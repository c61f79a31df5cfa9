"""A log in lists, beside the tables in dictionaries."""

import struct
from collections.abc import Sequence
from typing import Any

from shmq.daemon.broker.log import LOCAL_HOST, NewRecord, Pulled, Ranged, Stored
from shmq.daemon.broker.tables import QueueBounds, Topic
from shmq.daemon.logic.parking import Congestion
from shmq.errors import ShmqError, StoreError, UsageError
from shmq.properties import parse_properties
from shmq.protocol.codes import Response
from shmq.shm.core import Filter, tag_hash


class MemoryLog:
    """`shmq.daemon.broker.log.Log` over lists: records of one queue, and where each lies.

    A record is kept as `queue_offset|topic|body`, which is enough to see what was stored where. `error` is raised by
    the next append; `durable_end` follows the log unless a test holds it back.
    """

    def __init__(self, tables: Any) -> None:
        self.tables = tables
        self.records: dict[int, list[tuple[bytes, NewRecord, int]]] = {}  # queue -> (bytes, record, tag code)
        self.positions: dict[int, list[int]] = {}
        self.end = 0
        self.held_durable_end: int | None = None
        self.congestion = Congestion()
        self.error: ShmqError | None = None
        self.passed_over = 0
        self.unreadable: set[int] = set()  # queues whose files cannot be mapped

    @property
    def durable_end(self) -> int:
        return self.end if self.held_durable_end is None else self.held_durable_end

    def outcome(self, end: int) -> Response:
        return Response.SUCCESS if end <= self.durable_end else Response.FLUSH_DISK_TIMEOUT

    def in_doubt(self, end: int) -> bool:
        return False

    def append(self, topic: Topic, queue_id: int, record: NewRecord) -> Stored:
        if self.error is not None:
            raise self.error
        queue = topic.queues[queue_id]
        held = self.records.setdefault(queue, [])
        data = b"%d|%s|%s" % (len(held), topic.name.encode(), record.body)
        tag = parse_properties(record.properties.decode()).get("TAGS", "")
        held.append((data, record, tag_hash(tag) if tag else 0))
        position, self.end = self.end, self.end + len(data)
        self.positions.setdefault(queue, []).append(position)
        self.tables.bounds[queue] = QueueBounds(self.tables.queue_bounds(queue).offset_min, len(held))
        return Stored(len(held) - 1, position, 1000, self.end)

    def append_batch(self, topic: Topic, queue_id: int, records: Sequence[NewRecord]) -> list[Stored]:
        return [self.append(topic, queue_id, record) for record in records]

    def append_encoded_batch(
        self,
        topic: Topic,
        queue_id: int,
        body: bytes,
        *,
        properties: bytes = b"",
        sys_flag: int = 0,
        born_ms: int = 0,
        born_host: bytes = LOCAL_HOST,
        reconsume_times: int = 0,
    ) -> list[Stored]:
        records = []
        at = 0
        while at < len(body):
            size, _, _, flag, body_bytes = struct.unpack_from(">iiiii", body, at)
            if size != 22 + body_bytes + struct.unpack_from(">h", body, at + 20 + body_bytes)[0]:
                raise UsageError(f"record {len(records)} of the batch has another length than it says")
            own = body[at + 22 + body_bytes : at + size]
            if own and not own.endswith(b"\x02"):
                own += b"\x02"
            text = body[at + 20 : at + 20 + body_bytes]
            records.append(NewRecord(text, own + properties, flag, sys_flag, born_ms, born_host, reconsume_times))
            at += size
        return self.append_batch(topic, queue_id, records)

    def read(
        self,
        queue: int,
        queue_offset: int,
        *,
        count_max: int,
        bytes_max: int,
        tags: Sequence[int] | None = None,
        where: Filter | None = None,
    ) -> Pulled:
        if queue in self.unreadable:
            raise StoreError("mapping a log file: no memory")
        found: list[bytes] = []
        size = 0
        offset = queue_offset
        for data, record, tag in self.records.get(queue, [])[queue_offset:]:
            if len(found) >= count_max or (found and size + len(data) > bytes_max):
                break
            offset += 1
            if (tags is None or tag in tags) and (where is None or where.matches(record.properties)):
                found.append(data)
                size += len(data)
        return Pulled(offset, len(found), b"".join(found))

    def position_of(self, queue: int, queue_offset: int) -> int:
        return self.positions[queue][queue_offset]

    def visible(self, queue: int) -> int:
        return int(self.tables.queue_bounds(queue).offset_max)

    def read_range(
        self, queue: int, queue_offset: int, queue_end: int, *, bytes_max: int, tags: Sequence[int] | None = None
    ) -> Ranged:
        first = self.tables.queue_bounds(queue).offset_min
        if queue_offset < first:
            return Ranged(first, first, b"")
        found = self.read(queue, queue_offset, count_max=queue_end - queue_offset, bytes_max=bytes_max, tags=tags)
        return Ranged(found.next_offset, first, found.body)

    def range_units(self, queue: int, queue_offset: int, queue_end: int) -> bytes:
        found = self.records.get(queue, [])[queue_offset:queue_end]
        return b"".join(struct.pack(">QIq", 0, len(data), tag) for data, _, tag in found)

    def record_at(self, log_position: int) -> bytes | None:
        return None

    def stored_at(self, log_position: int) -> bytes | None:
        return self.record_at(log_position)
