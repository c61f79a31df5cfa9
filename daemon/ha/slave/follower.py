"""The slave's end of the stream from its master: bytes and ticks in, log to append and reports out.

    hello ──▶ welcome, or the heartbeat of a stock master: the face comes again and speaks RocketMQ's stream
    master's bytes ──feed──▶ frames ──▶ pending ──the core appends whole records──▶ applied(log end) ──▶ report

Frames are cut anywhere; the core takes whole records and leaves the rest here until more has come. A BLANK moves the
log end to the next file at once, so the padding that the master ships behind it lies below the end when it comes: it is
dropped.

Invariants:
 1. `pending` begins at the log end, and its bytes came without a gap.
 2. What is reported to be here, and on the disk, never falls and is never above what the master has sent; what is here
    is a record border, but for that padding.
 3. The first bytes that come are those of the last record that is here: another log shows in them, and is refused
    before a byte of it was taken.
 4. No more than PENDING_BYTES_MAX bytes wait for the core; above that nothing is to be read from the master.
"""

from __future__ import annotations

import msgspec

from shmq.daemon.ha.handshake import Claim
from shmq.daemon.ha.meeting import START_AGAIN, LastRecord, Side, State, judge, read_side, side_bytes
from shmq.daemon.ha.stream import (
    GREETING,
    HEARTBEAT_MS,
    MESSAGE,
    REFUSAL,
    SILENCE_MS_MAX,
    Frame,
    FrameReader,
    pack_hello,
    pack_progress,
    pack_report,
    pack_reported_message,
    pack_reported_refusal,
    read_refusal,
)
from shmq.errors import ProtocolError

# A record of the greatest size and a frame that ends inside it, twice.
PENDING_BYTES_MAX = 16 << 20


