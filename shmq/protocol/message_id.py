"""RocketMQ's offset message id: which broker has a message, and where in its log.

    hexadecimal, upper case:   IPv4 4 bytes | port 4 | log position 8        IPv6 16 bytes | port 4 | log position 8

A unique key, which a client makes, has 32 digits as well: whether an id is one or the other only the log can say.
"""

from __future__ import annotations

import re
import socket
from struct import Struct
from typing import NamedTuple

_HOST_DIGITS = (16, 40)
_POSITION_DIGITS = 16
_POSITION_MAX = (1 << 63) - 1
_PORT = Struct(">i")
_HEX = re.compile(r"[0-9A-Fa-f]+", re.ASCII)


class MessagePlace(NamedTuple):
    """What an offset message id says; `host` is an IP address in text."""

    host: str
    port: int
    log_position: int


def message_id_text(host: bytes, log_position: int) -> str:
    """Return the id of the message at a log position of the broker whose address and port are these 8 or 20 bytes."""
    return f"{host.hex().upper()}{log_position:016X}"


def message_place(text: str) -> MessagePlace | None:
    """Return what an id says if it has the form of an offset message id, else None."""
    host_digits = len(text) - _POSITION_DIGITS
    if host_digits not in _HOST_DIGITS or not _HEX.fullmatch(text):
        return None
    host = bytes.fromhex(text[:host_digits])
    (port,) = _PORT.unpack(host[-_PORT.size :])
    position = int(text[host_digits:], 16)
    if not 0 <= port <= 65535 or position > _POSITION_MAX:
        return None
    address = host[: -_PORT.size]
    return MessagePlace(
        socket.inet_ntop(socket.AF_INET if len(address) == 4 else socket.AF_INET6, address), port, position
    )
