"""The queues one consumer of this host reads of one topic: taking them, reading from the right place, leaving them.

A queue is taken again and again while another member that lives still owns it.

Invariants:
    (1) a queue of a group is read only between `offset_take` and `offset_leave` of its offset slot, so never by two;
    (2) reading starts at the group's committed offset; a group that never committed anything on the topic starts where
        `start` says, and writes that down before it reads, for all queues at once;
    (3) a queue that appears later, when its siblings have offsets, starts at its first message: nothing is skipped;
    (4) the broker takes queues away from a member when an administrator has set the group's offset: the member reads on
        from there, and what it had in flight no longer counts.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from shmq.client import options
from shmq.client.position import BEGIN, Position, start_offset
from shmq.client.wire import QueueShare, QueueSlot
from shmq.shm.core import RETRY_QUEUE_BASE

if TYPE_CHECKING:
    from shmq.shm.core import Reader, Store


class ShmShare(QueueShare):
    """The part of a topic that this consumer reads."""

    def __init__(
        self, *, store: Store, reader: Reader, topic: str, start: Position, on_left: Callable[[int], None]
    ) -> None:
        super().__init__(reader, on_left)
        self.topic = topic
        self._store = store
        self._start = start
        self._unset_since: dict[int, float] = {}

    @property
    def is_settled(self) -> bool:
        """Whether exactly the wanted queues are held, and nothing is on its way."""
        return not self._leaving and self.held.keys() == self._wanted.keys()

    def _prepare(self, all_slots: list[QueueSlot]) -> None:
        self._drop_lost()
        self._write_start(all_slots)

    def _drop_lost(self) -> None:
        """Stop reading what is not ours any more (rule 4); where it is wanted, it is taken again."""
        for index, slot in list(self.held.items()):
            if slot.offset_slot >= 0 and self._store.offset_owner(slot.offset_slot) != self._store.client_slot:
                self._forget(index)

    def _take_missing(self, now: float) -> bool:
        took = [slot for slot in self.missing if self._take(slot, now)]
        if took:
            self._reader.wake()
        return not self.is_settled

    def retake(self) -> None:
        """After a reconnection: own the held queues again, if our client slot is not what it was, or give them up."""
        positions = {entry[1]: entry[4] for entry in self._reader.assigned()}
        for index, slot in list(self.held.items()):
            if slot.offset_slot < 0 or self._store.offset_owner(slot.offset_slot) == self._store.client_slot:
                continue
            if self._store.offset_take(slot.offset_slot):
                self._reader.assign(self.topic, index, slot.queue_id, positions.get(index, 0), slot.offset_slot)
            else:
                self._forget(index)

    def _leave(self, index: int) -> None:
        slot = self.held[index]
        if slot.offset_slot < 0:
            self._offsets.update({entry[1]: entry[4] for entry in self._reader.assigned() if entry[1] == index})
        self._forget(index)
        if slot.offset_slot >= 0:
            self._store.offset_leave(slot.offset_slot)

    def _take(self, slot: QueueSlot, now: float) -> bool:
        if slot.offset_slot < 0:
            offset = self._offsets.get(slot.queue_index)
            if offset is None:
                offset = start_offset(self._store, slot.queue_index, self._start)
        else:
            committed = self._committed(slot, now)
            if committed is None or not self._store.offset_take(slot.offset_slot):
                return False
            # Read again: until a moment ago the former owner could still move it.
            owned = self._store.offset_get(slot.offset_slot)
            offset = owned if owned >= 0 else committed
        offset_min, offset_max = self._store.queue(slot.queue_index)[:2]
        offset = max(offset, offset_min) if offset <= offset_max else offset_min
        self._reader.assign(self.topic, slot.queue_index, slot.queue_id, offset, slot.offset_slot)
        self.held[slot.queue_index] = slot
        return True

    def _committed(self, slot: QueueSlot, now: float) -> int | None:
        """The group's offset; None while it is too early to call the queue new (rule 3)."""
        committed = self._store.offset_get(slot.offset_slot)
        if committed < 0 and slot.queue_id >= RETRY_QUEUE_BASE:
            return start_offset(
                self._store, slot.queue_index, BEGIN
            )  # what comes again is for the group, wherever it began
        if committed >= 0:
            self._unset_since.pop(slot.queue_index, None)
            return committed
        since = self._unset_since.setdefault(slot.queue_index, now)
        if now - since < options.UNSET_QUEUE_GRACE:
            return None
        return start_offset(self._store, slot.queue_index, BEGIN)

    def _write_start(self, slots: list[QueueSlot]) -> None:
        # Two members that start at the same moment both find nothing and write the same; one that comes a moment later
        # finds some offsets set and waits for the rest (UNSET_QUEUE_GRACE) instead of taking them for new queues.
        shared = [slot for slot in slots if slot.offset_slot >= 0]
        if any(self._store.offset_get(slot.offset_slot) >= 0 for slot in shared):
            return
        for slot in shared:
            self._store.offset_set(slot.offset_slot, start_offset(self._store, slot.queue_index, self._start))

    def _in_flight(self) -> dict[int, int]:
        return {index: next_offset - lowest for _, index, _, next_offset, lowest in self._reader.assigned()}
