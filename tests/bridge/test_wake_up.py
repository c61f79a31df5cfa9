"""One timer serves all who want to be woken, on every event loop."""

import asyncio
from collections.abc import Callable

import pytest

from shmq.daemon.bridge.wake_up import WakeUp
from tests.bridge.sockets.loops import LOOPS


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
