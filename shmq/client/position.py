"""The words for a place in a queue: "begin", "end", an offset, a point in time, a time ago.

What a user wrote becomes one `Position`, which the wire resolves to an offset. Any time before the first message is the
beginning, and any time behind the last is the end.

    "begin" "first" "earliest"      the oldest stored message
    "end" "last" "latest"           behind the newest message
    1234, "1234"                    a queue offset
    "-2h" "-90s" "-15m" "-1d"       messages stored since so long ago
    "2026-11-20T08:00:00Z"          messages stored at or after that time (no zone: local time)
    datetime, date                  the same; a date is its midnight
"""

from __future__ import annotations

import enum
import time
from collections.abc import Callable
from datetime import date, datetime, tzinfo
from typing import NamedTuple, TypeAlias

from shmq.client.kinds import whole_in
from shmq.errors import UsageError
from shmq.shm.core import Store

PositionLike: TypeAlias = "str | int | date"

_BEGIN = frozenset(("begin", "first", "earliest"))
_END = frozenset(("end", "last", "latest"))
_DIGITS_MAX = 19
_OFFSET_MAX = (1 << 63) - 1  # behind the end of every queue
_EPOCH_YEAR, _MS_MAX = 1970, 253_402_300_799_999
_UNIT_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}
_HINT = 'use "begin", "end", an offset, "-2h", or an ISO time like "2026-11-20T08:00:00Z"'

_TIME_HINT = 'use "-2h" or an ISO time like "2026-11-20T08:00:00Z"'


class Kind(enum.Enum):
    """The unit of a position's number."""

    BEGIN = "begin"
    END = "end"
    OFFSET = "offset"
    TIME_MS = "time"


class Position(NamedTuple):
    """A place in any queue; `value` is an offset or milliseconds since the epoch, 0 for begin and end."""

    kind: Kind
    value: int = 0

    def resolve(self, offset_min: int, offset_max: int, search_time: Callable[[int], int]) -> int:
        """Return the queue offset meant in a queue that stores offset_min to offset_max - 1.

        Args:
            search_time: milliseconds to the first offset stored at or after them.
        """
        if self.kind is Kind.BEGIN:
            return offset_min
        if self.kind is Kind.END:
            return offset_max
        wanted = self.value if self.kind is Kind.OFFSET else search_time(self.value)
        return min(max(wanted, offset_min), offset_max)


BEGIN = Position(Kind.BEGIN)
END = Position(Kind.END)


def parse_position(text: PositionLike, *, now_ms: int | None = None) -> Position:
    """Read a position; integers and strings of digits are offsets.

    Raises:
        UsageError: the text is none of the forms above.
    """
    if isinstance(text, date):
        return Position(Kind.TIME_MS, ms_of(text))
    if isinstance(text, bool):
        raise UsageError(f"{text!r} is not a position", hint=_HINT)
    number = whole_in(text)
    if number is not None:
        return _offset(number)
    if not isinstance(text, str):
        raise UsageError(f"a position cannot be a {type(text).__name__}", hint=_HINT)
    word = text.strip().lower()
    if word in _BEGIN:
        return BEGIN
    if word in _END:
        return END
    if word.isdecimal():
        return _offset(int(word[-_DIGITS_MAX:]) if word[:-_DIGITS_MAX].strip("0") == "" else _OFFSET_MAX)
    if word.startswith("-"):
        return Position(Kind.TIME_MS, _ago(text, word, round(time.time() * 1000) if now_ms is None else now_ms))
    return parse_time(text)


def parse_time(text: str | date) -> Position:
    """Read a point in time.

    Raises:
        UsageError: it is no ISO 8601 time.
    """
    if isinstance(text, date):
        return Position(Kind.TIME_MS, ms_of(text))
    if not isinstance(text, str):
        raise UsageError(f"a time cannot be a {type(text).__name__}", hint=_TIME_HINT)
    try:
        return Position(Kind.TIME_MS, ms_of(datetime.fromisoformat(text.strip())))
    except ValueError:
        raise UsageError(f"{text!r} is not a position in a queue", hint=_HINT) from None


def ms_of(moment: date, zone: tzinfo | None = None) -> int:
    """Return a point in time as milliseconds since the epoch: from 0, as nothing was stored before, to year 9999.

    Args:
        zone: of a time that has none of its own; None means local time. A date is its midnight.
    """
    when = moment if isinstance(moment, datetime) else datetime(moment.year, moment.month, moment.day)
    if when.tzinfo is None and zone is not None:
        when = when.replace(tzinfo=zone)
    try:
        return min(max(0, round(when.timestamp() * 1000)), _MS_MAX)
    except (ValueError, OverflowError, OSError):  # of year 1 or 9999, which have no local time
        return 0 if when.year < _EPOCH_YEAR else _MS_MAX


def parse_moment(text: str | date, *, now_ms: int | None = None) -> int:
    """Read a point in time, or a time ago, and return it in ms since the epoch.

    Raises:
        UsageError: it is neither.
    """
    if isinstance(text, str) and text.strip().startswith("-"):
        return _ago(text, text.strip().lower(), round(time.time() * 1000) if now_ms is None else now_ms)
    if not isinstance(text, str | date):
        raise UsageError(f"a time cannot be a {type(text).__name__}", hint=_TIME_HINT)
    try:
        return parse_time(text).value
    except UsageError:
        raise UsageError(f"{text!r} is not a time", hint=_TIME_HINT) from None


def _offset(value: int) -> Position:
    if value < 0:
        raise UsageError(f"offset {value} is negative", hint=_HINT)
    return Position(Kind.OFFSET, value)


def _ago(text: str, word: str, now_ms: int) -> int:
    unit = _UNIT_SECONDS.get(word[-1], 0)
    try:
        amount = float(word[1:-1])
    except ValueError:
        amount = -1.0
    if not unit or not 0 <= amount < 1e9:
        raise UsageError(f"{text!r} is not a time ago", hint="write -90s, -15m, -2h, -1d or -1w")
    return max(0, round(now_ms - amount * unit * 1000))


def start_offset(store: Store, queue_index: int, position: Position) -> int:
    """Return the queue offset a position means in a queue now."""
    queue = store.queue(queue_index)
    return position.resolve(queue.offset_min, queue.offset_max, lambda time_ms: store.search_time(queue_index, time_ms))
