"""Option values read from text: numbers, sizes, times and names.

Points in time are milliseconds since the epoch, as the Kafka source takes them, or ISO 8601; without a zone they are
UTC, because driver and broker may live in different zones. Every error names the option, the value and the cure.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, tzinfo
from typing import Final

from shmq.client.position import ms_of
from shmq.errors import ShmqError, UsageError
from shmq.message import nearest
from shmq.spark.schema import refused

_SIZE = re.compile(r"(\d+)\s*([kmg]?)i?b?", re.IGNORECASE)
_DURATION = re.compile(r"(\d+)\s*(ms|s|m|h)")
_DIGITS_MAX: Final = 20  # more milliseconds are behind everything, too
_MS_MAX: Final = (1 << 63) - 1
_DURATION_FACTORS: Final = {"ms": 0.001, "s": 1, "m": 60, "h": 3600}
_SIZE_FACTORS: Final = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}


def known(given: Mapping[str, str], names: Sequence[str], foreign: Mapping[str, str]) -> dict[str, str]:
    """Return options by their proper names.

    Args:
        names: the options there are.
        foreign: what people know from elsewhere, in lower case -> what to use here.

    Raises:
        UsageError: an unknown option, with the nearest name.
    """
    proper = {name.lower(): name for name in names}
    values: dict[str, str] = {}
    for name, value in given.items():
        if (found := proper.get(name.lower())) is None:
            if instead := foreign.get(name.lower()):
                raise refused(f"there is no option {name}", f"use {instead}")
            near = nearest(name, names)
            raise refused(
                f"there is no option {name}",
                f"did you mean {' or '.join(near)}?" if near else f"options are {', '.join(names)}",
            )
        values[found] = str(value)
    return values


def seconds(values: Mapping[str, str], name: str, default: float) -> float:
    """Return a time with its unit, in seconds."""
    found = _DURATION.fullmatch(values.get(name, f"{default:g}s").strip())
    if found is None:
        raise wrong(name, values[name], "a time like 30s, 15m or 2h")
    return float(found[1]) * _DURATION_FACTORS[found[2]]


def moment_ms(option: str, text: str | None, zone: tzinfo | None = UTC) -> int | None:
    """Return the milliseconds an option means, None when it was not given.

    Args:
        zone: of a time that has none of its own; None means local time, as in commands.

    Raises:
        UsageError: it is neither a number nor a time.
    """
    if text is None:
        return None
    clean = text.strip()
    if clean.removeprefix("-").isdecimal():
        return min(max(0, int(clean[:_DIGITS_MAX])), _MS_MAX)
    try:
        moment = datetime.fromisoformat(clean)
    except ValueError:
        raise refused(
            f"option {option}={text!r} is not a time",
            "give milliseconds since 1970 or 2026-11-20T08:00:00Z",
        ) from None
    return ms_of(moment, zone)


def checked(check: Callable[[str], object], name: str, option: str) -> None:
    """Let a name pass that a check accepts; say which option it was otherwise."""
    try:
        check(name)
    except ShmqError as error:
        raise refused(f"option {option}: {error}", error.hint or "see the rules for names") from None


def split(text: str) -> list[str]:
    """Return what stands between commas."""
    return [part.strip() for part in text.split(",") if part.strip()]


def number(name: str, text: str, least: int, most: int = 1 << 62) -> int:
    """Return a whole number within bounds."""
    form = f"a whole number from {least}" + (f" to {most}" if most < 1 << 62 else "")
    try:
        found = int(text)
    except ValueError:
        raise wrong(name, text, form) from None
    if not least <= found <= most:
        raise wrong(name, text, form)
    return found


def size(values: Mapping[str, str], name: str, default: int, least: int, most: int) -> int:
    """Return a size in bytes, given with or without a unit."""
    text = values.get(name, str(default))
    form = f"a size from {least} to {most} bytes, like 64m"
    found = _SIZE.fullmatch(text.strip())
    if found is None:
        raise wrong(name, text, form)
    return number(name, str(int(found[1]) * _SIZE_FACTORS[found[2].lower()]), least, most)


def truth(values: Mapping[str, str], name: str, default: bool) -> bool:
    """Return true or false."""
    text = values.get(name, str(default)).strip().lower()
    if text not in ("true", "false"):
        raise wrong(name, values[name], "true or false")
    return text == "true"


def wrong(name: str, value: str, form: str, *, near: list[str] | None = None) -> UsageError:
    """Return the error for a value that an option cannot have; `form` says what it can."""
    meant = f"did you mean {' or '.join(near)}? " if near else ""
    return refused(f"option {name}={value!r} is not possible", f"{meant}give {form}")
