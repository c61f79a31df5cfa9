"""The recovery of open transactions, once at the start, before any of them is settled.

    every open half is looked at         which one its producer knows, when it is due
    the log behind the oldest is walked  a committed message that names an open half has lost its op record: it gets one

The second is for a power cut. The two records lie back to back, and what is lost is the end of the log, so only the
last of our own transactions can be cut there; RocketMQ's brokers write the op record later, so one of theirs may leave
more. The walk is bounded: from the first open half that lies in the last 64 MiB.
"""

from collections.abc import Callable

from shmq.daemon.broker.log import Log
from shmq.daemon.broker.tables import StoreState
from shmq.daemon.broker.transactions.halves import Halves

_HALVES_PER_STEP = 2000
_RECORDS_PER_STEP = 5000
WALK_BYTES_MAX = 64 << 20


class Recovery:
    """The first look of one service at what was there before it.

    Args:
        learn: looks at the half at a queue offset, and returns its log position; None where it cannot be read.
        settle: stores the op record of an open half (by queue offset) whose message is in the log.
    """

    def __init__(
        self,
        tables: StoreState,
        log: Log,
        halves: Halves,
        *,
        learn: Callable[[int, int], int | None],
        settle: Callable[[int], None],
    ) -> None:
        self._tables = tables
        self._log = log
        self._halves = halves
        self._learn = learn
        self._settle = settle
        self._todo: list[int] | None = None
        self._at: dict[int, int] = {}  # log position -> queue offset, of the open halves
        self._position: int | None = None

    def step(self, now_ms: int) -> bool:
        """Do a part of it; True when that was the last."""
        if self._todo is None:
            self._todo = sorted(self._halves.open, reverse=True)
        for _ in range(min(_HALVES_PER_STEP, len(self._todo))):
            offset = self._todo.pop()
            log_position = self._learn(offset, now_ms)
            if log_position is not None:
                self._at[log_position] = offset
                if self._position is None and log_position >= self._tables.facts().log_end - WALK_BYTES_MAX:
                    self._position = log_position
        if not self._todo and self._position is not None:
            self._position, committed = self._log.committed(self._position, _RECORDS_PER_STEP)
            for log_position in committed:
                if (half := self._at.pop(log_position, None)) is not None:
                    self._settle(half)
        return not self._todo and self._position is None
