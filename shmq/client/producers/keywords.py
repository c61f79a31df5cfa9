"""The keywords of a send, and the properties of a message that they stand for.

    tag, key, keys, message_group, properties    `message_properties`; the core reads them by itself
    delay_level=3         DELAY=3                 waits 10 s
    delay=1.5             TIMER_DELAY_MS=1500     waits 1.5 s
    deliver_at="…"        TIMER_DELIVER_MS=…      waits until then

The keywords of the last three lines are special: the core does not know them and hands such a send over. Locally it is
stored where it waits (wire_shm/delayed_send.py); over TCP the properties travel with the message, and the broker does
the rest. An application may not set these properties by itself. A keyword whose value is None counts as not given.

Invariants:
    1. A send without a special keyword never comes here.
    2. A keyword nobody knows is refused with the words of the core.
    3. Nothing is early: what is asked for is rounded up to the millisecond.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Final, TypedDict

from shmq.delay_levels import DELAY
from shmq.errors import MessageTooLarge, UsageError
from shmq.message import check_properties, encode_properties
from shmq.shm.core import BODY_BYTES_MAX
from shmq.timing import DELAY_MS, DELIVER_MS

OWN: Final = frozenset(
    ("tag", "key", "keys", "properties", "message_group", "queue_id", "flag", "timeout")  # of every send
)
DEFAULT_PRODUCER_GROUP: Final = "shmq_producer"
"""The group of sends whose producer has none, as brokers see it."""
_EPOCH_MOST: Final = 1e11  # the year 5138: what is more counts milliseconds
_ROUNDING_MS: Final = 0.0005  # what a float of seconds may be off


# ---- for type checkers -----------------------------------------------------------------------------------------------


class ReserveArguments(TypedDict, total=False):
    """Keyword arguments of `reserve`."""

    tag: str | None
    key: str | None
    properties: Mapping[str, str] | None
    message_group: str | None
    queue_id: int | None
    timeout: float | None


class SendArguments(ReserveArguments, total=False):
    """Keyword arguments of `send` and `send_oneway`; see `shmq.Connection.send`."""

    keys: Iterable[str] | None
    flag: int
    delay_level: int | None
    delay: timedelta | float | None
    deliver_at: datetime | str | float | None


class BatchArguments(TypedDict, total=False):
    """Keyword arguments of `send_batch`."""

    tag: str | None
    keys: Sequence[str] | None
    properties: Mapping[str, str] | None
    message_group: str | None
    queue_id: int | None
    timeout: float | None


class RequestArguments(TypedDict, total=False):
    """Keyword arguments of `request` beside the timeout."""

    tag: str | None
    key: str | None
    keys: Iterable[str] | None
    properties: Mapping[str, str] | None
    message_group: str | None
    queue_id: int | None


# ---- what every message has ------------------------------------------------------------------------------------------


def body_of(body: Any) -> Any:
    """Return a body as bytes or a memoryview of bytes.

    Raises:
        TypeError: a str, or nothing with the buffer protocol.
        MessageTooLarge: longer than a body may be.
    """
    if isinstance(body, str):
        raise TypeError("a body is bytes, not str; did you mean body=text.encode()?")
    data = body if type(body) is bytes else memoryview(body).cast("B")
    if len(data) > BODY_BYTES_MAX:
        raise MessageTooLarge(f"a body of {len(data)} bytes is longer than {BODY_BYTES_MAX}", hint="split it")
    return data


def message_properties(
    tag: str | None,
    keys: Iterable[str],
    message_group: str | None,
    properties: Mapping[str, str] | bytes | None,
) -> dict[str, str]:
    """Return the properties of a message without its id.

    Raises:
        UsageError: a reserved or impossible property, tag or key.
    """
    found: dict[str, str] = {}
    if tag is not None:
        found["TAGS"] = _word("tag", tag, forbidden="|")
    words = [_word("key", key) for key in keys]
    if words:
        found["KEYS"] = " ".join(words)
    if message_group is not None:
        found["__SHARDINGKEY"] = _word("message_group", message_group, blanks=True)
    if isinstance(properties, Mapping):
        check_properties(properties)
        found.update(properties)
    return found


def _word(what: str, text: str, *, forbidden: str = "", blanks: bool = False) -> str:
    if not isinstance(text, str):
        raise TypeError(f"{what} must be str, not {type(text).__name__}")
    if not text or (not blanks and any(letter.isspace() for letter in text)) or any(f in text for f in forbidden):
        raise UsageError(
            f"{what}={text!r} is empty, or holds a blank or {forbidden or 'blank'}", hint=f"another {what}"
        )
    return text


def keys_of(key: str | None, keys: Iterable[str] | None) -> list[str]:
    """Return all keys of a message."""
    if isinstance(keys, str):
        raise TypeError("keys is a sequence of str; did you mean key=?")
    return [*([key] if key is not None else []), *(keys or ())]


def property_text(reserved: Mapping[str, str], properties: Mapping[str, str] | None) -> bytes:
    """Return RocketMQ's text of properties that are ours and of an application's own.

    Raises:
        UsageError: a property the application may not set.
    """
    if properties:
        check_properties(properties)
        return encode_properties({**reserved, **properties}).encode()
    return encode_properties(reserved).encode()


# ---- special keywords -----------------------------------------------------------------------------------------------


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
            raise TypeError(f"send() got an unexpected keyword argument '{name}'")
        value = arguments.pop(name)
        if value is not None:
            found.update(meaning(value))
    if len(found) > 1:
        _check_one(found)
    return found
