"""Where a message goes that asks for a time of its own: into the timer topic, with what it was asked for.

Owns the properties TIMER_DELAY_SEC, TIMER_DELAY_MS and TIMER_DELIVER_MS on the way in. It does not know who delivers.

    DELAY above 0              the level counts, and the properties are taken away, as in RocketMQ
    TIMER_OUT_MS there         unchanged: it comes out of a delay
    before now                 unchanged: delivered at once
    now or later               rmq_sys_wheel_timer, queue 0; TIMER_OUT_MS, REAL_TOPIC, REAL_QID
    later than is allowed      refused
"""

from dataclasses import replace

from shmq.daemon.broker.log import NewRecord
from shmq.daemon.broker.records.property_text import with_properties
from shmq.daemon.broker.tables import Tables, Topic
from shmq.daemon.broker.timers.schedule import Route, is_delayable, level_of, route_of
from shmq.daemon.broker.topic_creation import ensure_topic
from shmq.delay_levels import DELAY, REAL_QUEUE_ID, REAL_TOPIC, SCHEDULE_TOPIC, DelayLevels
from shmq.errors import UsageError
from shmq.message import parse_properties
from shmq.protocol.codes import Response
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


def waiting_topic(route: Route, tables: Tables, levels: DelayLevels) -> Topic | None:
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
