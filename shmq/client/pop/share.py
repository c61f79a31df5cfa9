"""Owns what a consumer that pops has instead of a share of the queues: all of them, and none to itself.

It does not know who pops; users see the queues, nothing else is done with them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from shmq.client import options
from shmq.client.wire import QueueSlot


class PopShare:
    """The share of a consumer that pops: every queue, and none to itself."""

    step_interval = options.TAKE_INTERVAL

    def __init__(self) -> None:
        self.held: dict[int, QueueSlot] = {}

    @property
    def missing(self) -> list[QueueSlot]:
        """Nothing is waited for."""
        return []

    def name_of(self, slot: QueueSlot) -> str:
        """Return its number; nothing is kept of what is popped."""
        return str(slot.queue_id)

    def go_on(self, offsets: Mapping[int, int]) -> None:
        """Nothing: brokers know where a group is."""

    def want(self, wanted: Iterable[QueueSlot], all_slots: Iterable[QueueSlot], now: float) -> None:
        """Note which queues there are."""
        self.held = {slot.queue_index: slot for slot in wanted}

    def step(self, now: float) -> bool:
        """Return False: nothing is pending."""
        return False

    def pause(self, queue_id: int, *, paused: bool) -> None:
        """Nothing: nobody delivers without being asked."""

    def retake(self) -> None:
        """Nothing: brokers forget no receipt."""

    def leave_all(self) -> None:
        """Read no queue any more."""
        self.held = {}
