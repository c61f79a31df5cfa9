"""Moving the broker's clock ahead: ADVANCE_CLOCK, for tests that cannot wait two hours.

The request exists only where the broker was started with a clock that may be moved, and only on the control socket;
time never goes back. The clock lies in shared memory (`bindings/core/log/clock.c`), so one move reaches the bridges,
the keeper and every client that has attached. It is the clock of messages: their stamps, delays, invisible times,
retries, checks of transactions and their age. What goes on in real time is who is alive and connected, waits for an
answer, and the pause before something that failed is tried again; where the clock stands, limits of connections count
on it too.
"""

from collections.abc import Callable, Sequence

from shmq.daemon.broker.settings import BrokerSettings
from shmq.daemon.broker.tables import Clock
from shmq.daemon.logic.effects import Effect
from shmq.daemon.logic.header_fields import INT32_MAX, number_of
from shmq.daemon.logic.requests import Answer, Call, Handler, Part
from shmq.protocol.codes import Request

_CLOCK_MS_MAX = 1 << 45  # that of the option clock_ms: the year 3084


class ClockRequests(Part):
    """Serves ADVANCE_CLOCK. Two senders that look at the clock at once move it once.

    Args:
        look: runs what depends on the clock, so that what has come due is there when the request is answered.
    """

    def __init__(self, tables: Clock, settings: BrokerSettings, look: Callable[[int], Sequence[Effect]]) -> None:
        self._tables = tables
        self._settings = settings
        self._look = look

    def handlers(self) -> dict[int, Handler]:
        """Return what is served here, by request code."""
        return {Request.ADVANCE_CLOCK: self._advance} if self._settings.movable_clock else {}

    def _advance(self, call: Call) -> Answer:
        to_ms = number_of(call.ext, "from", most=_CLOCK_MS_MAX) + number_of(call.ext, "milliseconds", most=INT32_MAX)
        if (milliseconds := to_ms - self._tables.clock_moved_ms) > 0:  # else it was sent again
            self._tables.advance_clock(milliseconds)
        return Answer(effects=self._look(call.now_ms))
