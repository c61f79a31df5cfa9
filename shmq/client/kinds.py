"""What kind each argument of a send is of, and what is said when one is of another kind.

The core looks at the arguments of a send by itself and asks here only when the call has failed: `wrong_in` finds the
argument that is to blame. What has no core under it (TCP, transactions, administration) asks before it begins. So both
ways refuse the same things in the same words: the argument, what it is, what was given, and what to type.

    tag=3      tag is a str, not 3 (int)      hint: tag="fruit"

Invariants:
    1. Nothing here runs for a send in shared memory that succeeds.
    2. None is no value: it counts as not given.
    3. An iterator is not used up by looking at it; what it gives is looked at where it is written.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, Final, NamedTuple

from shmq.errors import InvalidName, UsageError, WrongKind
from shmq.message import check_topic

TIMEOUT_MAX: Final = 2_147_483.0
"""Seconds that a socket can be told to wait: 2**31 ms, 24 days."""
FLAG_BITS: Final = 32


class Kind(NamedTuple):
    """What an argument is."""

    holds: Callable[[Any], bool]
    what: str
    hint: str


def wrong_kind(name: str, value: object, what: str, hint: str) -> WrongKind:
    """Return the error for an argument that is not what it should be."""
    return WrongKind(f"{name} is {what}, not {value!r:.80} ({type(value).__name__})", hint=hint)


def wrong_in(named: Mapping[str, Any]) -> UsageError | None:
    """Return the error of the first argument of a wrong kind; None when there is none."""
    for name, value in named.items():
        if name == "topic":
            if not isinstance(value, str):
                return _wrong_topic(value)
        elif value is not None or name in _NEEDED:
            kind = _BATCH_KEYS if name == "keys" and "bodies" in named else KINDS.get(name)
            if kind is not None and not kind.holds(value):
                return wrong_kind(name, value, kind.what, kind.hint)
            error = _wrong_body_in(name, value)
            if error is not None:
                return error
    return None


def refuse_wrong(named: Mapping[str, Any]) -> None:
    """Refuse an argument of a wrong kind.

    Raises:
        UsageError: there is one.
    """
    error = wrong_in(named)
    if error is not None:
        raise error


def wrong_body(body: object) -> WrongKind | None:
    """Return the error for what can be no body; None when it can be one."""
    if isinstance(body, str):
        return WrongKind("a body is bytes, not str; did you mean body=text.encode()?")
    if _is_buffer(body):
        return None
    return WrongKind(
        f"a body is bytes, not {type(body).__name__}; did you mean body=json.dumps(value).encode(), "
        "or a typed topic: mq.topic(name, type)?"
    )


def is_number(value: Any) -> bool:
    """Whether this is a number, those of other libraries included."""
    return isinstance(value, int | float) or (hasattr(value, "__float__") and not isinstance(value, str | bytes))


def is_count(value: Any) -> bool:
    """Whether this is a whole number, those of other libraries included."""
    return hasattr(value, "__index__")


def is_in(value: Any, least: int, most: int) -> bool:
    """Whether this is a whole number of a range; True and False are none."""
    return isinstance(value, int) and not isinstance(value, bool) and least <= value <= most


def _wrong_body_in(name: str, value: Any) -> WrongKind | None:
    if name == "body":
        return wrong_body(value)
    if name == "bodies" and isinstance(value, Collection):
        return next(filter(None, map(wrong_body, value)), None)
    return None


def _wrong_topic(value: Any) -> UsageError | None:
    try:
        check_topic(value)
    except InvalidName as error:
        return error.with_traceback(None)
    return None


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_texts(value: Any, *, holes: bool = False) -> bool:
    if isinstance(value, str | bytes) or not isinstance(value, Iterable):
        return False
    return not isinstance(value, Collection) or all(isinstance(text, str) or (holes and text is None) for text in value)


def _is_properties(value: Any) -> bool:
    if isinstance(value, bytes):  # RocketMQ's text, which only our own parts pass
        return True
    if not isinstance(value, Mapping):
        return False
    return all(isinstance(name, str) and isinstance(text, str) for name, text in value.items())


def _is_flag(value: Any) -> bool:
    return is_count(value) and -(1 << FLAG_BITS - 1) <= value < 1 << FLAG_BITS


def _is_seconds(value: Any) -> bool:
    return is_number(value) and value >= 0


def _is_buffer(value: object) -> bool:
    try:
        memoryview(value)  # type: ignore[arg-type]
    except TypeError:
        return False
    return True


def _is_bodies(value: Any) -> bool:
    return isinstance(value, Iterable) and not isinstance(value, str) and not _is_buffer(value)


def _is_size(value: Any) -> bool:
    return is_count(value) and value >= 0


_NEEDED: Final = frozenset(("body", "bodies", "size"))

KINDS: Final[dict[str, Kind]] = {
    "bodies": Kind(_is_bodies, "a sequence of bodies", 'send_batch("orders", [b"a", b"b"]), or send() for one body'),
    "size": Kind(_is_size, "a number of bytes, 0 or more", 'reserve("orders", 4096)'),
    "tag": Kind(_is_text, "a str", 'tag="fruit"'),
    "key": Kind(_is_text, "a str", 'key="order-42"'),
    "keys": Kind(_is_texts, "a sequence of str", 'did you mean key=? Several are keys=["order-42", "customer-7"]'),
    "properties": Kind(_is_properties, "a mapping of str to str", 'properties={"region": "eu"}'),
    "message_group": Kind(_is_text, "a str", 'message_group="customer-7"'),
    "queue_id": Kind(is_count, "an int", "queue_id=0"),
    "flag": Kind(_is_flag, f"an int of {FLAG_BITS} bits", "flag=1"),
    "timeout": Kind(_is_seconds, "seconds, 0 or more", "timeout=0.5"),
    "check_after": Kind(is_number, "seconds", "check_after=10"),
}
"""Arguments by their name; those of delays are in keywords.py, beside what they mean."""
_BATCH_KEYS: Final = Kind(
    functools.partial(_is_texts, holes=True), "a sequence of str or None, one for each body", 'keys=["order-42", None]'
)
