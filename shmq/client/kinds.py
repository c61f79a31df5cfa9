"""Checks the kind of each argument of a send, and words the error for a wrong one.

The core looks at the arguments of a send by itself and asks here only when the call has failed: `wrong_in` finds the
argument that is to blame. What has no core under it (TCP, transactions, administration) asks before it begins. So both
ways refuse the same things in the same words: the argument, what it is, what was given, and what to type.

    tag=3      tag is a str, not 3 (int)      hint: tag="fruit"

Invariants:
    1. Nothing here runs for a send in shared memory that succeeds.
    2. None is no value: it counts as not given.
    3. A number is any of Python's or another library's (Decimal, Fraction, NumPy's) but True, False, NaN and text;
       `real_in` and `whole_in` say so for every argument of the client, also for those that are checked elsewhere.
    4. An iterator is not used up by looking at it; what it gives is looked at where it is written, and the core says
       in `error.given` what that was.
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any, Final, NamedTuple

from shmq.errors import InvalidName, MessageTooLarge, ShmqError, UsageError, WrongKind
from shmq.message import check_topic
from shmq.properties import check_properties, encode_properties
from shmq.shm.core import BODY_BYTES_MAX
from shmq.words import check_word

TIMEOUT_MAX: Final = 2_147_483.0
"""Longest timeout a socket takes, in seconds: 2**31 ms, 24 days."""
FLAG_BITS: Final = 32


class Kind(NamedTuple):
    """The kind of an argument."""

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


def explained(named: Mapping[str, Any], error: BaseException | None) -> ShmqError | None:
    """Return the better error of a call that has failed; `error` is the core's own, None otherwise."""
    found: ShmqError | None = wrong_in(named)
    if found is not None or error is None:
        return found
    try:
        _refuse_values(named, error)
        if isinstance(error, UsageError) and not error.hint and named.get("queue_id") is not None:
            error.hint = "leave queue_id out, or see the queues of mq.admin.topics[name]"
    except ShmqError as refused:
        found = refused.with_traceback(None)
        found.__context__ = None
    return found


def _refuse_values(named: Mapping[str, Any], error: BaseException) -> None:
    """Refuse what is of the right kind and no message can have; `error` may name what an iterator gave."""
    if isinstance(named.get("topic"), str):
        check_topic(named["topic"])
    for name in ("tag", "key", "message_group"):
        if named.get(name) is not None:
            check_text(name, named[name])
    keys = named.get("keys")
    given = [error.given] if hasattr(error, "given") else keys if isinstance(keys, Collection) else ()
    for key in given:
        if key is not None:
            check_text("key", key)
    properties = named.get("properties")
    if properties:
        check_properties(properties)
        encode_properties(properties)
    if "body" in named:
        check_body(memoryview(named["body"]).nbytes)
    if "size" in named:
        check_body(operator.index(named["size"]))
    if isinstance(named.get("bodies"), Iterator) and type(error) is TypeError:
        raise WrongKind(str(error))  # what an iterator gave cannot be looked at again


def check_body(size: int) -> None:
    """Refuse a body that is longer than one may be.

    Raises:
        MessageTooLarge: it is.
    """
    if size > BODY_BYTES_MAX:
        raise MessageTooLarge(f"a body of {size} bytes is longer than {BODY_BYTES_MAX}", hint="split it")


def check_text(name: str, text: Any) -> None:
    """Refuse a tag, a key or a message group that no message can have.

    Raises:
        UsageError: it is no str, or no such word (shmq/words.py).
    """
    if not isinstance(text, str):
        raise wrong_kind(name, text, KINDS[name].what, KINDS[name].hint)
    check_word(name, text)


def check_wait(timeout: Any, default: float | None = None) -> float:
    """Return how long to wait, in seconds that a thread can wait; None takes the default.

    Raises:
        WrongKind: it is no time.
    """
    seconds = real_in(default if timeout is None else timeout)
    if seconds is None or seconds < 0:
        raise wrong_kind("timeout", timeout, KINDS["timeout"].what, "timeout=5.0")
    return min(seconds, TIMEOUT_MAX)


def check_after(after: Any, most: float = TIMEOUT_MAX, *, late_is_now: bool = False) -> float | None:
    """Return in how many seconds a message is to come again; None leaves it to the group.

    Raises:
        UsageError: it is no such time.
    """
    if after is None:
        return None
    seconds = real_in(after)
    if seconds is None:
        raise wrong_kind("after", after, "seconds", "after=30, or None for the group's next delay")
    if late_is_now:
        seconds = max(0.0, seconds)
    if not 0 <= seconds <= most:
        raise UsageError(f"a message cannot come again in {after!r:.80} s", hint=f"0 to {most:g} s, or None")
    return seconds


