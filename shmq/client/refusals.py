"""What a broker refuses while its leader changes: which errors say so, and the wait for the next leader.

    refused     nothing is stored; another host may be the leader now, or this one soon again
    made anew   after 5, 10, 20, …, 100 ms, from the first step of the call: its session or route may be another one
    refused     it waits again, until the time of the call is over

The error is that of the last try.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final, TypeGuard, TypeVar

from shmq.errors import ConnectError, NotMaster, RequestTimeout, ShmqError

AWAY: Final = (ConnectError, RequestTimeout, NotMaster)
"""What says that the broker, or the leader of it, is away for now."""
FIRST_PAUSE_SECONDS: Final = 0.005
PAUSE_SECONDS_MAX: Final = 0.1
ResultT = TypeVar("ResultT")


def may_be_taken_elsewhere(error: BaseException) -> TypeGuard[NotMaster | ConnectError]:
    """Whether a send that failed so has stored nothing, and the broker's next leader may store it."""
    return isinstance(error, (NotMaster, ConnectError)) and error.retryable and not error.maybe_stored


def seconds_left(deadline: float) -> float:
    """Return the seconds until a time of `time.monotonic()`, 0 behind it; to the millisecond, as errors name them."""
    return max(0.0, round(deadline - time.monotonic(), 3))


def until_taken(call: Callable[[float], ResultT], seconds: float, may_wait: Callable[[ShmqError], bool]) -> ResultT:
    """Return what a call returns; one that is refused for now is made anew with the seconds that are left.

    Args:
        may_wait: whether what was refused so has stored nothing, and may be taken by the next leader.

    Raises:
        NotMaster, ConnectError: no leader has taken it in time.
        The errors of the call.
    """
    deadline = time.monotonic() + seconds
    try:
        return call(seconds)
    except ShmqError as error:
        if not may_wait(error):
            raise
        return made_anew(call, error, deadline, may_wait)


def made_anew(
    call: Callable[[float], ResultT], refusal: ShmqError, deadline: float, may_wait: Callable[[ShmqError], bool]
) -> ResultT:
    """Make a call anew that was refused, until it is taken or its time is over; see `until_taken`."""
    pause = FIRST_PAUSE_SECONDS
    while (left := deadline - time.monotonic()) > 0:
        time.sleep(min(pause, left))
        pause = min(2 * pause, PAUSE_SECONDS_MAX)
        try:
            return call(max(0.0, deadline - time.monotonic()))
        except ShmqError as again:
            if not may_wait(again):
                raise
            refusal = again
    raise refusal
