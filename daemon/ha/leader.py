"""The master's end of the stream to one slave: reports and ticks in, the next part of the log to ship out.

    state       a first report comes                    a frame is due
    WAITING     SHIPPING from where it says             never: RocketMQ's master is silent until it knows
    SHIPPING    -                                       bytes behind `shipped`, or a heartbeat after 5 s
    CLOSED      -                                       never; `closed` says why

Invariants:
 1. Bytes are shipped in the order of the log, without a gap, and none at or above the log end.
 2. A frame lies in one file of the log.
 3. `acknowledged` never falls and is never above `shipped`.
"""

from __future__ import annotations

from typing import NamedTuple

from shmq.daemon.ha.stream import (
    FROM_BEGINNING,
    HEARTBEAT_MS,
    SHIPPED_BYTES_MAX,
    SILENCE_MS_MAX,
    ReportReader,
    pack_header,
)
from shmq.errors import ProtocolError


class LogSpan(NamedTuple):
    """What there is of the log to ship."""

    begin: int
    end: int
    file_bytes: int


class Shipment(NamedTuple):
    """A header, and the part of the log that follows it."""

    header: bytes
    log_position: int
    size_bytes: int


class LeaderLink:
    """One slave. Its face calls `feed` and `tick`, and sends what `next_shipment` says while the socket takes it."""

    def __init__(self, now_ms: int) -> None:
        self.shipped: int | None = None  # log position of the next byte; None before the first report
        self.acknowledged: int | None = None
        self.closed = ""
        self._reports = ReportReader()
        self._heard_ms = now_ms
        self._spoke_ms = now_ms

    def feed(self, data: bytes, span: LogSpan, now_ms: int) -> None:
        """Take bytes of the slave."""
        if self.closed:
            return
        self._heard_ms = now_ms
        try:
            for report in self._reports.feed(data):
                if self.shipped is None:
                    self._begin(report, span)
                else:
                    self._acknowledge(report)
        except ProtocolError as error:
            self.closed = str(error)

    def tick(self, now_ms: int) -> None:
        """Close the link of a slave that has been silent for too long."""
        if not self.closed and now_ms - self._heard_ms > SILENCE_MS_MAX:
            self.closed = f"the slave was silent for {now_ms - self._heard_ms} ms, above {SILENCE_MS_MAX}"

    def next_shipment(self, span: LogSpan, now_ms: int) -> Shipment | None:
        """Return what is to be sent now; the caller sends all of it before it asks again."""
        if self.closed or self.shipped is None:
            return None
        position = self.shipped
        if position < span.begin:
            self.closed = f"retention has deleted the log below {span.begin}, the slave is at {position}"
            return None
        size = min(span.end - position, SHIPPED_BYTES_MAX, span.file_bytes - position % span.file_bytes)
        if size <= 0 and now_ms - self._spoke_ms < HEARTBEAT_MS:
            return None
        size = max(size, 0)
        self._spoke_ms = now_ms
        self.shipped = position + size
        return Shipment(pack_header(position, size), position, size)

    def _begin(self, report: int, span: LogSpan) -> None:
        if report == FROM_BEGINNING:
            position = span.begin
        elif report == 0:
            position = max(span.begin, span.end - span.end % span.file_bytes)
        else:
            position = report
        if position > span.end:
            raise ProtocolError(
                f"the slave has the log up to {position}, this master up to {span.end}: they are not of one log, or"
                " this master has lost its end"
            )
        if position < span.begin:
            raise ProtocolError(f"the slave asks for the log from {position}, retention has left it from {span.begin}")
        self.shipped = position
        self.acknowledged = 0 if report in (0, FROM_BEGINNING) else position

    def _acknowledge(self, report: int) -> None:
        assert self.shipped is not None and self.acknowledged is not None
        if report == FROM_BEGINNING or report > self.shipped:
            raise ProtocolError(f"the slave reports the log up to {report}, and was sent no more than {self.shipped}")
        if report < self.acknowledged:
            raise ProtocolError(f"the slave reports the log up to {report}, and had {self.acknowledged} before")
        self.acknowledged = report
