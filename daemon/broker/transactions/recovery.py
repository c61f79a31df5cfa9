"""What a transaction service does once, before it settles anything.

Owns the way through the open halves and the log behind them. It does not know what becomes of a half.

    every open half is looked at         which one its producer knows, when it is due
    the log behind the oldest is walked  a committed message that names an open half has lost its op record: it gets one

The second is for a power cut. The two records lie back to back, and what is lost is the end of the log, so only the
last of our own transactions can be cut there; RocketMQ's brokers write the op record later, so one of theirs may leave
more. The walk is bounded: from the first open half that lies in the last 64 MiB.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from shmq.daemon.broker.transactions.transactions import Transactions

_HALVES_PER_STEP = 2000
_RECORDS_PER_STEP = 5000
WALK_BYTES_MAX = 64 << 20


class TransactionStart:
    """The beginning of one service."""

    def __init__(self, service: Transactions) -> None:
        self._service = service
        self._todo: list[int] | None = None
        self._at: dict[int, int] = {}  # log position -> queue offset, of the open halves
        self._position: int | None = None

    def step(self, now_ms: int) -> bool:
        """Do a part of it; True when that was the last."""
        if self._todo is None:
            self._todo = sorted(self._service.halves.open, reverse=True)
        for _ in range(min(_HALVES_PER_STEP, len(self._todo))):
            half = self._service.learn(self._todo.pop(), now_ms)
            if half is not None:
                self._at[half.log_position] = half.offset
                if self._position is None and half.log_position >= self._service.log_end - WALK_BYTES_MAX:
                    self._position = half.log_position
        if not self._todo and self._position is not None:
            self._position, committed = self._service.committed_behind(self._position, _RECORDS_PER_STEP)
            for log_position in committed:
                offset = self._at.pop(log_position, None)
                if offset is not None:
                    self._service.settle_committed(offset)
        return not self._todo and self._position is None
