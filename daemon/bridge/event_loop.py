"""The event loop of a process that serves sockets.

Owns which loop there is and what becomes of faults in it. It does not know what runs in it.
"""

from __future__ import annotations

import asyncio
import importlib
from collections.abc import Callable, Coroutine
from typing import Any

from shmq.daemon.event_log import EventLog


def run_loop(main: Coroutine[Any, Any, int], log: EventLog) -> int:
    """Run the one coroutine of a process to its end and return its exit status."""
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        loop = runner.get_loop()
        # Faults in callbacks end their connection; the loop's own report would be many lines a second.
        loop.set_exception_handler(
            lambda _, context: log("loop.error", reason=repr(context.get("exception") or context))
        )
        return runner.run(main)


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop]:
    """uvloop's event loop where it is installed: the same behaviour in half the time."""
    try:
        factory: Callable[[], asyncio.AbstractEventLoop] = importlib.import_module("uvloop").new_event_loop
    except ImportError:
        return asyncio.new_event_loop
    return factory
