"""Messages for a time of their own: the properties that say when, the topic they wait in, and how one is taken back.

The names and formats are RocketMQ 5's, for clients and brokers.

    TIMER_DELAY_SEC, TIMER_DELAY_MS, TIMER_DELIVER_MS   what a producer asks for; the first of these counts
    rmq_sys_wheel_timer, queue 0                        where the message waits, with REAL_TOPIC and REAL_QID
    TIMER_OUT_MS                                        the second before it is due, rounded as RocketMQ rounds
    TIMER_DEL_UNIQKEY = topic+UNIQ_KEY                  a record that takes that message back
    recall handle                                       base64url("v1 topic broker deliver_ms UNIQ_KEY")

    unit of the timer topic     log_position 8 | record_bytes 4 | CANCEL_BIT or 0, and the due time in ms: 8

Rules:
    (1) a unit that says no time (RocketMQ writes the tag's hash there, and so does a rebuild of the queue from the log)
        is no error: `due_ms` finds the same time in the record;
    (2) nothing here is early: TIMER_OUT_MS is below the due time, the due time is what was asked for.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Mapping
from typing import NamedTuple

from shmq.errors import UsageError

TIMER_TOPIC = "rmq_sys_wheel_timer"
DELIVER_MS, DELAY_MS, DELAY_SEC = "TIMER_DELIVER_MS", "TIMER_DELAY_MS", "TIMER_DELAY_SEC"
OUT_MS, CANCELLED_KEY = "TIMER_OUT_MS", "TIMER_DEL_UNIQKEY"
ENQUEUE_MS, DEQUEUE_MS, ROLL_TIMES = "TIMER_ENQUEUE_MS", "TIMER_DEQUEUE_MS", "TIMER_ROLL_TIMES"
UNIQUE_KEY = "UNIQ_KEY"
ASKED_BY = (DELAY_SEC, DELAY_MS, DELIVER_MS)

MAX_DELAY_SECONDS = 3 * 86_400  # RocketMQ's timerMaxDelaySec
PRECISION_MS = 1000  # RocketMQ's timerPrecisionMs; ours is a millisecond
CANCEL_BIT = 1 << 60
CANCEL_TAG, CANCEL_BODY = "_RECALL_TAG_", b"0"  # what RocketMQ stores to take a message back

# Progress of delivery: offsets of these groups on the timer topic's queue; see daemon/broker/timers/progress.py.
TIMER_GROUP = "CID_RMQ_SYS_TIMER"
TIMER_DUE_GROUP = "CID_RMQ_SYS_TIMER_DUE"
TIMER_AT_GROUP = "CID_RMQ_SYS_TIMER_AT"
TIMER_ROLLED_GROUP = "CID_RMQ_SYS_TIMER_ROLLED"
TIMER_COPIES_GROUP = "CID_RMQ_SYS_TIMER_COPIES"  # a log position, see daemon/broker/timers/copies.py
TIMER_GROUPS = (TIMER_GROUP, TIMER_DUE_GROUP, TIMER_AT_GROUP, TIMER_ROLLED_GROUP)

_CODE_LEAST, _CODE_MOST = 1 << 33, 1 << 43  # a hash has 32 bits; due times end in the year 2248
_LONG = re.compile(r"[+-]?[0-9]{1,19}", re.ASCII)
_LONG_MAX = (1 << 63) - 1


def number_of(text: str | None) -> int | None:
    """Return a number as Java's Long.parseLong reads it, None when it is none."""
    if text is None or not _LONG.fullmatch(text):
        return None
    value = int(text)
    return value if -_LONG_MAX - 1 <= value <= _LONG_MAX else None


def asked_ms(properties: Mapping[str, str], now_ms: int) -> int | None:
    """Return when a producer wants its message delivered, None when it does not say.

    Raises:
        UsageError: it says no number.
    """
    for name in ASKED_BY:
        text = properties.get(name)
        if text is not None:
            value = number_of(text)
            if value is None:
                raise UsageError(f'the property {name} is "{text[:32]}", a time is a number')
            if name == DELIVER_MS:
                return value
            delay_ms = value * (1000 if name == DELAY_SEC else 1)
            # The millisecond that has begun does not count; no delay is over already.
            return now_ms + delay_ms + (1 if delay_ms > 0 else -1)
    return None


def out_ms(deliver_ms: int) -> int:
    """Return what TIMER_OUT_MS says of a message: RocketMQ delivers a second after that."""
    return (deliver_ms - 1) // PRECISION_MS * PRECISION_MS


def code_of(deliver_ms: int, *, cancels: bool = False) -> int:
    """Return what the unit says."""
    return deliver_ms | CANCEL_BIT if cancels else deliver_ms


def code_time(code: int) -> int | None:
    """Return the due time a unit says, None when it says none."""
    due_ms = code & ~CANCEL_BIT
    return due_ms if code >= 0 and _CODE_LEAST <= due_ms < _CODE_MOST else None


def due_ms(properties: Mapping[str, str], store_ms: int) -> int | None:
    """Return when a stored record of the timer topic is due, None when it does not belong there."""
    out = number_of(properties.get(OUT_MS))
    if out is None:
        return None
    try:
        asked = asked_ms(properties, store_ms)
    except UsageError:
        asked = None
    # A record that was rolled, or that RocketMQ made, is due by its rounded time only.
    if asked is not None and out < asked <= out + PRECISION_MS:
        return asked
    return out + PRECISION_MS


def cancel_key(topic: str, unique_key: str) -> str:
    """Return what names one timed message in TIMER_DEL_UNIQKEY."""
    return f"{topic}+{unique_key}"


class RecallHandle(NamedTuple):
    """The handle with which a producer takes a timed message back."""

    topic: str
    broker_name: str
    deliver_ms: int
    unique_key: str

    def encode(self) -> str:
        """Return the handle as it travels."""
        text = f"v1 {self.topic} {self.broker_name} {self.deliver_ms} {self.unique_key}"
        return base64.urlsafe_b64encode(text.encode()).decode()

    @classmethod
    def decode(cls, text: str) -> RecallHandle:
        """Read a handle.

        Raises:
            UsageError: the text is none.
        """
        try:
            fields = base64.b64decode(text.encode(), altchars=b"-_", validate=True).decode().split(" ")
        except (binascii.Error, ValueError):
            fields = []
        if len(fields) == 5 and fields[0] == "v1" and all(fields):
            deliver_ms = number_of(fields[3])
            return cls(fields[1], fields[2], -1 if deliver_ms is None else deliver_ms, fields[4])
        raise UsageError("recall handle is invalid", hint="receipt.recall_handle of a send with delay= or deliver_at=")
