"""Owns which brokers a producer keeps away from for a while, because they failed or answered slowly.

It does not know sends or sockets: latencies and failures go in with `now`, verdicts come out. The table is RocketMQ's.

    answered after   550 ms   1 s    2 s     3 s     15 s, or failed (counts as 30 s)
    kept away for    30 s     60 s   120 s   180 s   600 s

Rule: when every broker is to be avoided, the one whose time is over first is taken: avoiding never stops a send.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

FAILED_COUNTS_AS: Final = 30.0
_AVOIDED_AFTER: Final = ((15.0, 600.0), (3.0, 180.0), (2.0, 120.0), (1.0, 60.0), (0.55, 30.0))


def avoid_seconds(latency: float) -> float:
    """Return how long a broker is avoided that took `latency` seconds."""
    return next((avoided for limit, avoided in _AVOIDED_AFTER if latency >= limit), 0.0)


class Latencies:
    """How fast brokers have answered lately: a mean in which an answer weighs a quarter."""

    def __init__(self) -> None:
        self._means: dict[str, float] = {}

    def report(self, broker_name: str, latency: float, *, failed: bool = False) -> None:
        """Note how long a send to a broker took."""
        seconds = FAILED_COUNTS_AS if failed else latency
        mean = self._means.get(broker_name, seconds)
        self._means[broker_name] = mean + (seconds - mean) / 4

    def fastest(self, broker_names: Iterable[str]) -> str | None:
        """Return the broker with the lowest mean, one that was never asked before all others; None if none was."""
        names = sorted(broker_names)
        if not any(name in self._means for name in names):
            return None
        return min(names, key=lambda name: self._means.get(name, 0.0))


class FaultTable:
    """Until when which broker is avoided; times are seconds of any one clock."""

    def __init__(self) -> None:
        self._until: dict[str, float] = {}

    def report(self, broker_name: str, latency: float, now: float, *, failed: bool = False) -> None:
        """Note how a send to a broker went."""
        avoided = avoid_seconds(FAILED_COUNTS_AS if failed else latency)
        if avoided:
            self._until[broker_name] = now + avoided
        elif not failed:
            self._until.pop(broker_name, None)

    def is_available(self, broker_name: str, now: float) -> bool:
        """Whether nothing speaks against this broker."""
        return self._until.get(broker_name, now) <= now

    def least_bad(self, broker_names: Iterable[str]) -> str | None:
        """Return the broker that will be available first; None when none is given."""
        return min(broker_names, key=lambda name: self._until.get(name, 0.0), default=None)
