"""The effects of a member, and the messages that members send each other over their link.

The elector does the effects in their order: what is forbidden is forbidden before a peer or the store hears of it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from shmq.daemon.ha.election.coordination import Answer, Request

Then = Callable[[Answer | None, int], None]
"""Called with an answer, None where the outcome is unknown, and the time."""


class Position(NamedTuple):
    """Follower to leader: how far its log reaches, in the epoch of the leader it copies."""

    epoch: int
    end: int
    flushed: int


class PromiseWanted(NamedTuple):
    """Leader to follower: the store does not answer me; do not campaign for a while."""

    epoch: int
    number: int


class Promise(NamedTuple):
    """Follower to leader: I will not."""

    epoch: int
    number: int


class Leaving(NamedTuple):
    """Follower to leader: take me out of the set before I stop."""

    epoch: int


class Left(NamedTuple):
    """Leader to follower: it is done."""

    epoch: int


class HandOverWanted(NamedTuple):
    """Follower to leader: an operator wants me to lead."""

    epoch: int


class OldEpoch(NamedTuple):
    """To a peer whose epoch is over: the present epoch, and whether the sender leads it."""

    epoch: int
    is_leader: bool


Message = Position | PromiseWanted | Promise | Leaving | Left | HandOverWanted | OldEpoch


class Ask(NamedTuple):
    """Ask the store; `answered` or `failed` is called with the number, once."""

    number: int
    request: Request


class Tell(NamedTuple):
    """Say something to a peer over the link, if there is one."""

    peer: str
    message: Message


class Allow(NamedTuple):
    """Let the core append, and give receipts, until a time of CLOCK_BOOTTIME. 0: not at all, for the reason."""

    until_ms: int
    reason: str


class Promote(NamedTuple):
    """Begin an epoch at the log end as it is now; followers are shipped to from there on.

    The member hears of it by `promoted`, or by `unable`, before anything else.
    """

    epoch: int
    why: str


class Follow(NamedTuple):
    """Copy a leader: be cut where the newest epoch ends that both have, and acknowledge in this one."""

    uuid: str
    address: str
    epoch: int


class Rest(NamedTuple):
    """Neither lead nor follow: acknowledge nothing, append nothing, show nothing above what is known as confirmed."""

    reason: str


class Finished(NamedTuple):
    """The orderly end that was asked for: this process may stop."""


Effect = Ask | Tell | Allow | Promote | Follow | Rest | Finished


class Outbox:
    """Effects that wait to be done, in their order, and what is done with the answers of the store."""

    def __init__(self) -> None:
        self._effects: list[Effect] = []
        self._number = 0
        self._asked: dict[int, Then] = {}

    def put(self, effect: Effect) -> None:
        """Add one."""
        self._effects.append(effect)

    def ask(self, request: Request, then: Then) -> None:
        """Add a question to the store."""
        self._number += 1
        self._asked[self._number] = then
        self._effects.append(Ask(self._number, request))

    def answered(self, number: int, answer: Answer | None, now_ms: int) -> None:
        """Hand an answer, or None, to the part that has asked."""
        then = self._asked.pop(number, None)
        if then is not None:
            then(answer, now_ms)

    def take(self) -> list[Effect]:
        """Return what waits, and forget it."""
        effects, self._effects = self._effects, []
        return effects
