"""The time at which a part of the broker wants to be woken: set, moved and rung.

A part returns the `Wake` that `set` makes as an effect. The host calls `woken` of every part when any part's time has
come, so a part asks its alarm whether it was meant:

    no time is set          nothing is done
    it is not that late     the rest of the time is asked for again
    the time has come       the alarm is off, and the part does its work
"""

from collections.abc import Callable, Sequence

from shmq.daemon.logic.effects import Effect, Wake


class Alarm:
    """One part's alarm; off at first."""

    def __init__(self) -> None:
        self._at_ms: int | None = None

    def set(self, now_ms: int, after_ms: int) -> Wake:
        """Ring in so many milliseconds, whatever was set before."""
        self._at_ms = now_ms + after_ms
        return Wake(after_ms)

    def set_by(self, now_ms: int, due_ms: int) -> list[Wake]:
        """Ring at a time at the latest; nothing is asked for where it rings by then anyhow."""
        if self._at_ms is not None and self._at_ms <= due_ms:
            return []
        return [self.set(now_ms, max(due_ms - now_ms, 0))]

    def stop(self) -> None:
        """Do not ring."""
        self._at_ms = None

    def ring(self, now_ms: int, act: Callable[[int], Sequence[Effect]]) -> Sequence[Effect]:
        """Call `act` with the time if it has come; return what has to be done now."""
        if self._at_ms is None:
            return ()
        if now_ms < self._at_ms:
            return (Wake(self._at_ms - now_ms),)
        self._at_ms = None
        return act(now_ms)