class FollowerLink:
    """One connection to the master.

    Args:
        log_end: of this host's log, a record border.
        is_empty: this log has no record, and may begin where the master's does.
        flushed: what of this log is on the disk.
        me: who this slave is, and its log.
        greets: it is not known that the master is none of ours.
        last: the last record that is here; None where there is none.
        expects: store and epoch of the leader that was elected; another one is neither followed nor told anything.
        proven: who the master has proven to be, where a secret is asked for.
    """

    def __init__(
        self,
        log_end: int,
        now_ms: int,
        *,
        is_empty: bool = False,
        flushed: int = 0,
        me: Side | None = None,
        greets: bool = False,
        last: LastRecord | None = None,
        expects: tuple[str, int] | None = None,
        proven: Claim | None = None,
    ) -> None:
        self._proven = proven
        self.closed = ""
        self.cure = ""  # what the operator can do about it
        self.is_met = False  # the master has said something that makes sense
        self.is_stock = not greets
        self.is_prompt = False  # the master waits for what is on this disk
        self.master_end = log_end  # as far as the master was heard of
        self.master: Side | None = None  # who it says it is, if it is one of ours
        self.state: State | None = None  # how this slave stands to that one
        self.cut_at: int | None = None  # where this log parts from the master's
        self.confirmed = 0  # what the master says is on the disks of all replicas in sync
        self.messages: list[bytes] = []  # of the election; the reader takes them out
        self.begins_at: int | None = None  # where the master's log begins, if it is not where this empty one ends
        self._expects = expects
        self._frames = FrameReader()
        self._pending = bytearray()
        self._end = log_end
        self._last = last or LastRecord(log_end, b"")
        self._received = self._last.log_position
        self._is_empty = is_empty
        self._me = msgspec.structs.replace(me or Side(), end=log_end, empty=is_empty)
        self._flushed = flushed
        self._reported, self._reported_flushed = (0 if is_empty else self._received), 0
        self._is_greeting = greets
        # At once: RocketMQ waits 5 s, and a master is silent until then.
        self._out = pack_report(GREETING if greets else self._reported)
        self._begun_ms = self._heard_ms = self._spoke_ms = now_ms

    def take(self) -> bytes:
        """Return what is to be sent to the master, and forget it."""
        out, self._out = self._out, b""
        return out

    def feed(self, data: bytes | memoryview, now_ms: int) -> None:
        """Take bytes of the master; they may change after the call."""
        if self.closed:
            return
        self._heard_ms = now_ms
        try:
            for frame in self._frames.feed(data):
                if frame.log_position == REFUSAL:
                    reason, cure = read_refusal(bytes(frame.data))
                    raise ProtocolError(f"the master refuses this slave: {reason}", hint=cure)
                if frame.log_position == MESSAGE:
                    self.messages.append(bytes(frame.data))
                elif self._is_greeting:
                    self._meet(frame, now_ms)
                else:
                    self._keep(frame)
                self.is_met = True
            self._report_progress(now_ms)
        except ProtocolError as error:
            self.closed, self.cure = str(error), error.hint
            self.refuse(self.closed, self.cure)

    def refuse(self, reason: str, cure: str) -> None:
        """Tell a master of ours that was met why this slave ends the connection."""
        if self.is_met and not self.is_stock:
            self._out += pack_reported_refusal(reason, cure)

    def pending(self) -> tuple[int, memoryview]:
        """Return the log end and the bytes that belong behind it; the view is released before the next call."""
        return self._end, memoryview(self._pending)

    @property
    def epoch(self) -> int:
        """The epoch of the master that ships; a stock one has none."""
        return self.master.epoch if self.master is not None else 0

    @property
    def is_proven(self) -> bool:
        """Whether the master's log goes on where this one ends, as far as that is known."""
        return self.is_met and self._received >= self._me.end

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

    def flushed(self, durable_end: int, now_ms: int) -> None:
        """Say how far this host's log is on the disk."""
        self._flushed = max(self._flushed, durable_end)
        if self._safe > self._reported_flushed and (self.is_prompt or not self._reported_flushed):
            self._report(now_ms)

    def say(self, message: bytes) -> None:
        """Tell the master something that concerns the election; only a master of ours that was met understands it."""
        if self.is_met and not (self.closed or self.is_stock):
            self._out += pack_reported_message(message)

    def report(self, now_ms: int) -> None:
        """Say again how far this log is: an election counts those that were heard of lately."""
        if self.is_met and not (self.closed or self._is_greeting):
            self._report(now_ms)

    def tick(self, now_ms: int) -> None:
        """Report again what was reported long ago; close the link to a master that is silent or proves nothing."""
        if self.closed:
            return
        if now_ms - self._heard_ms > SILENCE_MS_MAX:
            self.closed = f"the master was silent for more than {SILENCE_MS_MAX} ms"
            self.cure = "look whether that host and the network between live; this slave connects again by itself"
        elif self._received == self._last.log_position < self._me.end and now_ms - self._begun_ms > SILENCE_MS_MAX:
            # So does a stock master whose log is shorter: it says that it lives, and never where its log ends.
            self.closed = (
                f"the master does not ship the record at {self._received}, this slave's last one: it has no such"
            )
            self.state = State.AHEAD
            self.cure = f"find out which of the two has what was acknowledged; if it is the master: {START_AGAIN}"
        elif now_ms - self._spoke_ms >= HEARTBEAT_MS and not self._is_greeting:
            self._report(now_ms)

    def _meet(self, frame: Frame, now_ms: int) -> None:
        """Take the answer to the greeting."""
        position, data = frame[:2]
        if position == GREETING and not data:
            self.is_stock = True
            raise ProtocolError("the master is a stock RocketMQ broker; it is asked again, as its own slaves ask")
        if position != GREETING:
            raise ProtocolError(f"the master answers a greeting with its log at {position}")
        master = read_side(bytes(data))
        if self._proven is not None:
            self._proven.check(master)
        if self._expects is not None and (master.store, master.epoch) != self._expects:
            store, epoch = self._expects
            raise ProtocolError(
                f"store {master.store} answers in epoch {master.epoch}, elected is {store} in {epoch}",
                hint="if this lasts, see what shmq cluster status says on the leader's host",
            )
        self.master = master
        verdict = judge(self._me, self.master)
        self.state, self.cut_at = verdict.state, verdict.cut
        self._is_greeting = False
        self._out += pack_hello(side_bytes(self._me))
        self.master_end = max(self.master_end, self.master.end)
        self.is_prompt = self.master.prompt
        if self.master.begin > self._received:
            self._received = self._end  # there is nothing of the master to compare the last record with
        self._report(now_ms)  # also to a master that is not followed: it has to know of a newer epoch
        if verdict.state is not State.FOLLOWING:
            raise ProtocolError(verdict.reason, hint=verdict.cure)

    def _keep(self, frame: Frame) -> None:
        position, data = frame[:2]
        if self.master is not None and frame.epoch != self.master.epoch:
            raise ProtocolError(
                f"the master ships in epoch {frame.epoch}, and said that its own is {self.master.epoch}"
            )
        self.confirmed = max(self.confirmed, frame.confirmed)
        if self._is_empty and self._received == self._end and not self._pending and position != self._received:
            # An empty log begins where the master says; how, is its owner's affair: a file has to stand there first.
            self.begins_at = position
            raise ProtocolError(f"the master's log begins at {position}, this empty one at {self._end}")
        if position != self._received:
            raise ProtocolError(
                f"the master ships its log from {position}, this one has it up to {self._received}: bytes are missing,"
                " or these are two logs",
                hint=START_AGAIN,
            )
        verdict = self._last.against(position, data)
        if verdict.state is not State.FOLLOWING:
            self.state = verdict.state
            raise ProtocolError(verdict.reason, hint=verdict.cure)
        self._received += len(data)
        self.master_end = max(self.master_end, self._received)
        self._pending += data[min(max(self._end - position, 0), len(data)) :]  # without the padding behind a BLANK

    def _report_progress(self, now_ms: int) -> None:
        # A master that waits for the disk gets one report, when the disk has it.
        if self._reached > self._reported and not self.is_prompt:
            self._report(now_ms)

    @property
    def _reached(self) -> int:
        return min(self._end, self._received)  # inside the padding the end is ahead of what has come

    @property
    def _safe(self) -> int:
        return min(self._flushed, self._reached)

    def _report(self, now_ms: int) -> None:
        self._reported = 0 if self._is_empty else self._reached
        self._reported_flushed = min(self._safe, self._reported)
        if self.is_stock:
            self._out += pack_report(self._reported)
        else:
            self._out += pack_progress(self._reported, self._reported_flushed)
        self._spoke_ms = now_ms
