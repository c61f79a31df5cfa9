"""The text of RocketMQ's message trace: what clients write into the trace topic, and tools read out of it.

A record's fields and their order:

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
from typing import Any, Final, NamedTuple

TRACE_GROUP: Final = "_INNER_TRACE_PRODUCER"
REGION: Final = "DefaultRegion"
PUB, SUB_BEFORE, SUB_AFTER, END_TRANSACTION = "Pub", "SubBefore", "SubAfter", "EndTransaction"

_FIELD, _RECORD = "\x01", "\x02"
_NULL = "null"
_SEPARATORS = str.maketrans({_FIELD: " ", _RECORD: " "})
_DIGITS_MAX = 19


class MessageType(IntEnum):
    """The kind of message a trace is about."""

    NORMAL = 0
    TRANSACTION_HALF = 1
    TRANSACTION_COMMIT = 2
    DELAY = 3
    ORDER = 4


class ContextCode(IntEnum):
    """The outcome of a consumption."""

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


_HEAD: Final = ("time_ms", "region", "group")
_ABOUT: Final = (*_HEAD, "topic", "message_id", "tags", "keys", "store_host")
_FIELDS: Final[dict[str, tuple[str, ...]]] = {
    PUB: (*_ABOUT, "body_bytes", "cost_ms", "message_type", "offset_message_id", "succeeded", "client_host"),
    SUB_BEFORE: (*_HEAD, "request_id", "message_id", "retries", "keys"),
    SUB_AFTER: ("request_id", "message_id", "cost_ms", "succeeded", "keys", "context_code", "time_ms", "group"),
    END_TRANSACTION: (*_ABOUT, "message_type", "transaction_id", "transaction_state", "is_from_check", "client_host"),
}
_FIELDS_MIN: Final = {PUB: 12, SUB_BEFORE: 6, SUB_AFTER: 4, END_TRANSACTION: 12}  # of what others wrote
_NUMBERS: Final = frozenset(("time_ms", "body_bytes", "cost_ms", "message_type", "retries", "context_code"))
_TRUTHS: Final = frozenset(("succeeded", "is_from_check"))


def encode_trace(trace: Trace) -> str:
    """Return one record, with its end."""
    # Brokers know their clients' addresses; ours are left out.
    values = [getattr(trace, name) for name in _FIELDS[trace.kind] if name != "client_host"]
    if trace.kind == SUB_BEFORE:
        values[-1] = values[-1] or _NULL
    return _FIELD.join((trace.kind, *map(_text, values))) + _RECORD


def _text(value: object) -> str:
    if isinstance(value, int):
        return str(value).lower() if isinstance(value, bool) else str(int(value))
    return str(value).translate(_SEPARATORS)


def trace_keys(traces: Iterable[Trace]) -> list[str]:
    """Return what these traces are found by, each once."""
    found: dict[str, None] = {}
    for trace in traces:
        found.update(dict.fromkeys((trace.message_id, *trace.keys.split(" "))))
    found.pop("", None)
    return list(found)


def decode_traces(text: str) -> list[Trace]:
    """Return the records of a trace message's body, without those that are none."""
    found = (_decoded(record.split(_FIELD)) for record in text.split(_RECORD) if record)
    return [trace for trace in found if trace is not None]


def _decoded(line: list[str]) -> Trace | None:
    kind, *values = line
    names = _FIELDS.get(kind)
    if names is None or len(values) < _FIELDS_MIN[kind]:
        return None
    if kind == PUB and len(values) == _FIELDS_MIN[PUB]:  # old clients leave the offset id out
        names = tuple(name for name in names if name != "offset_message_id")
    try:
        return Trace(kind, **{name: _value(name, text) for name, text in zip(names, values, strict=False)})
    except ValueError:
        return None


def _value(name: str, text: str) -> Any:
    if name in _TRUTHS:
        return text == "true"
    text = "" if text == _NULL else text
    return _number(text) if name in _NUMBERS else text


def _number(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= _DIGITS_MAX):
        raise ValueError(text)
    return int(text)
