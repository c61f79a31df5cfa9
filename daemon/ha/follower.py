"""The slave's end of the stream from its master: bytes and ticks in, log to append and reports out.

    master's bytes ──feed──▶ frames ──▶ pending ──the core appends whole records──▶ applied(log end) ──▶ report

Frames are cut anywhere; the core takes whole records and leaves the rest here until more has come. A BLANK moves the
log end to the next file at once, so the padding that the master ships behind it lies below the end when it comes: it is
dropped.

Invariants:
 1. `pending` begins at the log end, and its bytes came without a gap.
 2. What is reported never falls, is never above what the master has sent, and but for that padding a record border.
 3. No more than PENDING_BYTES_MAX bytes wait for the core; above that nothing is to be read from the master.
"""

from __future__ import annotations

from shmq.daemon.ha.stream import (
    FROM_BEGINNING,
    HEARTBEAT_MS,
    SILENCE_MS_MAX,
    Frame,
    FrameReader,
    pack_report,
)
from shmq.errors import ProtocolError

# A record of the greatest size and a frame that ends inside it, twice.
PENDING_BYTES_MAX = 16 << 20


class FollowerLink:
    """One connection to the master.

    Args:
        log_end: of this host's log, a record border.
        is_empty: this log has no record, and may begin where the master's does.
        wants_all: an empty log asks for everything that the master has, which only a master of ours understands.
    """

    def __init__(self, log_end: int, now_ms: int, *, is_empty: bool = False, wants_all: bool = False) -> None:
        self.closed = ""
        self.master_end = log_end  # as far as the master was heard of
        self.begins_at: int | None = None  # where the master's log begins, if it is not where this empty one ends
        self._frames = FrameReader()
        self._pending = bytearray()
        self._end = log_end
        self._received = log_end
        self._is_empty = is_empty
        self._reported = FROM_BEGINNING if is_empty and wants_all else 0 if is_empty else log_end
        self._out = pack_report(self._reported)  # at once: RocketMQ waits 5 s, and a master is silent until then
        self._heard_ms = now_ms
        self._spoke_ms = now_ms

    def take(self) -> bytes:
        """Return what is to be sent to the master, and forget it."""
        out, self._out = self._out, b""
        return out

    def feed(self, data: bytes, now_ms: int) -> None:
        """Take bytes of the master."""
        if self.closed:
            return
        self._heard_ms = now_ms
        try:
            for frame in self._frames.feed(data):
                self._keep(frame)
            self._report_progress(now_ms)
        except ProtocolError as error:
            self.closed = str(error)

    def pending(self) -> tuple[int, memoryview]:
        """Return the log end and the bytes that belong behind it; the view is released before the next call."""
        return self._end, memoryview(self._pending)

    @property
    def is_full(self) -> bool:
        """Whether nothing is to be read from the master until the core has taken something."""
        return len(self._pending) >= PENDING_BYTES_MAX

    def applied(self, log_end: int, now_ms: int) -> None:
        """Say how far this host's log reaches after the core has appended from `pending`."""
        assert log_end >= self._end, (log_end, self._end)
        if log_end > self._end:
            del self._pending[: log_end - self._end]
            self._end = log_end
            self._is_empty = False
            self._report_progress(now_ms)

    def tick(self, now_ms: int) -> None:
        """Report again what was reported long ago; close the link to a master that is silent."""
        if self.closed:
            return
        if now_ms - self._heard_ms > SILENCE_MS_MAX:
            self.closed = f"the master was silent for {now_ms - self._heard_ms} ms, above {SILENCE_MS_MAX}"
        elif now_ms - self._spoke_ms >= HEARTBEAT_MS:
            self._report(now_ms)

    def _keep(self, frame: Frame) -> None:
        position, data = frame
        if self._is_empty and self._received == self._end and not self._pending and position != self._received:
            # An empty log begins where the master says; how, is its owner's affair: a file has to stand there first.
            self.begins_at = position
            raise ProtocolError(f"the master's log begins at {position}, this empty one at {self._end}")
        if position != self._received:
            raise ProtocolError(
                f"the master ships its log from {position}, this one has it up to {self._received}: bytes are missing,"
                " or these are two logs"
            )
        self._received += len(data)
        self.master_end = max(self.master_end, self._received)
        self._pending += data[min(max(self._end - position, 0), len(data)) :]  # without the padding behind a BLANK

    def _report_progress(self, now_ms: int) -> None:
        if self._reached > self._reported or (self._reported == FROM_BEGINNING and self._reached > 0):
            self._report(now_ms)

    @property
    def _reached(self) -> int:
        return min(self._end, self._received)  # inside the padding the end is ahead of what has come

    def _report(self, now_ms: int) -> None:
        self._reported = self._reached
        self._out += pack_report(self._reported)
        self._spoke_ms = now_ms
