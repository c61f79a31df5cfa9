"""Holds answers until name servers elsewhere know what the request has changed about the topics.

A client whose topic has just been made asks a name server for its route next. So the answer to a request that changed
the table of topics is kept here until the registration has been answered; a stock broker does the same.

    request changes the table ──▶ registration sent ──▶ every name server that can be reached has answered ──▶ answer
                                                  └──── `WAIT_SECONDS`, if one of them does not ──────────────▶ answer

Invariants:
 1. An answer is kept once and goes out once; what else follows from the request is not delayed.
 2. A name server that is not connected delays no answer, and one that hangs no longer than `WAIT_SECONDS`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol

from shmq.daemon.logic.effects import Reply

WAIT_SECONDS = 2.5  # RocketMQ's administrators wait 5 s for an answer, its producers 3


class Registration(Protocol):
    """What tells the name servers."""

    @property
    def version(self) -> int:
        """A number that differs when the topics may."""

    def announce(self) -> int:
        """Register the topics as they are now, unless that is done; return a number for `is_registered`."""

    def is_registered(self, edition: int) -> bool:
        """Whether every name server that can be reached knows what was announced with this number."""

    def call_when_registered(self, action: Callable[[], None]) -> None:
        """Have `action` called whenever `is_registered` may say something else."""


class _Owed(NamedTuple):
    edition: int
    until: float


class RouteWaits:
    """The answers of one bridge.

    Args:
        release: sends an answer.
    """

    def __init__(self, registration: Registration, now: Callable[[], float], release: Callable[[Reply], None]) -> None:
        self._registration = registration
        self._now = now
        self._release = release
        self._owed: dict[tuple[int, int], _Owed] = {}  # by connection and opaque; its answer may not have come yet
        self._kept: dict[tuple[int, int], Reply] = {}
        registration.call_when_registered(self.look)

    @property
    def version(self) -> int:
        """What differs after a request that has changed the topics."""
        return self._registration.version

    def changed_by(self, connection_id: int, opaque: int) -> None:
        """A request has changed the table: its answer waits."""
        edition = self._registration.announce()
        if not self._registration.is_registered(edition):
            self._owed[connection_id, opaque] = _Owed(edition, self._now() + WAIT_SECONDS)

    def keeps(self, reply: Reply) -> bool:
        """Whether an answer that is ready has to wait; it is kept then."""
        key = reply.connection_id, reply.command.opaque
        if key not in self._owed:
            return False
        self._kept[key] = reply
        return True

    def look(self) -> None:
        """Release answers that need not wait longer; called after a registration, and about once a second."""
        now = self._now()
        for key, owed in list(self._owed.items()):
            if now >= owed.until or self._registration.is_registered(owed.edition):
                del self._owed[key]
                reply = self._kept.pop(key, None)
                if reply is not None:
                    self._release(reply)
