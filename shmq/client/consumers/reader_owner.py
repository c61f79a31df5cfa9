"""What a reader and the messages of it ask of their consumer, until it is cut off.

Rule: nothing happens once it is cut off, be it that the consumer has another reader now, or in a forked child.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from shmq.client.coordinator import Coordinator
    from shmq.client.redelivery.redelivery import Redelivery
    from shmq.shm.core import Message


class ReaderOwner:
    """The methods that readers and messages call; the core knows them by these names."""

    __slots__ = ("_extend", "_idle", "_later", "_nack", "_now", "_stray")

    def __init__(
        self,
        redelivery: Redelivery,
        coordinator: Coordinator,
        *,
        stray: Callable[[Message], None],
        is_stopped: Callable[[], bool],
    ) -> None:
        self._nack: Callable[[Message, float | None], object] = redelivery.nack
        self._extend: Callable[[Message, float], None] = redelivery.extend
        self._stray: Callable[[Message], None] = stray  # a message of the retry topic that another consumer reads
        self._idle: Callable[[], bool] = is_stopped
        self._now: Callable[[], float] = coordinator.clock.now
        self._later: Callable[[float, Callable[[], None]], None] = coordinator.call_after

    def cut_off(self) -> None:
        """Let nothing happen any more, and an iteration end."""
        self._nack = self._extend = self._stray = self._later = _nothing
        self._idle = _yes
        self._now = time.monotonic


def _nothing(*_: object) -> None:
    return


def _yes() -> bool:
    return True
