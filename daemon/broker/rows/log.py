"""The topic of staged rows and the marks about them: written here, read again by the next primary bridge.

It has two queues, one of rows and one of marks.

    marks   … no longer needed | live ……… | end        a snapshot: all that counts, said again at the end; then
                               ^ offset of the group     everything before it is needed no more

Invariants:
 1. A chunk and its mark are one append: a kill leaves both or neither.
 2. Every mark is taken in the order of the log, by its writer as by a successor.
"""

from shmq.daemon.broker.log import Entry, Log, NewRecord
from shmq.daemon.broker.records.message_id import UNKNOWN_HOST, host_bytes
from shmq.daemon.broker.records.property_text import property_of
from shmq.daemon.broker.records.stored_record import StoredRecord, kept_record_at, records_of
from shmq.daemon.broker.rows.copies import DELAYED, portions
from shmq.daemon.broker.rows.state import AttemptKey, RowState
from shmq.daemon.broker.tables import Tables, Topic
from shmq.daemon.broker.topics import ensure_topic
from shmq.daemon.logic.requests import Call
from shmq.delay_levels import REAL_QUEUE_ID, REAL_TOPIC
from shmq.properties import encode_properties
from shmq.protocol.system_topics.row_marks import (
    MARKS_QUEUE,
    ROWS_QUEUE,
    STAGED_GROUP,
    STAGED_QUEUES,
    STAGED_TOPIC,
    ChunkMark,
    Mark,
    decode_mark,
    encode_mark,
)

_READ_COUNT = 512
_READ_BYTES = 256 << 10
_READS_PER_RUN = 20
_SNAPSHOT_MARKS = 2000
_SNAPSHOT_MS = 6 * 3_600_000  # retention deletes what is not written again


class RowLog:
    """Writes and reads the staged topic; keeps the state up to date with it."""

    def __init__(self, tables: Tables, log: Log, state: RowState) -> None:
        self._tables = tables
        self._log = log
        self._state = state
        self._next: int | None = None  # of the marks' queue; None before the first look
        self._durable_from: int | None = None
        self._is_ready = False
        self._since_snapshot = 0
        self._snapshot_ms: int | None = None

    @property
    def exists(self) -> bool:
        """Whether rows were ever staged."""
        return self._tables.topic(STAGED_TOPIC) is not None

    @property
    def first_rows(self) -> int:
        """The first offset of the rows' queue that retention has left."""
        return self._tables.queue_bounds(self._topic().queues[ROWS_QUEUE]).offset_min

    def ready(self, now_ms: int, *, must_be_durable: bool) -> bool:
        """Read what a predecessor wrote, a part at a time; False while there is more.

        Args:
            must_be_durable: what is not on the disk yet cannot be read, and has to be read first.
        """
        if self._is_ready:
            return True
        if self._durable_from is None:
            self._durable_from = self._tables.facts().log_end
        if must_be_durable and self._log.durable_end < self._durable_from:
            return False
        self._is_ready = self._read(now_ms)
        return self._is_ready

    def _read(self, now_ms: int) -> bool:
        queue = self._topic().queues[MARKS_QUEUE]
        if self._next is None:
            done = self._tables.committed(self._slot(queue))
            self._next = max(done, self._tables.queue_bounds(queue).offset_min, 0)
        for _ in range(_READS_PER_RUN):
            pulled = self._log.read(queue, self._next, count_max=_READ_COUNT, bytes_max=_READ_BYTES)
            for record in records_of(pulled.body):
                mark = decode_mark(record.body)
                if mark is not None:
                    self._state.take(mark, now_ms)
                    self._since_snapshot += 1
            if pulled.next_offset <= self._next:
                return True
            self._next = pulled.next_offset
        return False

    def write(self, mark: Mark, now_ms: int) -> int:
        """Write a mark down and take it; return the log position behind it.

        Raises:
            BrokerBusy, SegmentFull and the other errors of a send: nothing is stored then.
        """
        self._is_ready = True  # if this makes the topic, there was nothing to read
        stored = self._log.append(self._topic(), MARKS_QUEUE, NewRecord(encode_mark(mark)))
        self._state.take(mark, now_ms)
        self._since_snapshot += 1
        return stored.end

    def stage(self, key: AttemptKey, chunk: int, call: Call, *, topic: str, queue_id: int, is_delayed: bool) -> None:
        """Store a chunk and its mark together.

        Raises:
            BrokerBusy, SegmentFull and the other errors of a send: nothing is stored then.
        """
        staged = self._topic()
        self._is_ready = True  # as in write()
        properties = {REAL_TOPIC: topic, REAL_QUEUE_ID: str(queue_id), **({DELAYED: "1"} if is_delayed else {})}
        rows = NewRecord(
            call.command.body,
            encode_properties(properties).encode(),
            born_host=host_bytes(call.connection.remote or UNKNOWN_HOST),
        )
        # No other process writes there, so the next offset is the chunk's; else the mark is written again, rightly.
        guess = self._tables.queue_bounds(staged.queues[ROWS_QUEUE]).offset_max
        mark = ChunkMark(*key, chunk, guess)
        record = NewRecord(encode_mark(mark))
        stored, _ = self._log.append_together([Entry(staged, ROWS_QUEUE, rows), Entry(staged, MARKS_QUEUE, record)])
        self._since_snapshot += 1
        if stored.queue_offset == guess:
            self._state.take(mark, call.now_ms)
        else:  # where this fails, nothing of the chunk is known, and it is staged again
            self.write(ChunkMark(*key, chunk, stored.queue_offset), call.now_ms)

    def chunk(self, offset: int) -> StoredRecord | None:
        """Return the chunk at an offset of the rows' queue; None when it is gone, or not visible yet."""
        queue = self._topic().queues[ROWS_QUEUE]
        pulled = self._log.read(queue, offset, count_max=1, bytes_max=1)
        return next((record for record in records_of(pulled.body) if record.queue_offset == offset), None)

    def topic_of(self, offset: int) -> str | None:
        """Return the topic of the rows of a chunk, durable or not; None when it is gone."""
        for unit in self._tables.units(self._topic().queues[ROWS_QUEUE], offset, 1):
            record = kept_record_at(self._log, unit.log_position)
            return property_of(record.properties, REAL_TOPIC) if record is not None else None
        return None

    def compact(self, now_ms: int) -> None:
        """Say again what counts, when that is much less than what a successor would have to read; not while rows are
        being copied."""
        if self._snapshot_ms is None:
            self._snapshot_ms = now_ms
        is_long = self._since_snapshot > _SNAPSHOT_MARKS + 4 * self._state.size
        is_old = now_ms - self._snapshot_ms > _SNAPSHOT_MS and self._state.size > 0
        if not is_long and not is_old:
            return
        topic = self._topic()
        queue = topic.queues[MARKS_QUEUE]
        slot = self._slot(queue)  # before anything is said: what is said in vain would be said at each tick
        first = self._tables.queue_bounds(queue).offset_max
        records = [NewRecord(encode_mark(mark)) for mark in self._state.marks()]
        for begin, end in portions([len(record.body) for record in records]):
            self._log.append_batch(topic, MARKS_QUEUE, records[begin:end])
        self._tables.set_committed(slot, first)
        self._since_snapshot, self._snapshot_ms = len(records), now_ms

    def _slot(self, queue: int) -> int:
        return self._tables.offset_put(self._tables.group_put(STAGED_GROUP), queue)

    def _topic(self) -> Topic:
        return ensure_topic(self._tables, STAGED_TOPIC, queues=STAGED_QUEUES)
