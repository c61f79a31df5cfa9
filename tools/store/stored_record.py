"""A record of the log for people and programs: every field, and what its checksums say."""

from __future__ import annotations

import base64
import zlib
from ipaddress import ip_address
from typing import Any, Final

from shmq.figures.quantity import iso_text
from shmq.record import BLANK_MAGIC, HEAD_BYTES, LENGTH_AND_MAGIC, RECORD_BYTES_MAX, RECORD_MAGICS
from shmq.shm.core import CoreError, record_decode, record_verify
from shmq.store.verify import LogFiles

_CRC_MASK: Final = 0x7FFFFFFF
_RECORD_CRC_KEY: Final = b"__CRC32#\x01"
_RECORD_CRC_DIGITS: Final = 10
_RECORD_CRC_BYTES: Final = len(_RECORD_CRC_KEY) + _RECORD_CRC_DIGITS + 1


def read_record(log: LogFiles, position: int) -> bytes | None:
    """Return the bytes that a record at a position says it has; None where no record begins."""
    head = log.read(position, LENGTH_AND_MAGIC.size)
    if len(head) < LENGTH_AND_MAGIC.size:
        return None
    size, magic = LENGTH_AND_MAGIC.unpack(head)
    if magic == BLANK_MAGIC or magic not in RECORD_MAGICS or not HEAD_BYTES < size <= RECORD_BYTES_MAX:
        return None
    return log.read(position, size)


def record_fields(position: int, data: bytes, *, with_body: bool = True) -> dict[str, Any]:
    """Return a record as a document.

    Raises:
        CoreError: its lengths do not agree.
    """
    found = record_decode(data)
    document: dict[str, Any] = {
        "topic": _text(found["topic"]),
        "queue": found["queue_id"],
        "offset": found["queue_offset"],
        "position": position,
        "position_said": found["log_position"],
        "record_bytes": found["record_bytes"],
        "magic": f"{found['magic']:08x}",
        "flag": found["flag"],
        "sys_flag": found["sys_flag"],
        "born": iso_text(found["born_ms"]),
        "born_ms": found["born_ms"],
        "stored": iso_text(found["store_ms"]),
        "store_ms": found["store_ms"],
        "born_host": _host(found["born_host"]),
        "store_host": _host(found["store_host"]),
        "reconsume_times": found["reconsume_times"],
        "prepared_position": found["prepared_position"],
        "body_bytes": len(found["body"]),
        "body_crc": _body_verdict(found),
        "record_crc": _record_verdict(data),
        "properties": _properties(found["properties"]),
    }
    if with_body:
        document["body_base64"] = base64.b64encode(found["body"]).decode()
    return document


def is_whole(data: bytes) -> bool:
    """Say whether a record and its checksums agree."""
    try:
        return bool(record_verify(data))
    except CoreError:
        return False


def _body_verdict(found: dict[str, Any]) -> str:
    return "right" if zlib.crc32(found["body"]) & _CRC_MASK == found["body_crc"] else "wrong"


def _record_verdict(data: bytes) -> str:
    """Judge the checksum over the whole record, which a stock broker of 4.9 does not write."""
    tail = data[len(data) - _RECORD_CRC_BYTES :]
    if not tail.startswith(_RECORD_CRC_KEY):
        return "none"
    # RocketMQ writes the lowest digit first.
    digits = tail[len(_RECORD_CRC_KEY) :][:_RECORD_CRC_DIGITS]
    right = digits.isdigit() and int(digits[::-1]) == zlib.crc32(data[: len(data) - _RECORD_CRC_BYTES]) & _CRC_MASK
    return "right" if right else "wrong"


def _properties(data: bytes) -> dict[str, str]:
    pairs = (pair.partition("\1") for pair in _text(data).split("\2"))
    return {name: value for name, separator, value in pairs if separator}


def _text(data: bytes) -> str:
    return data.decode(errors="replace")


def _host(data: bytes) -> str:
    address, port = data[:-4], int.from_bytes(data[-4:])
    try:
        return f"{ip_address(address)}:{port}"
    except ValueError:
        return data.hex()
