"""Waiting in tests: for a state, until a deadline, never for a time.

A fixed pause is too short on a busy machine and too long on an idle one, so a test names the state that it needs and
looks until it is there. This file is the only one that pauses between two looks; tests/test_house.py holds the others
to it. The deadlines are far above what anything takes: they end a test that hangs, and judge no speed.
"""

import asyncio
import time
from collections.abc import Callable, Iterator
from typing import Any, Final

DEADLINE_SECONDS: Final = 180.0
PAUSE_SECONDS: Final = 0.01
What = str | Callable[[], str]


def attempts(timeout: float = DEADLINE_SECONDS, pause: float = PAUSE_SECONDS) -> Iterator[int]:
    """Count attempts with a pause between two of them; the last one begins when the time is over."""
    deadline, number = time.monotonic() + timeout, 0
    while True:
        is_last = time.monotonic() >= deadline
        yield number
        if is_last:
            return
        number += 1
        time.sleep(pause)


def eventually(
    condition: Callable[[], Any], what: What = "", timeout: float = DEADLINE_SECONDS, pause: float = PAUSE_SECONDS
) -> Any:
    """Return the first true value of a condition.

    Raises:
        AssertionError: it was not true in time; `what` says what was waited for.
    """
    for _ in attempts(timeout, pause):
        if value := condition():
            return value
    raise AssertionError(_missed(what, timeout, value))


async def eventually_async(
    condition: Callable[[], Any], what: What = "", timeout: float = DEADLINE_SECONDS, pause: float = PAUSE_SECONDS
) -> Any:
    """`eventually` that lets the event loop go on between two looks."""
    for _ in attempts(timeout, 0.0):
        if value := condition():
            return value
        await asyncio.sleep(pause)
    raise AssertionError(_missed(what, timeout, value))


def _missed(what: What, timeout: float, value: object) -> str:
    text = what if isinstance(what, str) else what()
    return f"not within {timeout:g} s: {text or 'the condition'}; the last value was {value!r}"
