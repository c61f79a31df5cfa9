"""The property text of a stored message, as bytes: reading one value, changing some.

    key 0x01 value 0x02 key 0x01 value 0x02 ...      the last 0x02 may be missing

Rules: (1) bytes that are no UTF-8 stay what they are; (2) a repeated key keeps its last value, a pair without key or
value is dropped, as RocketMQ's own reader does; (3) the CRC of a stored record never gets into a copy of it; (4) what
has to be stored is not kept out by what its sender put into it: `fitting` leaves out what there is no room for.
"""

from collections.abc import Mapping

from shmq.message import DEAD_LETTER_REASON
from shmq.properties import PROPERTIES_BYTES_MAX, RESERVED_PROPERTIES
from shmq.timing import DEQUEUE_MS, ENQUEUE_MS, ROLL_TIMES

_NAME_SEPARATOR = b"\x01"
_PAIR_SEPARATOR = b"\x02"
_RECORD_CRC = b"__CRC32#"
TEXT_BYTES_MAX = PROPERTIES_BYTES_MAX - 21  # a record's checksum is a property, too, behind a separator
_NOTES = tuple(name.encode() for name in (DEAD_LETTER_REASON, ENQUEUE_MS, DEQUEUE_MS, ROLL_TIMES))
_SPARED = frozenset(name.encode() for name in RESERVED_PROPERTIES) - {b"TAGS", b"KEYS", b"__SHARDINGKEY"}


def property_of(properties: bytes, key: str) -> str | None:
    """Return the value of one property, None when it is not there."""
    name = key.encode() + _NAME_SEPARATOR
    if name not in properties:
        return None
    value = pairs_of(properties).get(key.encode())
    return value.decode(errors="replace") if value is not None else None


def pairs_of(properties: bytes) -> dict[bytes, bytes]:
    """Return all properties but the record's CRC, in their order."""
    pairs: dict[bytes, bytes] = {}
    for pair in properties.split(_PAIR_SEPARATOR):
        key, _, value = pair.partition(_NAME_SEPARATOR)
        if key and value and key != _RECORD_CRC:
            pairs[key] = value
    return pairs


def with_properties(properties: bytes, changes: Mapping[str, str | None]) -> bytes:
    """Return the text with some properties set, and those removed whose value is None."""
    pairs = pairs_of(properties)
    for key, value in changes.items():
        if value is None:
            pairs.pop(key.encode(), None)
        else:
            pairs[key.encode()] = value.encode()
    return _text_of(pairs)


def fits(properties: bytes, *, more: int = 0) -> bool:
    """Whether a record has room for this text, and so many bytes more."""
    return len(properties) + more <= TEXT_BYTES_MAX


def fitting(properties: bytes) -> bytes:
    """Return the text that a record has room for: without what brokers note for people, then without its longest pairs.

    The full properties of a message leave no room for what a redelivery or the end of a delay adds. Its copy has to be
    stored all the same: while it is refused, the message comes again without end, or those behind it stand still.
    """
    if fits(properties):
        return properties
    pairs = pairs_of(properties)
    for name in _NOTES:
        pairs.pop(name, None)
    for key in sorted(pairs.keys() - _SPARED, key=lambda key: -len(key) - len(pairs[key])):
        if len(_text_of(pairs)) <= TEXT_BYTES_MAX:
            break
        del pairs[key]
    return _text_of(pairs)


def _text_of(pairs: Mapping[bytes, bytes]) -> bytes:
    return b"".join(key + _NAME_SEPARATOR + value + _PAIR_SEPARATOR for key, value in pairs.items())
