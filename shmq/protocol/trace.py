"""The text of RocketMQ's message trace: what clients write into the trace topic, and tools read out of it.

Owns field order and separators. It does not know when a trace is made, nor who stores or asks for it.

    body      record 0x02 record 0x02 …          KEYS of the message: all ids and keys in it, so each finds it
    record    kind 0x01 field 0x01 field …

    Pub             time region group topic id tags keys store-host bytes cost type offset-id succeeded [client-host]
    SubBefore       time region group request-id id retries keys
    SubAfter        request-id id cost succeeded keys context-code [time group]
    EndTransaction  time region group topic id tags keys store-host type transaction-id state from-check [client-host]

Java drops empty fields at the end of a record and then misses them, so an empty key there is written as "null", as
Java's own clients write every missing text.

Reading passes over what it does not understand: traces of all versions and languages lie in one topic.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import IntEnum
from typing import Final, NamedTuple

TRACE_GROUP: Final = "_INNER_TRACE_PRODUCER"
REGION: Final = "DefaultRegion"
PUB, SUB_BEFORE, SUB_AFTER, END_TRANSACTION = "Pub", "SubBefore", "SubAfter", "EndTransaction"

_FIELD, _RECORD = "\x01", "\x02"
_NULL = "null"
_SEPARATORS = str.maketrans({_FIELD: " ", _RECORD: " "})
_DIGITS_MAX = 19


class MessageType(IntEnum):
    """What kind of message a trace is about."""

    NORMAL = 0
    TRANSACTION_HALF = 1
    TRANSACTION_COMMIT = 2
    DELAY = 3
    ORDER = 4


class ContextCode(IntEnum):
    """How a message was consumed."""

    SUCCESS = 0
    TIME_OUT = 1
    EXCEPTION = 2
    RETURNED_NULL = 3
    FAILED = 4


class Trace(NamedTuple):
    """One event in a message's life; which fields count depends on the kind."""

    kind: str
    message_id: str
    time_ms: int = 0
    group: str = ""
    topic: str = ""
    tags: str = ""
    keys: str = ""
    store_host: str = ""
    client_host: str = ""
    body_bytes: int = 0
    cost_ms: int = 0
    message_type: int = MessageType.NORMAL
    offset_message_id: str = ""
    succeeded: bool = True
    request_id: str = ""
    retries: int = 0
    context_code: int = ContextCode.SUCCESS
    transaction_id: str = ""
    transaction_state: str = ""
    is_from_check: bool = False
    region: str = REGION


def encode_trace(trace: Trace) -> str:
    """Return one record, with its end."""
    each = trace
    head: tuple[object, ...] = (each.time_ms, each.region, each.group)
    about = (each.topic, each.message_id, each.tags, each.keys, each.store_host)
    fields: tuple[object, ...]
    if each.kind == PUB:
        fields = (*head, *about, each.body_bytes, each.cost_ms, int(each.message_type))
        fields += (each.offset_message_id, each.succeeded)
    elif each.kind == SUB_BEFORE:
        fields = (*head, each.request_id, each.message_id, each.retries, each.keys or _NULL)
    elif each.kind == SUB_AFTER:
        fields = (each.request_id, each.message_id, each.cost_ms, each.succeeded, each.keys)
        fields += (int(each.context_code), each.time_ms, each.group)
    else:
        fields = (*head, *about, int(each.message_type), each.transaction_id, each.transaction_state)
        fields += (each.is_from_check,)
    return _FIELD.join((each.kind, *map(_text, fields))) + _RECORD


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value).translate(_SEPARATORS)


def trace_keys(traces: Iterable[Trace]) -> list[str]:
    """Return what these traces are found by, each once."""
    found: dict[str, None] = {}
    for trace in traces:
        found.update(dict.fromkeys((trace.message_id, *trace.keys.split())))
    found.pop("", None)
    return list(found)


def decode_traces(text: str) -> list[Trace]:
    """Return the records of a trace message's body, without those that are none."""
    found = (_decoded(record.split(_FIELD)) for record in text.split(_RECORD) if record)
    return [trace for trace in found if trace is not None]


def _decoded(fields: list[str]) -> Trace | None:
    read = _READERS.get(fields[0])
    if read is None:
        return None
    try:
        return read(["" if field == _NULL else field for field in fields])
    except (IndexError, ValueError):
        return None


def _pub(line: list[str]) -> Trace:
    # Old clients leave the offset id out; new ones add where they are.
    has_id = len(line) >= 14
    return Trace(
        PUB,
        line[5],
        _number(line[1]),
        line[3],
        line[4],
        line[6],
        line[7],
        line[8],
        line[14] if len(line) > 14 else "",
        _number(line[9]),
        _number(line[10]),
        _number(line[11]),
        line[12] if has_id else "",
        line[13 if has_id else 12] == "true",
        region=line[2],
    )


def _sub_before(line: list[str]) -> Trace:
    return Trace(
        SUB_BEFORE,
        line[5],
        _number(line[1]),
        line[3],
        keys=line[7] if len(line) > 7 else "",
        request_id=line[4],
        retries=_number(line[6]),
        region=line[2],
    )


def _sub_after(line: list[str]) -> Trace:
    return Trace(
        SUB_AFTER,
        line[2],
        _number(line[7]) if len(line) > 7 else 0,
        line[8] if len(line) > 8 else "",
        keys=line[5] if len(line) > 5 else "",
        cost_ms=_number(line[3]),
        succeeded=line[4] == "true",
        request_id=line[1],
        context_code=_number(line[6]) if len(line) > 6 else 0,
    )


def _end_transaction(line: list[str]) -> Trace:
    return Trace(
        END_TRANSACTION,
        line[5],
        _number(line[1]),
        line[3],
        line[4],
        line[6],
        line[7],
        line[8],
        line[13] if len(line) > 13 else "",
        message_type=_number(line[9]),
        transaction_id=line[10],
        transaction_state=line[11],
        is_from_check=line[12] == "true",
        region=line[2],
    )


def _number(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= _DIGITS_MAX):
        raise ValueError(text)
    return int(text)


_READERS: Final = {PUB: _pub, SUB_BEFORE: _sub_before, SUB_AFTER: _sub_after, END_TRANSACTION: _end_transaction}
