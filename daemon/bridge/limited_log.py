"""A log that nobody can fill: so many lines a tick from one peer, so many from all.

A peer that misbehaves on purpose could otherwise fill the log of the service manager.

Invariant: what is left out is said, once a tick for each peer and once for all.
"""

from collections.abc import Callable

PEER_LINES_MAX = 4


class LimitedLog:
    """An event log in front of another."""

    def __init__(self, log: Callable[..., None], *, lines_max: int) -> None:
        self._log = log
        self._lines_max = lines_max
        self._lines = 0
        self._lines_of: dict[str, int] = {}

    def __call__(self, event: str, *, about: str = "", **values: object) -> None:
        """Write an event; `about` is the peer that caused it."""
        if about:
            self._lines_of[about] = lines = self._lines_of.get(about, 0) + 1
            if lines > PEER_LINES_MAX + 1:
                return
            if lines == PEER_LINES_MAX + 1:
                event, values = "log.limited", {"peer": about, "lines": PEER_LINES_MAX}
        self._lines += 1
        if self._lines <= self._lines_max:
            self._log(event, **values)
        elif self._lines == self._lines_max + 1:
            self._log("log.limited", lines=self._lines_max)

    def tick(self) -> None:
        """Say how much was left out, and begin to count anew."""
        left_out = {peer: lines - PEER_LINES_MAX for peer, lines in self._lines_of.items() if lines > PEER_LINES_MAX}
        if left_out:
            worst = max(left_out, key=left_out.__getitem__)
            self._log("log.suppressed", peer=worst, suppressed=left_out[worst], of_all=sum(left_out.values()))
        if self._lines > self._lines_max:
            self._log("log.suppressed", suppressed=self._lines - self._lines_max)
        self._lines = 0
        self._lines_of.clear()
