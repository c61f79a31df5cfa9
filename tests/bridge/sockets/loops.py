"""The event loops that a bridge may run in, for tests of what differs between them."""

import asyncio
import importlib
import importlib.util
from collections.abc import Callable
from typing import Any


class HastyLoop(asyncio.SelectorEventLoop):
    """Gives handles that know no time, as uvloop does for what is due already."""

    def call_at(self, when: float, callback: Callable[..., object], *args: Any, context: Any = None) -> Any:
        return self.call_soon(callback, *args, context=context)


def uvloop_of() -> asyncio.AbstractEventLoop:
    """An event loop of uvloop, where that is installed."""
    loop: asyncio.AbstractEventLoop = importlib.import_module("uvloop").new_event_loop()
    return loop


LOOPS = [asyncio.new_event_loop, HastyLoop, *([uvloop_of] if importlib.util.find_spec("uvloop") else [])]
