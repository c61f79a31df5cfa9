"""The broker's log as it is in shared memory.

It implements the broker's `Log` over the store. The bridge answers requests that wait for a message or for the disk.

Records that go to clients over TCP leave the record's own CRC out: it protects the log, and RocketMQ's clients would
show it as a property that the sender had set. An append from here does not wake this process (`shmq_wake_others`): the
bridge serves its held pulls itself, and a wake-up of its own watcher thread would only compete for the GIL.

Invariants:
 1. Nothing here waits for the disk or for room, because one loop serves all connections. The append lock is waited for
    `PATIENCE` at most, and once that was in vain not at all, until an append succeeds. A request that found it taken,
    or no room, may try again later; `congestion` counts them.
 2. A damaged record is reported and passed over, as for local readers; it is never handed out, never in silence.
 3. Errors are those of `shmq.errors`: the core makes them (see `shmq.shm.core`).
"""

from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from typing import Any, NamedTuple

from shmq.daemon.bridge.store.log_damage import position_behind
from shmq.daemon.broker.log import LOCAL_HOST, Entry, NewRecord, Pulled, Ranged, Stored
from shmq.daemon.broker.tables import Topic
from shmq.daemon.logic.parking import Congestion
from shmq.errors import BrokerBusy, CorruptionError, SegmentFull, TopicNotFound
from shmq.protocol.codes import Response
from shmq.protocol.system_topics import transaction
from shmq.shm.core import ACK_CONFIRMED, BrokerLog, Filter, Producer, ScannedRecord, Sender, Store
from shmq.shm.unit import units_of

SCAN_UNITS_MAX = 800  # looked at for one pull, as RocketMQ does
RANGE_UNITS_MAX = 16_384  # looked at for one piece of a range
_KIND = transaction.MASK
_QUEUED = (0, transaction.COMMIT)
_DAMAGE_COUNTS = 20  # records: the next whole one has to be looked for
PATIENCE = 0.005  # seconds; longer than writers that only come and go take


def in_doubt(store: Store, end: int) -> bool:
    """Return what `Log.in_doubt` says of a store."""
    if store.lease_lasts:
        return False
    is_confirmed = store.head["ack_rule"] == ACK_CONFIRMED and store.safe_end >= end
    return not (is_confirmed and store.in_sync_count)


def outcome_of(store: Store, end: int) -> Response:
    """Return what `Log.outcome` says of a store."""
    if store.safe_end >= end:
        if in_doubt(store, end):
            return Response.SERVICE_NOT_AVAILABLE
        is_alone = not store.in_sync_count and store.head["ack_rule"] == ACK_CONFIRMED
        return Response.SLAVE_NOT_AVAILABLE if is_alone else Response.SUCCESS
    return Response.FLUSH_SLAVE_TIMEOUT if store.durable_end >= end else Response.FLUSH_DISK_TIMEOUT


class _Shared(NamedTuple):
    """What the records of one call to the core have in common."""

    sys_flag: int
    born_ms: int
    born_host: bytes
    reconsume_times: int
    prepared_position: int
    tag_code: int | None


