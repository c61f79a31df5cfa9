"""Keeps which messages are popped and not settled, and until when they are invisible to others.

This is the memory of unordered pops; `state.py` keeps it equal to the log.

    popped -> acknowledged            settled
           -> its time is over        due: comes again through the retry topic, and is settled by that
           -> its time was changed    settled; a new checkpoint of one message has the new time

Times are those of the steady clock. What a predecessor left is due after what is left of its invisible time by the
clock that stamps records, and never later than its whole invisible time from now.

Invariants:
 1. `in_flight` of a queue is the number of its offsets in all checkpoints that are not settled.
 2. A checkpoint exists as long as an offset of it is not settled, and has the place of the record that names it last.
"""

import heapq
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from shmq.daemon.broker.pop.log import Place
from shmq.protocol.system_topics.pop_records import CheckpointRecord, PopKey, QueueKey


@dataclass(slots=True, eq=False)
class Checkpoint:
    """Offsets that were handed out together; `unsettled` are those that may come again."""

    key: PopKey
    invisible_ms: int
    offsets: tuple[int, ...]
    unsettled: set[int]
    due_ms: int
    place: Place
    written_ms: int
    is_inherited: bool = False  # a predecessor may have been stopped while it let this come again

    @property
    def record(self) -> CheckpointRecord:
        """The record that tells a successor what is true now."""
        first = self.key.first_offset
        settled = sum(1 << index for index, offset in enumerate(self.offsets) if offset not in self.unsettled)
        return CheckpointRecord(
            so=first,
            pt=self.key.pop_ms,
            it=self.invisible_ms,
            q=self.key.queue_id,
            t=self.key.topic,
            c=self.key.group,
            d=[offset - first for offset in self.offsets],
            bm=settled,
            n=len(self.offsets),
        )


class Checkpoints:
    """All checkpoints that are not settled."""

    def __init__(self) -> None:
        self._by_key: dict[PopKey, Checkpoint] = {}
        self._due: list[tuple[int, int, PopKey]] = []
        self._count = 0
        self._in_flight: Counter[QueueKey] = Counter()

    def __len__(self) -> int:
        return len(self._by_key)

    def __iter__(self) -> Iterator[Checkpoint]:
        return iter(self._by_key.values())

    def __contains__(self, key: PopKey) -> bool:
        return key in self._by_key

    def get(self, key: PopKey) -> Checkpoint | None:
        """Return a checkpoint that is not settled."""
        return self._by_key.get(key)

    def in_flight(self, queue: QueueKey) -> int:
        """Return how many messages of a queue are popped and not settled."""
        return self._in_flight[queue]

    def all_in_flight(self) -> Mapping[QueueKey, int]:
        """Return the same of all queues where there are any."""
        return self._in_flight

    def put(self, record: CheckpointRecord, place: Place, *, due_ms: int, now_ms: int, is_inherited: bool) -> None:
        """Take a record in; one of a known checkpoint only says where that is written now, and what is settled."""
        offsets = tuple(record.so + step for step in record.d)
        unsettled = {offset for index, offset in enumerate(offsets) if not record.bm >> index & 1}
        known = self._by_key.get(record.key)
        if known is not None:
            known.place, known.written_ms = place, now_ms
            self.settle(record.key, known.unsettled - unsettled)
        elif unsettled:
            found = Checkpoint(record.key, record.it, offsets, unsettled, due_ms, place, now_ms, is_inherited)
            self._by_key[found.key] = found
            self._in_flight[_queue(found.key)] += len(unsettled)
            self._push(found)

    def settle(self, key: PopKey, offsets: Iterable[int]) -> set[int]:
        """Take note that offsets need not come again; return those for which that is news."""
        found = self._by_key.get(key)
        if found is None:
            return set()
        settled = found.unsettled & set(offsets)
        found.unsettled -= settled
        queue = _queue(key)
        self._in_flight[queue] -= len(settled)
        if not self._in_flight[queue]:
            del self._in_flight[queue]
        if not found.unsettled:
            del self._by_key[key]
        return settled

    def due(self, now_ms: int) -> Checkpoint | None:
        """Return the checkpoint that is due the longest, if one is; the same until it is settled or postponed."""
        while self._due:
            due_ms, _, key = self._due[0]
            found = self._by_key.get(key)
            if found is not None and found.due_ms == due_ms:
                return found if due_ms <= now_ms else None
            heapq.heappop(self._due)  # settled or postponed since
        return None

    @property
    def next_due_ms(self) -> int | None:
        """When there is something to do next."""
        self.due(-1)
        return self._due[0][0] if self._due else None

    def postpone(self, found: Checkpoint, due_ms: int) -> None:
        """Let a checkpoint be due later."""
        found.due_ms = due_ms
        self._push(found)

    def _push(self, found: Checkpoint) -> None:
        self._count += 1
        heapq.heappush(self._due, (found.due_ms, self._count, found.key))


def _queue(key: PopKey) -> QueueKey:
    return QueueKey(key.group, key.topic, key.queue_id)
