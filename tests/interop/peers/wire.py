"""Owns a bare connection that speaks remoting frames with JSON headers; it shares nothing with shmq.

It does not know what a request means. `shmq/protocol` is what is under test here, so it is not used.

    4 length of the rest | 1 serialization (0 = JSON) | 3 header length | header | body
"""

from __future__ import annotations

import json
import socket
import struct
import time
from dataclasses import dataclass, field
from typing import Any, Self

TIMEOUT = 10.0
JAVA_VERSION = 409
RESPONSE_FLAG = 1
ONE_WAY_FLAG = 2


@dataclass
class Frame:
    """One frame as it came: `header` is what the JSON said, so absent keys differ from empty ones."""

    header: dict[str, Any] = field(default_factory=dict)
    body: bytes = b""
    serialization: int = 0

    @property
    def code(self) -> int:
        """The response code, or the request code of what the peer asks."""
        return int(self.header["code"])

    @property
    def remark(self) -> str | None:
        """The remark, None when there is none."""
        return self.header.get("remark")

    @property
    def fields(self) -> dict[str, str]:
        """The extension fields; empty when the header has none."""
        return self.header.get("extFields") or {}


def encode(
    code: int, opaque: int, fields: dict[str, Any] | None = None, body: bytes = b"", *, flag: int = 0, **extra: Any
) -> bytes:
    """Return the bytes of a frame; `extra` replaces or adds top-level keys of the header, None removes one."""
    header: dict[str, Any] = {
        "code": code,
        "flag": flag,
        "language": "JAVA",
        "opaque": opaque,
        "serializeTypeCurrentRPC": "JSON",
        "version": JAVA_VERSION,
    }
    if fields is not None:
        header["extFields"] = fields
    header.update(extra)
    text = json.dumps({key: value for key, value in header.items() if value is not None}).encode()
    return struct.pack(">II", 4 + len(text) + len(body), len(text)) + text + body


class Wire:
    """A connection; requests of the peer are kept in `asked` and not answered."""

    def __init__(self, address: str, timeout: float = TIMEOUT) -> None:
        host, port = address.rsplit(":", 1)
        self._socket = socket.create_connection((host, int(port)), timeout)
        self._timeout = timeout
        self._received = b""
        self._opaque = 0
        self.asked: list[Frame] = []

    def send(self, data: bytes) -> None:
        """Write bytes as they are."""
        self._socket.sendall(data)

    def read(self, deadline: float | None = None) -> Frame | None:
        """Return the next frame, None when the peer has closed.

        Raises:
            TimeoutError: it did not come in time; what came of it is kept.
        """
        deadline = deadline or time.monotonic() + self._timeout
        while len(self._received) < 4 or len(self._received) < 4 + int.from_bytes(self._received[:4]):
            self._socket.settimeout(max(0.001, deadline - time.monotonic()))
            try:
                more = self._socket.recv(1 << 16)
            except ConnectionResetError:
                return None
            if not more:
                return None
            self._received += more
        length, word = struct.unpack(">II", self._received[:8])
        rest, self._received = self._received[8 : 4 + length], self._received[4 + length :]
        size = word & 0xFFFFFF
        header = json.loads(rest[:size]) if word >> 24 == 0 else {}
        return Frame(header, rest[size:], word >> 24)

    def ask(self, code: int, fields: dict[str, Any] | None = None, body: bytes = b"", **extra: Any) -> Frame | None:
        """Send a request and return its reply, None when the connection was closed instead.

        Raises:
            TimeoutError: there was no reply.
        """
        opaque = self.next_opaque()
        self.send(encode(code, opaque, fields, body, **extra))
        return self.reply_to(opaque)

    def next_opaque(self) -> int:
        """Return a number that no request of this connection had."""
        self._opaque += 1
        return self._opaque

    def limit(self, timeout: float) -> None:
        """Change how long a reply may take, in seconds."""
        self._timeout = timeout

    def reply_to(self, opaque: int) -> Frame | None:
        """Return the reply to a request, None when the connection was closed instead.

        Raises:
            TimeoutError: there was no reply.
        """
        deadline = time.monotonic() + self._timeout
        while True:
            frame = self.read(deadline)
            if frame is None or (frame.header.get("opaque") == opaque and frame.header["flag"] & RESPONSE_FLAG):
                return frame
            if not frame.header.get("flag", 0) & RESPONSE_FLAG:
                self.asked.append(frame)

    def close(self) -> None:
        """Close the connection."""
        self._socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def has_route(name_server: str, topic: str) -> bool:
    """Whether a name server hands out a route of a topic."""
    with Wire(name_server) as wire:
        reply = wire.ask(105, {"topic": topic})
        return reply is not None and reply.code == 0
