"""Which messages come again from local memory, and when: those nacked, and those whose invisible time is running.

No thread, clock or reader: messages and times go in, messages that are due come out.

    lease(messages, due)     simple consumer: delivered, hidden until `due`
    extend(message, due)     the same message is hidden until another time
    requeue(message, due)    nack: to be delivered again at `due`; the core calls such a message settled
    take_due(now)            what must be delivered again now
    forget(queue_id)         the queue went to another member

Rules:
    (1) a message that was acknowledged meanwhile never comes out;
    (2) a message comes out once for each time it was delivered, at the time that was said last;
    (3) acknowledged messages of a lease are let go at the next `prune()`, so a busy consumer does not hold them for the
        whole invisible time.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from shmq.shm.core import Message

Key = tuple[int, int]  # queue id, queue offset


class _Appointment(NamedTuple):
    due: float
    is_nacked: bool


_TAKEN = _Appointment(float("-inf"), False)


class Schedule:
    """A timetable of messages of one topic."""

    __slots__ = ("_entries", "_sequence", "_single")

    def __init__(self) -> None:
        self._entries: list[tuple[float, int, list[Message]]] = []
        self._single: dict[Key, _Appointment] = {}  # what was said of one message alone; outweighs its lease
        self._sequence = 0

    def __len__(self) -> int:
        return sum(len(messages) for _, _, messages in self._entries)

    @property
    def next_due(self) -> float | None:
        """The time of the earliest entry; None when nothing waits."""
        return self._entries[0][0] if self._entries else None

    def lease(self, messages: Sequence[Message], due: float) -> None:
        """Hide delivered messages until `due`."""
        for message in messages:
            if (key := key_of(message)) in self._single:
                self._single[key] = _Appointment(due, False)
        self._push(due, list(messages))

    def extend(self, message: Message, due: float) -> None:
        """Hide a delivered message until `due`."""
        self._single[key_of(message)] = _Appointment(due, False)
        self._push(due, [message])

    def requeue(self, message: Message, due: float) -> None:
        """Deliver the message again at `due`."""
        self._single[key_of(message)] = _Appointment(due, True)
        self._push(due, [message])

    def take_due(self, now: float) -> list[Message]:
        """Take the messages whose time has come, oldest first."""
        taken: list[Message] = []
        while self._entries and self._entries[0][0] <= now:
            due, _, messages = heapq.heappop(self._entries)
            for message in messages:
                if self._waits(message, due):
                    self._single[key_of(message)] = _TAKEN  # older entries with it count no more
                    taken.append(message)
        return taken

    def prune(self) -> None:
        """Let acknowledged messages go, and what was remembered of messages that are not here any more."""
        self._keep(self._waits)

    def forget(self, queue_id: int) -> None:
        """Drop the messages of one queue."""
        self._keep(lambda message, _: message.queue_id != queue_id)
        self._single = {key: said for key, said in self._single.items() if key[0] != queue_id}

    def _waits(self, message: Message, due: float) -> bool:
        said = self._single.get(key_of(message))
        if said is not None and said.due != due:
            return False
        return not message.settled or (said is not None and said.is_nacked)

    def _keep(self, wanted: Callable[[Message, float], bool]) -> None:
        kept = []
        for due, sequence, messages in self._entries:
            rest = [message for message in messages if wanted(message, due)]
            if rest:
                kept.append((due, sequence, rest))
        heapq.heapify(kept)
        self._entries = kept
        alive = {key_of(message) for _, _, messages in kept for message in messages}
        self._single = {key: said for key, said in self._single.items() if key in alive}

    def _push(self, due: float, messages: list[Message]) -> None:
        if messages:
            self._sequence += 1
            heapq.heappush(self._entries, (due, self._sequence, messages))


def key_of(message: Message) -> Key:
    """Return what identifies a message within its topic."""
    return message.queue_id, message.offset
