"""The checksum of a JSON file of ours: its last entry, `"shmqCrc32"`, the CRC-32 of all bytes before it.

One wrong digit in a position or an offset is valid JSON, and would be believed. RocketMQ reads the entry of its own
tables as a field that it does not know, and writes the file without it; what a file without one is worth, its reader
decides.
"""

from __future__ import annotations

import json
import re
import zlib
from typing import Any

SEAL_KEY = "shmqCrc32"
_SEAL = re.compile(rb',\n\t"shmqCrc32":"([0-9a-f]{8})"\n\}\s*\Z')
_PATTERN = b',\n\t"shmqCrc32":"________"\n}'  # a seal, with _ for digits
_ALIKE_MOST = 4  # bytes by which the end of a file may differ from it and still be what is left of one


def sealed(text: bytes) -> bytes:
    """Add the entry with the checksum to the JSON of an object that is not empty."""
    body = text.rstrip().removesuffix(b"}").rstrip()
    return body + b',\n\t"%b":"%08x"\n}' % (SEAL_KEY.encode(), zlib.crc32(body))


def is_sealed(content: bytes) -> bool:
    """Whether a file has the entry.

    Raises:
        ValueError: it has one, and the bytes before it are others, or it had one.
    """
    seal = _SEAL.search(content)
    if seal is not None and zlib.crc32(content[: seal.start()]) != int(seal[1], 16):
        raise ValueError("its checksum is wrong")
    if seal is None and _was_sealed(content):
        raise ValueError("its checksum is damaged")
    return seal is not None


def _was_sealed(content: bytes) -> bool:
    """Whether the end of a file is nearly a seal: one that is damaged must not make it a file that never had one."""
    end = content[-len(_PATTERN) :]
    differing = sum(wanted not in (byte, ord("_")) for byte, wanted in zip(end, _PATTERN, strict=False))
    return len(end) == len(_PATTERN) and differing <= _ALIKE_MOST


def unsealed(content: bytes) -> dict[str, Any]:
    """Return the object of a small file that only we write.

    Raises:
        ValueError: it is none, or its checksum is missing or wrong.
    """
    if not is_sealed(content):
        raise ValueError("it has no checksum")
    data = json.loads(content)
    del data[SEAL_KEY]
    return dict(data)
