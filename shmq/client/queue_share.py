"""The share of a topic's queues that one consumer reads: `QueueShare` sees all of them, a `ReaderShare` takes its own.

What a wire does in its way is in wire_shm/groups.py and remote/share.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Protocol

from shmq.client import options
from shmq.client.wire import MessageSource, QueueSlot


class Reading(Protocol):
    """What a share does to the reader of its queues."""

    def pause(self, queue: int, paused: bool, /) -> None:
        """Leave a queue out, or take it in again."""

    def revoke(self, queue: int, /) -> None:
        """Stop reading a queue; its messages move no offset any more."""


class QueueShare:
    """The queues of a topic that one consumer reads: here all of them, and none is owned. Nothing here waits.

    A `ReaderShare` takes and leaves queues; any share that has nothing to do for one of these calls does nothing.
    """

    step_interval = options.TAKE_INTERVAL

    def __init__(self) -> None:
        self.held: dict[int, QueueSlot] = {}

    @property
    def missing(self) -> list[QueueSlot]:
        """Wanted queues that are not held yet."""
        return []

    def lag(self, source: MessageSource) -> int:
        """Return how many messages of the held queues, which `source` hands out, are not settled."""
        return source.lag()

    def name_of(self, slot: QueueSlot) -> str:
        """Return a name of a queue that means the same after a restart."""
        return str(slot.queue_id)

    def go_on(self, offsets: Mapping[int, int]) -> None:
        """Say by queue index where a broadcast consumer was, for queues it has not read yet."""

    def want(self, wanted: Iterable[QueueSlot], all_slots: Iterable[QueueSlot], now: float) -> None:
        """Say which queues to read from now on, out of all queues of the topic; `step()` makes it so."""
        self.held = {slot.queue_index: slot for slot in wanted}

    def step(self, now: float) -> bool:
        """Leave and take what can be left and taken, without waiting; True while something is pending."""
        return False

    def pause(self, queue_id: int, *, paused: bool) -> None:
        """Stop or go on delivering a held queue; one that is being left stays silent."""

    def retake(self) -> None:
        """After a reconnection: make sure that the held queues are still ours."""

    def finish(self) -> None:
        """Before every queue is given up: wait, not for long, for what was asked of a broker."""

    def leave_all(self) -> None:
        """Give every queue up at once; messages in flight are delivered again, to the next reader."""
        self.held = {}


class ReaderShare(QueueShare):
    """The queues that a reader is given: `want` names them, `step` takes them.

        free ──taken──▶ held ──no longer wanted──▶ leaving ──nothing in flight, or time is up──▶ free
                                                     │ paused: delivers nothing new, acknowledgements still count
                                                     └──wanted again──▶ held

    Invariant: a broadcast consumer takes and leaves without asking, and its last offset is handed to it.
    """

    def __init__(self, reader: Reading, on_left: Callable[[int], None]) -> None:
        """`on_left` is called with the id of a queue left."""
        super().__init__()
        self._reader = reader
        self._on_left = on_left
        self._wanted: dict[int, QueueSlot] = {}
        self._leaving: dict[int, float] = {}
        self._paused: set[int] = set()
        self._offsets: dict[int, int] = {}  # broadcasting: where a queue goes on after it was left

    @property
    def missing(self) -> list[QueueSlot]:
        return [slot for index, slot in self._wanted.items() if index not in self.held]

    def go_on(self, offsets: Mapping[int, int]) -> None:
        self._offsets = {**offsets, **self._offsets}

    def want(self, wanted: Iterable[QueueSlot], all_slots: Iterable[QueueSlot], now: float) -> None:
        self._wanted = {slot.queue_index: slot for slot in wanted}
        self._prepare(list(all_slots))
        for index in self.held:
            if index in self._wanted:
                if self._leaving.pop(index, None) is not None:
                    self._reader.pause(index, self._is_paused(index))
            elif index not in self._leaving:
                self._leaving[index] = now + options.REVOKE_TIMEOUT
                self._reader.pause(index, True)

    def step(self, now: float) -> bool:
        in_flight = self._in_flight() if self._leaving else {}
        for index, deadline in list(self._leaving.items()):
            if now >= deadline or not in_flight.get(index, 0):
                self._leave(index)
        return self._take_missing(now)

    def pause(self, queue_id: int, *, paused: bool) -> None:
        for index, slot in self.held.items():
            if slot.queue_id == queue_id:
                (self._paused.add if paused else self._paused.discard)(index)
                if index not in self._leaving:
                    self._reader.pause(index, self._is_paused(index))

    def leave_all(self) -> None:
        self._wanted = {}
        for index in list(self.held):
            self._leave(index)

    def _forget(self, index: int) -> None:
        """Read a queue no more."""
        slot = self.held.pop(index)
        self._leaving.pop(index, None)
        self._paused.discard(index)
        self._reader.revoke(index)
        self._on_left(slot.queue_id)

    # -- what each wire does in its way
    def _is_paused(self, index: int) -> bool:
        """Whether a queue is ours and delivers nothing now."""
        return index in self._paused

    def _prepare(self, all_slots: list[QueueSlot]) -> None:
        """Do what has to be done before queues are taken and left."""

    def _in_flight(self) -> Mapping[int, int]:
        """Return by queue index how many messages are in the hands of the application."""
        raise NotImplementedError

    def _take_missing(self, now: float) -> bool:
        """Take what can be taken; True while something is pending."""
        raise NotImplementedError

    def _leave(self, index: int) -> None:
        """Forget a queue, and let others have it."""
        raise NotImplementedError
