"""The bytes of RocketMQ's replication stream between a master and one slave. No socket, no clock.

    slave -> master    report     8   the slave's log end, big-endian
    master -> slave    header    12   log position 8 | size 4, big-endian, then `size` bytes of the log

There is no handshake. The first report says where the master begins: 0 at the beginning of its last file, anything else
exactly there. A header of size 0 is a heartbeat, and its position is that of the next byte. A frame never reaches from
one CommitLog file into the next, and what lies behind a BLANK is shipped too, because a stock slave appends until its
file is full. A frame may begin and end inside a record.

Between two shmq brokers, on the same port:

    slave -> master    hello     8    GREETING
    master -> slave    header   12    GREETING 8 | size 4, then who the master is: JSON (meeting.py)
    slave -> master    hello          size 4, then who the slave is: JSON
    slave -> master    progress 16    the slave's log end 8 | what of it is on its disk 8; the first says where to
                                      begin, and an end of 0 asks for everything that the master has
    master -> slave    header   28    log position 8 | size 4 | epoch 8 | confirmed end 8, then `size` bytes of the log
    slave -> master    message  16    MESSAGE 8 | size 8, then what members of an election say to each other: JSON
    master -> slave    header   12    MESSAGE 8 | size 4, then the same
    slave -> master    refusal  16    REFUSAL 8 | size 8, then why it takes nothing of this master, as below
    master -> slave    header   12    REFUSAL 8 | size 4, then why the connection ends, and behind a line feed what to
                                      do about it, in UTF-8

Where a secret is asked for, handshake.py comes before all of this; its first word is AUTHENTICATION, 8 bytes.

The first bit of GREETING is set, so a stock master reads a log position below 0: it ships nothing, acknowledges nothing
with it, and says so with a heartbeat at that position after 5 s. A position above its end would be taken for a slave
that has everything, and a synchronous stock master would acknowledge what no slave has.

Invariants:
 1. Whatever bytes come in whatever pieces, the outcome is reports or frames, or a ProtocolError.
 2. No more is held back than a header, a report or what one end says to the other; a frame is no larger than
    FRAME_BYTES_MAX.
"""

from __future__ import annotations

from struct import Struct
from typing import NamedTuple

from shmq.daemon.ha.meeting import SIDE_BYTES_MAX
from shmq.errors import ProtocolError

_REPORT = Struct(">q")
_HEADER = Struct(">qi")
_PROGRESS = Struct(">qq")
_LONG_HEADER = Struct(">qiqq")
_SIZE = Struct(">i")
REPORT_BYTES = _REPORT.size
PROGRESS_BYTES = _PROGRESS.size
HEADER_BYTES = _HEADER.size
LONG_HEADER_BYTES = _LONG_HEADER.size
assert REPORT_BYTES == 8 and HEADER_BYTES == 12 and PROGRESS_BYTES == 16

GREETING = int.from_bytes(b"\xd3HMQ\0\0\0\2", "big", signed=True)
REFUSAL = int.from_bytes(b"\xd3HMR\0\0\0\1", "big", signed=True)  # a word of its own, whatever GREETING becomes
MESSAGE = int.from_bytes(b"\xd3HMS\0\0\0\1", "big", signed=True)
AUTHENTICATION = int.from_bytes(b"\xd3HMT\0\0\0\1", "big", signed=True)
assert GREETING < REFUSAL < MESSAGE < AUTHENTICATION < 0
REFUSAL_BYTES_MAX = 1024
MESSAGE_BYTES_MAX = 1024
assert REFUSAL_BYTES_MAX <= MESSAGE_BYTES_MAX
# What we ship at once. A stock slave reads into 4 MiB and takes any frame that fits there with its header.
SHIPPED_BYTES_MAX = 1 << 20
# What a master may ship at once: haTransferBatchSize is a setting there, and the slave's buffer is its bound.
FRAME_BYTES_MAX = (4 << 20) - HEADER_BYTES
# Both ends speak at least this often, and give a peer up that was silent for so long.
HEARTBEAT_MS = 5_000
SILENCE_MS_MAX = 20_000
assert HEARTBEAT_MS < SILENCE_MS_MAX


class Frame(NamedTuple):
    """A part of the master's log, or of one of its frames; without data a heartbeat."""

    log_position: int
    data: bytes | memoryview
    epoch: int = 0
    confirmed: int = 0


