"""Owns how a typed topic turns values into bodies and back.

It does not know topics or messages. A codec is anything with `encode(value) -> bytes` and `decode(bytes) -> value`;
"json" and "msgpack" are msgspec's, checked against the type given.
"""

from __future__ import annotations

from typing import Any, Protocol, TypeVar, runtime_checkable

from shmq.errors import UsageError

ValueT = TypeVar("ValueT")


@runtime_checkable
class Codec(Protocol[ValueT]):
    """Values to bodies and back."""

    def encode(self, value: ValueT, /) -> bytes:
        """Return the body of a value."""
        ...

    def decode(self, body: bytes, /) -> ValueT:
        """Return the value of a body; may raise whatever fits the format."""
        ...


class _MsgspecCodec:
    __slots__ = ("decode", "encode")

    def __init__(self, name: str, kind: Any) -> None:
        # Imported on first use: most programs send bytes.
        import msgspec

        module: Any = msgspec.json if name == "json" else msgspec.msgpack
        self.encode = module.Encoder().encode
        self.decode = module.Decoder(kind).decode


def codec_of(codec: str | Codec[Any], kind: Any) -> Codec[Any]:
    """Return the codec of that name for a type, or the codec given.

    Raises:
        UsageError: neither a known name nor an object with encode and decode.
    """
    if codec in ("json", "msgpack"):
        return _MsgspecCodec(str(codec), kind)
    if isinstance(codec, Codec):
        return codec
    raise UsageError(
        f"{codec!r} is no codec", hint='codec="json", codec="msgpack", or an object with encode(value) and decode(body)'
    )
