"""Owns delayed sends of this client: what `delay_level=`, `delay=` and `deliver_at=` mean, and how a local producer
stores such a message.

It does not know who delivers; the broker does (`daemon/broker/timers/delay.py`, `timers.py`).

    delay_level=3         DELAY=3                ─▶ SCHEDULE_TOPIC_XXXX, queue 2       unit: store time + 10 s
    delay=1.5             TIMER_DELAY_MS=1500    ─▶ rmq_sys_wheel_timer, queue 0       unit: due time
    deliver_at="…"        TIMER_DELIVER_MS=…     ─▶   the same; REAL_TOPIC, REAL_QID say where the message belongs

Rules:
    (1) a local producer stores what a broker stores for the same message over TCP: the record in the topic where it
        waits, the receipt with the topic and queue the message is for, and the queue offset it waits at;
    (2) a level above the highest is the highest, 0 is no delay; a time that is over is no delay either, as in RocketMQ;
    (3) nothing is early: what is asked for is rounded up to the millisecond.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

from shmq.client.producers.unique_id import UniqueIds
from shmq.delay_levels import DELAY, REAL_QUEUE_ID, REAL_TOPIC, SCHEDULE_TOPIC, DelayLevels
from shmq.errors import UsageError
from shmq.message import check_properties, encode_properties
from shmq.shm.core import UNIT_DELAY_BASE, receipt_moved, tag_hash
from shmq.timing import DELAY_MS, DELIVER_MS, OUT_MS, TIMER_TOPIC, UNIQUE_KEY, RecallHandle, out_ms

if TYPE_CHECKING:
    from shmq.client.wire_shm.session import Session
    from shmq.shm.core import Receipt

    PlainSend = Callable[..., Receipt | None]

_PERM_WRITE: Final = 2
_EPOCH_MOST: Final = 1e11  # the year 5138: what is more counts milliseconds
_KEY_IS: Final = f"{UNIQUE_KEY}\x01"
_DUE_IS: Final = f"\x02{DELIVER_MS}\x01"
_OUT_IS: Final = f"\x02{OUT_MS}\x01"
_ROUNDING_MS: Final = 0.0005  # what a float of seconds may be off


# ---- what the keywords mean ------------------------------------------------------------------------------------------


def level_properties(level: Any) -> dict[str, str]:
    """Return what `delay_level=` stands for.

    Raises:
        UsageError: not a number from 0 on.
    """
    if type(level) is not int or level < 0:
        raise UsageError(f"delay_level={level!r} is no level", hint="1 (1 s) to 18 (2 h), 0 for none")
    return {DELAY: str(level)} if level else {}


def delay_properties(delay: Any) -> dict[str, str]:
    """Return what `delay=` stands for: a timedelta, or seconds.

    Raises:
        UsageError: negative, or no time.
    """
    seconds = delay.total_seconds() if isinstance(delay, timedelta) else delay
    if type(seconds) not in (int, float) or not 0 <= seconds < math.inf:
        raise UsageError(f"delay={delay!r} is no delay", hint="seconds or a timedelta, 0 or more")
    delay_ms = math.ceil(seconds * 1000 - _ROUNDING_MS)
    return {DELAY_MS: str(delay_ms)} if delay_ms else {}


def time_properties(moment: Any) -> dict[str, str]:
    """Return what `deliver_at=` stands for: a datetime, an ISO 8601 text, or seconds since the epoch.

    A datetime or a text without a time zone is local time.

    Raises:
        UsageError: no time.
    """
    seconds: Any = moment
    try:
        if isinstance(moment, str):
            seconds = datetime.fromisoformat(moment).timestamp()
        elif isinstance(moment, datetime):
            seconds = moment.timestamp()
    except (ValueError, OverflowError, OSError):
        seconds = None
    if type(seconds) not in (int, float) or not 0 <= seconds < _EPOCH_MOST:
        raise UsageError(
            f"deliver_at={moment!r} is no time",
            hint='a datetime, an ISO text such as "2026-12-01T09:00:00Z", or seconds since the epoch',
        )
    return {DELIVER_MS: str(math.ceil(seconds * 1000 - _ROUNDING_MS))}


MEANINGS: Final = {"delay_level": level_properties, "delay": delay_properties, "deliver_at": time_properties}
_PROPERTIES: Final = (DELAY, DELAY_MS, DELIVER_MS)


def is_delayed(found: Mapping[str, str]) -> bool:
    """Whether these properties make a message wait."""
    return DELIVER_MS in found or DELAY_MS in found or DELAY in found


def check_one(found: Mapping[str, str]) -> None:
    """Refuse two delays of one message.

    Raises:
        UsageError: there are two.
    """
    if sum(name in found for name in _PROPERTIES) > 1:
        raise UsageError("a message has one delay", hint="delay_level=, delay= or deliver_at=")


_handle: Final[Callable[..., RecallHandle]] = tuple.__new__  # half the time of the call with names


# ---- storing, over shared memory -------------------------------------------------------------------------------------


class DelayedSend:
    """Stores the delayed messages of one session; any thread may use it."""

    __slots__ = ("_broker", "_ids", "_levels", "_max_delay_ms", "_places", "_session", "_turn", "_version")

    def __init__(self, session: Session) -> None:
        attachment = session.control.attachment
        self._session = session
        self._broker = session.place.broker_name
        self._levels = DelayLevels(attachment.delay_levels)
        self._max_delay_ms = attachment.timer_max_delay_seconds * 1000
        self._ids = UniqueIds("127.0.0.1")
        self._turn = itertools.count()
        self._version = -1  # of the tables that is known here:
        self._places: dict[str, tuple[str, ...]] = {}  # topic -> text for each write queue; where messages wait, ()

    def send(
        self, send: PlainSend, topic: str, body: Any, found: Mapping[str, str], arguments: dict[str, Any]
    ) -> Receipt | None:
        """Store one message where it waits, and return a receipt of the topic it is for; None if `send` gives none.

        Raises:
            UsageError: a queue the topic does not have, a property that is not the application's, a time that is
                farther away than the broker allows.
        """
        if DELAY in found:
            return self._send_by_level(send, topic, body, found, arguments)
        now_ms = time.time_ns() // 1_000_000
        if DELAY_MS in found:
            deliver_ms = now_ms + 1 + int(found[DELAY_MS])  # the millisecond that has begun does not count
        else:
            deliver_ms = int(found[DELIVER_MS])
            if deliver_ms < now_ms:  # the store's stamp may be from before the millisecond that has begun
                return send(topic, body, **arguments)
        if deliver_ms - now_ms > self._max_delay_ms + 1:
            raise UsageError(
                f"the message would wait {(deliver_ms - now_ms) / 1000:.0f} s, the broker allows "
                f"{self._max_delay_ms // 1000} s",
                hint="shmq serve --timer-max-delay SECONDS",
            )
        queue_id, place = self._place(topic, arguments)
        unique_key = self._ids.next(now_ms)
        text = f"{_KEY_IS}{unique_key}{_DUE_IS}{deliver_ms}{_OUT_IS}{out_ms(deliver_ms)}{place}"
        if TIMER_TOPIC not in self._places:
            self._ensure(TIMER_TOPIC)
        if arguments:
            text += _own_text(arguments)
            stored = send(TIMER_TOPIC, body, properties=text.encode(), queue_id=0, tag_code=deliver_ms, **arguments)
        else:
            stored = send(TIMER_TOPIC, body, properties=text.encode(), queue_id=0, tag_code=deliver_ms)
        if stored is None:
            return None
        return receipt_moved(
            stored, topic, queue_id, _handle(RecallHandle, (topic, self._broker, deliver_ms, unique_key))
        )

    def _send_by_level(
        self, send: PlainSend, topic: str, body: Any, found: Mapping[str, str], arguments: dict[str, Any]
    ) -> Receipt | None:
        queue_id, place = self._place(topic, arguments)
        level = self._levels.level_of(int(found[DELAY]))
        text = f"{DELAY}\x01{level}{place}{_own_text(arguments)}"
        self._ensure(SCHEDULE_TOPIC)
        code = UNIT_DELAY_BASE + self._levels.delay_ms(level)
        stored = send(SCHEDULE_TOPIC, body, properties=text.encode(), queue_id=level - 1, tag_code=code, **arguments)
        return None if stored is None else receipt_moved(stored, topic, queue_id, None)

    def _ensure(self, topic: str) -> None:
        """Have a topic where messages wait.

        A broker that never had a delayed message may not have it yet; how many queues it has, it knows.
        """
        if topic not in self._places:
            if self._session.store.topic_find(topic) < 0:
                self._session.put_topic(topic, queues=1, only_if_missing=True)
            self._places[topic] = ()

    def _place(self, topic: str, arguments: dict[str, Any]) -> tuple[int, str]:
        """Return the queue the message is for, chosen as the core chooses, and the text that says so."""
        version = self._session.store.table_version
        if version != self._version:
            self._places.clear()
            self._version = version
        places = self._places.get(topic) or self._find_places(topic)
        queue_id = self._queue_id(topic, len(places), arguments) if arguments else next(self._turn) % len(places)
        return queue_id, places[queue_id]

    def _queue_id(self, topic: str, queues: int, arguments: dict[str, Any]) -> int:
        queue_id = arguments.pop("queue_id", None)
        if queue_id is not None:
            if type(queue_id) is not int or not 0 <= queue_id < queues:
                raise UsageError(
                    f"topic '{topic}' has {queues} write queues, so queue_id is 0 to {queues - 1}, not {queue_id!r}"
                )
            return queue_id
        message_group = arguments.get("message_group")
        if message_group is not None:
            return (tag_hash(message_group) & 0x7FFFFFFF) % queues
        return next(self._turn) % queues

    def _find_places(self, topic: str) -> tuple[str, ...]:
        entry = self._session.store.topic(self._session.resolve(topic))
        queues: int = entry["write_queues"] if entry["perm"] & _PERM_WRITE else 0
        if not queues:
            raise UsageError(f"topic '{topic}' takes no messages: permission {entry['perm']}")
        places = tuple(
            f"\x02{REAL_TOPIC}\x01{topic}\x02{REAL_QUEUE_ID}\x01{queue_id}\x02" for queue_id in range(queues)
        )
        self._places[topic] = places
        return places


def _own_text(arguments: dict[str, Any]) -> str:
    """Take the application's own properties out of the arguments, and return their text."""
    own = arguments.pop("properties", None)
    if not own:
        return ""
    check_properties(own)
    return encode_properties(own)
