"""The bytes of RocketMQ's replication stream between a master and one slave. No socket, no clock.

    slave -> master    report     8   the slave's log end, big-endian
    master -> slave    header    12   log position 8 | size 4, big-endian, then `size` bytes of the log

There is no handshake. The first report says where the master begins: 0 at the beginning of its last file, anything else
exactly there. A header of size 0 is a heartbeat, and its position is that of the next byte. A frame never reaches from
one CommitLog file into the next, and what lies behind a BLANK is shipped too, because a stock slave appends until its
file is full. A frame may begin and end inside a record.

One report is ours: `FROM_BEGINNING`, eight bytes that are no log position, asks for everything that the master has. A
stock master is never sent it.

Invariants:
 1. Whatever bytes come in whatever pieces, the outcome is reports or frames, or a ProtocolError.
 2. No more than one frame is held back, and no frame is larger than FRAME_BYTES_MAX.
"""

from __future__ import annotations

from struct import Struct
from typing import NamedTuple

from shmq.errors import ProtocolError

_REPORT = Struct(">q")
_HEADER = Struct(">qi")
REPORT_BYTES = _REPORT.size
HEADER_BYTES = _HEADER.size
assert REPORT_BYTES == 8 and HEADER_BYTES == 12

FROM_BEGINNING = int.from_bytes(b"SHMQ\0\0\0\0", "big")
# What we ship at once. A stock slave reads into 4 MiB and takes any frame that fits there with its header.
SHIPPED_BYTES_MAX = 256 << 10
# What a master may ship at once: haTransferBatchSize is a setting there, and the slave's buffer is its bound.
FRAME_BYTES_MAX = (4 << 20) - HEADER_BYTES
# Both ends speak at least this often, and give a peer up that was silent for so long.
HEARTBEAT_MS = 5_000
SILENCE_MS_MAX = 20_000
assert HEARTBEAT_MS < SILENCE_MS_MAX


class Frame(NamedTuple):
    """A part of the master's log; without data a heartbeat."""

    log_position: int
    data: bytes


def pack_report(log_end: int) -> bytes:
    """Return what a slave says about its log."""
    return _REPORT.pack(log_end)


def pack_header(log_position: int, size_bytes: int) -> bytes:
    """Return what stands before the bytes of a frame."""
    return _HEADER.pack(log_position, size_bytes)


class ReportReader:
    """Reports out of a slave's bytes. As in RocketMQ, the last whole one that has come is the one that counts."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> tuple[int, ...]:
        """Return the first and the last of the reports that `data` completes; one, if it is one; none, if none.

        Raises:
            ProtocolError: a report is no log position.
        """
        data = self._rest + data
        whole = len(data) // REPORT_BYTES * REPORT_BYTES
        self._rest = data[whole:]
        reports = [_REPORT.unpack_from(data, at)[0] for at in sorted({0, whole - REPORT_BYTES})] if whole else []
        if any(report < 0 for report in reports):
            raise ProtocolError(f"a slave reports the log end {min(reports)}, which is below 0")
        return tuple(reports)


class FrameReader:
    """Frames out of a master's bytes."""

    def __init__(self) -> None:
        self._bytes = bytearray()

    def feed(self, data: bytes) -> list[Frame]:
        """Return the frames that `data` completes.

        Raises:
            ProtocolError: a header says what no header of a master can say.
        """
        self._bytes += data
        frames, at = [], 0
        while len(self._bytes) - at >= HEADER_BYTES:
            position, size = _HEADER.unpack_from(self._bytes, at)
            if position < 0 or not 0 <= size <= FRAME_BYTES_MAX:
                raise ProtocolError(
                    f"the master announces {size} bytes at {position}; positions are 0 or more, and a frame has 0 to"
                    f" {FRAME_BYTES_MAX} bytes"
                )
            end = at + HEADER_BYTES + size
            if end > len(self._bytes):
                break
            frames.append(Frame(position, bytes(self._bytes[at + HEADER_BYTES : end])))
            at = end
        del self._bytes[:at]
        return frames
