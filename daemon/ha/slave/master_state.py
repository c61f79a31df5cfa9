"""Keeps what a slave knows of its master, for people: whether it follows, since when, how far, why not, and the cure.

    connecting ──heard──▶ catching up ⇄ up to date
        │                      │  ▲
        ▼ lost                 ▼  │ heard
       lost ◀──────────────── lost, stuck

Invariants:
 1. Nothing here decides anything: it is written down for `shmq health` and its like, and for the members of this host.
 2. Times are arguments. The last error stays until there is another one.
 3. A master that was refused stays so, however often it is tried and whether it can be reached, until it is followed.
"""

from __future__ import annotations

import socket

from shmq.daemon.ha.in_sync import CAUGHT_UP_MS
from shmq.daemon.ha.lag import LagClock
from shmq.errors import ProtocolError, RemoteError, ShmqError
from shmq.shm.core import LOG_FULL, READ_ONLY, READ_ONLY_REASONS, Store
from shmq.shm.links import CATCHING_UP, CONNECTING, LOST, STUCK, UP_TO_DATE, MasterLink

STUCK_MS = 2_000  # the keeper makes a file in less
_SILENT_MS = 5_000
_AGAIN = "; this slave tries again every second"
_UNREACHABLE = (
    "look whether the master runs and listens there, whether it names this host in --ha-allow, and whether a firewall"
    f" stands between{_AGAIN}"
)


class MasterState:
    """The master of one slave.

    Args:
        address: host and port where it ships its log.
    """

    def __init__(self, address: str) -> None:
        self._address = address
        self._began_ms: int | None = None
        self._kind = ""
        self._since_ms: int | None = None
        self._heard_ms: int | None = None
        self._ended_ms: int | None = None
        self._lag = LagClock()
        self._end = 0
        self._error, self._cure = "", ""
        self._error_ms: int | None = None
        self._stuck_since_ms: int | None = None
        self._is_refused = False

    def heard(self, *, is_stock: bool, now_ms: int) -> None:
        """The master has said something that makes sense."""
        self._kind = "stock" if is_stock else "shmq"
        self._heard_ms, self._ended_ms = now_ms, None
        self._is_refused = False
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

    @property
    def lived_ms(self) -> int | None:
        """When it was there last: it spoke, or its connection ended; None: never. An idle one is silent for seconds."""
        return self._heard_ms if self._ended_ms is None else self._ended_ms

    def waits(self, reason: str, cure: str, now_ms: int) -> None:
        """What was sent cannot be stored just now; it is reported once that has lasted."""
        if self._stuck_since_ms is None:
            self._stuck_since_ms = now_ms
        elif self._is_stuck(now_ms):
            self._error, self._cure, self._error_ms = reason, cure, now_ms

    def fails(self, reason: str, cure: str, now_ms: int) -> None:
        """Note that something beside the log does not come, though the connection lasts."""
        self._error, self._cure, self._error_ms = reason, cure, now_ms

    def refuse(self) -> None:
        """Note that this slave can take nothing of the master, whatever it tries."""
        self._is_refused = True

    def lost(self, reason: str, cure: str, now_ms: int) -> None:
        """The connection is over, or there was none."""
        if self._since_ms is not None:
            self._ended_ms = now_ms
        self._since_ms = self._stuck_since_ms = None
        self._error, self._cure, self._error_ms = reason, cure, now_ms

    def row(self, now_ms: int) -> MasterLink:
        """Return the figures of this link."""
        lag_ms = self._lag.lag_ms(self._end, now_ms) if self._heard_ms is not None else None
        if self._began_ms is None:
            self._began_ms = now_ms
        error, cure = self._error, self._cure
        if self._since_ms is None and not error and now_ms - self._began_ms >= _SILENT_MS:
            error, cure = "nothing has answered there so far: this slave copies nothing", _UNREACHABLE
        if self._since_ms is None:
            state = LOST if error else CONNECTING
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
            error,
            cure,
            self._error_ms,
            self._is_refused,
        )

    def _is_stuck(self, now_ms: int) -> bool:
        return self._stuck_since_ms is not None and now_ms - self._stuck_since_ms >= STUCK_MS


def cure_of(error: Exception) -> str:
    """What can be done where a master cannot be followed."""
    if isinstance(error, ShmqError) and error.hint:
        return error.hint
    if isinstance(error, RemoteError):
        return (
            f"see the master's log; where it has accounts, $SHMQ_ACCESS_KEY and $SHMQ_SECRET_KEY name one here{_AGAIN}"
        )
    if isinstance(error, ProtocolError):
        return "look what listens there: --master-ha, or the port behind that of --master, is the master's --ha-listen"
    cause = error.__cause__ or error
    if isinstance(cause, socket.gaierror | UnicodeError):
        return (
            f"correct the name of the host in --master or --master-ha, or have it resolved (getent hosts NAME){_AGAIN}"
        )
    if isinstance(cause, ConnectionRefusedError):
        return (
            "nothing listens there: start the master, with --ha-listen; or correct --master, the HOST:PORT of its"
            f" --listen, or --master-ha, that of its --ha-listen{_AGAIN}"
        )
    return _UNREACHABLE


def obstacle(store: Store, stop: int) -> tuple[str, str]:
    """Why the core takes no more records just now, and what can be done about it."""
    if stop == LOG_FULL:
        return (
            "the keeper makes no new log file: the disk is full, or it does not answer",
            "make room on this slave's disk, and look at the broker's log; the slave then goes on by itself",
        )
    if stop == READ_ONLY:
        why = READ_ONLY_REASONS.get(store.read_only, "")
        return f"this slave's store takes nothing: {why}", "see what shmq health says of its store"
    return "another process holds this slave's append lock", "see what shmq health says of the lock"
