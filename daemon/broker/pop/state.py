"""Everything POP has to remember, in memory and in its log: checkpoints, ordered pops, and how groups ask.

Whatever changes is a record first and taken in from there, as a successor will do it. RocketMQ buffers both checkpoints
and acknowledgements for seconds; checkpoints in shared memory would have needed an owner, a size and a repair of their
own.

    change -> record in the log -> taken in                 here
    start: records of the log, in their order -> taken in   the same state, without what is not needed any more

RocketMQ keeps new checkpoints in memory for a while and pays for a lost one with messages that come again at once; here
a pop and an acknowledgement cost a record each, and a broker that is killed between any two of them forgets nothing. A
record that is still needed is written again at the end when the log behind it has grown long or old, so that a
successor reads seconds, not hours.

The group's progress is not in this log, and moves after each pop. A successor moves it behind the last pop, where its
predecessor was killed before it could; a new master moves it behind every pop that is younger than the progress it got.

Invariants:
 1. Nothing is changed in memory that is not in the log before.
 2. Every record that is needed lies behind the noted progress of the log.
 3. What was popped of a topic that is gone is settled: its offsets are others' once the topic is made again.
"""

import contextlib
from collections.abc import Iterable, Iterator, Sequence

import msgspec

from shmq.daemon.broker.log import Entry, Stored
from shmq.daemon.broker.pop.checkpoints import Checkpoint, Checkpoints
from shmq.daemon.broker.pop.log import Place, PopLog, Written
from shmq.daemon.broker.pop.order import OrderedPop, OrderedPops
from shmq.daemon.broker.tables import Tables
from shmq.errors import ShmqError
from shmq.protocol.system_topics.pop_records import (
    OWN_QUEUE,
    AckRecord,
    CheckpointRecord,
    ModeRecord,
    OrderRecord,
    PopKey,
    QueueKey,
    Record,
)

_LENGTH_MAX = 4096  # length at which the log is compacted
_NEEDED_SHARE = 4  # more than so many records for each that is needed are too many
_AGE_MAX_MS = 600_000  # long before the log forgets a record
_CARRIED_AT_ONCE = 500
_TIDY_MS = 1000
_TIDY_SHARE = 10  # looking at 10,000 that are kept takes some 10 ms: once in 2 s


class _Mode:
    """How a group asks for a topic, and where that is written."""

    def __init__(self, record: ModeRecord, place: Place, written_ms: int) -> None:
        self.record = record
        self.place = place
        self.written_ms = written_ms


