"""The event loop of a process that serves sockets.

It chooses the loop (uvloop where that is installed), reports uncaught faults, and turns the signals that end a process
into one event.

Rule: when the loop is over, the signals mean again what they meant before; a closed uvloop would swallow them for ever.
"""

import asyncio
import importlib
import signal
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any

from shmq.daemon.event_log import INTERNAL_ERROR, EventLog, format_trace
from shmq.shm.signal_event import ending_signals


def run_loop(main: Coroutine[Any, Any, int], log: EventLog) -> int:
    """Run the one coroutine of a process to its end and return its exit status."""
    with _signals_restored(), asyncio.Runner(loop_factory=_loop_factory()) as runner:
        loop = runner.get_loop()
        # Faults in callbacks end their connection; the loop's own report would be many lines a second.
        loop.set_exception_handler(lambda _, context: _tell(log, context))
        return runner.run(main)


def _tell(log: EventLog, context: dict[str, Any]) -> None:
    """A network that fails is one event, a fault of ours another, which is counted."""
    error = context.get("exception")
    if not isinstance(error, Exception) or isinstance(error, OSError | EOFError):
        log("loop.error", reason=repr(error or context))
    else:
        log(INTERNAL_ERROR, where=str(context.get("message", "a callback")), trace=format_trace(error))


def stop_event(asked_before: threading.Event | None = None) -> asyncio.Event:
    """Return what the signals that end a process set from now on; called inside the loop.

    Args:
        asked_before: set by the signals' handler until now; a stop that came in time for that one counts here too.
    """
    stop = asyncio.Event()
    for number in ending_signals():
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    if asked_before is not None and asked_before.is_set():
        stop.set()
    return stop


@contextmanager
def _signals_restored() -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in ending_signals()}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop]:
    """uvloop's event loop where it is installed: the same behaviour in half the time."""
    try:
        factory: Callable[[], asyncio.AbstractEventLoop] = importlib.import_module("uvloop").new_event_loop
    except ImportError:
        return asyncio.new_event_loop
    return factory
