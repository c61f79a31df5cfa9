"""Decides where a message waits that is not to be delivered at once: in the schedule topic, or the timer topic.

    DELAY missing, 0 or less    no level
    DELAY = n                   SCHEDULE_TOPIC_XXXX, queue n - 1; REAL_TOPIC and REAL_QID say where it belongs
    DELAY above the highest     as the highest, and DELAY says so

    TIMER_DELAY_SEC, TIMER_DELAY_MS or TIMER_DELIVER_MS ask for a time of its own, which is
        before now              unchanged: delivered at once
        now or later            rmq_sys_wheel_timer, queue 0; TIMER_OUT_MS, REAL_TOPIC, REAL_QID
        later than is allowed   refused
        beside DELAY above 0    the level counts, and these properties are taken away, as in RocketMQ
        with TIMER_OUT_MS       unchanged: the message comes out of a delay

A prepared message of a transaction is not delayed: what is committed later is. A delivered message still carries DELAY,
as in RocketMQ; it goes to the log directly and must not come here again.
"""

import re
from dataclasses import replace
from typing import NamedTuple

from shmq.daemon.broker.log import NewRecord
from shmq.daemon.broker.records.property_text import property_of, with_properties
from shmq.daemon.broker.tables import Topic, Topics
from shmq.daemon.broker.topics import ensure_topic
from shmq.delay_levels import DELAY, REAL_QUEUE_ID, REAL_TOPIC, SCHEDULE_TOPIC, DelayLevels
from shmq.errors import UsageError
from shmq.properties import parse_properties
from shmq.protocol.codes import Response
from shmq.shm.core import UNIT_DELAY_BASE
from shmq.timing import (
    ASKED_BY,
    CANCELLED_KEY,
    OUT_MS,
    TIMER_TOPIC,
    UNIQUE_KEY,
    RecallHandle,
    asked_ms,
    code_of,
    out_ms,
)

_TRANSACTION_MASK = 12
_DELAYED_TYPES = (0, 8)  # none and commit
_INTEGER = re.compile(r"[+-]?[0-9]{1,10}", re.ASCII)  # Java's Integer.parseInt
_INT32 = range(-(1 << 31), 1 << 31)


class Route(NamedTuple):
    """Topic, queue id and record that are stored."""

    topic: str
    queue_id: int
    record: NewRecord

    @property
    def is_delayed(self) -> bool:
        """Whether the message waits for its time."""
        return self.topic in (SCHEDULE_TOPIC, TIMER_TOPIC)


def is_delayable(record: NewRecord) -> bool:
    """Whether a record may wait: it is no prepared message of a transaction."""
    return record.sys_flag & _TRANSACTION_MASK in _DELAYED_TYPES


def route_of(record: NewRecord, topic: str, queue_id: int, levels: DelayLevels) -> Route:
    """Return what is stored in place of a message for a topic's queue; the same where it has no delay.

    Raises:
        UsageError: the property DELAY is no number.
    """
    text = property_of(record.properties, DELAY)
    if text is None or not is_delayable(record):
        return Route(topic, queue_id, record)
    level = levels.level_of(level_of(text))
    if level == 0:
        return Route(topic, queue_id, record)
    properties = with_properties(
        record.properties, {DELAY: str(level), REAL_TOPIC: topic, REAL_QUEUE_ID: str(queue_id)}
    )
    code = UNIT_DELAY_BASE + levels.delay_ms(level)
    return Route(SCHEDULE_TOPIC, level - 1, replace(record, properties=properties, tag_code=code))


def level_of(text: str) -> int:
    """Return the level a property says.

    Raises:
        UsageError: it is no number.
    """
    if _INTEGER.fullmatch(text) and int(text) in _INT32:
        return int(text)
    error = UsageError(f'the property DELAY is "{text[:32]}", a level is a number', hint="1 to 18, 0 for none")
    error.code = Response.SYSTEM_ERROR  # as RocketMQ answers
    raise error


