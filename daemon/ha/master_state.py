"""What a slave knows of its master, for people: whether it follows, since when, how far behind, and why not.

    connecting ──heard──▶ catching up ⇄ up to date
        │                      │  ▲
        ▼ lost                 ▼  │ heard
       lost ◀──────────────── lost, stuck

Invariants:
 1. Nothing here decides anything: it is written down for `shmq health` and its like.
 2. Times are arguments. The last error stays until there is another one.
"""

from __future__ import annotations

from shmq.daemon.ha.in_sync import CAUGHT_UP_MS
from shmq.daemon.ha.lag import LagClock
from shmq.shm.links import CATCHING_UP, CONNECTING, LOST, STUCK, UP_TO_DATE, MasterLink

STUCK_MS = 2_000  # the keeper makes a file in less


class MasterState:
    """The master of one slave.

    Args:
        address: host and port where it ships its log.
    """

    def __init__(self, address: str) -> None:
        self._address = address
        self._kind = ""
        self._since_ms: int | None = None
        self._heard_ms: int | None = None
        self._lag = LagClock()
        self._end = 0
        self._error, self._cure = "", ""
        self._error_ms: int | None = None
        self._stuck_since_ms: int | None = None

    def heard(self, *, is_stock: bool, now_ms: int) -> None:
        """The master has said something that makes sense."""
        self._kind = "stock" if is_stock else "shmq"
        self._heard_ms = now_ms
        if self._since_ms is None:
            self._since_ms = now_ms

    def reached(self, log_end: int, master_end: int, now_ms: int) -> None:
        """This host's log ends here, and the master's, as far as it was heard of, there."""
        if log_end > self._end:
            self._stuck_since_ms = None
        self._end = log_end
        self._lag.grown(master_end, now_ms)

    @property
    def master_end(self) -> int:
        """How far the master's log goes, as far as it was heard of."""
        return self._lag.end

    @property
    def heard_ms(self) -> int | None:
        """When it last said something that makes sense; None: never."""
        return self._heard_ms

    def waits(self, reason: str, cure: str, now_ms: int) -> None:
        """What was sent cannot be stored just now; it is told once that has lasted."""
        if self._stuck_since_ms is None:
            self._stuck_since_ms = now_ms
        elif self._is_stuck(now_ms):
            self._error, self._cure, self._error_ms = reason, cure, now_ms

    def lost(self, reason: str, cure: str, now_ms: int) -> None:
        """The connection is over, or there was none."""
        self._since_ms = self._stuck_since_ms = None
        self._error, self._cure, self._error_ms = reason, cure, now_ms

    def row(self, now_ms: int) -> MasterLink:
        """Return what is to be told."""
        lag_ms = self._lag.lag_ms(self._end, now_ms) if self._heard_ms is not None else None
        if self._since_ms is None:
            state = LOST if self._error else CONNECTING
        elif self._is_stuck(now_ms):
            state = STUCK
        else:
            state = CATCHING_UP if (lag_ms or 0) > CAUGHT_UP_MS else UP_TO_DATE
        return MasterLink(
            self._address,
            state,
            self._kind,
            self._since_ms,
            self._heard_ms,
            max(0, self._lag.end - self._end) if self._heard_ms is not None else None,
            lag_ms,
            self._error,
            self._cure,
            self._error_ms,
        )

    def _is_stuck(self, now_ms: int) -> bool:
        return self._stuck_since_ms is not None and now_ms - self._stuck_since_ms >= STUCK_MS
