"""An event loop whose clock stands while there is something to do, and goes to the next timer at once."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

ResultT = TypeVar("ResultT")


class _Selector(selectors.DefaultSelector):
    now = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        found = super().select(0)
        if not found:
            assert timeout is not None, "all wait, and no timer would end that"
            self.now += max(0.0, timeout)
        return found


class _Loop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self._clock = _Selector()
        super().__init__(self._clock)

    def time(self) -> float:
        return self._clock.now


def on_a_standing_clock(work: Coroutine[Any, Any, ResultT]) -> ResultT:
    """Run a coroutine on such a loop, of which the clock begins at 0."""
    with asyncio.Runner(loop_factory=_Loop) as runner:
        return runner.run(work)


async def later(seconds: float) -> None:
    """Go on after some seconds of that clock."""
    await asyncio.sleep(seconds)  # not a wait: no time passes
