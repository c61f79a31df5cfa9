"""Compressed bodies, as a sysFlag says of them. A body that does not become shorter is not compressed.

Every reader inflates by itself: `Message.body` knows all three kinds. zlib is written without its type bits: clients
older than the types read every compressed body as zlib.

    sysFlag   bit 0 compressed · bits 8 to 10 how: 0 zlib, 1 LZ4 frame, 2 Zstandard
"""

from __future__ import annotations

from typing import Any, Final

from shmq.errors import UsageError

COMPRESS_ABOVE_BYTES: Final = 4096
SYS_FLAG_COMPRESSED: Final = 1
_TYPE_BITS: Final = {"zlib": 0, "lz4": 1 << 8, "zstd": 2 << 8}
_ZLIB_LEVEL: Final = 5


def compress(body: Any, kind: str) -> tuple[Any, int]:
    """Return the body to be sent and its sysFlag bits.

    Raises:
        UsageError: the library for this kind is not installed.
    """
    if kind == "none" or len(body) <= COMPRESS_ABOVE_BYTES:
        return body, 0
    packed = _pack(body, kind)
    return (packed, SYS_FLAG_COMPRESSED | _TYPE_BITS[kind]) if len(packed) < len(body) else (body, 0)


def _pack(body: Any, kind: str) -> bytes:
    if kind == "zlib":
        import zlib

        return zlib.compress(body, _ZLIB_LEVEL)
    try:
        if kind == "lz4":
            import lz4.frame

            return bytes(lz4.frame.compress(body))
        import zstandard

        return zstandard.ZstdCompressor().compress(body)
    except ImportError as error:
        raise UsageError(f"{kind} is not installed: {error}", hint="pip install 'shmq[compression]'") from error
