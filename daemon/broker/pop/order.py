"""Ordered pops: one batch of a queue is out at a time, and what is not acknowledged comes again first.

    nothing out, or all settled         the queue may be popped
    out, not settled, time not over     blocked; but the same attempt (attemptId) gets it again: its answer was lost
    out, not settled, time over         the queue may be popped again, from the first offset that is not settled

The group's progress moves behind what is acknowledged without a gap, never behind what is out. Each time an offset is
handed out again its count of tries grows by one. Receipts carry times of the clock that stamps records to a client and
back; a queue is blocked by the steady clock, for what is left of its time when a record of it is taken in.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from shmq.daemon.broker.pop.log import Place
from shmq.protocol.system_topics.pop_records import OrderRecord, QueueKey


@dataclass(slots=True, eq=False)
class OrderedPop:
    """The last ordered pop of a queue."""

    record: OrderRecord
    place: Place
    written_ms: int
    free_at_ms: int

    def is_settled(self, index: int) -> bool:
        """Whether the message at an index of the batch was acknowledged."""
        return bool(self.record.cm >> index & 1)

    def has_settled(self, offset: int) -> bool:
        """Whether an offset needs no second look: acknowledged, or passed over by this batch or one before."""
        offsets = self.record.o
        if not offsets[0] <= offset <= offsets[-1]:
            return False
        return offset not in offsets or self.is_settled(offsets.index(offset))

    @property
    def next_offset(self) -> int:
        """Where the group goes on: the first offset that is not settled."""
        offsets = self.record.o
        for index, offset in enumerate(offsets):
            if not self.is_settled(index):
                return offset
        return offsets[-1] + 1

    @property
    def is_over(self) -> bool:
        """Whether everything is settled."""
        return all(map(self.is_settled, range(len(self.record.o))))


class OrderedPops:
    """The last ordered pop of every queue that had one."""

    def __init__(self) -> None:
        self._by_queue: dict[QueueKey, OrderedPop] = {}

    def __iter__(self) -> Iterator[OrderedPop]:
        return iter(self._by_queue.values())

    def __len__(self) -> int:
        return len(self._by_queue)

    def get(self, queue: QueueKey) -> OrderedPop | None:
        """Return the last ordered pop of a queue."""
        return self._by_queue.get(queue)

    def put(self, record: OrderRecord, place: Place, *, now_ms: int, clock_ms: int) -> None:
        """Take a record in; it replaces what was known of its queue."""
        self._by_queue[record.key] = OrderedPop(record, place, now_ms, now_ms + _left_ms(record, clock_ms))

    def forget(self, queue: QueueKey) -> None:
        """Forget a queue: nothing of it is out."""
        self._by_queue.pop(queue, None)

    def is_blocked(self, queue: QueueKey, attempt: str, now_ms: int) -> bool:
        """Say whether a queue may not be popped now."""
        found = self._by_queue.get(queue)
        if found is None or (attempt and found.record.a == attempt):
            return False
        return now_ms < found.free_at_ms

    def popped(
        self, queue: QueueKey, offsets: Sequence[int], *, attempt: str, pop_ms: int, invisible_ms: int
    ) -> OrderRecord:
        """Return the record of a new pop, with the tries that follow from the one before."""
        before = self._by_queue.get(queue)
        if before is not None and before.is_over:
            before = None  # what it had needs no other try; the offsets may be another topic's of the name
        tries: dict[int, int] = {}
        if before is not None and attempt and before.record.a == attempt:
            tries = before.record.oc
        elif before is not None:
            known = set(before.record.o)
            tries = {offset: before.record.oc.get(offset, 0) + 1 for offset in offsets if offset in known}
        return OrderRecord(
            c=queue.group,
            t=queue.topic,
            q=queue.queue_id,
            pt=pop_ms,
            it=invisible_ms,
            o=list(offsets),
            a=attempt,
            oc=tries,
        )


def _left_ms(record: OrderRecord, clock_ms: int) -> int:
    """How long messages that are not settled stay invisible."""
    until = [
        record.ot.get(offset, record.pt + record.it)
        for index, offset in enumerate(record.o)
        if not record.cm >> index & 1
    ]
    longest = max([record.it, *(at - record.pt for at in record.ot.values())])
    return max(0, min(max(until, default=0) - clock_ms, longest))
