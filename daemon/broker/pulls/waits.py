"""Pulls that wait for messages.

    held -> a message it wants is visible     answered
         -> one it does not want is           answered `NEWS_MS` later, with the offset behind it: that is no lag
         -> its time is over                  answered that there is none
         -> its connection is gone            forgotten

Invariants:
 1. `watch` names every queue a pull waits on, with the lowest offset that would be news to one of them.
 2. `version` changes when what was last watched would miss news: not when a pull stops waiting, or waits for later.
 3. Numbers are bounded, for each connection and for all; beyond them no pull is held.
 4. No change costs more than the logarithm of how many wait.
"""

import heapq
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from shmq.daemon.broker.pulls.header import PullHeader
from shmq.daemon.logic.requests import Call

NEWS_MS = 2000  # RocketMQ looks at held pulls again every 5 s
_SPARE = 16  # offsets without a waiting pull, before they are removed


@dataclass(slots=True, eq=False)
class HeldPull:
    """One pull; `next_offset` passes over what it has seen and does not want, `header` is how it came."""

    call: Call
    queue: int
    next_offset: int
    until_ms: int  # earlier, once it has news of what it does not want
    header: PullHeader


class _Queue:
    """The pulls that wait on one queue, in the order they came, and the offsets they wait for."""

    __slots__ = ("counts", "heap", "held")

    def __init__(self) -> None:
        self.held: dict[HeldPull, None] = {}
        self.counts: Counter[int] = Counter()
        self.heap: list[int] = []  # every offset of `counts`, and some without a waiting pull

    def waits_for(self, offset: int) -> None:
        self.counts[offset] += 1
        if self.counts[offset] > 1:
            return
        heapq.heappush(self.heap, offset)
        if len(self.heap) > 2 * len(self.counts) + _SPARE:
            self.heap = list(self.counts)
            heapq.heapify(self.heap)

    def waits_no_more_for(self, offset: int) -> None:
        self.counts[offset] -= 1
        if not self.counts[offset]:
            del self.counts[offset]

    @property
    def lowest(self) -> int:
        while self.heap[0] not in self.counts:
            heapq.heappop(self.heap)
        return self.heap[0]


class PullWaits:
    """All pulls that wait."""

    def __init__(self, *, held_max: int, held_per_connection_max: int) -> None:
        self._held_max = held_max
        self._held_per_connection_max = held_per_connection_max
        self._queues: dict[int, _Queue] = {}
        self._by_connection: dict[int, dict[HeldPull, None]] = {}
        self._count = 0
        self._watched: dict[int, int] = {}
        self.version = 0

    def __len__(self) -> int:
        return self._count

    @property
    def queues(self) -> Iterable[int]:
        """Return the queues that pulls wait on."""
        return tuple(self._queues)

    def watch(self) -> dict[int, int]:
        """Return queue index -> lowest offset waited for; the caller watches these from now on."""
        self._watched = {queue: waiting.lowest for queue, waiting in self._queues.items()}
        return dict(self._watched)

    def has_room(self, connection_id: int) -> bool:
        """Say whether one more may wait."""
        own = self._by_connection.get(connection_id, ())
        return self._count < self._held_max and len(own) < self._held_per_connection_max

    def add(self, held: HeldPull) -> None:
        """Let a pull wait."""
        waiting = self._queues.setdefault(held.queue, _Queue())
        waiting.held[held] = None
        waiting.waits_for(held.next_offset)
        self._by_connection.setdefault(held.call.connection.connection_id, {})[held] = None
        self._count += 1
        self._look_at(held.queue, held.next_offset)

    def of(self, queue: int) -> Iterable[HeldPull]:
        """Return who waits on a queue, the longest waiting first."""
        waiting = self._queues.get(queue)
        return tuple(waiting.held) if waiting is not None else ()

    def move(self, held: HeldPull, next_offset: int, now_ms: int) -> None:
        """Let a pull that waits do so for another offset, and not for long."""
        held.until_ms = min(held.until_ms, now_ms + NEWS_MS)
        waiting = self._queues[held.queue]
        waiting.waits_no_more_for(held.next_offset)
        waiting.waits_for(next_offset)
        held.next_offset = next_offset
        self._look_at(held.queue, next_offset)

    def remove(self, held: HeldPull) -> None:
        """End a wait."""
        waiting = self._queues[held.queue]
        del waiting.held[held]
        waiting.waits_no_more_for(held.next_offset)
        if not waiting.held:
            del self._queues[held.queue]
        connection_id = held.call.connection.connection_id
        own = self._by_connection[connection_id]
        del own[held]
        if not own:
            del self._by_connection[connection_id]
        self._count -= 1

    def due(self, now_ms: int) -> list[HeldPull]:
        """Return whose time is over."""
        all_held = (held for waiting in self._queues.values() for held in waiting.held)
        return [held for held in all_held if held.until_ms <= now_ms]

    def of_connection(self, connection_id: int) -> list[HeldPull]:
        """Return what a connection waits for."""
        return list(self._by_connection.get(connection_id, ()))

    def _look_at(self, queue: int, offset: int) -> None:
        watched = self._watched.get(queue)
        if watched is None or watched > offset:
            self._watched[queue] = offset  # as soon as the caller looks; until then others need not say it again
            self.version += 1
