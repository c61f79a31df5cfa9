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
from datetime import datetime
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

_HEAD: Final = Struct(">HI")
_COUNTER_BITS: Final = 16


def month_start_ms(now_ms: int) -> int:
    """Return when the current month began, local time, in ms since the epoch."""
    now = datetime.fromtimestamp(now_ms / 1000)
    return round(datetime(now.year, now.month, 1).timestamp() * 1000)


def _drawn(size_bytes: int) -> int:
    """Return a number by chance. Not of `random`, which programs seed: two that did so alike would make equal ids."""
    return int.from_bytes(os.urandom(size_bytes))


class UniqueIds:
    """Ids of one process on one host."""

    _head: tuple[int, str]

    def __init__(self, host: str, *, pid: int | None = None, salt: int | None = None) -> None:
        self._host = ipaddress.ip_address(host).packed
        self._process = (os.getpid() if pid is None else pid) & 0xFFFF
        self._counter = itertools.count(_drawn(2))
        self._month_ms = 0
        self._month_ends_ms = 0
        self._begin_round(0, _drawn(4) if salt is None else salt)

    def next(self, now_ms: int) -> str:
        """Return a new id."""
        number = next(self._counter)
        if number >> _COUNTER_BITS != self._round:
            self._begin_round(number >> _COUNTER_BITS, _drawn(4))
        made_ms, head = self._head
        if made_ms != now_ms:
            head = self._head_of(now_ms)
            self._head = now_ms, head
        return f"{head}{number & 0xFFFF:04X}"

    def _begin_round(self, number: int, salt: int) -> None:
        """Begin the counter anew, with another random number: the clock may stand, or have gone back."""
        self._round = number
        self._prefix = (self._host + _HEAD.pack(self._process, salt)).hex().upper()
        self._head = (-1, "")  # all but the counter, of ids made in that millisecond

    def _head_of(self, now_ms: int) -> str:
        if not self._month_ms <= now_ms < self._month_ends_ms:
            self._month_ms = month_start_ms(now_ms)
            self._month_ends_ms = month_start_ms(self._month_ms + 32 * 86_400_000)
        return f"{self._prefix}{now_ms - self._month_ms:08X}"
