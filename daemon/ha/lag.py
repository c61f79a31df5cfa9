"""Measures how many milliseconds a position of the log lags behind its end. No clock, no socket.

    samples    (end, when it was seen first) …, oldest first, at most SAMPLES_MAX of them
    lag        the age of the oldest sample whose end is above the position

A position that everything before the oldest sample is above lags at least as long as that sample is old.

Invariant: ends and times of the samples rise; the newest sample is the end that was seen last.
"""

from __future__ import annotations

SAMPLES_MAX = 1024
_APART_MS = 10  # no two samples are closer, so lags are exact to that


class LagClock:
    """Watches one log grow."""

    def __init__(self) -> None:
        self._ends: list[int] = []
        self._times: list[int] = []

    @property
    def end(self) -> int:
        """The end that was seen last; 0 before that."""
        return self._ends[-1] if self._ends else 0

    def grown(self, end: int, now_ms: int) -> None:
        """The log ends here now."""
        if not self._ends or end > self._ends[-1]:
            if len(self._ends) > 1 and now_ms - self._times[-2] < _APART_MS:
                self._ends[-1] = end  # with the time of what it replaces: a lag is never shown too small
                return
            self._ends.append(end)
            self._times.append(now_ms)
            if len(self._ends) > SAMPLES_MAX:
                # Lags of long ago become coarse, those of now stay exact.
                self._ends[: SAMPLES_MAX // 2] = self._ends[1 : SAMPLES_MAX // 2 : 2]
                self._times[: SAMPLES_MAX // 2] = self._times[0 : SAMPLES_MAX // 2 - 1 : 2]

    def lag_ms(self, position: int, now_ms: int) -> int:
        """Return for how long the log has been longer than up to a position; 0 where it is not."""
        low, high = 0, len(self._ends)
        while low < high:
            middle = (low + high) // 2
            low, high = (middle + 1, high) if self._ends[middle] <= position else (low, middle)
        return now_ms - self._times[low] if low < len(self._ends) else 0
