"""What one reader has of one queue: where to pull next, what was delivered, what is settled, when to slow down.

The reader holds its lock around every call.

    next_offset ──pull──▶ arrived: waiting ──take──▶ in flight ──settle──▶ gone
                                                       │                    committed = lowest offset not settled,
                                                       └─again (local)──▶ in flight        else next_offset

Invariants:
    (1) `committed` never passes a message that was delivered and not settled;
    (2) what arrives for an older generation (before a seek, a reset, a loss of the queue) is dropped;
    (3) pulling pauses while too much is held (`options.is_full`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from shmq.client import options

if TYPE_CHECKING:
    from shmq.protocol.dialect import MessageQueue
    from shmq.shm.core import Message


class ProcessQueue:
    """One queue of one reader."""

    def __init__(self, queue: MessageQueue, number: int, offset: int, *, settles: bool, ordered: bool = False) -> None:
        self.queue = queue
        self.number = number
        self.next_offset = offset
        self.start_offset = offset
        self.settles = settles  # False: nobody acknowledges, delivering counts as settling
        self.ordered = ordered
        self.paused = False
        self.dropped = False
        self.generation = 0
        self.offset_max = offset
        self.stored_offset: int | None = None  # what the broker was told last
        self.broker_id = 0
        self.waiting: deque[Message] = deque()
        self.handed: set[int] = set()  # offsets the broker is taking over
        self.last_pull_ms = 0
        self.last_consumed_ms = 0
        self.locked_at: float | None = None
        self._window: dict[int, int] = {}  # offset -> bytes, ascending
        self._bytes = 0

    @property
    def known_offset(self) -> int:
        """The offset the broker has for the group, as far as we know."""
        return self.start_offset if self.stored_offset is None else self.stored_offset

    @property
    def committed(self) -> int:
        """The offset to be written down for the group."""
        return next(iter(self._window)) if self._window else self.next_offset

    @property
    def delivered_count(self) -> int:
        """Messages in the hands of the application."""
        return len(self._window) - len(self.waiting)

    @property
    def cached_count(self) -> int:
        """Messages held here: waiting or delivered."""
        return len(self._window)

    @property
    def cached_bytes(self) -> int:
        """Bytes of the records held here."""
        return self._bytes

    @property
    def span(self) -> int:
        """How far what was pulled last is ahead of the oldest message not settled, which holds the offset up."""
        return max(0, self.next_offset - 1 - self.committed)

    def is_full(self) -> bool:
        """Whether pulling has to pause."""
        return options.is_full(len(self._window), self._bytes, 0 if self.ordered else self.span)

    def arrive(self, messages: Iterable[Message], next_offset: int, offset_max: int, generation: int) -> bool:
        """Take what a pull returned; False when it is out of date."""
        if self.dropped or generation != self.generation:
            return False
        for message in messages:
            if message.offset >= self.next_offset:
                self._window[message.offset] = message.record_bytes
                self._bytes += message.record_bytes
                self.waiting.append(message)
        self.next_offset = max(next_offset, self.next_offset)
        self.offset_max = max(offset_max, self.next_offset)
        return True

    def take(self) -> Message | None:
        """Return the next message to be delivered; None when there is none, or the queue is paused."""
        if not self.waiting or self.paused or self.dropped:
            return None
        message = self.waiting.popleft()
        if not self.settles:
            self.settle(message.offset)
        return message

    def settle(self, offset: int) -> bool:
        """Let go of a message; False when it was not held any more."""
        size = self._window.pop(offset, None)
        self.handed.discard(offset)
        self._bytes -= size or 0
        return size is not None

    def holds(self, offset: int) -> bool:
        """Whether a message of this offset is not settled."""
        return offset in self._window

    def restart(self, offset: int) -> None:
        """Forget everything and go on at an offset."""
        self.generation += 1
        self.next_offset = self.offset_max = offset
        self.waiting.clear()
        self.handed.clear()
        self._window.clear()
        self._bytes = 0

    def drop(self) -> None:
        """Forget everything; nothing arrives or is delivered any more."""
        final = self.committed
        self.dropped = True
        self.restart(final)

    def info(self) -> dict[str, Any]:
        """Return RocketMQ's ProcessQueueInfo."""
        offsets = (next(iter(self._window)), next(reversed(self._window))) if self._window else (0, 0)
        return {
            "cachedMsgCount": len(self._window),
            "cachedMsgMaxOffset": offsets[1],
            "cachedMsgMinOffset": offsets[0],
            "cachedMsgSizeInMiB": self._bytes >> 20,
            "commitOffset": self.committed,
            "droped": self.dropped,
            "lastConsumeTimestamp": self.last_consumed_ms,
            "lastLockTimestamp": 0,
            "lastPullTimestamp": self.last_pull_ms,
            "locked": self.locked_at is not None,
            "transactionMsgCount": 0,
            "transactionMsgMaxOffset": 0,
            "transactionMsgMinOffset": 0,
            "tryUnlockTimes": 0,
        }
