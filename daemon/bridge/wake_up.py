"""Wakes the event loop with one timer, at the earliest of all times that were asked for.

One is enough: a part that is woken too early asks again.

Rule: what the timer is due at is kept here. A loop's handle need not know it: uvloop gives one without a time where the
time has passed between two of its looks at the clock.
"""

import asyncio
from collections.abc import Callable


class WakeUp:
    """Calls `action` no later than it was asked to."""

    def __init__(self, action: Callable[[], None]) -> None:
        self._action = action
        self._timer: asyncio.Handle | None = None
        self._due = 0.0

    def within(self, seconds: float) -> None:
        """Have the action called within that time."""
        loop = asyncio.get_running_loop()
        due = loop.time() + seconds
        if self._timer is not None:
            if self._due <= due:
                return
            self._timer.cancel()
        self._timer, self._due = loop.call_at(due, self._wake), due

    def close(self) -> None:
        """Call nothing from now on."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _wake(self) -> None:
        self._timer = None
        self._action()
