"""The queues one consumer of this host reads of one topic: taking them, reading from the right place, leaving them.

The share is told which queues are wanted and is then stepped; nothing here waits.

    free ──take──▶ held ──no longer wanted──▶ leaving ──nothing in flight, or time is up──▶ free
      ▲ retried while another member          │ paused: delivers nothing new, acknowledgements still count
      └ that lives still owns it              └──wanted again──▶ held

Invariants:
    (1) a queue of a group is read only between `offset_take` and `offset_leave` of its offset slot, so never by two;
    (2) reading starts at the group's committed offset; a group that never committed anything on the topic starts where
        `start` says, and writes that down before it reads, for all queues at once;
    (3) a queue that appears later, when its siblings have offsets, starts at its first message: nothing is skipped;
    (4) a broadcast consumer takes and leaves without asking, and is told where it was;
    (5) the broker takes queues away from a member when an administrator has set the group's offset: the member reads on
        from there, and what it had in flight no longer counts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING

from shmq.client import options
from shmq.client.position import BEGIN, Position, start_offset
from shmq.client.wire import QueueSlot
from shmq.shm.core import RETRY_QUEUE_BASE

if TYPE_CHECKING:
    from shmq.shm.core import Reader, Store


class ShmShare:
    """The part of a topic that this consumer reads."""

    step_interval = options.TAKE_INTERVAL

    def __init__(
        self, *, store: Store, reader: Reader, topic: str, start: Position, on_left: Callable[[int], None] | None = None
    ) -> None:
        self.topic = topic
        self.held: dict[int, QueueSlot] = {}
        self._store = store
        self._reader = reader
        self._start = start
        self._on_left = on_left
        self._wanted: dict[int, QueueSlot] = {}
        self._leaving: dict[int, float] = {}
        self._paused: set[int] = set()
        self._unset_since: dict[int, float] = {}
        self._offsets: dict[int, int] = {}  # broadcasting: where a queue goes on after it was left

    @property
    def is_settled(self) -> bool:
        """Whether exactly the wanted queues are held, and nothing is on its way."""
        return not self._leaving and self.held.keys() == self._wanted.keys()

    @property
    def missing(self) -> list[QueueSlot]:
        """Wanted queues that are not held yet."""
        return [slot for index, slot in self._wanted.items() if index not in self.held]

    def name_of(self, slot: QueueSlot) -> str:
        """Return a name of a queue that means the same after a restart."""
        return str(slot.queue_id)

    def go_on(self, offsets: Mapping[int, int]) -> None:
        """Say by queue index where a broadcast consumer was, for queues it has not read yet."""
        self._offsets = {**offsets, **self._offsets}

    def want(self, wanted: Iterable[QueueSlot], all_slots: Iterable[QueueSlot], now: float) -> None:
        """Say which queues to read from now on, out of all queues of the topic; `step()` makes it so."""
        self._wanted = {slot.queue_index: slot for slot in wanted}
        self._drop_lost()
        self._write_start(list(all_slots))
        for index in self.held:
            if index in self._wanted:
                if self._leaving.pop(index, None) is not None:
                    self._reader.pause(index, index in self._paused)
            elif index not in self._leaving:
                self._leaving[index] = now + options.REVOKE_TIMEOUT
                self._reader.pause(index, True)

    def _drop_lost(self) -> None:
        """Stop reading what is not ours any more (rule 5); where it is wanted, it is taken again."""
        for index, slot in list(self.held.items()):
            if slot.offset_slot >= 0 and self._store.offset_owner(slot.offset_slot) != self._store.client_slot:
                self._forget(index)

    def step(self, now: float) -> bool:
        """Leave and take what can be left and taken; True while something is still pending."""
        if self._leaving:
            in_flight = self._in_flight()
            for index, deadline in list(self._leaving.items()):
                if now >= deadline or not in_flight.get(index, 0):
                    self._leave(index)
        took = [slot for slot in self.missing if self._take(slot, now)]
        if took:
            self._reader.wake()
        return not self.is_settled

    def pause(self, queue_id: int, *, paused: bool) -> None:
        """Stop or go on delivering a held queue; one that is being left stays silent."""
        for index, slot in self.held.items():
            if slot.queue_id == queue_id:
                (self._paused.add if paused else self._paused.discard)(index)
                if index not in self._leaving:
                    self._reader.pause(index, paused)

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

    def leave_all(self) -> None:
        """Give every queue up at once; messages in flight are delivered again, to whoever reads next."""
        self._wanted = {}
        for index in list(self.held):
            self._leave(index)

    def _leave(self, index: int) -> None:
        slot = self.held[index]
        if slot.offset_slot < 0:
            self._offsets.update({entry[1]: entry[4] for entry in self._reader.assigned() if entry[1] == index})
        self._forget(index)
        if slot.offset_slot >= 0:
            self._store.offset_leave(slot.offset_slot)

    def _forget(self, index: int) -> None:
        slot = self.held.pop(index)
        self._leaving.pop(index, None)
        self._paused.discard(index)
        self._reader.revoke(index)
        if self._on_left is not None:
            self._on_left(slot.queue_id)

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