class PopState:
    """The state, and the only one who writes to its log."""

    def __init__(self, tables: Tables, log: PopLog) -> None:
        self._tables = tables
        self._log = log
        self.checkpoints = Checkpoints()
        self.ordered = OrderedPops()
        self._modes: dict[tuple[str, str], _Mode] = {}
        self._is_started = False
        self._last: list[CheckpointRecord | OrderRecord] = []
        self._untold: list[CheckpointRecord | OrderRecord] = []  # younger than the progress of a new master
        self._untold_from: int | None = None
        self._tidy_at_ms = 0

    # -- reading

    def catch_up(self, now_ms: int) -> bool:
        """Take in what others wrote to the log: all of it at the start. False while some of it cannot be seen yet."""
        if not self._is_started and self._untold_from is None:
            self._untold_from = self._log.untold_from()
        for written in self._log.news():
            self._take(written, now_ms)
        if self._log.has_news:
            return False
        if not self._is_started:
            self._is_started = True
            self._finish([*self._untold, *self._last])
            self._untold.clear()
            self._last.clear()
            self._log.forget_untold()
            with contextlib.suppress(ShmqError):
                self.settle_gone(now_ms)
        return True

    def _finish(self, pops: Iterable[CheckpointRecord | OrderRecord]) -> None:
        """Move the progress that our predecessor had no time to move, or to tell, behind these pops of it."""
        for record in pops:
            group, topic = self._tables.group(record.c), self._tables.topic(record.t)
            if group is None or topic is None or not 0 <= record.q < len(topic.queues):
                continue
            slot = self._tables.offset_slot(group, topic.queues[record.q])
            committed = self._tables.committed(slot) if slot is not None else -1
            if slot is None or committed < 0:
                continue
            if isinstance(record, CheckpointRecord) and committed == record.so and record.d:
                self._tables.set_committed(slot, record.so + record.d[-1] + 1)
            elif isinstance(record, OrderRecord) and committed in record.o and (found := self.ordered.get(record.key)):
                self._tables.set_committed(slot, max(committed, found.next_offset))

    def mode(self, group: str, topic: str) -> ModeRecord | None:
        """Return how a group asks for the messages of a topic, if that was set."""
        found = self._modes.get((group, topic))
        return found.record if found else None

    def modes(self) -> Iterator[ModeRecord]:
        """Return how all groups consume."""
        return (mode.record for mode in self._modes.values())

    def is_blocked(self, queue: QueueKey, attempt: str, now_ms: int) -> bool:
        """Say whether a queue may not be popped in order now."""
        return self.ordered.is_blocked(queue, attempt, self._tables.steady_ms(now_ms))

    @property
    def end(self) -> int:
        """The log position behind everything that was written here: durable once the disk has come so far."""
        return self._log.end

    # -- changes; each raises what an append raises, and has changed nothing then

    def new_pop_ms(self, keys: Iterable[tuple[QueueKey, int]]) -> int:
        """Return the time that names a new pop from these first offsets: now, or a little later where that is taken."""
        wanted = list(keys)
        pop_ms = self._tables.clock_ms
        while any(PopKey(*queue, first, pop_ms) in self.checkpoints for queue, first in wanted):
            pop_ms += 1
        return pop_ms

    def write(self, records: Sequence[Record], now_ms: int) -> None:
        """Store records and take them in, all or none."""
        for written in self._log.append(records):
            self._take(written, now_ms)

    def settle(self, found: Checkpoint, offsets: Iterable[int], now_ms: int) -> bool:
        """Let offsets of a checkpoint never come again; False when there was nothing to do."""
        settled = sorted(found.unsettled.intersection(offsets))
        if not settled:
            return False
        self.write([ack_record(found.key, settled)], now_ms)
        return True

    def settle_with(self, found: Checkpoint, offset: int, entry: Entry, now_ms: int) -> Stored:
        """Store the copy of a message and that its checkpoint is settled, both or neither."""
        stored, written = self._log.append_with(entry, ack_record(found.key, [offset]))
        self._take(written, now_ms)
        return stored

    def settle_gone(self, now_ms: int) -> None:
        """Settle what was popped of topics that are gone."""
        gone = [found for found in self.checkpoints if self._tables.topic(found.key.topic) is None]
        records: list[Record] = [ack_record(found.key, sorted(found.unsettled)) for found in gone]
        for found in self.ordered:
            record = found.record
            if not found.is_over and self._tables.topic(record.t) is None:
                records.append(msgspec.structs.replace(record, cm=(1 << len(record.o)) - 1))
        for start in range(0, len(records), _CARRIED_AT_ONCE):
            self.write(records[start : start + _CARRIED_AT_ONCE], now_ms)

    def _take(self, written: Written, now_ms: int) -> None:
        place, record = written
        now_ms = self._tables.steady_ms(now_ms)
        if isinstance(record, AckRecord):
            self._last.clear()
            self.checkpoints.settle(record.key, record.aol or (record.ao,))
            return
        if isinstance(record, ModeRecord):
            self._modes[record.key] = _Mode(record, place, now_ms)
            return
        if not self._is_started:
            self._note_last(record)
            if self._untold_from is not None and place.queue_id == OWN_QUEUE and place.offset >= self._untold_from:
                self._untold.append(record)
        clock_ms = self._tables.clock_ms
        if isinstance(record, CheckpointRecord):
            left_ms = max(0, min(record.pt + record.it - clock_ms, record.it))
            is_inherited = not self._is_started and not left_ms
            self.checkpoints.put(record, place, due_ms=now_ms + left_ms, now_ms=now_ms, is_inherited=is_inherited)
        else:
            self.ordered.put(record, place, now_ms=now_ms, clock_ms=clock_ms)

    def _note_last(self, record: CheckpointRecord | OrderRecord) -> None:
        """Keep the records of the last pop; one pop has one time."""
        if self._last and (self._last[0].c, self._last[0].pt) != (record.c, record.pt):
            self._last.clear()
        self._last.append(record)

    # -- upkeep

    def tidy(self, now_ms: int) -> None:
        """Write again what is needed and lies far back, and note what is needed no longer."""
        steady_ms = self._tables.steady_ms(now_ms)
        if steady_ms < self._tidy_at_ms:
            return
        self._forget_ordered(steady_ms)
        oldest: dict[int, Checkpoint | OrderedPop | _Mode] = {}
        count = 0
        for kept in self._kept():
            count += 1
            known = oldest.get(kept.place.queue_id)
            if known is None or kept.place < known.place:
                oldest[kept.place.queue_id] = kept
        self._tidy_at_ms = steady_ms + _TIDY_MS + count // _TIDY_SHARE
        if any(self._is_far_back(kept, count, steady_ms) for kept in oldest.values()):
            carried = sorted(self._kept(), key=lambda kept: kept.place)[:_CARRIED_AT_ONCE]
            self.write([kept.record for kept in carried], now_ms)
            return  # the next look finds out what is the oldest now
        self._log.forget({queue_id: kept.place.offset for queue_id, kept in oldest.items()})

    def _kept(self) -> Iterator[Checkpoint | OrderedPop | _Mode]:
        yield from self.checkpoints
        yield from self.ordered
        yield from self._modes.values()

    def _is_far_back(self, kept: Checkpoint | OrderedPop | _Mode, count: int, now_ms: int) -> bool:
        if now_ms - kept.written_ms > _AGE_MAX_MS:
            return True
        return self._log.length(kept.place) > max(_LENGTH_MAX, _NEEDED_SHARE * count)

    def _forget_ordered(self, now_ms: int) -> None:
        """A queue of which everything is settled, and whose topic or group is gone, needs no memory."""
        for found in [found for found in self.ordered if found.is_over or now_ms - found.written_ms > _AGE_MAX_MS]:
            if (
                found.is_over
                or self._tables.topic(found.record.t) is None
                or self._tables.group(found.record.c) is None
            ):
                self.ordered.forget(found.record.key)


def ack_record(key: PopKey, offsets: Sequence[int]) -> AckRecord:
    """Return the record that settles offsets of a checkpoint."""
    group, topic, queue_id, first_offset, pop_ms = key
    if len(offsets) == 1:
        return AckRecord(so=first_offset, pt=pop_ms, q=queue_id, t=topic, c=group, ao=offsets[0])
    return AckRecord(so=first_offset, pt=pop_ms, q=queue_id, t=topic, c=group, aol=list(offsets))
