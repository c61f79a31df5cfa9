"""Makes the message to send from its keywords: properties and body.

    tag, key, keys, message_group, properties    `message_properties`; the core reads them by itself
    delay_level=3         DELAY=3                 waits 10 s
    delay=1.5             TIMER_DELAY_MS=1500     waits 1.5 s
    deliver_at="…"        TIMER_DELIVER_MS=…      waits until then

The keywords of the last three lines are special: the core does not know them and hands such a send over. Locally it is
stored where it waits (`delayed.py`); over TCP the properties travel with the message, and the broker does
the rest. An application may not set these properties by itself. A keyword whose value is None counts as not given.

Invariants:
    1. A send without a special keyword never comes here.
    2. An unknown keyword is refused with the words of the core.
    3. Nothing is early: what is asked for is rounded up to the millisecond.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypedDict

from shmq.client.kinds import check_body, check_text, real_in, refuse_wrong, whole_in, wrong_body
from shmq.delay_levels import DELAY
from shmq.errors import UsageError
from shmq.properties import check_properties
from shmq.shm.core import tag_hash
from shmq.timing import DELAY_MS, DELIVER_MS, MAX_DELAY_SECONDS

OWN: Final = frozenset(
    ("tag", "key", "keys", "properties", "message_group", "queue_id", "flag", "timeout")  # of every send
)
DEFAULT_PRODUCER_GROUP: Final = "shmq_producer"
"""The group of sends whose producer has none, as brokers see it."""
_EPOCH_MOST: Final = 1e11  # the year 5138: what is more counts milliseconds
_LEVEL_MOST: Final = 2**31 - 1  # what brokers read; above the highest that there is means the highest
_ROUNDING_MS: Final = 0.0005  # what a float of seconds may be off


# ---- for type checkers -----------------------------------------------------------------------------------------------

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

    Body: TypeAlias = ReadableBuffer
    """Anything with the buffer protocol; a str is none."""


class _Arguments(TypedDict, total=False):
    tag: str | None
    properties: Mapping[str, str] | None
    message_group: str | None
    queue_id: int | None


class ReserveArguments(_Arguments, total=False):
    """Keyword arguments of `reserve`."""

    key: str | None
    timeout: float | None


class SendArguments(ReserveArguments, total=False):
    """Keyword arguments of `send` and `send_oneway`; see `shmq.Connection.send`."""

    keys: Iterable[str] | None
    flag: int
    delay_level: int | None
    delay: timedelta | float | None
    deliver_at: datetime | str | float | None


class BatchArguments(_Arguments, total=False):
    """Keyword arguments of `send_batch`."""

    keys: Sequence[str | None] | None
    timeout: float | None


class RequestArguments(_Arguments, total=False):
    """Keyword arguments of `request` beside the timeout."""

    key: str | None
    keys: Iterable[str] | None


# ---- what every message has ------------------------------------------------------------------------------------------


def body_of(body: Any) -> Any:
    """Return a body as bytes or a memoryview of bytes.

    Raises:
        WrongKind: a str, or nothing with the buffer protocol.
        MessageTooLarge: longer than a body may be.
    """
    try:
        data = body if type(body) is bytes else memoryview(body).cast("B")
    except TypeError as error:
        raise wrong_body(body) or error from None
    check_body(len(data))
    return data


def message_properties(
    tag: str | None, keys: Iterable[str], message_group: str | None, properties: Mapping[str, str] | None
) -> dict[str, str]:
    """Return the properties of a message without its id.

    Raises:
        UsageError: a reserved or impossible property, tag or key.
    """
    found: dict[str, str] = {}
    if tag is not None:
        check_text("tag", tag)
        found["TAGS"] = tag
    words = list(keys)
    if words:
        for key in words:
            check_text("key", key)
        found["KEYS"] = " ".join(words)
    if message_group is not None:
        check_text("message_group", message_group)
        found["__SHARDINGKEY"] = message_group
    if properties is not None:
        check_properties(properties)
        found.update(properties)
    return found


def keys_of(key: str | None, keys: Iterable[str] | None) -> list[str]:
    """Return all keys of a message."""
    if isinstance(keys, str) or not isinstance(keys, Iterable | None):
        refuse_wrong({"keys": keys})
    return [*([key] if key is not None else []), *(keys or ())]


def is_read_once(arguments: Iterable[Any]) -> bool:
    """Whether a call with these arguments cannot be made again, as one of them can be read only once."""
    return any(isinstance(argument, Iterator) for argument in arguments)


def queue_in_order(name: str, count: int) -> int:
    """Return which of `count` queues keeps what has one name in order, as the core and RocketMQ's clients choose it.

    Raises:
        UsageError: no message group can have this name.
    """
    check_text("message_group", name)
    return (tag_hash(name) & 0x7FFFFFFF) % count


def take_properties(arguments: dict[str, Any]) -> dict[str, str]:
    """Remove what says something of the message from the arguments of a send, and return its properties without its id.

    The message group is left, as it also says to which queue the message goes.

    Raises:
        UsageError: a reserved or impossible property, tag or key.
    """
    refuse_wrong(arguments)
    take = arguments.pop
    keys = keys_of(take("key", None), take("keys", None))
    return message_properties(take("tag", None), keys, arguments.get("message_group"), take("properties", None))


# ---- special keywords -----------------------------------------------------------------------------------------------


def level_properties(level: Any) -> dict[str, str]:
    """Return what `delay_level=` stands for.

    Raises:
        UsageError: not a number from 0 on.
    """
    number = whole_in(level, 0, _LEVEL_MOST)
    if number is None:
        raise UsageError(f"delay_level={level!r:.80} is no level", hint="1 (1 s) to 18 (2 h), 0 for none")
    return {DELAY: str(number)} if number else {}


def delay_properties(delay: Any) -> dict[str, str]:
    """Return what `delay=` stands for: a timedelta, or seconds.

    Raises:
        UsageError: negative, no time, or longer than any broker waits.
    """
    seconds = real_in(delay.total_seconds() if isinstance(delay, timedelta) else delay)
    if seconds is None or not 0 <= seconds < _EPOCH_MOST:
        raise UsageError(
            f"delay={delay!r:.80} is no delay",
            hint=f"seconds or a timedelta, 0 or more; brokers allow {MAX_DELAY_SECONDS} s unless told otherwise",
        )
    delay_ms = math.ceil(seconds * 1000 - _ROUNDING_MS)
    return {DELAY_MS: str(delay_ms)} if delay_ms else {}


def late(max_delay_ms: int) -> UsageError:
    """Return the error for a message that would wait longer than its broker allows."""
    return UsageError(
        f"the message would wait longer than the {max_delay_ms // 1000} s that the broker allows",
        hint="shmq serve --timer-max-delay SECONDS",
    )


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
    number = real_in(seconds)
    if number is None or not 0 <= number < _EPOCH_MOST:
        raise UsageError(
            f"deliver_at={moment!r:.80} is no time",
            hint='a datetime, an ISO text such as "2026-12-01T09:00:00Z", or seconds since the epoch',
        )
    return {DELIVER_MS: str(math.ceil(number * 1000 - _ROUNDING_MS))}


MEANINGS: Final[dict[str, Callable[[Any], dict[str, str]]]] = {
    "delay_level": level_properties,
    "delay": delay_properties,
    "deliver_at": time_properties,
}
_PROPERTIES: Final = (DELAY, DELAY_MS, DELIVER_MS)


def is_delayed(found: Mapping[str, str]) -> bool:
    """Whether these properties make a message wait."""
    return DELIVER_MS in found or DELAY_MS in found or DELAY in found


def _check_one(found: Mapping[str, str]) -> None:
    """Refuse two delays of one message.

    Raises:
        UsageError: there are two.
    """
    if sum(name in found for name in _PROPERTIES) > 1:
        raise UsageError("a message has one delay", hint="delay_level=, delay= or deliver_at=")


def take_special(arguments: dict[str, Any]) -> dict[str, str]:
    """Remove the special keywords from the arguments of a send, and return the properties they stand for.

    Raises:
        TypeError: a keyword that no send has.
        UsageError: a value that means nothing, or two keywords that contradict each other.
    """
    if len(arguments) == 1:  # nearly always
        name, value = arguments.popitem()
        if name in MEANINGS:
            return MEANINGS[name](value) if value is not None else {}
        arguments[name] = value
    found: dict[str, str] = {}
    for name in [name for name in arguments if name not in OWN]:
        meaning = MEANINGS.get(name)
        if meaning is None:
            from shmq.message import nearest

            near = nearest(name, [*MEANINGS, *OWN], count_max=1)
            meant = f"; did you mean {near[0]}=?" if near else ""
            raise TypeError(f"send() got an unexpected keyword argument '{name}'{meant}")
        value = arguments.pop(name)
        if value is not None:
            found.update(meaning(value))
    if len(found) > 1:
        _check_one(found)
    return found
