"""Message ids as RocketMQ's clients make them, so that its tools find a message by them.

Those tools search around the time in an id, so it is read as they write it.

    bytes   4 or 16          2     4          4                                    2
            IP of the host   pid   a random   ms since the month began (local)     counter
                                   number
            upper-case hex: 32 characters, 56 for IPv6

Invariant: two ids of one process differ, as long as it makes fewer than 65,536 in a millisecond.
"""

from __future__ import annotations

import ipaddress
import itertools
import os
import random
from datetime import datetime
from struct import Struct

_TAIL = Struct(">IH")
_HEAD = Struct(">HI")


def month_start_ms(now_ms: int) -> int:
    """Return when the current month began, local time, in ms since the epoch."""
    now = datetime.fromtimestamp(now_ms / 1000)
    return round(datetime(now.year, now.month, 1).timestamp() * 1000)


class UniqueIds:
    """Ids of one process on one host."""

    def __init__(self, host: str, *, pid: int | None = None, salt: int | None = None) -> None:
        process = (os.getpid() if pid is None else pid) & 0xFFFF
        head = _HEAD.pack(process, random.getrandbits(32) if salt is None else salt)
        self._prefix = (ipaddress.ip_address(host).packed + head).hex().upper()
        self._counter = itertools.count(random.getrandbits(16))
        self._month_ms = 0
        self._month_ends_ms = 0
        self._head = (-1, "")  # all but the counter, of ids made in that millisecond

    def next(self, now_ms: int) -> str:
        """Return a new id."""
        made_ms, head = self._head
        if made_ms != now_ms:
            head = self._head_of(now_ms)
            self._head = now_ms, head
        return f"{head}{next(self._counter) & 0xFFFF:04X}"

    def _head_of(self, now_ms: int) -> str:
        if not self._month_ms <= now_ms < self._month_ends_ms:
            self._month_ms = month_start_ms(now_ms)
            self._month_ends_ms = month_start_ms(self._month_ms + 32 * 86_400_000)
        return f"{self._prefix}{now_ms - self._month_ms:08X}"


def id_time_ms(message_id: str, now_ms: int) -> int | None:
    """Return when an id was made, in ms since the epoch; None when it is no such id."""
    if len(message_id) not in (32, 56):
        return None
    try:
        since = int.from_bytes(bytes.fromhex(message_id)[-_TAIL.size :][:4], "big")
    except ValueError:
        return None
    made = month_start_ms(now_ms) + since
    return made if made <= now_ms + 86_400_000 else month_start_ms(month_start_ms(now_ms) - 1) + since


def offset_of_id(offset_message_id: str) -> int:
    """Return the log position in an offset message id; 0 when it is none."""
    try:
        return int(offset_message_id[-16:], 16) if len(offset_message_id) in (32, 56) else 0
    except ValueError:
        return 0
