"""RocketMQ's message ids: the broker's, which says where in its log a message is, and the client's, which is unique.

    hexadecimal, upper case:   IPv4 4 bytes | port 4 | log position 8        IPv6 16 bytes | port 4 | log position 8

A unique key, which a client makes, has 32 digits as well: whether an id is one or the other only the log can say. Two
keys of one process differ, whatever its clock does.
"""

from __future__ import annotations

import ipaddress
import itertools
import os
import re
import socket
from datetime import datetime, timedelta
from struct import Struct
from typing import Final, NamedTuple

_POSITION_DIGITS = 16
_POSITION_MAX = (1 << 63) - 1
_PORT = Struct(">i")
_ID = re.compile(r"(?:[0-9A-Fa-f]{16}|[0-9A-Fa-f]{40})([0-9A-Fa-f]{16})")  # host and port, then log position


class MessagePlace(NamedTuple):
    """What an offset message id says; `host` is an IP address in text."""

    host: str
    port: int
    log_position: int


def message_id_text(host: bytes, log_position: int) -> str:
    """Return the id of the message at a log position of the broker whose address and port are these 8 or 20 bytes."""
    return f"{host.hex().upper()}{log_position:016X}"


def position_in(text: str) -> int | None:
    """Return the log position in an id that has the form of an offset message id, else None."""
    match = _ID.fullmatch(text)
    position = int(match[1], 16) if match else _POSITION_MAX + 1
    return position if position <= _POSITION_MAX else None


def message_place(text: str) -> MessagePlace | None:
    """Return what an id says if it has the form of an offset message id, else None."""
    position = position_in(text)
    if position is None:
        return None
    host = bytes.fromhex(text[:-_POSITION_DIGITS])
    (port,) = _PORT.unpack(host[-_PORT.size :])
    if not 0 <= port <= 65535:
        return None
    address = host[: -_PORT.size]
    return MessagePlace(
        socket.inet_ntop(socket.AF_INET if len(address) == 4 else socket.AF_INET6, address), port, position
    )


# As RocketMQ's clients make them: its tools search around the time in an id, so it is written as they read it.
#
#   bytes   4 or 16          2     4          4                                    2
#           IP of the host   pid   a random   ms since the month began (local)     counter
#                                  number
#           upper-case hex: 32 characters, 56 for IPv6

_PROCESS: Final = Struct(">HI")
_COUNTER_BITS: Final = 16


def month_of(now_ms: int) -> range:
    """Return the month, local time, in which a moment lies, in ms since the epoch."""
    first = datetime.fromtimestamp(now_ms / 1000).replace(day=1, hour=0, minute=0, second=0, microsecond=0, fold=0)
    return range(*(round(day.timestamp() * 1000) for day in (first, (first + timedelta(days=32)).replace(day=1))))


def _drawn(size_bytes: int) -> int:
    """Return a number by chance. Not of `random`, which programs seed: two that did so alike would make equal ids."""
    return int.from_bytes(os.urandom(size_bytes))


class _Head(NamedTuple):
    """All but the counter of the ids that one process makes in one millisecond.

    A round is the 65,536 ids until the counter begins anew. Each has a random number of its own: the clock may stand,
    or have gone back. Threads take it and set it as one value: a counter never stands behind another round's number.
    """

    round: int
    process: str
    month: range  # ms since the epoch
    made_ms: int
    text: str


class UniqueIds:
    """Ids of one process on one host."""

    def __init__(self, host: str, *, pid: int | None = None, salt: int | None = None) -> None:
        self._host = ipaddress.ip_address(host).packed
        self._pid = (os.getpid() if pid is None else pid) & 0xFFFF
        self._counter = itertools.count(_drawn(2))
        self._head = self._new_head(0, _drawn(4) if salt is None else salt)

    def next(self, now_ms: int) -> str:
        """Return a new id."""
        number = next(self._counter)
        begun, process, month, made_ms, text = self._head
        if begun != number >> _COUNTER_BITS:
            begun, process, month, made_ms, text = self._new_head(number >> _COUNTER_BITS, _drawn(4))
        if made_ms != now_ms:
            if now_ms not in month:
                month = month_of(now_ms)
            text = f"{process}{now_ms - month.start:08X}"
            self._head = _Head(begun, process, month, now_ms, text)
        return f"{text}{number & 0xFFFF:04X}"

    def _new_head(self, number: int, salt: int) -> _Head:
        process = (self._host + _PROCESS.pack(self._pid, salt)).hex().upper()
        return _Head(number, process, range(0), -1, "")
