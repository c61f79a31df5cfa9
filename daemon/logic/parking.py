"""Requests that found no room in the log, or its lock taken: they wait here as data and are handled again, in order.

A handler never waits, and its process serves all connections. So a request that stored nothing, only because a
writer held the lock or the next log file was not there yet, is kept and handled anew a moment later. To its sender that
is a slow answer; all others are served in the meantime.

    refused, nothing stored ──▶ parked ── handled again, first come, first served ──▶ its answer
                                  │ after `WAIT_MS`  handled a last time; whatever it is answered then is the answer
                                  └ no room here     SYSTEM_BUSY at once, in RocketMQ's words

While a send is parked, sends that come later wait behind it, so messages of one producer keep their order.

Invariants:
 1. A request is handled again only if handling it has stored nothing: what a handler does before it stores may be done
    twice (see invariant 3 of `broker.py`).
 2. At most `PARKED_MAX` requests and `PARKED_BYTES_MAX` bytes of bodies are kept.
 3. A request whose connection has gone is dropped, unless it is a oneway: its sender did not want to wait.
"""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from shmq.daemon.logic.alarm import Alarm
from shmq.daemon.logic.effects import Effect, Wake
from shmq.daemon.logic.requests import Answer, Call, Connection, Handler, Part, later
from shmq.protocol.codes import Request, Response

WAIT_MS = 1000  # RocketMQ calls a store busy after as long
PARKED_MAX = 4096
PARKED_BYTES_MAX = 64 << 20
_RUN_MAX = 64  # handled in one run; the event loop serves others in between
_RETRY_MS, _RETRY_MS_MAX = 1, 20

SENDS = frozenset({Request.SEND_MESSAGE, Request.SEND_MESSAGE_V2, Request.SEND_BATCH_MESSAGE})
# Replies reach the requester whether they are stored or not; of a pull no more than a note about it is stored.
_NEVER_PARKED = frozenset(
    {
        Request.SEND_REPLY_MESSAGE,
        Request.SEND_REPLY_MESSAGE_V2,
        Request.PULL_MESSAGE,
        Request.LITE_PULL_MESSAGE,
    }
)


@dataclass(slots=True)
class Congestion:
    """What the appends of one process have met: how many found the lock taken or no room, and how many stored."""

    refused: int = 0
    stored: int = 0


class _Parked(NamedTuple):
    call: Call
    handler: Handler
    until_ms: int


class Parking(Part):
    """Parked requests of one logic.

    Args:
        again: handles a request and returns its effects; the last argument says that it may be parked no more. None:
            it would be.
    """

    def __init__(self, congestion: Congestion, again: Callable[[Call, Handler, bool], Sequence[Effect] | None]) -> None:
        self._congestion = congestion
        self._again = again
        self._parked: deque[_Parked] = deque()
        self._bytes = 0
        self._sends = 0
        self._retry_ms = _RETRY_MS
        self._alarm = Alarm()

    def __len__(self) -> int:
        return len(self._parked)

    @property
    def has_sends(self) -> bool:
        """Whether a send is parked, behind which others have to wait."""
        return self._sends > 0

    def has_to_wait(self, call: Call) -> bool:
        """Whether a request may not be handled before those that are parked."""
        return self._sends > 0 and call.command.code in SENDS

    def mark(self) -> tuple[int, int]:
        """Return the mark for `was_refused`, taken before a request is handled."""
        return self._congestion.refused, self._congestion.stored

    def was_refused(self, call: Call, mark: tuple[int, int]) -> bool:
        """Whether a request that was handled since has only met a taken lock or want of room, and may be parked."""
        refused, stored = mark
        return (
            self._congestion.refused != refused
            and self._congestion.stored == stored
            and call.command.code not in _NEVER_PARKED
        )

    def park(self, call: Call, handler: Handler) -> Sequence[Effect]:
        """Keep a request for later."""
        size = len(call.command.body)
        if len(self._parked) >= PARKED_MAX or self._bytes + size > PARKED_BYTES_MAX:
            remark = "[REJECTREQUEST]system busy, start flow control for a while"
            return later(call, Answer(code=Response.SYSTEM_BUSY, remark=remark))
        self._parked.append(_Parked(call, handler, call.now_ms + WAIT_MS))
        self._count(call, 1)
        return self._alarm.set_by(call.now_ms, call.now_ms + self._retry_ms)

    def _count(self, call: Call, step: int) -> None:
        self._bytes += step * len(call.command.body)
        self._sends += step * (call.command.code in SENDS)

    def woken(self, now_ms: int) -> Sequence[Effect]:
        """Handle again what is parked."""
        return self._alarm.ring(now_ms, self._run)

    def tick(self, now_ms: int) -> Sequence[Effect]:
        """The same, in case the alarm did not ring."""
        return self._run(now_ms) if self._parked else ()

    def _run(self, now_ms: int) -> list[Effect]:
        effects: list[Effect] = []
        for _ in range(_RUN_MAX):
            if not self._parked:
                self._alarm.stop()
                self._retry_ms = _RETRY_MS
                return effects
            parked = self._parked[0]
            is_last = now_ms >= parked.until_ms
            answered = self._again(parked.call._replace(now_ms=now_ms), parked.handler, is_last)
            if answered is None:
                self._retry_ms = min(2 * self._retry_ms, _RETRY_MS_MAX)
                return [*effects, *self._ring_in(now_ms, self._retry_ms)]
            self._parked.popleft()
            self._count(parked.call, -1)
            if not is_last:
                self._retry_ms = _RETRY_MS
            effects += answered
        return [*effects, *self._ring_in(now_ms, _RETRY_MS)]

    def _ring_in(self, now_ms: int, after_ms: int) -> list[Wake]:
        return [self._alarm.set(now_ms, after_ms)]

    def disconnected(self, connection: Connection, now_ms: int) -> Sequence[Effect]:
        """Drop what only a connection that is gone waits for."""
        kept = [each for each in self._parked if each.call.connection is not connection or each.call.command.is_oneway]
        if len(kept) != len(self._parked):
            self._parked = deque(kept)
            self._bytes = self._sends = 0
            for each in kept:
                self._count(each.call, 1)
        return ()