def check_hiding(seconds: Any, most: float = TIMEOUT_MAX) -> float:
    """Return for how many seconds from now a message is to be hidden.

    Raises:
        UsageError: it is no such time.
    """
    number = real_in(seconds)
    if number is None:
        raise wrong_kind("the time to extend by", seconds, "seconds", "message.extend(60)")
    if not 0 <= number <= most:
        raise UsageError(f"a message cannot be hidden for {seconds!r:.80} s", hint=f"0 to {most:g} s")
    return number


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
        if memoryview(body).c_contiguous:  # type: ignore[arg-type]
            return None
        text = f"a body is bytes in one piece, not a {type(body).__name__} with gaps"
        return WrongKind(text, hint="body=bytes(view)")
    return WrongKind(
        f"a body is bytes, not {type(body).__name__}; did you mean body=json.dumps(value).encode(), "
        "or a typed topic: mq.topic(name, type)?"
    )


def real_in(value: Any) -> float | None:
    """Return a number as a float, infinity for one that is too large; None for what is none."""
    if type(value) is float:
        return None if math.isnan(value) else value
    if isinstance(value, bool | str) or not (hasattr(value, "__float__") or hasattr(value, "__index__")):
        return None
    try:
        number = float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf
    except (TypeError, ValueError, ArithmeticError):  # a Decimal's signalling NaN, an array of several numbers
        return None
    return None if math.isnan(number) else number


def whole_in(value: Any, least: float = -math.inf, most: float = math.inf) -> int | None:
    """Return a whole number of a range; None for what is none."""
    if isinstance(value, bool):
        return None
    try:
        number = operator.index(value)
    except TypeError:
        return None
    return number if least <= number <= most else None


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


def _whole(least: float = -math.inf, most: float = math.inf) -> Callable[[Any], bool]:
    return lambda value: whole_in(value, least, most) is not None


def _real(least: float = -math.inf) -> Callable[[Any], bool]:
    return lambda value: (number := real_in(value)) is not None and number >= least


def _is_texts(value: Any, *, holes: bool = False) -> bool:
    if isinstance(value, str | bytes) or not isinstance(value, Iterable):
        return False
    return not isinstance(value, Collection) or all(isinstance(text, str) or (holes and text is None) for text in value)


def _is_properties(value: Any) -> bool:
    if not isinstance(value, Mapping):
        return False
    return all(isinstance(name, str) and isinstance(text, str) for name, text in value.items())


def _is_buffer(value: object) -> bool:
    try:
        memoryview(value)  # type: ignore[arg-type]
    except TypeError:
        return False
    return True


def _is_bodies(value: Any) -> bool:
    return isinstance(value, Iterable) and not isinstance(value, str) and not _is_buffer(value)


_NEEDED: Final = frozenset(("body", "bodies", "size"))

KINDS: Final[dict[str, Kind]] = {
    "bodies": Kind(_is_bodies, "a sequence of bodies", 'send_batch("orders", [b"a", b"b"]), or send() for one body'),
    "size": Kind(_whole(0), "a number of bytes, 0 or more", 'reserve("orders", 4096)'),
    "tag": Kind(_is_text, "a str", 'tag="fruit"'),
    "key": Kind(_is_text, "a str", 'key="order-42"'),
    "keys": Kind(_is_texts, "a sequence of str", 'did you mean key=? Several are keys=["order-42", "customer-7"]'),
    "properties": Kind(_is_properties, "a mapping of str to str", 'properties={"region": "eu"}'),
    "message_group": Kind(_is_text, "a str", 'message_group="customer-7"'),
    "queue_id": Kind(_whole(), "an int", "queue_id=0"),
    "flag": Kind(_whole(-(1 << FLAG_BITS - 1), (1 << FLAG_BITS) - 1), f"an int of {FLAG_BITS} bits", "flag=1"),
    "timeout": Kind(_real(0), "seconds, 0 or more", "timeout=0.5"),
    "check_after": Kind(_real(), "seconds", "check_after=10"),
}
"""Arguments by their name; those of delays are in keywords.py, beside what they mean."""
_BATCH_KEYS: Final = Kind(
    functools.partial(_is_texts, holes=True), "a sequence of str or None, one for each body", 'keys=["order-42", None]'
)
