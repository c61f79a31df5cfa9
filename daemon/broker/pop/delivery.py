"""Takes messages out of queues for a pop, and makes the records of the reply.

A pop over the control socket may ask for places: it is answered with log positions, and the member reads the records
where they lie, so the broker touches 20 bytes of a message and neither side copies it. In batches of 32 a message of 1
KiB takes 10 µs of the member's processor time and 9 of the bridge's; over TCP it takes 20 and 16.

    four pops of five     the topic's queues, in turn; then, if there is room, those of the retry topic
    every fifth           the retry topic first, so that it does not wait behind a topic that is never empty
    ordered               the topic's queues that are not blocked; no retries, they come again in place

    progress of the group           read from
    not set, from the first         the first offset; always so for the retry topic
    not set, from the last          the first offset if nothing of the queue is gone, else the last message, as RocketMQ
    below what is stored, beyond    the nearest offset there is

A member that maps the log gets log positions instead of records. Where it wants all messages, none is read here then.

A queue that a local member of the group reads by itself is left to it. Messages of the retry topic are handed out under
the name of the topic that was popped, with their receipt in a property.

What earlier versions, and RocketMQ brokers, have left under the first name of the retry topic is taken too, until there
is none: `old_copies.py`.

Invariant: the group's progress moves behind a message only after a checkpoint of it is in the log.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from shmq.daemon.broker.groups.selection import Selection
from shmq.daemon.broker.log import Log
from shmq.daemon.broker.pop.header import ANY_QUEUE, FROM_FIRST, PopHeader
from shmq.daemon.broker.pop.old_copies import QUEUE_ID, OldCopies
from shmq.daemon.broker.pop.state import PopState
from shmq.daemon.broker.records.property_text import property_of, with_properties
from shmq.daemon.broker.records.stored_record import pieces_of, stored_record
from shmq.daemon.broker.settings import BrokerSettings
from shmq.daemon.broker.tables import GroupProgress, Topic, committed_of
from shmq.message import POP_RETRY_OLD, RETRY_PREFIX, pop_retry_flag, retry_topic_of
from shmq.protocol.pop import (
    ORDER_REVIVE_QUEUE,
    RECEIPT_PROPERTY,
    Popped,
    Receipt,
    encode_places,
    offset_fields,
)
from shmq.protocol.system_topics.pop_records import CheckpointRecord, OrderRecord, QueueKey
from shmq.record import log_position_of, queue_offset_of
from shmq.shm.core import record_encode

_REVIVE_QUEUE = 0
_RECEIPT_NAME = RECEIPT_PROPERTY.encode() + b"\x01"  # a sender may have put one into its message
_RETRY_TURN = 5
_LOOKS_MAX = 64  # at one queue, when nothing of it is wanted: the client asks again


@dataclass(slots=True)
class _Batch:
    """What one queue gave."""

    key: QueueKey
    slot: int
    first_offset: int
    next_offset: int
    offsets: list[int] = field(default_factory=list)
    records: list[bytes] = field(default_factory=list)
    places: list[int] = field(default_factory=list)  # log positions, in place of records

    def add(self, piece: bytes, *, as_place: bool) -> None:
        """Take a record."""
        self.offsets.append(queue_offset_of(piece))
        if as_place:
            self.places.append(log_position_of(piece))
        else:
            self.records.append(piece)


@dataclass(slots=True)
class Taken:
    """What a pop got: records, header fields, and how many messages are left in the queues it looked at."""

    body: bytes = b""
    fields: dict[str, str] = field(default_factory=dict)
    rest: int = 0
    is_cut_short: bool = False  # there is more to look at, for another request


class Delivery:
    """Takes messages for pops."""

    def __init__(self, tables: GroupProgress, log: Log, settings: BrokerSettings, state: PopState) -> None:
        self._tables = tables
        self._log = log
        self._settings = settings
        self._state = state
        self._old = OldCopies(tables, log)
        self._turn = 0

    def queues(self, header: PopHeader, topic: Topic) -> Iterator[tuple[Topic, int]]:
        """Yield the queues a pop may take messages of, in the order of their turn."""
        self._turn += 1
        own = self._in_turn(topic) if header.queue_id == ANY_QUEUE else [(topic, header.queue_id)]
        again: list[tuple[Topic, int]] = []
        if not header.is_ordered:
            if retry := self._tables.topic(retry_topic_of(header.group, topic.name)):
                again += self._in_turn(retry)
            if old := self._old.topic(header.group, topic.name):
                again.append((old, QUEUE_ID))
        yield from [*again, *own] if self._turn % _RETRY_TURN == 0 else [*own, *again]

    def _in_turn(self, topic: Topic) -> list[tuple[Topic, int]]:
        count = topic.read_queues
        return [(topic, (self._turn + step) % count) for step in range(count)]

    def next_offset(self, header: PopHeader, topic: Topic, queue_id: int) -> int:
        """Return where a pop of a queue would begin; changes nothing."""
        queue = topic.queues[queue_id]
        committed = committed_of(self._tables, header.group, queue)
        low, high = self._tables.queue_bounds(queue)
        if committed >= 0:
            return max(low, min(committed, high))
        if header.init_mode == FROM_FIRST or topic.name.startswith(RETRY_PREFIX) or low == 0:
            return low
        return max(low, high - 1)

    def is_free(self, header: PopHeader, topic: Topic, queue_id: int, now_ms: int) -> bool:
        """Say whether a queue may be popped: no local member reads it, and not too much of it is out."""
        group = self._tables.group(header.group)
        slot = self._tables.offset_slot(group, topic.queues[queue_id]) if group is not None else None
        if slot is not None and self._tables.offset_owned(slot):
            return False
        key = QueueKey(header.group, topic.name, queue_id)
        if header.is_ordered and self._state.is_blocked(key, header.attempt, now_ms):
            return False
        return self._state.checkpoints.in_flight(key) < self._settings.popped_per_queue_max

    def take(self, header: PopHeader, topic: Topic, selection: Selection, now_ms: int) -> Taken:
        """Take messages; what is handed out is in the log of checkpoints when this returns.

        Raises:
            BrokerBusy, LogFull and the other errors of a send: nothing is taken.
        """
        taken = Taken()
        batches: list[_Batch] = []
        room, bytes_room = header.count_max, self._settings.pull_bytes_max
        group = self._tables.group_put(header.group)
        for source, queue_id in self.queues(header, topic):
            if not self.is_free(header, source, queue_id, now_ms):
                continue
            queue = source.queues[queue_id]
            batch = self._begin(header, source, queue_id, group)
            if room > 0 and bytes_room > 0:
                wanted = selection if source is topic else Selection()  # what comes again was wanted
                as_places = header.takes_places and source is topic  # it is not in the topic that was popped, either
                if as_places and wanted == Selection():
                    self._place(batch, queue, room)
                else:
                    is_kept = self._filter(topic, source, queue)
                    self._read(batch, queue, room, bytes_room, wanted, taken, as_places=as_places, is_kept=is_kept)
                room -= len(batch.offsets)
                bytes_room -= sum(map(len, batch.records))
            if batch.offsets:
                batches.append(batch)
            elif batch.next_offset > batch.first_offset:
                self._tables.set_committed(batch.slot, batch.next_offset)
            taken.rest += max(0, self._tables.queue_bounds(queue).offset_max - batch.next_offset)
        if batches:
            self._hand_out(header, batches, taken, now_ms)
        return taken

    def _begin(self, header: PopHeader, source: Topic, queue_id: int, group: int) -> _Batch:
        """Find out where a queue is read from, and note it as the group's progress if that says something else."""
        offset = self.next_offset(header, source, queue_id)
        slot = self._tables.offset_put(group, source.queues[queue_id])
        if self._tables.committed(slot) != offset:
            self._tables.set_committed(slot, offset)
        return _Batch(QueueKey(header.group, source.name, queue_id), slot, offset, offset)

    def _place(self, batch: _Batch, queue: int, room: int) -> None:
        """Find out where messages lie, without reading them."""
        settled = self._settled_before(batch)
        for _ in range(_LOOKS_MAX):
            count = min(room, self._log.visible(queue) - batch.next_offset)
            for unit in self._tables.units(queue, batch.next_offset, count) if count > 0 else ():
                if not settled(batch.next_offset):
                    batch.offsets.append(batch.next_offset)
                    batch.places.append(unit.log_position)
                batch.next_offset += 1
            if batch.offsets or count <= 0:
                return

    def _settled_before(self, batch: _Batch) -> Callable[[int], bool]:
        """Say which offsets need not be handed out, because the last ordered pop of the queue has settled them."""
        before = self._state.ordered.get(batch.key)
        if before is None or before.next_offset != batch.first_offset:  # the group's progress was moved
            return lambda _: False
        return before.has_settled

    def _read(
        self,
        batch: _Batch,
        queue: int,
        room: int,
        bytes_room: int,
        selection: Selection,
        taken: Taken,
        *,
        as_places: bool,
        is_kept: Callable[[bytes], bool],
    ) -> None:
        """Read until something is wanted, or there is no more."""
        settled = self._settled_before(batch)
        for _ in range(_LOOKS_MAX):
            if batch.next_offset >= self._tables.queue_bounds(queue).offset_max:
                return
            pulled = self._log.read(
                queue,
                batch.next_offset,
                count_max=room,
                bytes_max=bytes_room,
                tags=selection.tags,
                where=selection.where,
            )
            if pulled.next_offset <= batch.next_offset:
                return  # stored, but not on disk yet
            batch.next_offset = pulled.next_offset
            for piece in pieces_of(pulled.body):
                if not settled(queue_offset_of(piece)) and is_kept(piece):
                    batch.add(piece, as_place=as_places)
            if batch.offsets:
                return
        taken.is_cut_short = True

    def peeked(self, topic: Topic, source: Topic, queue: int, records: bytes) -> bytes:
        """Return those of a queue's records that a pop of a topic would take."""
        is_kept = self._filter(topic, source, queue)
        return b"".join(piece for piece in pieces_of(records) if is_kept(piece))

    def _filter(self, topic: Topic, source: Topic, queue: int) -> Callable[[bytes], bool]:
        """Say which records of a queue are for pops of a topic: under the first name there are others'."""
        if source is topic or pop_retry_flag(source.name) != POP_RETRY_OLD:
            return lambda _: True

        def is_copy(piece: bytes) -> bool:
            record = stored_record(piece)
            return record is not None and self._old.is_wanted(queue, record, topic.name)

        return is_copy

    def _hand_out(self, header: PopHeader, batches: list[_Batch], taken: Taken, now_ms: int) -> None:
        pop_ms = self._state.new_pop_ms((batch.key, batch.first_offset) for batch in batches)
        notes = [self._record(header, batch, pop_ms) for batch in batches]
        self._state.write(notes, now_ms)
        for batch in batches:
            if not header.is_ordered:
                self._tables.set_committed(batch.slot, batch.next_offset)
            else:
                self._tables.set_taken(batch.slot, batch.next_offset)
        queues = [
            Popped(
                pop_retry_flag(batch.key.topic),
                batch.key.queue_id,
                batch.first_offset,
                batch.offsets,
                note.oc if isinstance(note, OrderRecord) else {},
            )
            for batch, note in zip(batches, notes, strict=True)
        ]
        revive_queue = ORDER_REVIVE_QUEUE if header.is_ordered else _REVIVE_QUEUE
        taken.fields = {
            "popTime": str(pop_ms),
            "invisibleTime": str(header.invisible_ms),
            "reviveQid": str(revive_queue),
            **offset_fields(queues, is_ordered=header.is_ordered),
        }
        records = b"".join(
            self._handed_out(piece, batch, header, pop_ms) for batch in batches for piece in batch.records
        )
        places = [place for batch in batches for place in batch.places]
        if places:
            taken.fields["places"] = str(len(places))
        taken.body = encode_places(places) + records

    def _record(self, header: PopHeader, batch: _Batch, pop_ms: int) -> CheckpointRecord | OrderRecord:
        if header.is_ordered:
            return self._state.ordered.popped(
                batch.key, batch.offsets, attempt=header.attempt, pop_ms=pop_ms, invisible_ms=header.invisible_ms
            )
        return CheckpointRecord(
            so=batch.first_offset,
            pt=pop_ms,
            it=header.invisible_ms,
            q=batch.key.queue_id,
            t=batch.key.topic,
            c=batch.key.group,
            d=[offset - batch.first_offset for offset in batch.offsets],
            n=len(batch.offsets),
            bn=self._settings.broker_name,
        )

    def _handed_out(self, piece: bytes, batch: _Batch, header: PopHeader, pop_ms: int) -> bytes:
        """A record as the client gets it: it makes receipts itself, but for what comes out of a retry topic."""
        is_again = batch.key.topic != header.topic
        if not is_again and _RECEIPT_NAME not in piece:
            return piece
        record = stored_record(piece)
        if record is None or (not is_again and property_of(record.properties, RECEIPT_PROPERTY) is None):
            return piece
        receipt = Receipt(
            batch.first_offset,
            pop_ms,
            header.invisible_ms,
            _REVIVE_QUEUE,
            pop_retry_flag(batch.key.topic),
            self._settings.broker_name,
            batch.key.queue_id,
            record.queue_offset,
        )
        properties = with_properties(record.properties, {RECEIPT_PROPERTY: str(receipt) if is_again else None})
        return record_encode(**record._asdict() | {"topic": header.topic.encode(), "properties": properties})
