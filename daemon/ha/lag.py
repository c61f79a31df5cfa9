"""Measures how many milliseconds a position of the log lags behind its end. No clock, no socket.

    samples    (end, when it was seen first) …, oldest first, at most SAMPLES_MAX of them
    lag        the age of the oldest sample whose end is above the position

A position that everything before the oldest sample is above lags at least as long as that sample is old.

Invariant: ends and times of the samples rise; the newest sample is the end that was seen last.

One thread lets the log grow, and any thread may ask: a sample is one value, and a list that was taken gets no shorter.
"""

from __future__ import annotations

SAMPLES_MAX = 1024
_APART_MS = 10  # no two samples are closer, so lags are exact to that


class LagClock:
    """Watches one log grow."""

    def __init__(self) -> None:
        self._samples: list[tuple[int, int]] = []

    @property
    def end(self) -> int:
        """The end that was seen last; 0 before that."""
        return self._samples[-1][0] if self._samples else 0

    def grown(self, end: int, now_ms: int) -> None:
        """The log ends here now."""
        samples = self._samples
        if not samples or end > samples[-1][0]:
            if len(samples) > 1 and now_ms - samples[-2][1] < _APART_MS:
                samples[-1] = end, samples[-1][1]  # the time of what it replaces: a lag is never shown too small
                return
            samples.append((end, now_ms))
            if len(samples) > SAMPLES_MAX:
                # Lags of long ago become coarse, those of now stay exact.
                pairs = zip(samples[: SAMPLES_MAX // 2 : 2], samples[1 : SAMPLES_MAX // 2 : 2], strict=True)
                self._samples = [(end, at_ms) for (_, at_ms), (end, _) in pairs] + samples[SAMPLES_MAX // 2 :]

    def lag_ms(self, position: int, now_ms: int) -> int:
        """Return for how long the log has been longer than up to a position; 0 where it is not."""
        samples = self._samples
        low, high = 0, len(samples)
        while low < high:
            middle = (low + high) // 2
            low, high = (middle + 1, high) if samples[middle][0] <= position else (low, middle)
        return now_ms - samples[low][1] if low < len(samples) else 0
