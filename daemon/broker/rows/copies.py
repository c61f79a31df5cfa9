"""Copies a chunk of staged rows to where it belongs, each row once, also when a predecessor died doing it.

    chunk ──▶ groups, one for each queue   begin mark: where the queues end now   ──▶ rows, group by group
                                           killed here ──▶ the successor reads these queues from there on, and stores
                                                           what of each group is not there yet

Rows of one queue are stored in order, so what is there of a group is always its beginning; a row is known by UNIQ_KEY.
Rule: after the begin mark of the next chunk, or the done mark, rows of this one are not looked for any more.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from shmq.daemon.broker.log import Log, NewRecord
from shmq.daemon.broker.records.property_text import TEXT_BYTES_MAX, fits, fitting, property_of
from shmq.daemon.broker.records.stored_record import StoredRecord, kept_portions, records_of
from shmq.daemon.broker.settings import BrokerSettings
from shmq.daemon.broker.tables import Queues, Topic
from shmq.daemon.broker.timers.route import Route, delayed_route, waiting_topic
from shmq.daemon.broker.topics import ensure_topic
from shmq.delay_levels import REAL_QUEUE_ID, REAL_TOPIC, DelayLevels
from shmq.errors import MessageTooLarge, UsageError
from shmq.protocol.batch_body import BatchEntry, entries_of
from shmq.protocol.system_topics.row_marks import BeginMark

_PORTION_BYTES = 48 << 10  # of records; less than the smallest log file holds
_OVERHEAD_BYTES = 320  # of a record, beside body and properties: head, hosts, topic, checksum
UNIQUE_KEY = "UNIQ_KEY"
DELAYED = "SHMQ_DELAYED"  # property of a chunk: its rows say when they are delivered


@dataclass(slots=True)
class _Group:
    """Rows for one queue. `encoded` is the body of a batch that holds just these rows, None if they were changed."""

    topic: Topic
    queue_id: int
    keys: list[str]
    records: list[NewRecord]
    encoded: bytes | None = None

    @property
    def queue(self) -> int:
        return self.topic.queues[self.queue_id]


class RowCopies:
    """Copies chunks."""

    def __init__(self, tables: Queues, log: Log, settings: BrokerSettings, levels: DelayLevels) -> None:
        self._tables = tables
        self._log = log
        self._settings = settings
        self._levels = levels

    def copy(
        self, chunk: StoredRecord, begun: BeginMark | None, begin: Callable[[list[tuple[str, int, int]]], None]
    ) -> list[int]:
        """Store the rows of a chunk that are not stored yet, and return the queues (by index) they are in.

        Args:
            begun: what a predecessor wrote down before it began with this chunk.
            begin: writes down where the queues end.

        Raises:
            BrokerBusy, SegmentFull and the other errors of a send: some rows may be stored; call it again with what
            `begin` was given.
        """
        groups = self._groups(chunk)
        places = begun.q if begun is not None else []
        if [(group.topic.name, group.queue_id) for group in groups] == [place[:2] for place in places]:
            there = [self._there(group, place[2]) for group, place in zip(groups, places, strict=True)]
        else:
            ends = [self._tables.queue_bounds(group.queue).offset_max for group in groups]
            begin([(group.topic.name, group.queue_id, end) for group, end in zip(groups, ends, strict=True)])
            there = [0] * len(groups)
        for group, count in zip(groups, there, strict=True):
            self._store(group, count, chunk)
        return [group.queue for group in groups]

    def check(self, rows: bytes, topic: Topic, *, is_delayed: bool, now_ms: int) -> int:
        """Look at each row of a chunk that is to be staged, and return how many there are.

        What is committed has to be copied: one row that could not be would keep the rows of all writers waiting.

        Raises:
            ProtocolError: a length contradicts another.
            MessageTooLarge: a row that no record could hold.
            UsageError: a time that is too far ahead.
        """
        count = 0
        for count, entry in enumerate(entries_of(rows), 1):
            text = entry.properties
            if is_delayed:
                text = self._route(NewRecord(entry.body, text), topic, 0, now_ms).record.properties
            if not fits(text):
                raise MessageTooLarge(
                    f"row {count} of a chunk has properties of {len(text)} bytes with those of RocketMQ, "
                    f"{TEXT_BYTES_MAX} are allowed",
                    hint="move large values into the body",
                )
        return count

    def _route(self, record: NewRecord, topic: Topic, queue_id: int, now_ms: int) -> Route:
        most = self._settings.timer_max_delay_ms
        return delayed_route(record, topic.name, queue_id, self._levels, now_ms=now_ms, max_delay_ms=most)

    def _groups(self, chunk: StoredRecord) -> list[_Group]:
        name = property_of(chunk.properties, REAL_TOPIC) or ""
        queue_id = int(property_of(chunk.properties, REAL_QUEUE_ID) or 0)
        topic = ensure_topic(self._tables, name, queues=max(self._settings.default_queues, queue_id + 1))
        queue_id %= len(topic.queues)
        entries = list(entries_of(chunk.body))
        keys = [property_of(entry.properties, UNIQUE_KEY) or "" for entry in entries]
        if property_of(chunk.properties, DELAYED) is None:
            if all(fits(entry.properties) for entry in entries):
                return [_Group(topic, queue_id, keys, [], chunk.body)]
            records = [_fitting(_record_of(entry, chunk)) for entry in entries]  # a version before staged such rows
            return [_Group(topic, queue_id, keys, records)]
        groups: dict[tuple[str, int], _Group] = {}
        for entry, key in zip(entries, keys, strict=True):
            to, to_queue, record = self._routed(_record_of(entry, chunk), topic, queue_id, chunk.store_ms)
            group = groups.setdefault((to.name, to_queue), _Group(to, to_queue, [], []))
            group.keys.append(key)
            group.records.append(_fitting(record))
        return list(groups.values())

    def _routed(self, record: NewRecord, topic: Topic, queue_id: int, now_ms: int) -> tuple[Topic, int, NewRecord]:
        """Where a delayed row waits; the same at each try, because time is that of its chunk."""
        try:
            route = self._route(record, topic, queue_id, now_ms)
        except UsageError:  # it was possible when it was staged: since then the broker allows less
            return topic, queue_id, record
        return waiting_topic(route, self._tables, self._levels) or topic, route.queue_id, route.record

    def _there(self, group: _Group, offset: int) -> int:
        """How many rows of a group are in its queue, from an offset on."""
        wanted = set(group.keys)
        offset = max(offset, self._tables.queue_bounds(group.queue).offset_min)
        found = sum(
            property_of(record.properties, UNIQUE_KEY) in wanted
            for pulled in kept_portions(self._tables, self._log, group.queue, offset)
            for record in records_of(pulled.body)
        )
        return min(found, len(group.keys))

    def _store(self, group: _Group, there: int, chunk: StoredRecord) -> None:
        if group.encoded is None:
            sizes = [len(record.body) + len(record.properties) for record in group.records]
            for first, end in portions(sizes, there):
                self._log.append_batch(group.topic, group.queue_id, group.records[first:end])
            return
        starts = [*(entry.start for entry in entries_of(group.encoded)), len(group.encoded)]
        for first, end in portions([end - start for start, end in pairwise(starts)], there):
            rows = group.encoded[starts[first] : starts[end]]
            self._log.append_encoded_batch(
                group.topic, group.queue_id, rows, born_ms=chunk.born_ms, born_host=chunk.born_host
            )


def portions(sizes: Sequence[int], first: int = 0) -> Iterator[tuple[int, int]]:
    """Yield from where to where messages of these sizes (by index) are stored at once: one append has its bounds."""
    begin, portion_bytes = first, 0
    for index in range(first, len(sizes)):
        record_bytes = sizes[index] + _OVERHEAD_BYTES
        if portion_bytes + record_bytes > _PORTION_BYTES and index > begin:
            yield begin, index
            begin, portion_bytes = index, 0
        portion_bytes += record_bytes
    if begin < len(sizes):
        yield begin, len(sizes)


def _fitting(record: NewRecord) -> NewRecord:
    return record if fits(record.properties) else replace(record, properties=fitting(record.properties))


def _record_of(entry: BatchEntry, chunk: StoredRecord) -> NewRecord:
    return NewRecord(entry.body, entry.properties, flag=entry.flag, born_ms=chunk.born_ms, born_host=chunk.born_host)