class Report(NamedTuple):
    """How far a slave's log reaches, and how far it is on its disk; None of a stock slave, which does not say."""

    end: int
    flushed: int | None


def pack_welcome(side: bytes) -> bytes:
    """Return the answer to a greeting, its header before it."""
    return _HEADER.pack(GREETING, len(side)) + side


def pack_hello(side: bytes) -> bytes:
    """Return what a slave of ours says once it knows that its master is one, too."""
    return _SIZE.pack(len(side)) + side


def pack_refusal(reason: str, cure: str) -> bytes:
    """Return what a master says before it ends the connection to a slave of ours."""
    text = f"{reason}\n{cure}".encode()[:REFUSAL_BYTES_MAX]
    return _HEADER.pack(REFUSAL, len(text)) + text


def pack_reported_refusal(reason: str, cure: str) -> bytes:
    """Return what a slave of ours says before it ends the connection."""
    text = f"{reason}\n{cure}".encode()[:REFUSAL_BYTES_MAX]
    return _PROGRESS.pack(REFUSAL, len(text)) + text


def read_refusal(data: bytes) -> tuple[str, str]:
    """Return why the other end ends the connection, and what to do; the text is a stranger's, so only what prints."""
    lines = data.decode(errors="replace").split("\n", 1)
    reason, cure = ("".join(letter if letter.isprintable() else "?" for letter in line) for line in (*lines, "")[:2])
    return reason, cure


def pack_message(text: bytes) -> bytes:
    """Return what a master says in an election, its header before it."""
    return _HEADER.pack(MESSAGE, len(text)) + text


def pack_reported_message(text: bytes) -> bytes:
    """Return what a slave says in an election."""
    return _PROGRESS.pack(MESSAGE, len(text)) + text


def pack_progress(log_end: int, flushed: int) -> bytes:
    """Return what a slave of ours says about its log."""
    return _PROGRESS.pack(log_end, flushed)


def pack_report(log_end: int) -> bytes:
    """Return what a stock slave says about its log; GREETING is one, too."""
    return _REPORT.pack(log_end)


def pack_header(log_position: int, size_bytes: int) -> bytes:
    """Return what stands before the bytes of a frame."""
    return _HEADER.pack(log_position, size_bytes)


def pack_long_header(log_position: int, size_bytes: int, epoch: int, confirmed: int) -> bytes:
    """Return what stands before the bytes of a frame to a slave of ours."""
    return _LONG_HEADER.pack(log_position, size_bytes, epoch, confirmed)


class ReportReader:
    """Reports out of a slave's bytes. As in RocketMQ, the last whole one that has come is the one that counts.

    Attributes:
        is_greeted: the slave is one of ours.
        hello: what it said of itself, None before.
    """

    def __init__(self) -> None:
        self.is_greeted = False
        self.hello: bytes | None = None
        self.messages: list[bytes] = []  # the reader takes them out
        self.refusal: bytes | None = None  # why the slave ends the connection
        self._is_begun = False
        self._rest = b""

    def feed(self, data: bytes) -> tuple[Report, ...]:
        """Return the first and the last of the reports that `data` completes; one, if it is one; none, if none.

        Raises:
            ProtocolError: a report is no log position, or a hello is too long.
        """
        data = self._rest + data
        if not self._is_begun and len(data) >= REPORT_BYTES:
            self._is_begun = True
            (word,) = _REPORT.unpack_from(data)
            self.is_greeted = word in (GREETING, AUTHENTICATION)
            if word == AUTHENTICATION:
                raise ProtocolError(
                    "the slave wants a secret proven, and this master has none",
                    hint="start this master with the slave's --ha-secret-file",
                )
            data = data[REPORT_BYTES:] if self.is_greeted else data
        if self.is_greeted and self.hello is None:
            data = self._take_hello(data)
        if self.is_greeted:
            reports = self._take_progress(data) if self.hello is not None else []
        else:
            whole = len(data) // REPORT_BYTES * REPORT_BYTES if self._is_begun else 0
            places = sorted({0, whole - REPORT_BYTES}) if whole else []
            reports, data = [Report(_REPORT.unpack_from(data, at)[0], None) for at in places], data[whole:]
        if not (self.is_greeted and self.hello is not None):
            self._rest = data
        for report in reports:
            if report.end < 0:
                raise ProtocolError(f"a slave reports the log end {report.end}, which is below 0")
            if report.flushed is not None and not 0 <= report.flushed <= report.end:
                raise ProtocolError(f"a slave reports {report.flushed} on its disk, and the log end {report.end}")
        return tuple(reports)

    def _take_hello(self, data: bytes) -> bytes:
        if len(data) < _SIZE.size:
            return data
        (size,) = _SIZE.unpack_from(data)
        if not 0 < size <= SIDE_BYTES_MAX:
            raise ProtocolError(f"a slave says who it is in {size} bytes, 1 to {SIDE_BYTES_MAX} are possible")
        if len(data) < _SIZE.size + size:
            return data
        self.hello = data[_SIZE.size : _SIZE.size + size]
        return data[_SIZE.size + size :]

    def _take_progress(self, data: bytes) -> list[Report]:
        reports, at = [], 0
        while len(data) - at >= PROGRESS_BYTES:
            end, flushed = _PROGRESS.unpack_from(data, at)
            if end not in (MESSAGE, REFUSAL):
                reports.append(Report(end, flushed))
                at += PROGRESS_BYTES
                continue
            if not 0 < flushed <= MESSAGE_BYTES_MAX:
                raise ProtocolError(f"a slave says something in {flushed} bytes, 1 to {MESSAGE_BYTES_MAX} are possible")
            if len(data) - at < PROGRESS_BYTES + flushed:
                break
            said = data[at + PROGRESS_BYTES : at + PROGRESS_BYTES + flushed]
            if end == REFUSAL:
                self.refusal = said
            else:
                self.messages.append(said)
            at += PROGRESS_BYTES + flushed
        self._rest = data[at:]
        return [reports[0], reports[-1]] if len(reports) > 1 else reports


