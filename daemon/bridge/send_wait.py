"""Measures how long a send has waited in this process before its turn, and refuses one that waited too long.

Only sends are timed: other requests are answered however long they waited.

    bytes are read ── the requests of this turn are served at once ── the rest waits for later turns ── served
          └──────────────────────────── age of a request ───────────────────────────────────────────────┘

RocketMQ's clients give up after 3 s, and storing a send after that is useless work. RocketMQ refuses what waited for
200 ms, and so does the bridge, with its words and numbers: how long, and how many wait.

Invariants:
 1. A request of the turn in which its last byte was read is never refused: there was no queue.
 2. While the peer does not read its answers, its requests wait for the peer, not for us: that time does not count.
"""

from collections import deque
from typing import Final

from shmq.protocol.codes import Request, Response
from shmq.protocol.command import Command

SENDS: Final = frozenset(
    {
        Request.SEND_MESSAGE,
        Request.SEND_MESSAGE_V2,
        Request.SEND_BATCH_MESSAGE,
        Request.CONSUMER_SEND_MSG_BACK,
        Request.SEND_REPLY_MESSAGE,
        Request.SEND_REPLY_MESSAGE_V2,
    }
)


class ReadTimes:
    """When the bytes of one connection were read, as far as they are not served."""

    __slots__ = ("_fed_bytes", "_reads")

    def __init__(self) -> None:
        self._fed_bytes = 0
        self._reads: deque[tuple[int, float]] = deque()  # (bytes read until then, when)

    def read(self, byte_count: int, now: float) -> None:
        """Note that bytes were read; times are seconds of one clock."""
        self._fed_bytes += byte_count
        self._reads.append((self._fed_bytes, now))

    def taken(self, left_bytes: int) -> float:
        """Return when the last byte of a frame was read, of which `left_bytes` are left behind it."""
        end = self._fed_bytes - left_bytes
        while len(self._reads) > 1 and self._reads[0][0] < end:
            self._reads.popleft()
        return self._reads[0][1] if self._reads else 0.0

    def restart(self, now: float) -> None:
        """Count from now on: until now it was the peer who did not read."""
        self._reads = deque([(self._fed_bytes, now)])


def too_late(command: Command, waited_seconds: float, waiting_count: int) -> Command:
    """Return the answer to a send that waited too long."""
    remark = (
        "[TIMEOUT_CLEAN_QUEUE]broker busy, start flow control for a while, "
        f"period in queue: {waited_seconds * 1000:.0f}ms, size of queue: {waiting_count}"
    )
    return command.reply(Response.SYSTEM_BUSY, remark=remark)
