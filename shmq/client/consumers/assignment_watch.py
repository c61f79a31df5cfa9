"""The warning about a consumer that is given no queue."""

from __future__ import annotations

from collections.abc import Callable

from shmq.client import options
from shmq.client.timetable import Timetable


class AssignmentWatch:
    """Calls `warn(seconds)` once, when a consumer stays without a queue for so long.

    The consumer shows what it holds after each step; why there is no queue is asked only when the warning is due.
    """

    def __init__(self, timetable: Timetable, warn: Callable[[float], None]) -> None:
        self._timetable = timetable
        self._warn = warn
        self._since: float | None = None
        self._warned = False

    def look(self, *, has_queue: bool) -> None:
        """Note whether the consumer holds a queue now; the caller holds its lock."""
        if has_queue:
            self._since = None
        elif self._since is None and not self._warned:
            self._since = self._timetable.clock.now()
            self._timetable.call_after(options.ASSIGNMENT_WARNING_AFTER, self._due)

    def _due(self) -> None:
        since = self._since
        if since is None or self._warned:
            return
        if self._timetable.clock.now() - since < options.ASSIGNMENT_WARNING_AFTER:
            return  # it had a queue in between; another look is due later
        self._warned = True
        self._warn(options.ASSIGNMENT_WARNING_AFTER)
