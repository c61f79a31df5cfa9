"""Numbers as people read and write them: sizes, counts, ages, times.

Text made here goes into tables only; JSON carries the raw integers.

    size_text(851443712)      812 MiB          parse_size("1G")           1073741824
    rate_text(41200)          41.2k            parse_duration("2h")       7200.0
    age_text(183600)          2d 03h           clock_text(1763625667113)  08:01:07.113, local
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from shmq.errors import UsageError

if TYPE_CHECKING:
    from datetime import datetime, tzinfo

_SIZE_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
_SIZE_PATTERN = r"(?i)^\s*(\d+(?:\.\d+)?)\s*([kmgtp]?)(?:i?b)?\s*$"
_DURATION_PATTERN = r"(?i)^\s*(\d+(?:\.\d+)?)\s*(ms|s|m|h|d|w)?\s*$"
_DURATION_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0}
_SIZE_MAX = (1 << 63) - 1
_DURATION_SECONDS_MAX = 1e9  # 31 years; a sleep takes ten times as much at most
_SHOWN_CHARACTERS = 40


def size_text(size_bytes: float) -> str:
    """Return bytes, or bytes a second, in binary units with three significant digits; single bytes are whole."""
    value = float(size_bytes)
    for unit in _SIZE_UNITS:
        if value < 1000 or unit == _SIZE_UNITS[-1]:
            break
        value /= 1024
    if unit == "B":
        return f"{size_bytes:.0f} B"
    return f"{value:.0f} {unit}" if value >= 100 else f"{value:.1f} {unit}"


def count_text(count: int) -> str:
    """Return an amount with thousands separated."""
    return f"{count:,}"


def plural(count: int, noun: str) -> str:
    """Return the amount with its noun: `1 message`, `1,204 messages`."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def rate_text(per_second: float) -> str:
    """Return events a second in decimal units: 0, 12, 41.2k, 1.31M."""
    if per_second < 999.5:
        return f"{per_second:.0f}"
    value, unit = (per_second / 1e3, "k") if per_second < 999.5e3 else (per_second / 1e6, "M")
    return f"{value:.2f}{unit}" if value < 10 else f"{value:.1f}{unit}" if value < 100 else f"{value:.0f}{unit}"


def age_text(seconds: float) -> str:
    """Return how long ago, in the two largest units that matter."""
    if seconds < 10:
        return f"{max(seconds, 0.0):.1f} s"
    if seconds < 60:
        return f"{seconds:.0f} s"
    minutes = int(seconds) // 60
    if minutes < 60:
        return f"{minutes}m {int(seconds) % 60:02d}s"
    if minutes < 24 * 60:
        return f"{minutes // 60}h {minutes % 60:02d}m"
    return f"{minutes // 1440}d {minutes % 1440 // 60:02d}h"


def clock_text(time_ms: int) -> str:
    """Return the local time of day with milliseconds; "–" for a number that is no time of any year."""
    moment = _moment(time_ms, None)
    return "–" if moment is None else moment.strftime("%H:%M:%S.") + f"{time_ms % 1000:03d}"


def iso_text(time_ms: int) -> str | None:
    """Return the time as JSON carries it: RFC 3339 in UTC with milliseconds, None for a number that is no time.

    The time of birth is the sender's own word: any client may say any 64 bits.
    """
    from datetime import UTC

    moment = _moment(time_ms, UTC)
    # Not strftime: it leaves the zeros out of the year 33.
    return None if moment is None else f"{moment.replace(tzinfo=None).isoformat()}.{time_ms % 1000:03d}Z"


def _moment(time_ms: int, zone: tzinfo | None) -> datetime | None:
    """Return the whole second of a time, None where no calendar of Python's has it."""
    from datetime import datetime

    try:
        return datetime.fromtimestamp(time_ms // 1000, zone)
    except (ValueError, OverflowError, OSError):  # years behind 9999, and what the C library refuses
        return None


def parse_size(text: str) -> int:
    """Return the bytes meant by `64m`, `1G`, `512 KiB` or a bare number; units are powers of 1024."""
    match = re.match(_SIZE_PATTERN, text)
    if match is None:
        raise UsageError(f"{text!r} is not a size", hint="write a number and a unit: 64m, 1G, 512k")
    size_bytes = float(match[1]) * 1024.0 ** " kmgtp".index(match[2].lower() or " ")
    if size_bytes > _SIZE_MAX:
        raise UsageError(f"{_shown(text)} is more than anything can hold", hint="units are k, M, G, T and P")
    return int(size_bytes)


def parse_duration(text: str) -> float:
    """Return the seconds meant by `250ms`, `30s`, `5m`, `2h`, `7d` or a bare number of seconds."""
    match = re.match(_DURATION_PATTERN, text)
    if match is None:
        raise UsageError(f"{text!r} is not a length of time", hint="write a number and a unit: 250ms, 30s, 5m, 2h, 7d")
    seconds = float(match[1]) * _DURATION_SECONDS[(match[2] or "s").lower()]
    if seconds > _DURATION_SECONDS_MAX:
        raise UsageError(f"{_shown(text)} is longer than can be waited for", hint="units are ms, s, m, h, d and w")
    return seconds


def _shown(text: str) -> str:
    return repr(text) if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]!r}…"
