"""JSON and plain values as the types that msgspec describes; no other module lets msgspec read into a type.

msgspec describes a type to itself when something is first read into it, and notes that it is described before it has
finished. Two threads that read into a type for the first time at once would meet half a description, which ends the
process with a segmentation fault (seen with 0.18 to 0.22). So a type is described here, once and under a lock.

    invariant    a type that `decoder` or `describe` returned for is described as a whole, with every type within
"""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

if TYPE_CHECKING:
    from collections.abc import Mapping

ValueT = TypeVar("ValueT")

_decoders: dict[Any, msgspec.json.Decoder[Any]] = {}
_describing = threading.RLock()  # a handler of a signal may read while its thread does
# Not while another thread holds it: the child would wait for ever, or meet half a description.
os.register_at_fork(before=_describing.acquire, after_in_parent=_describing.release, after_in_child=_describing.release)


def decoder(kind: type[ValueT]) -> msgspec.json.Decoder[ValueT]:
    """Return the decoder of a type; any thread may use it."""
    found = _decoders.get(kind)
    if found is None:
        with _describing:
            found = _decoders[kind] = _decoders.get(kind) or msgspec.json.Decoder(kind)
    return found


def describe(kind: Any) -> None:
    """Let msgspec describe a type, so that other threads may read into it from now on.

    Raises:
        TypeError: nothing can be read into it.
    """
    with _describing:
        msgspec.json.Decoder(kind)


def decode_json(data: bytes, kind: type[ValueT]) -> ValueT:
    """Return what JSON holds.

    Raises:
        msgspec.ValidationError: it is JSON, but not of this type.
        msgspec.DecodeError, UnicodeDecodeError, RecursionError: it is no JSON.
    """
    return decoder(kind).decode(data)


def convert_plain(value: Mapping[Any, Any] | Any, kind: type[ValueT], *, strict: bool = True) -> ValueT:
    """Return plain values as a type.

    Args:
        strict: numbers are numbers; otherwise their text will do.

    Raises:
        msgspec.ValidationError: they are not of this type.
    """
    decoder(kind)
    return msgspec.convert(value, kind, strict=strict)
