"""Reading a heartbeat as every client writes it.

Owns what RocketMQ's own reader takes beside the plain form: enumerations as numbers, numbers as text. The C++ client
writes both. It does not know what is done with a heartbeat.
"""

from __future__ import annotations

from typing import Any

import msgspec

from shmq.errors import ProtocolError
from shmq.protocol.body import HeartbeatData, decode_body

_ORDINALS = {
    "consumeType": ("CONSUME_ACTIVELY", "CONSUME_PASSIVELY", "CONSUME_POP"),
    "messageModel": ("BROADCASTING", "CLUSTERING"),
    "consumeFromWhere": (
        "CONSUME_FROM_LAST_OFFSET",
        "CONSUME_FROM_LAST_OFFSET_AND_FROM_MIN_WHEN_BOOT_FIRST",
        "CONSUME_FROM_MIN_OFFSET",
        "CONSUME_FROM_MAX_OFFSET",
        "CONSUME_FROM_FIRST_OFFSET",
        "CONSUME_FROM_TIMESTAMP",
    ),
}


def decode_heartbeat(data: bytes) -> HeartbeatData:
    """Return the body of a HEART_BEAT.

    Raises:
        ProtocolError: it is none, in no dialect.
    """
    try:
        return decode_body(data, HeartbeatData)
    except ProtocolError:
        try:
            raw = msgspec.json.decode(data)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            raw = None
        if not isinstance(raw, dict):
            raise
    consumers = raw.get("consumerDataSet")
    for consumer in consumers if isinstance(consumers, list) else ():
        if isinstance(consumer, dict):
            _name_ordinals(consumer)
    try:
        return msgspec.convert(raw, HeartbeatData, strict=False)
    except (msgspec.ValidationError, RecursionError) as error:
        raise ProtocolError(f"the body is no HeartbeatData: {error}") from error


def _name_ordinals(consumer: dict[Any, Any]) -> None:
    for field, names in _ORDINALS.items():
        value = consumer.get(field)
        if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < len(names):
            consumer[field] = names[value]
