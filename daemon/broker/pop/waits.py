"""Pops that wait for messages.

    waiting -> a queue of its topic, or of its retries, has news    tried again
            -> its time is over                                     answered that there is none
            -> its connection is gone                               forgotten

Invariants:
 1. `watch` names every queue a pop waits on, with the lowest offset that would be news to one of them.
 2. `version` changes when what was last watched would miss news.
 3. Numbers are bounded, for each connection and for all; beyond them no pop waits.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from shmq.daemon.broker.pop.header import PopHeader
from shmq.daemon.logic.requests import Call


@dataclass(slots=True, eq=False)
class HeldPop:
    """One pop, or one that asks whether there is something; `offsets` are what would be news to it, by queue."""

    call: Call
    header: PopHeader
    until_ms: int
    offsets: dict[int, int] = field(default_factory=dict)


class PopWaits:
    """All pops that wait."""

    def __init__(self, *, waiting_max: int, waiting_per_connection_max: int) -> None:
        self._max = waiting_max
        self._per_connection_max = waiting_per_connection_max
        self._waiting: dict[HeldPop, None] = {}
        self._by_queue: dict[int, dict[HeldPop, None]] = {}
        self._counts: Counter[int] = Counter()
        self._offsets: dict[int, int] = {}
        self._watched: dict[int, int] = {}
        self.version = 0

    def __len__(self) -> int:
        return len(self._waiting)

    def watch(self) -> Mapping[int, int]:
        """Return queue index -> lowest offset waited for; the caller watches these from now on."""
        self._watched = dict(self._offsets)
        return self._watched

    def has_room(self, connection_id: int) -> bool:
        """Say whether one more may wait."""
        return len(self._waiting) < self._max and self._counts[connection_id] < self._per_connection_max

    def add(self, waiting: HeldPop) -> None:
        """Let a pop wait."""
        self._waiting[waiting] = None
        self._counts[waiting.call.connection.connection_id] += 1
        self._enter(waiting)

    def update(self, waiting: HeldPop, offsets: dict[int, int]) -> None:
        """Let a pop that waits go on with other offsets, perhaps of other queues."""
        if offsets != waiting.offsets:
            self._leave(waiting)
            waiting.offsets = offsets
            self._enter(waiting)

    def remove(self, waiting: HeldPop) -> None:
        """End a wait."""
        del self._waiting[waiting]
        connection_id = waiting.call.connection.connection_id
        self._counts[connection_id] -= 1
        if not self._counts[connection_id]:
            del self._counts[connection_id]
        self._leave(waiting)

    def of(self, queues: Iterable[int]) -> list[HeldPop]:
        """Return who waits on one of these queues, the longest waiting first."""
        found = {waiting for queue in queues for waiting in self._by_queue.get(queue, ())}
        return [waiting for waiting in self._waiting if waiting in found] if found else []

    def all(self) -> list[HeldPop]:
        """Return who waits, the longest waiting first."""
        return list(self._waiting)

    def count_of(self, group: str, topic: str, queue_id: int) -> int:
        """Return how many wait with exactly these fields."""
        wanted = (group, topic, queue_id)
        return sum((each.header.group, each.header.topic, each.header.queue_id) == wanted for each in self._waiting)

    def due(self, now_ms: int) -> list[HeldPop]:
        """Return whose time is over."""
        return [waiting for waiting in self._waiting if waiting.until_ms <= now_ms]

    @property
    def next_until_ms(self) -> int | None:
        """When the first of these times is over; None when no pop waits."""
        return min((waiting.until_ms for waiting in self._waiting), default=None)

    def of_connection(self, connection_id: int) -> list[HeldPop]:
        """Return what a connection waits for."""
        if connection_id not in self._counts:
            return []
        return [waiting for waiting in self._waiting if waiting.call.connection.connection_id == connection_id]

    def _enter(self, waiting: HeldPop) -> None:
        for queue in waiting.offsets:
            self._by_queue.setdefault(queue, {})[waiting] = None
            self._update(queue)

    def _leave(self, waiting: HeldPop) -> None:
        for queue in waiting.offsets:
            others = self._by_queue[queue]
            del others[waiting]
            if not others:
                del self._by_queue[queue]
            self._update(queue)

    def _update(self, queue: int) -> None:
        waiting = self._by_queue.get(queue)
        lowest = min(each.offsets[queue] for each in waiting) if waiting else None
        if lowest is None:
            del self._offsets[queue]
            return
        self._offsets[queue] = lowest
        watched = self._watched.get(queue)
        if watched is None or lowest < watched:
            self.version += 1
