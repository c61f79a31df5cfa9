"""Chooses the message a listener's worker takes next: any, or queue by queue with one in flight each.

Messages are offered, taken and finished; the caller holds a lock.

    concurrent   one line for all messages; a free worker takes the next one
    ordered      one lane per queue:   offered ──▶ [waiting …] ──take──▶ running ──finish(consumed)──▶ next
                                                      ▲                     └──finish(given back)──▶ blocked until the
                                                      └────────── same message offered again ◀──────  message is back

Invariants:
    (1) ordered: no message of a queue is taken before all earlier ones offered are finished as consumed;
    (2) a lane holds little more than LISTENER_BACKLOG messages: its queue is paused, the others go on, however long one
        of its messages takes;
    (3) without order a queue is paused while too much of it is taken and not settled (`options.is_full`);
    (4) a forgotten queue leaves nothing behind; finishing one of its messages later has no effect.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping

from shmq.client import options
from shmq.shm.core import Message


class Lane:
    """One queue of an ordered listener."""

    __slots__ = ("blocked_at", "queue_id", "running", "waiting")

    def __init__(self, queue_id: int) -> None:
        self.queue_id = queue_id
        self.waiting: deque[Message] = deque()
        self.running = False
        self.blocked_at: int | None = None  # queue offset that has to be consumed before anything else

    @property
    def is_ready(self) -> bool:
        """Whether its next message may be taken."""
        return bool(self.waiting) and not self.running and self.blocked_at is None


class Lanes:
    """Messages between the dispatcher and the workers of one listener."""

    def __init__(self, *, ordered: bool) -> None:
        self._ordered = ordered
        self._line: deque[Message] = deque()
        self._lanes: dict[int, Lane] = {}
        self._ready: deque[Lane] = deque()
        self._crowded: set[int] = set()
        self._sizes: dict[int, dict[int, int]] = {}  # without order: queue -> offset -> bytes, offered and not finished

    @property
    def waiting_count(self) -> int:
        """Messages offered and not taken that free workers could take one after the other.

        Those behind a message that runs or is given back are none of them: however many they are, the workers that have
        nothing to do need messages of other queues.
        """
        if not self._ordered:
            return len(self._line)
        return sum(len(lane.waiting) for lane in self._lanes.values() if lane.is_ready)

    def waiting_in(self, queue_id: int) -> int:
        """Messages of one queue that wait."""
        lane = self._lanes.get(queue_id)
        return len(lane.waiting) if lane else 0

    def offer(self, message: Message) -> bool:
        """Add a delivered message; True when a worker may take one now."""
        if not self._ordered:
            self._line.append(message)
            self._sizes.setdefault(message.queue_id, {})[message.offset] = message.record_bytes
            return True
        lane = self._lanes.setdefault(message.queue_id, Lane(message.queue_id))
        if lane.blocked_at is None:
            lane.waiting.append(message)
        elif message.offset == lane.blocked_at:
            lane.blocked_at = None
            lane.waiting.appendleft(message)
        else:
            lane.waiting.append(message)
            return False
        return self._make_ready(lane)

    def take(self) -> Message | None:
        """Take the next message a worker may run; None when there is none."""
        if not self._ordered:
            return self._line.popleft() if self._line else None
        while self._ready:
            lane = self._ready.popleft()
            if lane.is_ready and self._lanes.get(lane.queue_id) is lane:
                lane.running = True
                return lane.waiting.popleft()
        return None

    def finish(self, message: Message, *, consumed: bool) -> bool:
        """Say how a taken message ended; True when a worker may take one now."""
        if not self._ordered:
            self._sizes.get(message.queue_id, {}).pop(message.offset, None)
            return bool(self._line)
        lane = self._lanes.get(message.queue_id)
        if lane is None or not lane.running:
            return False
        lane.running = False
        if not consumed:
            lane.blocked_at = message.offset
        return self._make_ready(lane)

    def is_awaited(self, queue_id: int) -> bool:
        """Whether a queue is paused and may be able to go on after one of its messages was finished."""
        if not self._ordered:
            return queue_id in self._crowded
        return self.waiting_in(queue_id) == options.LISTENER_BACKLOG // 2

    def relieve(self, delivered: Iterable[int], spans: Mapping[int, int]) -> dict[int, bool]:
        """Return {queue id: paused} for queues whose delivery has to stop, or may go on, after `delivered` had some.

        Args:
            spans: how far each queue's newest message taken is ahead of the oldest one not settled.
        """
        changes: dict[int, bool] = {}
        for queue_id in self._crowded.union(delivered):
            was_crowded = queue_id in self._crowded
            is_crowded = self._is_crowded(queue_id, spans.get(queue_id, 0), was_crowded=was_crowded)
            if is_crowded != was_crowded:
                changes[queue_id] = is_crowded
        self._crowded = {
            *self._crowded.difference(changes),
            *(queue_id for queue_id, paused in changes.items() if paused),
        }
        return changes

    def _is_crowded(self, queue_id: int, span: int, *, was_crowded: bool) -> bool:
        if self._ordered:
            most = options.LISTENER_BACKLOG // 2 if was_crowded else options.LISTENER_BACKLOG
            return self.waiting_in(queue_id) > most
        sizes = self._sizes.get(queue_id, {})
        return options.is_full(len(sizes), sum(sizes.values()), span)

    def forget(self, queue_id: int) -> None:
        """Drop the messages of a queue that another member reads now."""
        self._lanes.pop(queue_id, None)
        self._crowded.discard(queue_id)
        self._sizes.pop(queue_id, None)
        if self._line:
            self._line = deque(message for message in self._line if message.queue_id != queue_id)

    def _make_ready(self, lane: Lane) -> bool:
        if lane.is_ready and lane not in self._ready:
            self._ready.append(lane)
        return bool(self._ready)
