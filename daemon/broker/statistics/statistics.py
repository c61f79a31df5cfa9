"""Counting over time: sums and rates of the last minute, hour and day, and of the last 10, 60 and 600 seconds.

These are RocketMQ's windows, printed as it prints them; time is handed in.

    window    sampled every    snapshots kept    sum, rate     between the oldest and the newest snapshot
    minute    10 s             7                 avgpt         sum / countings
    hour      10 min           7
    day       1 h              25

Invariants:
 1. A counter that nothing was added to for a day is forgotten; there are at most `COUNTERS_MAX`; more are not counted.
 2. Time that goes back or jumps makes a window shorter or longer, never a rate negative.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from shmq.protocol.admin_body import StatsData, StatsSnapshot

COUNTERS_MAX = 20_000

_SECOND_MS = 1000
_MINUTE = (10_000, 7)
_HOUR = (600_000, 7)
_DAY_MS = 86_400_000
_DAY = (3_600_000, 25)
_RATE_SECONDS = (10, 60, 600)

SENT_BACK = "SNDBCK_PUT_NUMS"  # messages sent back for a retry, by topic@group


class _Snapshot(NamedTuple):
    at_ms: int
    value: int
    times: int


class _Window:
    """Snapshots of one counter, at most so many, one each interval."""

    __slots__ = ("_due_ms", "_every_ms", "_kept")

    def __init__(self, shape: tuple[int, int], now_ms: int) -> None:
        self._every_ms, most = shape
        self._due_ms = self._beat(now_ms)
        self._kept: deque[_Snapshot] = deque([_Snapshot(now_ms, 0, 0)], maxlen=most)

    def sample(self, now_ms: int, value: int, times: int) -> None:
        if now_ms >= self._due_ms:
            self._kept.append(_Snapshot(now_ms, value, times))
            self._due_ms = self._beat(now_ms)

    def _beat(self, now_ms: int) -> int:
        """The next beat, which all counters share: what is compared was counted over the same time."""
        return (now_ms // self._every_ms + 1) * self._every_ms

    def snapshot(self) -> StatsSnapshot:
        first, last = self._kept[0], self._kept[-1]
        total, times, passed_ms = last.value - first.value, last.times - first.times, last.at_ms - first.at_ms
        return StatsSnapshot(
            sum=total,
            tps=total * _SECOND_MS / passed_ms if passed_ms > 0 else 0.0,
            avgpt=total / times if times > 0 else 0.0,
        )


class _Counter:
    __slots__ = ("changed_ms", "day", "hour", "minute", "times", "value")

    def __init__(self, now_ms: int) -> None:
        self.value = 0
        self.times = 0
        self.changed_ms = now_ms
        self.minute, self.hour, self.day = (_Window(shape, now_ms) for shape in (_MINUTE, _HOUR, _DAY))

    def sample(self, now_ms: int) -> None:
        for window in (self.minute, self.hour, self.day):
            window.sample(now_ms, self.value, self.times)


class Statistics:
    """Counters by RocketMQ's name of the statistics and their key."""

    def __init__(self, told: Callable[[str, str, int], None] = lambda name, key, value: None) -> None:
        """
        Args:
            told: called with name, key and value of every addition, for those who keep totals.
        """
        self._told = told
        self._counters: dict[tuple[str, str], _Counter] = {}
        self._due_ms = 0

    def add(self, name: str, key: str, value: int, now_ms: int, *, times: int = 1) -> None:
        """Add `value`, the sum of so many countings."""
        self._told(name, key, value)
        counter = self._counters.get((name, key))
        if counter is None:
            if len(self._counters) >= COUNTERS_MAX:
                return
            counter = self._counters[name, key] = _Counter(now_ms)
        counter.value += value
        counter.times += times
        counter.changed_ms = now_ms

    def tick(self, now_ms: int) -> None:
        """Take the snapshots that are due, and forget who has been silent for a day."""
        if now_ms < self._due_ms:
            return
        every_ms, _ = _MINUTE  # the beats of the longer windows are beats of this one too
        self._due_ms = (now_ms // every_ms + 1) * every_ms
        silent = []
        for key, counter in self._counters.items():
            counter.sample(now_ms)
            if now_ms - counter.changed_ms > _DAY_MS:
                silent.append(key)
        for key in silent:
            del self._counters[key]

    def data(self, name: str, key: str) -> StatsData | None:
        """Return the three windows of a counter; None when nothing was counted."""
        counter = self._counters.get((name, key))
        if counter is None:
            return None
        return StatsData(counter.minute.snapshot(), counter.hour.snapshot(), counter.day.snapshot())

    def tps(self, name: str, key: str) -> float:
        """Return the rate per second of the last minute."""
        counter = self._counters.get((name, key))
        return counter.minute.snapshot().tps if counter else 0.0

    def total(self, name: str, key: str) -> int:
        """Return everything counted so far."""
        counter = self._counters.get((name, key))
        return counter.value if counter else 0

    def forget(self, name: str, key: str) -> None:
        """Drop a counter whose subject is gone."""
        self._counters.pop((name, key), None)


@dataclass(slots=True)
class Rates:
    """Rates of one total over the last 10, 60 and 600 seconds, one sample a second."""

    _samples: deque[tuple[int, int]] = field(default_factory=lambda: deque(maxlen=_RATE_SECONDS[-1] + 1))

    def sample(self, now_ms: int, total: int) -> None:
        """Take note of the total; twice within a second counts once."""
        if not self._samples or now_ms - self._samples[-1][0] >= _SECOND_MS:
            self._samples.append((now_ms, total))

    def rate(self, seconds: int) -> float:
        """Return the rate per second over the last so many seconds, or over what is known."""
        if len(self._samples) < 2:
            return 0.0
        last_ms, last = self._samples[-1]
        first_ms, first = self._samples[max(0, len(self._samples) - 1 - seconds)]
        return max(0.0, (last - first) * _SECOND_MS / (last_ms - first_ms)) if last_ms > first_ms else 0.0

    def __str__(self) -> str:
        """The three rates as RocketMQ prints them."""
        return " ".join(str(self.rate(seconds)) for seconds in _RATE_SECONDS)
