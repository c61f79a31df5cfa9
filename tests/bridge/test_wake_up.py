"""One timer serves all who want to be woken, on every event loop."""

import asyncio
import importlib.util
from collections.abc import Callable
from typing import Any

import pytest

from shmq.daemon.bridge.wake_up import WakeUp


class HastyLoop(asyncio.SelectorEventLoop):
    """Gives handles that know no time, as uvloop does for what is due already."""

    def call_at(self, when: float, callback: Callable[..., object], *args: Any, context: Any = None) -> Any:
        return self.call_soon(callback, *args, context=context)


def uvloop_of() -> asyncio.AbstractEventLoop:
    """An event loop of uvloop, where that is installed."""
    loop: asyncio.AbstractEventLoop = importlib.import_module("uvloop").new_event_loop()
    return loop


LOOPS = [asyncio.new_event_loop, HastyLoop, *([uvloop_of] if importlib.util.find_spec("uvloop") else [])]


@pytest.mark.parametrize("factory", LOOPS)
def test_the_earliest_wish_counts_however_near_it_is(factory: Callable[[], asyncio.AbstractEventLoop]) -> None:
    async def scene() -> int:
        woken = asyncio.Event()
        count = 0

        def action() -> None:
            nonlocal count
            count += 1
            woken.set()

        wake_up = WakeUp(action)
        for seconds in (60.0, 0.0003, 0.0002, 0.0, 0.0001, -1.0, 60.0):
            wake_up.within(seconds)
        await woken.wait()
        wake_up.within(0.0)
        wake_up.close()
        await asyncio.sleep(0)
        return count

    with asyncio.Runner(loop_factory=factory) as runner:
        assert runner.run(scene()) == 1
