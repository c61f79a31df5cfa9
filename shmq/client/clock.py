"""Owns the clock by which consumers decide that a delay or an invisible time is over.

It does not know who waits. It runs like `time.monotonic()` and can be moved ahead, never back: tests move it instead
of sleeping. Waits inside the core, the store's timestamps and the broker's own clock are not moved by it.
"""

from __future__ import annotations

import time

from shmq.errors import UsageError


class Clock:
    """Monotonic seconds plus an amount that tests add."""

    __slots__ = ("_ahead",)

    def __init__(self) -> None:
        self._ahead = 0.0

    def now(self) -> float:
        """Return seconds since an arbitrary start."""
        return time.monotonic() + self._ahead

    def advance(self, seconds: float) -> None:
        """Move the clock ahead; whoever waits on it must be woken by the caller.

        Raises:
            UsageError: `seconds` is negative.
        """
        if seconds < 0:
            raise UsageError(
                f"a clock cannot be moved back by {-seconds} s", hint="advance(seconds=…) takes seconds >= 0"
            )
        self._ahead += seconds