class StoreLog:
    """`shmq.daemon.broker.log.Log` over one generation of segments, which this process may append to."""

    def __init__(self, store: Store, *, report: Callable[[str], None], patience: float = PATIENCE) -> None:
        """
        Args:
            report: gets a sentence about each damaged record that is passed over.
            patience: seconds an append may wait for other writers while none has waited in vain.
        """
        self._store = store
        self._log = BrokerLog(store)
        self._report = report
        self._producer = producer = Producer(store, resolve=self._resolve, timeout=patience)
        self._patience = patience
        self._is_stuck = False
        self.passed_over = 0
        self.congestion = Congestion()
        self._append = producer.append
        self._append_batch = producer.append_batch
        self._append_encoded_batch = producer.append_encoded_batch
        self._append_together = producer.append_together
        self._pull = self._log.pull

    def _resolve(self, topic: str) -> int:
        index = self._store.topic_find(topic)
        if index < 0:
            raise TopicNotFound(f"topic {topic!r} does not exist", hint=f"shmq topic create {topic}")
        return index

    def sender(
        self,
        *,
        refused: frozenset[str],
        suffix: bytes,
        body_bytes_max: int,
        properties_bytes_max: int,
        answers: tuple[tuple[bytes | int, ...], tuple[bytes | int, ...]],
    ) -> Sender:
        """Return what stores plain sends in this log without a request in between; arguments as of `Sender`."""
        return Sender(
            self._producer,
            refused=refused,
            suffix=suffix,
            body_bytes_max=body_bytes_max,
            properties_bytes_max=properties_bytes_max,
            answers=answers,
        )

    @property
    def durable_end(self) -> int:
        return self._store.safe_end

    @property
    def end(self) -> int:
        return self._store.log_end

    def position_of(self, queue: int, queue_offset: int) -> int:
        return next((unit.log_position for unit in units_of(self._store.units_stored(queue, queue_offset, 1))), 0)

    def outcome(self, end: int) -> Response:
        return outcome_of(self._store, end)

    def in_doubt(self, end: int) -> bool:
        return in_doubt(self._store, end)

    def append(self, topic: Topic, queue_id: int, record: NewRecord) -> Stored:
        return Stored._make(
            self._patiently(
                self._append,
                topic.name,
                record.body,
                record.properties,
                queue_id=queue_id,
                flag=record.flag,
                sys_flag=record.sys_flag,
                born_ms=record.born_ms,
                born_host=record.born_host,
                reconsume_times=record.reconsume_times,
                prepared_position=record.prepared_position,
                tag_code=record.tag_code,
            )
        )

    def append_batch(self, topic: Topic, queue_id: int, records: Sequence[NewRecord]) -> list[Stored]:
        """Store messages in one queue, in order.

        Those whose fields other than body, properties and flag are equal are stored as one, all or none; when the log
        runs full what is behind such a part is not stored, what is before it is.
        """
        return [stored for part in _parts(records) for stored in self._append_part(topic, queue_id, *part)]

    def _append_part(self, topic: Topic, queue_id: int, shared: _Shared, records: list[NewRecord]) -> Iterator[Stored]:
        if len(records) == 1:
            return iter((self.append(topic, queue_id, records[0]),))
        triples = [(record.body, record.properties, record.flag) for record in records]
        return map(
            Stored._make,
            self._patiently(self._append_batch, topic.name, queue_id, triples, **shared._asdict()),
        )

    def _patiently(self, append: Callable[..., Any], *positional: Any, **named: Any) -> Any:
        """Append, and count what comes of it."""
        stored = self._tried(append, *positional, **named)
        self.congestion.stored += 1
        return stored

    def _tried(self, append: Callable[..., Any], *positional: Any, **named: Any) -> Any:
        try:
            done = append(*positional, timeout=0.0 if self._is_stuck else self._patience, **named)
        except (BrokerBusy, SegmentFull):
            self._is_stuck = True
            self.congestion.refused += 1
            raise
        self._is_stuck = False
        return done

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
        """Store the messages in the body of a SEND_BATCH_MESSAGE request, `properties` behind those of each.

        Raises:
            UsageError: a length in the body contradicts another; the message names the record, and nothing is stored.
            BrokerBusy, SegmentFull and the other errors of a send.
        """
        stored = self._patiently(
            self._append_encoded_batch,
            topic.name,
            queue_id,
            body,
            properties_extra=properties,
            sys_flag=sys_flag,
            born_ms=born_ms,
            born_host=born_host,
            reconsume_times=reconsume_times,
        )
        return [Stored._make(each) for each in stored]

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
        try:
            return Pulled._make(
                self._pull(queue, queue_offset, count_max, bytes_max, tags, SCAN_UNITS_MAX, where, True)
            )
        except CorruptionError as error:
            self.passed_over += 1
            self._report(f"passed over: {error.reason}")
            return Pulled(queue_offset + 1, 0, b"")

    def visible(self, queue: int) -> int:
        return self._store.queue_visible(queue)

    def read_range(
        self, queue: int, queue_offset: int, queue_end: int, *, bytes_max: int, tags: Sequence[int] | None = None
    ) -> Ranged:
        count = max(0, min(queue_end - queue_offset, RANGE_UNITS_MAX))
        next_offset, _, body = self._pull(queue, queue_offset, count, bytes_max, tags, count, None, False)
        first = self._store.queue(queue).offset_min
        if first <= queue_offset < next_offset:
            first = self._first_kept(queue, queue_offset, next_offset)
        return Ranged(next_offset, first, body) if first <= queue_offset else Ranged(first, first, b"")

    def _first_kept(self, queue: int, low: int, high: int) -> int:
        """The first of some offsets whose record retention has not deleted; it may be ahead of the queue's bounds."""
        begin = self._store.log_begin
        at = high if self.position_of(queue, low) < begin else low
        while low < at:
            middle = (low + at) // 2
            low, at = (middle + 1, at) if self.position_of(queue, middle) < begin else (low, middle)
        return at

    def range_units(self, queue: int, queue_offset: int, queue_end: int) -> bytes:
        end = min(queue_end, self._store.queue_visible(queue), queue_offset + RANGE_UNITS_MAX)
        if not self._store.queue(queue).offset_min <= queue_offset < end:
            return b""
        return self._store.units_stored(queue, queue_offset, end - queue_offset)

    def record_at(self, log_position: int) -> bytes | None:
        return self._log.record_bytes_at(log_position, 0, True)

    def stored_at(self, log_position: int) -> bytes | None:
        return self._log.record_bytes_at(log_position, 0, True, True)

    def append_together(self, entries: Sequence[Entry]) -> list[Stored]:
        records = tuple(map(_fields, entries))
        stored = self._patiently(lambda timeout: self._append_together(records, None, timeout, False))
        assert stored is not None  # on no account of another record: nothing can be fenced
        return [Stored._make(each) for each in stored]

    def raise_fence(self, log_position: int) -> None:
        # Not counted as stored: a request that finds no room behind its fence has stored nothing.
        self._tried(lambda timeout: self._log.raise_fence(log_position, timeout))

    def settled(self, queue: int, queue_offset: int) -> tuple[int, Sequence[int]]:
        next_offset, numbers = self._log.settled(queue, queue_offset)
        return next_offset, memoryview(numbers).cast("Q").tolist()

    def committed(self, log_position: int, count: int) -> tuple[int | None, Sequence[int]]:
        next_position, records = self._walk(log_position, self._store.log_end, count)
        is_commit = transaction.COMMIT
        return next_position, [each.prepared_position for each in records if each.sys_flag & _KIND == is_commit]

    def copies(self, log_position: int, end: int, count: int) -> tuple[int | None, Sequence[tuple[int, int]]]:
        next_position, records = self._walk(log_position, min(end, self._store.log_end), count)
        return next_position, [
            (each.log_position, each.prepared_position)
            for each in records
            if each.prepared_position > 0 and each.sys_flag & _KIND in _QUEUED
        ]

    def _walk(self, log_position: int, end: int, count: int) -> tuple[int | None, list[ScannedRecord]]:
        """Return about so many records from a position on, and where to go on, None at the end."""
        found: list[ScannedRecord] = []
        position: int | None = log_position
        while position is not None and position < end and count > 0:
            position, records, stop = self._log.scan(position, end, count)
            found += records
            count -= len(records)
            if stop and stop != "blank-end":  # a zero in front of the end is damage, too
                position = position_behind(self._store, position)
                count -= _DAMAGE_COUNTS
            elif stop or not records:
                position = None
        return (None if position is None or position >= end else position), found


def _fields(entry: Entry) -> tuple[str, int, bytes, bytes, int, int, int, bytes, int, int, int | None]:
    topic, queue_id, record = entry
    return (
        topic.name,
        queue_id,
        record.body,
        record.properties,
        record.flag,
        record.sys_flag,
        record.born_ms,
        record.born_host,
        record.reconsume_times,
        record.prepared_position,
        record.tag_code,
    )


def _parts(records: Sequence[NewRecord]) -> Iterator[tuple[_Shared, list[NewRecord]]]:
    for shared, part in groupby(records, key=_shared):
        yield shared, list(part)


def _shared(record: NewRecord) -> _Shared:
    return _Shared(
        record.sys_flag,
        record.born_ms,
        record.born_host,
        record.reconsume_times,
        record.prepared_position,
        record.tag_code,
    )
