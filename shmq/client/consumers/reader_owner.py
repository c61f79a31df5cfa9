"""Owns what a reader and the messages of it ask of their consumer. It does not know readers.

Rule: nothing happens once the consumer is cut off, be it that its reader was replaced, or in a forked child.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from shmq.client.consumers.consumer import Consumer
    from shmq.shm.core import Message


class ReaderOwner:
    """What a reader and its messages call; cut off from its consumer when the reader is replaced."""

    __slots__ = ("consumer",)

    def __init__(self, consumer: Consumer) -> None:
        self.consumer: Consumer | None = consumer

    def _nack(self, message: Message, after: float | None) -> None:
        if self.consumer is not None:
            self.consumer._returns.give_back(message, after)

    def _stray(self, message: Message) -> None:
        if self.consumer is not None:
            self.consumer._pass_on(message)

    def _extend(self, message: Message, seconds: float) -> None:
        if self.consumer is not None:
            self.consumer._returns.extend(message, seconds)

    def _idle(self) -> bool:
        return self.consumer is None or self.consumer._stopped

    def _now(self) -> float:
        return time.monotonic() if self.consumer is None else self.consumer._connection._coordinator.clock.now()

    def _later(self, seconds: float, job: Callable[[], None]) -> None:
        if self.consumer is not None:
            self.consumer._connection._coordinator.call_after(seconds, job)
