"""Replies that wait until what they acknowledge is on disk, and confirmed by slaves where the broker has them confirm.

Under synchronous flush a send is answered when its message is safe; until then its answer is held here.

Invariants:
 1. A reply goes out when its log position is safe, or says by its code what was not in time; once. Where no slave
    has it, the answer to a send says so, too.
 2. None says "stored" once the lease of the log is over: it is looked at when they go out, not before, since the disk
    may have taken longer than the lease.
 3. Replies of one connection go out in the order of their log positions.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from shmq.daemon.broker.log import Log
from shmq.daemon.broker.sends.unavailable import in_doubt
from shmq.daemon.logic.effects import Effect
from shmq.daemon.logic.requests import Answer, Call, later
from shmq.protocol.codes import Response

_LATE = "this host has it, and it was not safe"


class _Held(NamedTuple):
    end: int
    until_ms: int
    call: Call
    answer: Answer
    is_send: bool


class FlushWaits:
    """Answers that are ready but for the disk."""

    def __init__(self, log: Log, *, timeout_ms: int) -> None:
        self._log = log
        self._timeout_ms = timeout_ms
        self._held: deque[_Held] = deque()  # ends rise: the log has one end, and this is the only one to hold

    @property
    def wanted_end(self) -> int | None:
        """The log position that lets the first reply go; None when none waits."""
        return self._held[0].end if self._held else None

    def hold(self, call: Call, answer: Answer, end: int, *, is_send: bool) -> None:
        """Keep an answer until everything below a log position is durable."""
        # The message itself is in the log; a copy of each, for as long as the disk takes, would add up.
        command = replace(call.command, ext={}, body=b"")
        self._held.append(_Held(end, call.now_ms + self._timeout_ms, call._replace(command=command), answer, is_send))

    def flushed(self, durable_end: int) -> list[Effect]:
        """Send what is durable now."""
        effects: list[Effect] = []
        while self._held and self._held[0].end <= durable_end:
            held = self._held.popleft()
            effects += later(held.call, self._durable(held))
        return effects

    def tick(self, now_ms: int) -> list[Effect]:
        """Tell those who waited too long that they did; their messages are stored all the same."""
        effects: list[Effect] = []
        while self._held and self._held[0].until_ms <= now_ms:
            held = self._held.popleft()
            effects += later(held.call, self._late(held))
        return effects

    def _durable(self, held: _Held) -> Answer:
        if not held.is_send:
            return in_doubt(held.answer) if self._log.in_doubt(held.end) else held.answer
        code = self._log.outcome(held.end)
        if code == Response.SERVICE_NOT_AVAILABLE:
            return in_doubt(held.answer)
        return replace(held.answer, code=code) if code == Response.SLAVE_NOT_AVAILABLE else held.answer

    def _late(self, held: _Held) -> Answer:
        code = self._log.outcome(held.end)
        if code == Response.SERVICE_NOT_AVAILABLE:
            return in_doubt(held.answer)
        if held.is_send:
            return replace(held.answer, code=code)
        if code in (Response.SUCCESS, Response.SLAVE_NOT_AVAILABLE):  # it has just become safe
            return held.answer
        return replace(held.answer, code=code, remark=f"{_LATE} in {self._timeout_ms / 1000:g} s")

    def forget(self, connection_id: int) -> Sequence[Effect]:
        """Drop what a gone connection waited for; carry out what follows from its messages."""
        gone = [held for held in self._held if held.call.connection.connection_id == connection_id]
        if gone:
            self._held = deque(held for held in self._held if held not in gone)
        return [effect for held in gone for effect in held.answer.effects]
