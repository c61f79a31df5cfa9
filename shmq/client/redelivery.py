"""Owns which messages come again, and when: those given back, and those whose invisible time is running.

It does not know threads, clocks, readers or dead letters: messages and times go in, messages that are due come out.

    lease(messages, due)    simple consumer: delivered, hidden until `due`
    move(message, due)      nack or extend: this message is due at another time
    take_due(now)           what must be delivered again now
    forget()                the queue went to another member, or the cursor was moved

Rules:
    (1) a message that was acknowledged meanwhile never comes out;
    (2) a message comes out once for each time it went in, at the last time it was moved to;
    (3) acknowledged messages of a lease are let go at the next `prune()`, so a busy consumer does not hold them for the
        whole invisible time.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from shmq.shm.core import Message

Key = tuple[int, int]  # queue id, queue offset


class Redelivery:
    """A timetable of messages of one topic."""

    __slots__ = ("_entries", "_moved", "_sequence")

    def __init__(self) -> None:
        self._entries: list[tuple[float, int, list[Message]]] = []
        self._moved: dict[Key, float] = {}
        self._sequence = 0

    def __len__(self) -> int:
        return sum(len(messages) for _, _, messages in self._entries)

    @property
    def next_due(self) -> float | None:
        """The time of the earliest entry; None when nothing waits."""
        return self._entries[0][0] if self._entries else None

    def lease(self, messages: Sequence[Message], due: float) -> None:
        """Hide delivered messages until `due`."""
        if messages:
            self._push(due, list(messages))

    def move(self, message: Message, due: float) -> None:
        """Let the message be due at `due`, whatever was agreed before."""
        self._moved[key_of(message)] = due
        self._push(due, [message])

    def take_due(self, now: float) -> list[Message]:
        """Take the messages whose time has come, oldest first."""
        taken: list[Message] = []
        while self._entries and self._entries[0][0] <= now:
            due, _, messages = heapq.heappop(self._entries)
            for message in messages:
                key = key_of(message)
                if self._moved.get(key, due) != due:
                    continue
                self._moved.pop(key, None)
                if not message.settled:
                    taken.append(message)
        return taken

    def prune(self) -> None:
        """Let acknowledged messages go."""
        kept = []
        for due, sequence, messages in self._entries:
            waiting = [message for message in messages if not message.settled]
            if waiting:
                kept.append((due, sequence, waiting))
        heapq.heapify(kept)
        self._entries = kept
        if self._moved:
            alive = {key_of(message) for _, _, messages in kept for message in messages}
            self._moved = {key: due for key, due in self._moved.items() if key in alive}

    def forget(self, concerns: Callable[[int], bool]) -> None:
        """Drop the messages of every queue id that `concerns` is true for."""
        kept = []
        for due, sequence, messages in self._entries:
            rest = [message for message in messages if not concerns(message.queue_id)]
            if rest:
                kept.append((due, sequence, rest))
        heapq.heapify(kept)
        self._entries = kept
        self._moved = {key: due for key, due in self._moved.items() if not concerns(key[0])}

    def _push(self, due: float, messages: list[Message]) -> None:
        self._sequence += 1
        heapq.heappush(self._entries, (due, self._sequence, messages))


def key_of(message: Message) -> Key:
    """Return what identifies a message within its topic."""
    return message.queue_id, message.offset


def unsettled(messages: Iterable[Message]) -> list[Message]:
    """Return the messages nobody has acknowledged yet."""
    return [message for message in messages if not message.settled]
