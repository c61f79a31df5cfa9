"""Pulls that wait for messages.

Owns who waits on which queue, from where and until when. It does not know how a pull is answered.

    held -> a message it wants is visible     answered
         -> its time is over                  answered that there is none
         -> its connection is gone            forgotten

Invariants:
 1. `offsets` names every queue somebody waits on, with the lowest offset that would be news to one of them.
 2. Numbers are bounded, for each connection and for all; beyond them nobody is held.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from shmq.daemon.broker.requests import Call


@dataclass(slots=True, eq=False)
class HeldPull:
    """One pull; `next_offset` passes over what it has seen and does not want."""

    call: Call
    queue: int
    next_offset: int
    until_ms: int


class Holding:
    """All pulls that wait."""

    def __init__(self, *, held_max: int, held_per_connection_max: int) -> None:
        self._held_max = held_max
        self._held_per_connection_max = held_per_connection_max
        self._by_queue: dict[int, list[HeldPull]] = {}
        self._counts: Counter[int] = Counter()
        self._count = 0
        self._offsets: dict[int, int] = {}
        self.version = 0  # changes with `offsets`

    @property
    def offsets(self) -> Mapping[int, int]:
        """Queue index -> lowest offset waited for."""
        return self._offsets

    def has_room(self, connection_id: int) -> bool:
        """Say whether one more may wait."""
        return self._count < self._held_max and self._counts[connection_id] < self._held_per_connection_max

    def add(self, held: HeldPull) -> None:
        """Let a pull wait."""
        self._by_queue.setdefault(held.queue, []).append(held)
        self._counts[held.call.connection.connection_id] += 1
        self._count += 1
        self._update(held.queue)

    def of(self, queue: int) -> Iterable[HeldPull]:
        """Return who waits on a queue, the longest waiting first."""
        return tuple(self._by_queue.get(queue, ()))

    def moved(self, queue: int) -> None:
        """Take note that a pull of this queue waits for a later offset now."""
        self._update(queue)

    def remove(self, held: HeldPull) -> None:
        """End a wait."""
        waiting = self._by_queue[held.queue]
        waiting.remove(held)
        connection_id = held.call.connection.connection_id
        self._counts[connection_id] -= 1
        if not self._counts[connection_id]:
            del self._counts[connection_id]
        self._count -= 1
        if not waiting:
            del self._by_queue[held.queue]
        self._update(held.queue)

    def due(self, now_ms: int) -> list[HeldPull]:
        """Return whose time is over."""
        return [held for waiting in self._by_queue.values() for held in waiting if held.until_ms <= now_ms]

    def of_connection(self, connection_id: int) -> list[HeldPull]:
        """Return what a connection waits for."""
        if connection_id not in self._counts:
            return []
        everyone = (held for waiting in self._by_queue.values() for held in waiting)
        return [held for held in everyone if held.call.connection.connection_id == connection_id]

    def _update(self, queue: int) -> None:
        waiting = self._by_queue.get(queue)
        lowest = min(held.next_offset for held in waiting) if waiting else None
        if lowest == self._offsets.get(queue):
            return
        self.version += 1
        if lowest is None:
            del self._offsets[queue]
        else:
            self._offsets[queue] = lowest