def timed_route(record: NewRecord, topic: str, queue_id: int, *, now_ms: int, max_delay_ms: int) -> Route:
    """Return what is stored in place of a message for a topic's queue; the same where it asks for no time.

    Raises:
        UsageError: the time is no number, or too far ahead.
    """
    if b"TIMER_DEL" not in record.properties or not is_delayable(record):
        return Route(topic, queue_id, record)
    properties = parse_properties(record.properties.decode(errors="replace"))
    if not any(name in properties for name in ASKED_BY) or OUT_MS in properties:
        return Route(topic, queue_id, record)
    if DELAY in properties and level_of(properties[DELAY]) > 0:
        changes: dict[str, str | None] = dict.fromkeys(ASKED_BY)
        return Route(topic, queue_id, replace(record, properties=with_properties(record.properties, changes)))
    try:
        deliver_ms = asked_ms(properties, now_ms)
    except UsageError as error:
        raise _illegal(max_delay_ms) from error
    assert deliver_ms is not None
    cancels = CANCELLED_KEY in properties
    if cancels and not properties[CANCELLED_KEY].startswith(f"{topic}+"):
        raise _illegal(max_delay_ms)  # who may send to one topic may not take back messages of another
    if deliver_ms < now_ms and not cancels:  # the millisecond that has begun may not be over for the store's stamp
        return Route(topic, queue_id, record)
    if (cancels and deliver_ms <= now_ms) or deliver_ms - now_ms > max_delay_ms + 1:
        raise _illegal(max_delay_ms)
    text = with_properties(
        record.properties, {OUT_MS: str(out_ms(deliver_ms)), REAL_TOPIC: topic, REAL_QUEUE_ID: str(queue_id)}
    )
    code = code_of(deliver_ms, cancels=cancels)
    return Route(TIMER_TOPIC, 0, replace(record, properties=text, tag_code=code))


def delayed_route(
    record: NewRecord, topic: str, queue_id: int, levels: DelayLevels, *, now_ms: int, max_delay_ms: int
) -> Route:
    """Return what is stored in place of a message that may have a level, or ask for a time.

    Raises:
        UsageError: a level or a time that is no number, or a time too far ahead.
    """
    if b"DEL" not in record.properties:  # DELAY, TIMER_DELAY_MS, TIMER_DELIVER_MS
        return Route(topic, queue_id, record)
    route = timed_route(record, topic, queue_id, now_ms=now_ms, max_delay_ms=max_delay_ms)
    return route if route.is_delayed else route_of(route.record, topic, queue_id, levels)


def waiting_topic(route: Route, tables: Topics, levels: DelayLevels) -> Topic | None:
    """Return the topic of a route; one where messages wait is made if need be.

    Raises:
        SegmentFull: no room for another topic.
    """
    if not route.is_delayed:
        return tables.topic(route.topic)
    return ensure_topic(tables, route.topic, queues=levels.count if route.topic == SCHEDULE_TOPIC else 1)


def recall_handle(route: Route, topic: str, broker_name: str) -> str | None:
    """Return what takes a message back that was stored by such a route."""
    if route.topic != TIMER_TOPIC:
        return None
    unique_key = parse_properties(route.record.properties.decode(errors="replace")).get(UNIQUE_KEY)
    if not unique_key or " " in unique_key or route.record.tag_code is None:
        return None
    return RecallHandle(topic, broker_name, route.record.tag_code, unique_key).encode()


class IllegalTimer(UsageError):
    """A time that cannot be asked for."""


def _illegal(max_delay_ms: int) -> IllegalTimer:
    error = IllegalTimer(
        f"timer message illegal, the delay time should not be bigger than the max delay {max_delay_ms}ms; "
        "or if set del msg, the delay time should be bigger than the current time"
    )
    error.code = Response.MESSAGE_ILLEGAL
    return error
