"""The properties of a message: which keys RocketMQ keeps for itself, and the text that a record and a send carry.

    key 0x01 value 0x02 key 0x01 value 0x02 ...        UTF-8, at most 32767 bytes

Invariants:
 1. `parse_properties(encode_properties(p)) == p` for every mapping that `encode_properties` accepts.
 2. Parsing never fails: pairs that RocketMQ's own reader skips (empty key, empty value, no separator) are skipped.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping

from shmq.errors import MessageTooLarge, UsageError
from shmq.message import RETRY_TOPIC

PROPERTIES_BYTES_MAX = 32767
_NAME_SEPARATOR = "\x01"
_PAIR_SEPARATOR = "\x02"

# Property keys with a meaning of their own in RocketMQ; an application may not set them as free properties.
RESERVED_PROPERTIES = frozenset(
    {
        "1ST_POP_TIME",
        "ARRIVE_TIME",
        "BORN_TIMESTAMP",
        "BUYER_ID",
        "CHECK_IMMUNITY_TIME_IN_SECONDS",
        "CLUSTER",
        "CONSUME_START_TIME",
        "CORRECTION_FLAG",
        "CORRELATION_ID",
        "DELAY",
        "DLQ_ORIGIN_MESSAGE_ID",
        "DLQ_ORIGIN_TOPIC",
        "DUP_INFO",
        "EXTEND_UNIQ_INFO",
        "INNER_BASE",
        "INNER_MULTI_DISPATCH",
        "INNER_MULTI_QUEUE_OFFSET",
        "INNER_NUM",
        "INSTANCE_ID",
        "KEYS",
        "MAX_OFFSET",
        "MAX_RECONSUME_TIMES",
        "MIN_OFFSET",
        "MQ2_FLAG",
        "MSG_REGION",
        "MSG_TYPE",
        "ORIGIN_MESSAGE_ID",
        "PGROUP",
        "POP_CK",
        "POP_CK_OFFSET",
        "PUSH_REPLY_TIME",
        "REAL_QID",
        "REAL_TOPIC",
        "RECONSUME_TIME",
        "REDIRECT",
        "REPLY_TO_CLIENT",
        RETRY_TOPIC,
        "TAGS",
        "TIMER_DELAY_LEVEL",
        "TIMER_DELAY_MS",
        "TIMER_DELAY_SEC",
        "TIMER_DELIVER_MS",
        "TIMER_DEL_MS",
        "TIMER_DEL_UNIQKEY",
        "TIMER_DEQUEUE_MS",
        "TIMER_ENQUEUE_MS",
        "TIMER_OUT_MS",
        "TIMER_ROLL_TIMES",
        "TRACE_CONTEXT",
        "TRACE_ON",
        "TRANSACTION_CHECK_TIMES",
        "TRANSFER_FLAG",
        "TRAN_MSG",
        "TRAN_PREPARED_QUEUE_OFFSET",
        "TTL",
        "UNIQ_KEY",
        "WAIT",
        "__BORNHOST",
        "__CRC32#",
        "__SHARDINGKEY",
        "__transactionId__",
    }
)

_INSTEAD = {
    "TAGS": "tag=",
    "KEYS": "key= or keys=",
    "__SHARDINGKEY": "message_group=",
    "DELAY": "delay_level=",
    "TIMER_DELAY_MS": "delay=",
    "TIMER_DELAY_SEC": "delay=",
    "TIMER_DELIVER_MS": "deliver_at=",
    "TRAN_MSG": "transaction()",
    "CORRELATION_ID": "request()",
    "REPLY_TO_CLIENT": "request()",
    "TTL": "request()",
}
"""What an application writes instead of a property of RocketMQ."""


def check_properties(properties: Mapping[str, str]) -> None:
    """Refuse free properties that RocketMQ would lose or mistake for its own.

    Raises:
        UsageError: a reserved or empty key, an empty value, a value that is not a str, a separator inside, or a
            control character in a key.
    """
    for key, value in properties.items():
        if key in RESERVED_PROPERTIES:
            instead = _INSTEAD.get(key)
            raise UsageError(
                f"the property {key} is reserved by RocketMQ",
                hint=f"use {instead}" if instead else "choose another name",
            )
        _check_pair(key, value)
        # Other clients' messages may have such names, so copying one does not come here.
        if not key.isprintable() and (control := next(filter(is_control, key), None)):
            raise UsageError(f"the property name {key!a} holds the control character {control!a}", hint="remove it")


def is_control(character: str) -> bool:
    """Whether this is one of Unicode's control characters."""
    return unicodedata.category(character) == "Cc"


def encode_properties(properties: Mapping[str, str]) -> str:
    """Return the property text, every pair closed by 0x02. Reserved keys are allowed here.

    Raises:
        UsageError: a key or value that the text cannot carry.
        MessageTooLarge: more than 32767 bytes.
    """
    pieces: list[str] = []
    for key, value in properties.items():
        _check_pair(key, value)
        pieces += (key, _NAME_SEPARATOR, value, _PAIR_SEPARATOR)
    text = "".join(pieces)
    try:
        text_bytes = len(text.encode())
    except UnicodeEncodeError as error:
        raise UsageError(
            f"the properties hold {text[error.start]!a}, which UTF-8 cannot carry", hint="remove it"
        ) from None
    if text_bytes > PROPERTIES_BYTES_MAX:
        raise MessageTooLarge(
            f"the properties need {text_bytes} bytes, {PROPERTIES_BYTES_MAX} are allowed",
            hint="move large values into the body",
        )
    return text


def _check_pair(key: str, value: str) -> None:
    if not isinstance(key, str) or not isinstance(value, str):
        raise UsageError(
            f"the property {key!r} is {type(value).__name__}, properties are str to str", hint="convert it with str()"
        )
    if not key or not value:
        raise UsageError(
            f"the property {key!r} has an empty {'value' if key else 'key'}; RocketMQ would drop it",
            hint="leave it out",
        )
    for separator in (_NAME_SEPARATOR, _PAIR_SEPARATOR):
        if separator in key or separator in value:
            raise UsageError(f"the property {key!r} holds {separator!a}, which separates properties", hint="remove it")


def parse_properties(text: str) -> dict[str, str]:
    """Return the properties of a text; a repeated key keeps its last value."""
    properties: dict[str, str] = {}
    for pair in text.split(_PAIR_SEPARATOR):
        key, separator, value = pair.partition(_NAME_SEPARATOR)
        if separator and key and value:
            properties[key] = value
    return properties
