"""Chooses the records of an exported log to be sent again, and when; mostly of a replaced master.

    a record of                       is
    a user's topic                    sent, with what its sender gave it
    ... that came out of a delay      left out: the record that waited counts, here or at the new master
    ... a committed transaction       sent
    SCHEDULE_TOPIC_XXXX, timer topic  sent to the topic it waited for, for the time that it waited for
    ... a cancel, or one rolled on    left out
    any other topic of the broker,
    retries and dead letters          left out: they tell of messages and offsets that the new master does not have

Rule: what is left out is said, with the reason.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any, NamedTuple

from shmq.delay_levels import DELAY, REAL_TOPIC, SCHEDULE_TOPIC, DelayLevels
from shmq.message import is_system_topic, is_waiting_topic
from shmq.shm.core import body_inflate
from shmq.timing import CANCELLED_KEY, ROLL_TIMES, TIMER_TOPIC, due_ms, number_of
from shmq.words import sent_again

NEEDED = ("topic", "body_base64", "properties", "sys_flag", "flag", "store_ms", "prepared_position")
"""Members of an exported line that are looked at."""
_COMPRESSED, _TRANSACTION_MASK, _COMMITTED, _PLAIN = 1, 12, 8, 0
_REDELIVERED = ("%RETRY%", "%DLQ%")
_OF_A_DELAY = "it came out of a delay; the record that waited counts"
_OF_THE_BROKER = "the broker's own record"


class Again(NamedTuple):
    """One message, as it is to be sent: the topic, when it is due (0: at once), and what else `send()` takes."""

    topic: str
    due_ms: int
    body: bytes
    keywords: dict[str, Any]


def message_again(record: Mapping[str, Any], delay_levels: str) -> Again | str:
    """Return the message to be sent for an exported record, or why there is none.

    Raises:
        CoreError: its body does not inflate.
        ValueError: it is no record.
    """
    place = _place(record, delay_levels)
    if isinstance(place, str):
        return place
    properties, body = record["properties"], base64.b64decode(record["body_base64"])
    keywords = {**sent_again(properties), "flag": record["flag"]}
    if record["sys_flag"] & _COMPRESSED:
        body = body_inflate(body, record["sys_flag"])
    return Again(*place, body, keywords)


def _place(record: Mapping[str, Any], delay_levels: str) -> tuple[str, int] | str:
    topic, properties = record["topic"], record["properties"]
    kind = record["sys_flag"] & _TRANSACTION_MASK
    if topic in (SCHEDULE_TOPIC, TIMER_TOPIC):
        if not properties.get(REAL_TOPIC) or CANCELLED_KEY in properties or ROLL_TIMES in properties:
            return _OF_THE_BROKER
        if topic == TIMER_TOPIC:
            return properties[REAL_TOPIC], due_ms(properties, record["store_ms"]) or 0
        levels = DelayLevels(delay_levels)
        level = min(max(number_of(properties.get(DELAY)) or 0, 1), levels.count)
        return properties[REAL_TOPIC], record["store_ms"] + levels.delay_ms(level)
    if topic.startswith(_REDELIVERED) or is_system_topic(topic) or is_waiting_topic(topic):
        return _OF_THE_BROKER
    if kind not in (_PLAIN, _COMMITTED):
        return _OF_THE_BROKER
    if kind == _PLAIN and record["prepared_position"]:
        return _OF_A_DELAY
    return topic, 0
