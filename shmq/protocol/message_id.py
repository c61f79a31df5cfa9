"""RocketMQ's offset message id: which broker has a message, and where in its log.

    hexadecimal, upper case:   IPv4 4 bytes | port 4 | log position 8        IPv6 16 bytes | port 4 | log position 8

A unique key, which a client makes, has 32 digits as well: whether an id is one or the other only the log can say.
"""

from __future__ import annotations

import re
import socket
from struct import Struct
from typing import NamedTuple

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
