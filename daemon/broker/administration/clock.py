"""Moving the broker's clock ahead: ADVANCE_CLOCK, for tests that cannot wait two hours.

The request exists only where the broker was started with a movable clock, and only on the control socket; time never
goes back.
"""

from collections.abc import Callable, Sequence

from shmq.daemon.broker.effects import Effect, Wake
from shmq.daemon.broker.fields import INT32_MAX, number_of
from shmq.daemon.broker.requests import Answer, Call, Handler, Part
from shmq.daemon.broker.settings import BrokerSettings
from shmq.daemon.broker.tables import Clock
from shmq.protocol.codes import Request


class ClockRequests(Part):
    """Serves ADVANCE_CLOCK.

    Args:
        moved: is told by how much and when, for times that are counted on a clock that nobody sets.
    """

    def __init__(self, tables: Clock, settings: BrokerSettings, moved: Callable[[int, int], Sequence[Effect]]) -> None:
        self._tables = tables
        self._settings = settings
        self._moved = moved

    def handlers(self) -> dict[int, Handler]:
        """Return what is served here, by request code."""
        return {Request.ADVANCE_CLOCK: self._advance} if self._settings.movable_clock else {}

    def _advance(self, call: Call) -> Answer:
        milliseconds = number_of(call.ext, "milliseconds", most=INT32_MAX)
        self._tables.advance_clock(milliseconds)
        return Answer(effects=(*self._moved(milliseconds, call.now_ms), Wake(0)))
