"""The master's end of the stream to one slave: reports and ticks in, the next part of the log to ship out.

    state       a first report comes                    a frame is due
    WAITING     SHIPPING from where it says, or CLOSED  a welcome, where it has greeted; RocketMQ's master is silent
    SHIPPING    -                                       bytes behind `shipped`, or a heartbeat after 5 s
    CLOSED      -                                       never; `closed` says why

Invariants:
 1. Bytes are shipped in the order of the log, without a gap, and none at or above the log end.
 2. A frame lies in one file of the log.
 3. `acknowledged` never falls and is never above `shipped`; `flushed` never falls and is never above `acknowledged`.
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from shmq.daemon.ha.handshake import Claim
from shmq.daemon.ha.meeting import START_AGAIN, Side, State, judge, read_side, side_bytes
from shmq.daemon.ha.stream import (
    HEARTBEAT_MS,
    SHIPPED_BYTES_MAX,
    SILENCE_MS_MAX,
    Report,
    ReportReader,
    pack_header,
    pack_long_header,
    pack_message,
    pack_welcome,
    read_refusal,
)
from shmq.errors import ProtocolError

UNKNOWN = Side()


class LogSpan(NamedTuple):
    """What there is of the log to ship."""

    begin: int
    end: int
    file_bytes: int
    confirmed: int = 0


class Shipment(NamedTuple):
    """A header, and the part of the log that follows it."""

    header: bytes
    log_position: int
    size_bytes: int


class LeaderLink:
    """One slave. Its face calls `feed` and `tick`, and sends what `next_shipment` says while the socket takes it.

    Args:
        is_prompt: this master waits for what its slaves have on their disks.
        me: who it is; of its log `span` says the rest.
        tells_confirmed: its slaves show what is confirmed, so they get it at once.
        proven: who the slave has proven to be, where a secret is asked for.
    """

    def __init__(
        self,
        now_ms: int,
        *,
        is_prompt: bool = False,
        me: Side = UNKNOWN,
        tells_confirmed: bool = False,
        proven: Claim | None = None,
    ) -> None:
        self._proven = proven
        self.shipped: int | None = None  # log position of the next byte; None before the first report
        self.acknowledged: int | None = None
        self.flushed: int | None = None  # None of a stock slave: it does not report its disk
        self.slave: Side | None = None  # who it says it is, if it is one of ours
        self.state: State | None = None  # how that one stands to this master
        self._me = me
        self._is_prompt = is_prompt
        self._tells_confirmed = tells_confirmed
        self._is_welcome = False
        self._is_given_up = False
        self.closed = ""
        self.cure = ""  # what the operator can do about it
        self._said: list[bytes] = []
        self._confirmed_told = 0
        self._reports = ReportReader()
        self._heard_ms = now_ms
        self._spoke_ms = now_ms

    def feed(self, data: bytes, span: LogSpan, now_ms: int) -> None:
        """Take bytes of the slave."""
        if self.closed:
            return
        self._heard_ms = now_ms
        try:
            reports = self._reports.feed(data)
            if self._reports.hello is not None and self.slave is None:
                slave = read_side(self._reports.hello)
                if self._proven is not None:
                    self._proven.check(slave)
                self.slave = slave
            for report in reports:
                if self.shipped is None:
                    self._begin(report, span)
                else:
                    self._acknowledge(report)
            if self._reports.refusal is not None:
                reason, cure = read_refusal(self._reports.refusal)
                raise ProtocolError(f"the slave takes nothing of this master: {reason}", hint=cure)
        except ProtocolError as error:
            self._give_up(str(error), error.hint)

    @property
    def epoch(self) -> int:
        """The epoch in which the log is shipped."""
        return self._me.epoch

    def say(self, message: bytes) -> None:
        """Tell the slave something that concerns the election, with the next shipment."""
        self._said.append(message)

    def take_messages(self) -> list[bytes]:
        """Return what the slave has said of the election, and forget it."""
        messages, self._reports.messages = self._reports.messages, []
        return messages

    @property
    def is_stock(self) -> bool:
        """Whether the slave speaks as RocketMQ's do."""
        return not self._reports.is_greeted

    @property
    def is_refused(self) -> bool:
        """Whether the slave was given up before anything was shipped to it."""
        return self._is_given_up and self.shipped is None

    def tick(self, now_ms: int) -> None:
        """Close the link of a slave that has been silent for too long."""
        if not self.closed and now_ms - self._heard_ms > SILENCE_MS_MAX:
            self._give_up(
                f"the slave was silent for more than {SILENCE_MS_MAX} ms",
                "look whether that host and the network between live; a slave connects again by itself",
            )

    def next_shipment(self, span: LogSpan, now_ms: int) -> Shipment | None:
        """Return what is to be sent now; the caller sends all of it before it asks again."""
        if self.closed:
            return None
        if self._reports.is_greeted and not self._is_welcome:
            self._is_welcome = True
            self._spoke_ms = now_ms
            return Shipment(pack_welcome(side_bytes(self._side(span))), span.end, 0)
        if self.shipped is None:
            return None
        if self._said and self._is_welcome:
            said, self._said = self._said, []
            return Shipment(b"".join(map(pack_message, said)), span.end, 0)
        position = self.shipped
        if position < span.begin:
            self._give_up(f"retention has deleted the log below {span.begin}, the slave is at {position}", START_AGAIN)
            return None
        size = min(span.end - position, SHIPPED_BYTES_MAX, span.file_bytes - position % span.file_bytes)
        is_news = self._tells_confirmed and span.confirmed > self._confirmed_told
        if size <= 0 and not is_news and now_ms - self._spoke_ms < HEARTBEAT_MS:
            return None
        self._confirmed_told = span.confirmed
        size = max(size, 0)
        self._spoke_ms = now_ms
        self.shipped = position + size
        if self._reports.is_greeted:
            header = pack_long_header(position, size, self._me.epoch, span.confirmed)
        else:
            header = pack_header(position, size)
        return Shipment(header, position, size)

    def _side(self, span: LogSpan) -> Side:
        facts = {"file_bytes": span.file_bytes, "begin": span.begin, "end": span.end, "prompt": self._is_prompt}
        return msgspec.structs.replace(self._me, **facts)

    def _give_up(self, reason: str, cure: str) -> None:
        self.closed, self.cure = reason, cure
        self._is_given_up = True

    def _begin(self, report: Report, span: LogSpan) -> None:
        if self.slave is not None:
            verdict = judge(self.slave, self._side(span))
            self.state = verdict.state
            if verdict.state is not State.FOLLOWING:
                raise ProtocolError(verdict.reason, hint=verdict.cure)
        if report.end:
            position = report.end
        elif self._reports.is_greeted:
            position = span.begin
        else:
            position = max(span.begin, span.end - span.end % span.file_bytes)
        if position > span.end:
            raise ProtocolError(
                f"the slave has the log up to {position}, this master up to {span.end}: they are not of one log, or"
                " this master has lost its end",
                hint="find out which of the two has what was acknowledged; if it is the master: " + START_AGAIN,
            )
        if position < span.begin:
            raise ProtocolError(
                f"the slave asks for the log from {position}, retention has left it from {span.begin}", hint=START_AGAIN
            )
        self.shipped = position
        self.acknowledged, self.flushed = report

    def _acknowledge(self, report: Report) -> None:
        assert self.shipped is not None and self.acknowledged is not None
        if report.end > self.shipped:
            raise ProtocolError(
                f"the slave reports the log up to {report.end}, and was sent no more than {self.shipped}"
            )
        if report.end < self.acknowledged:
            raise ProtocolError(f"the slave reports the log up to {report.end}, and had {self.acknowledged} before")
        if report.flushed is not None and self.flushed is not None and report.flushed < self.flushed:
            raise ProtocolError(f"the slave reports {report.flushed} on its disk, and had {self.flushed} there before")
        self.acknowledged, self.flushed = report
