"""Moving the broker's clock ahead: ADVANCE_CLOCK, for tests that cannot wait two hours.

Owns the request. It does not know who looks at the clock. It exists only where the broker was started with a movable
clock, and only on the control socket; time never goes back.
"""

from __future__ import annotations

from shmq.daemon.broker.effects import Wake
from shmq.daemon.broker.fields import INT32_MAX, number_of
from shmq.daemon.broker.requests import Answer, Call, Handler, Part
from shmq.daemon.broker.settings import BrokerSettings
from shmq.daemon.broker.tables import Tables
from shmq.protocol.codes import Request


class ClockRequests(Part):
    """Serves ADVANCE_CLOCK."""

    def __init__(self, tables: Tables, settings: BrokerSettings) -> None:
        self._tables = tables
        self._settings = settings

    def handlers(self) -> dict[int, Handler]:
        """Return what is served here, by request code."""
        return {Request.ADVANCE_CLOCK: self._advance} if self._settings.movable_clock else {}

    def _advance(self, call: Call) -> Answer:
        self._tables.advance_clock(number_of(call.ext, "milliseconds", most=INT32_MAX))
        return Answer(effects=(Wake(0),))
