"""Limits the event log, so that no peer fills it: so many lines from one peer, so many a tick from all.

A peer that misbehaves could otherwise fill the service manager's log, at once or over days: after its first lines it
has few, and lines that are left out are only counted.

    a peer      `PEER_LINES_MAX` at once; one more for each `TICKS_PER_LINE` ticks
    all         so many a tick
    left out    said once in `TICKS_PER_SUMMARY` ticks: how many lines, and whose most of them were

Invariant: nothing is left out in silence, and what the limiter says itself is one line in `TICKS_PER_SUMMARY` ticks.
A fault of ours is no peer's doing: the log behind counts and limits those itself.
"""

from collections import Counter
from collections.abc import Callable

from shmq.daemon.event_log import INTERNAL_ERROR, format_trace
from shmq.errors import ShmqError

PEER_LINES_MAX = 4
TICKS_PER_LINE = 10
TICKS_PER_SUMMARY = 60


class LimitedLog:
    """An event log in front of another."""

    def __init__(self, log: Callable[..., None], *, lines_max: int) -> None:
        self._log = log
        self._lines_max = lines_max
        self._lines = 0
        self._lines_of: Counter[str] = Counter()
        self._left_out: Counter[str] = Counter()
        self._ticks = 0

    def __call__(self, event: str, *, about: str = "", **values: object) -> None:
        """Write an event; `about` is the peer that caused it."""
        if event == INTERNAL_ERROR:
            self._log(event, **values)
            return
        if (about and self._lines_of[about] >= PEER_LINES_MAX) or self._lines >= self._lines_max:
            self._left_out[about] += 1
            return
        if about:
            self._lines_of[about] += 1
        self._lines += 1
        self._log(event, **values)

    def failed(self, where: str, error: Exception) -> None:
        """Write what went wrong: a refusal with its reason, a fault of ours with its trace."""
        if isinstance(error, ShmqError):
            self("work.failed", where=where, reason=str(error))
        else:
            self(INTERNAL_ERROR, where=where, trace=format_trace(error))

    def tick(self) -> None:
        """Begin to count anew, and say from time to time how much was left out."""
        self._lines = 0
        self._ticks += 1
        if self._ticks % TICKS_PER_LINE == 0:
            self._lines_of -= Counter(dict.fromkeys(self._lines_of, 1))
        if self._ticks >= TICKS_PER_SUMMARY:
            self._ticks = 0
            self.sum_up()

    def sum_up(self) -> None:
        """Log how much was left out since the last such line."""
        if self._left_out:
            (worst, suppressed), *_ = self._left_out.most_common(1)
            self._log("log.suppressed", peer=worst or "none", suppressed=suppressed, of_all=self._left_out.total())
            self._left_out.clear()
