"""Cut a byte stream into remoting frames, and put a frame together.

Here are the eight bytes in front of a header and every limit that can be judged from them; there is no socket, clock or
thread.

    byte  0               4       5               8                 8+H              4+L
          +---------------+-------+---------------+-----------------+----------------+
          | L             | codec | H             | header          | body           |
          +---------------+-------+---------------+-----------------+----------------+

L counts the bytes after itself; H is an unsigned 24-bit number. Big-endian.

    H up to HEADER_BYTES_MAX is a header that is read; up to header_bytes_max it is taken all the same, so that the
    answer can say that it is too long.

    L                                                   taken as
    up to frame_bytes_max                               a frame, when it is complete
    up to skipped_bytes_max                             a frame without its body, as soon as its header is complete;
                                                        the body is dropped as it comes
    more                                                a ProtocolError

Invariants:
 1. A prefix is judged before its frame is waited for: a lying length costs eight bytes of memory, never its promise.
 2. Any cut of the same bytes gives the same frames, then the same error.
 3. A frame that is longer than may be kept never costs more than its header.
 4. After a ProtocolError the decoder is spent: there is no next frame boundary to trust.
"""

from __future__ import annotations

from struct import Struct
from typing import NamedTuple

from shmq.errors import ProtocolError, UsageError
from shmq.protocol.codes import Codec

_PREFIX = Struct(">iI")
_SIZE_BYTES = 4  # L itself, which L does not count
_CODEC_SHIFT = 24
_HEADER_MASK = (1 << _CODEC_SHIFT) - 1
assert _PREFIX.size == 2 * _SIZE_BYTES

HEADER_BYTES_MAX = 256 << 10  # a full property text of which every byte is escaped, and all other fields
FRAME_BYTES_MAX = (4 << 20) + (128 << 10)  # the largest message, its properties and a header
STOCK_FRAME_BYTES_MAX = 16 << 20  # RocketMQ's; a client that sends up to that may expect an answer


class Frame(NamedTuple):
    """One complete frame, header still encoded; `skipped_bytes` is the length of a body that is not kept."""

    codec: Codec
    header: bytes
    body: bytes
    skipped_bytes: int = 0


class FrameDecoder:
    """Bytes in, frames out; remembers only what was not taken yet."""

    def __init__(
        self,
        *,
        frame_bytes_max: int = FRAME_BYTES_MAX,
        skipped_bytes_max: int = 0,
        header_bytes_max: int = HEADER_BYTES_MAX,
    ) -> None:
        self.frame_bytes_max = frame_bytes_max
        self._header_bytes_max = header_bytes_max
        self._skipped_bytes_max = skipped_bytes_max
        self._skipped_bytes = 0  # of the body that is being dropped: what came, and what is still to come
        self._unskipped_bytes = 0
        self._tail = bytearray()
        self._broken: str | None = None

    @property
    def buffered_bytes(self) -> int:
        """Bytes fed and kept, because they are not taken."""
        return len(self._tail)

    @property
    def is_between_frames(self) -> bool:
        """Whether the stream stands between two frames."""
        return not self._tail and not self._unskipped_bytes

    @property
    def unfinished_bytes(self) -> int:
        """Bytes that have come of the frame that is not complete."""
        return self._skipped_bytes + len(self._tail)

    @property
    def missing_bytes(self) -> int:
        """Bytes that complete the next frame; 0 when it is complete, or its length is not known."""
        if self._unskipped_bytes:
            return self._unskipped_bytes
        if len(self._tail) < _SIZE_BYTES or self._broken is not None:
            return 0
        return max(0, _SIZE_BYTES + int.from_bytes(self._tail[:_SIZE_BYTES]) - len(self._tail))

    def feed(self, data: bytes) -> None:
        """Append bytes of the stream; those behind a break are dropped."""
        if self._unskipped_bytes:
            dropped_bytes = min(self._unskipped_bytes, len(data))
            data = data[dropped_bytes:]
            self._unskipped_bytes -= dropped_bytes
            self._skipped_bytes = self._skipped_bytes + dropped_bytes if self._unskipped_bytes else 0
        if self._broken is None:
            self._tail += data

    def take(self) -> Frame | None:
        """Return the next complete frame, or None until more bytes are fed.

        Raises:
            ProtocolError: the peer broke the framing, now or at an earlier call.
        """
        if self._broken is not None:
            raise ProtocolError(self._broken)
        try:
            body_at, end = self._judge()
        except ProtocolError as error:
            self._broken = str(error)
            self._tail.clear()
            raise
        if end - _SIZE_BYTES > self.frame_bytes_max:
            return self._take_header(body_at, end)
        if not 0 < end <= len(self._tail):
            return None
        header_at = _PREFIX.size
        frame = Frame(
            codec=Codec(self._tail[_SIZE_BYTES]),
            header=bytes(self._tail[header_at:body_at]),
            body=bytes(self._tail[body_at:end]),
        )
        del self._tail[:end]
        return frame

    def _take_header(self, body_at: int, end: int) -> Frame | None:
        """Take what is kept of a frame that is too long, when it is there, and drop the rest of it."""
        if body_at > len(self._tail):
            return None
        frame = Frame(Codec(self._tail[_SIZE_BYTES]), bytes(self._tail[_PREFIX.size : body_at]), b"", end - body_at)
        rest = bytes(self._tail[body_at:])
        self._tail.clear()
        self._unskipped_bytes = frame.skipped_bytes
        self.feed(rest)
        return frame

    def _judge(self) -> tuple[int, int]:
        """Return where body and frame end if the prefix is to be believed; zeros while it is incomplete."""
        if len(self._tail) < _PREFIX.size:
            return 0, 0
        frame_bytes, packed = _PREFIX.unpack_from(self._tail)
        codec, header_bytes = packed >> _CODEC_SHIFT, packed & _HEADER_MASK
        if not _SIZE_BYTES <= frame_bytes <= max(self.frame_bytes_max, self._skipped_bytes_max):
            raise ProtocolError(f"a frame of {frame_bytes} bytes; {self.frame_bytes_max} are allowed")
        if codec not in (Codec.JSON, Codec.BINARY):
            raise ProtocolError(f"header encoding {codec}; 0 (JSON) and 1 (binary) exist")
        if not 0 < header_bytes <= self._header_bytes_max:
            raise ProtocolError(f"a header of {header_bytes} bytes; 1 to {HEADER_BYTES_MAX} are allowed")
        if _SIZE_BYTES + header_bytes > frame_bytes:
            raise ProtocolError(f"a header of {header_bytes} bytes in a frame of {frame_bytes} bytes")
        return _PREFIX.size + header_bytes, _SIZE_BYTES + frame_bytes


def encode_frame(codec: Codec, header: bytes, body: bytes) -> bytes:
    """Return the bytes of one frame.

    Raises:
        UsageError: the header or the frame is longer than any peer accepts.
    """
    frame_bytes = _SIZE_BYTES + len(header) + len(body)
    if not 0 < len(header) <= HEADER_BYTES_MAX:
        raise UsageError(f"a header of {len(header)} bytes; 1 to {HEADER_BYTES_MAX} are allowed")
    if frame_bytes > FRAME_BYTES_MAX:
        raise UsageError(f"a frame of {frame_bytes} bytes; {FRAME_BYTES_MAX} are allowed")
    return b"".join((_PREFIX.pack(frame_bytes, codec << _CODEC_SHIFT | len(header)), header, body))
