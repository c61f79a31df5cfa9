"""The body of a batch: messages one behind the other, each with its own flag and properties.

int size | int 0 | int 0 | int flag | int body bytes | body | short property bytes | properties   ...
"""

from __future__ import annotations

from collections.abc import Iterator
from struct import Struct
from typing import Any, Final, NamedTuple

from shmq.errors import ProtocolError

_HEAD: Final = Struct(">iiiii")
_SHORT: Final = Struct(">H")
ENTRY_OVERHEAD: Final = _HEAD.size + _SHORT.size


class BatchEntry(NamedTuple):
    """One message of a batch; `start` is where it begins in the batch's body."""

    start: int
    flag: int
    body: bytes
    properties: bytes


def pack_entry(body: Any, properties: bytes, flag: int = 0) -> bytes:
    """Return one message as it stands in a batch."""
    size = ENTRY_OVERHEAD + len(body) + len(properties)
    return b"".join((_HEAD.pack(size, 0, 0, flag, len(body)), body, _SHORT.pack(len(properties)), properties))


def entries_of(batch: bytes) -> Iterator[BatchEntry]:
    """Yield the messages of a batch.

    Raises:
        ProtocolError: a length contradicts another.
    """
    at, end = 0, len(batch)
    while at < end:
        if at + ENTRY_OVERHEAD > end:
            raise ProtocolError(f"a batch of {end} bytes ends within the message at {at}")
        size, _, _, flag, body_bytes = _HEAD.unpack_from(batch, at)
        body_start = at + _HEAD.size
        body_end = body_start + body_bytes
        if body_bytes < 0 or body_end + _SHORT.size > min(end, at + max(0, size)):
            raise ProtocolError(f"the message at {at} of a batch says {body_bytes} bytes of body in {size} bytes")
        properties_start = body_end + _SHORT.size
        if properties_start + _SHORT.unpack_from(batch, body_end)[0] != at + size or at + size > end:
            raise ProtocolError(f"the message at {at} of a batch has other properties than its length says")
        yield BatchEntry(at, flag, batch[body_start:body_end], batch[properties_start : at + size])
        at += size
