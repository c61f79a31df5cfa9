"""When a child that has ended is started again.

    it had served, and ended in order    at once; after 0.1 s where it lived for less than half a second
    otherwise                            at once, then after 0.1, 0.2 … 5 s; ten good seconds forgive

In order is the end of a child whose role was switched, or whose segments were given up. However often that is, it is no
death: clients wait for what comes next.
"""

from collections.abc import Iterable

from shmq.exit_code import ExitCode

_BACKOFF_SECONDS = 0.1
_BACKOFF_SECONDS_MAX = 5.0
_FORGIVEN_SECONDS = 10.0
IN_ORDER = (ExitCode.DONE, ExitCode.TEMPORARY)
"""How a child ends that was switched, or whose segments were given up."""
_SHORT_SECONDS = 0.5
_SHORT_PAUSE_SECONDS = 0.1  # what ends in order again and again does not take a processor for itself


class Restarts:
    """The deaths of a supervisor's children, by role."""

    def __init__(self, roles: Iterable[str]) -> None:
        self._deaths = dict.fromkeys(roles, 0)

    @property
    def roles(self) -> Iterable[str]:
        """All roles."""
        return self._deaths.keys()

    def pause(self, role: str, status: int, *, has_served: bool, age_seconds: float) -> float:
        """Return the seconds until a child that has ended so is started again."""
        if has_served and status in IN_ORDER:
            return _SHORT_PAUSE_SECONDS if age_seconds < _SHORT_SECONDS else 0.0
        self._deaths[role] = 0 if age_seconds > _FORGIVEN_SECONDS else self._deaths[role] + 1
        return restart_pause(self._deaths[role])


def restart_pause(deaths: int) -> float:
    """Return the seconds until a child is started again that died so often in a row; never more than five."""
    # No number of deaths may overflow: who dies every five seconds has died a thousand times after an hour and a half.
    return min(_BACKOFF_SECONDS_MAX, _BACKOFF_SECONDS * 2.0 ** min(deaths - 2, 16)) if deaths > 1 else 0.0