class FrameReader:
    """Frames out of a master's bytes; behind its welcome, a master of ours has long headers, but for a refusal.

    The bytes of a log are not kept: a frame that is cut comes as several, each with what is there of it.
    """

    def __init__(self) -> None:
        self._begun = b""  # of a header, or of a frame that says something
        self._position = 0  # in the log, of what comes next
        self._left = 0  # bytes of this frame
        self._more: tuple[int, ...] = ()  # its epoch and what is confirmed
        self._is_welcome = False

    def feed(self, data: bytes | memoryview) -> list[Frame]:
        """Return the frames that begin or go on in `data`, as views of it.

        Raises:
            ProtocolError: a header says what no header of a master can say.
        """
        if self._begun:
            data, self._begun = self._begun + data, b""
        frames: list[Frame] = []
        view, at = memoryview(data), 0
        while at < len(view):
            if not self._left:
                begin = self._begin(view[at:], frames)
                if not begin:
                    self._begun = bytes(view[at:])
                    break
                at += begin
                continue
            part, position = view[at : at + self._left], self._position
            frames.append(Frame(position, part, *self._more))
            at += len(part)
            self._left -= len(part)
            self._position = position + len(part)
        return frames

    def _begin(self, view: memoryview, frames: list[Frame]) -> int:
        """Take the header of the next frame, and one without bytes of the log as a whole; 0: more has to come."""
        if len(view) < HEADER_BYTES:
            return 0
        position, size = _HEADER.unpack_from(view)
        is_greeting = not self._is_welcome and position == GREETING and 0 <= size <= SIDE_BYTES_MAX
        is_refusal = position == REFUSAL and 0 <= size <= REFUSAL_BYTES_MAX
        is_message = self._is_welcome and position == MESSAGE and 0 < size <= MESSAGE_BYTES_MAX
        if is_greeting or is_refusal or is_message:
            text = bytes(view[HEADER_BYTES : HEADER_BYTES + size])
            if len(text) < size:
                return 0
            self._is_welcome |= is_greeting and size > 0
            frames.append(Frame(position, text))
            return HEADER_BYTES + len(text)
        if position < 0 or not 0 <= size <= FRAME_BYTES_MAX:
            raise ProtocolError(
                f"the master announces {size} bytes at {position}; positions are 0 or more, and a frame has 0 to"
                f" {FRAME_BYTES_MAX} bytes"
            )
        end = LONG_HEADER_BYTES if self._is_welcome else HEADER_BYTES
        if len(view) < end:
            return 0
        self._position, self._left = position, size
        self._more = _LONG_HEADER.unpack_from(view)[2:] if self._is_welcome else ()
        if not size:
            frames.append(Frame(position, b"", *self._more))
        return end
