"""When the leader was asked whether it is there, and when it answered: whether members are there, stay, or go there.

    this host's copy of its log                         members that are at the leader
    goes on                                             read the copy
    is cut off for GONE_SECONDS, or late                read what the leader sends
    is up to date again                                 read the copy

    the leader                                          the members of this host
    answers                                             are there; it is asked again each ASK_SECONDS
    has not answered for GONE_SECONDS                   leave it
    was left, as it was away, or refused members        do not ask it for ASK_SECONDS, or REFUSED_SECONDS
    answers again                                       go there BACK_SECONDS later: it has their offsets by then

Times are arguments, in seconds of one clock that never goes back.
"""

from __future__ import annotations

from typing import Final

from shmq.client.following.copying import Copying

GONE_SECONDS: Final = 8.0
"""A leader that was silent for so long is gone, as for a promotion."""
ASK_SECONDS: Final = 4.0
BACK_SECONDS: Final = 3.0  # in which the slave has said to a master that is back what was committed here
REFUSED_SECONDS: Final = 20.0
_NEVER, _NOT_YET = float("-inf"), float("inf")


class Contact:
    """The leader of one connection, as its members find it."""

    def __init__(self) -> None:
        self._asked_at = self._beaten_at = self._answered_at = self._avoided_until = self._looked_at = _NEVER
        self._goes_at = self._cut_off_at = _NOT_YET
        self._reads_copy = True

    def asked(self, now: float) -> None:
        """The leader is needed; what asks it comes next."""
        self._asked_at = now

    def beaten(self, now: float) -> None:
        """A heartbeat has reached it."""
        self._beaten_at = now

    def answered(self, now: float) -> None:
        """It is there, as far as is known."""
        self._answered_at = now

    def left(self, now: float, *, refused: bool) -> None:
        """Members stay on this host, as the leader was away or `refused` them."""
        self._answered_at = _NEVER
        self._avoided_until = now + (REFUSED_SECONDS if refused else ASK_SECONDS)

    def is_avoided(self, now: float) -> bool:
        """Whether members that are on this host do not ask it yet."""
        return now < self._avoided_until

    def is_to_be_beaten(self, now: float) -> bool:
        """Whether it has not been asked for so long that only a heartbeat can say whether it is there."""
        return now - self._beaten_at >= ASK_SECONDS

    def is_gone(self, now: float) -> bool:
        """Whether it has been silent for too long."""
        return now - self._answered_at >= GONE_SECONDS

    @property
    def is_silent(self) -> bool:
        """Whether it did not answer the last time."""
        return self._answered_at < self._asked_at

    def reads_copy(self, now: float, copying: Copying) -> bool:
        """Whether members at the leader read this host's copy of its log, and not what it sends."""
        since = self._cut_off_at if now - self._looked_at < GONE_SECONDS else _NOT_YET  # seen too long ago
        self._cut_off_at = min(since, now) if copying.is_cut_off else _NOT_YET
        self._looked_at = now
        if copying.is_late or now - self._cut_off_at >= GONE_SECONDS:
            self._reads_copy = False
        elif copying.is_up_to_date:
            self._reads_copy = True
        return self._reads_copy

    def is_time_to_go(self, now: float, *, is_back: bool) -> bool:
        """Whether members that belong elsewhere go there now.

        Args:
            is_back: they are on this host and go to the leader.
        """
        self._goes_at = min(self._goes_at, now + BACK_SECONDS) if is_back else now
        if now < self._goes_at:
            return False
        self._goes_at = _NOT_YET
        return True
