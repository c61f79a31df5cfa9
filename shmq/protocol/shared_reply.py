"""One answer to many requests, encoded once: only the number of the request differs between its frames.

    prefix | header up to the number | number of the request | the rest of the header | body

Invariant: `frame` gives what `encode_command` would give for the same answer.
"""

from __future__ import annotations

from dataclasses import replace
from struct import Struct

from shmq.protocol.codes import Codec
from shmq.protocol.command import Command
from shmq.protocol.frame import encode_frame
from shmq.protocol.header import encode_command

_PREFIX_BYTES = 8
_JSON_NUMBER = b'"opaque":0,'  # once only: a quote inside a text is escaped, and a field of that name has a text
_BINARY_NUMBER = Struct(">i")
_BINARY_AT = 5


class SharedReply:
    """The frames of one answer."""

    __slots__ = ("_around",)

    def __init__(self) -> None:
        self._around: dict[Codec, tuple[bytes, bytes]] = {}

    def frame(self, command: Command) -> bytes:
        """Return the frame of an answer that differs from the others in `opaque` and `codec` only.

        Raises:
            UsageError: a field that the wire cannot carry.
        """
        codec = command.codec
        around = self._around.get(codec)
        if around is None:
            around = self._around[codec] = _split(command)
        number = b"%d" % command.opaque if codec is Codec.JSON else _BINARY_NUMBER.pack(command.opaque)
        return encode_frame(codec, number.join(around), command.body)


def _split(command: Command) -> tuple[bytes, bytes]:
    """The header in front of the number, and behind it."""
    header = encode_command(replace(command, opaque=0, body=b""))[_PREFIX_BYTES:]
    if command.codec is Codec.JSON:
        before, _, after = header.partition(_JSON_NUMBER)
        return before + _JSON_NUMBER[:-2], _JSON_NUMBER[-1:] + after
    return header[:_BINARY_AT], header[_BINARY_AT + _BINARY_NUMBER.size :]
