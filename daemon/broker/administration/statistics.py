"""What was counted, by name and key.

Owns the request 315 and the beat of the counting. It does not know what is counted.
"""

from collections.abc import Sequence

from shmq.daemon.broker.effects import Effect
from shmq.daemon.broker.fields import text_of
from shmq.daemon.broker.requests import Answer, Call, Part, serves
from shmq.daemon.broker.statistics.statistics import Statistics
from shmq.daemon.broker.statistics.traffic import Traffic
from shmq.errors import RemoteError
from shmq.protocol.body import encode_body
from shmq.protocol.codes import Request, Response


class StatisticsRequests(Part):
    """Serves statistics and keeps them going."""

    def __init__(self, statistics: Statistics, traffic: Traffic) -> None:
        self._statistics = statistics
        self._traffic = traffic

    def tick(self, now_ms: int) -> Sequence[Effect]:
        """Look at the traffic, then take the snapshots."""
        self._traffic.tick(now_ms)
        self._statistics.tick(now_ms)
        return ()

    @serves(Request.VIEW_BROKER_STATS_DATA)
    def _view(self, call: Call) -> Answer:
        name, key = text_of(call.ext, "statsName"), text_of(call.ext, "statsKey")
        data = self._statistics.data(name, key)
        if data is None:
            raise RemoteError(Response.SYSTEM_ERROR, f"The stats <{name[:127]}> <{key[:400]}> not exist")
        return Answer(body=encode_body(data))
