"""Functions that an application hands in: listeners, repliers, transaction checkers.

A function of the wrong kind does nothing when it is called: an `async def`, or one with a `yield`, returns an object
that never runs. Its message would be acknowledged unseen. So it is refused where it is handed in, and what a call
returned is looked at as well, because an ordinary function may return such an object.

    handed in                                       synchronous client      shmq.aio
    def, or an object that is called                run                     refused (a checker is run in a thread)
    async def                                       refused                 awaited
    def or async def with a yield                   refused                 refused

    returned: a coroutine, another awaitable, or a generator                a failure: the message comes again

What is raised, in whatever thread or task the function runs:

    any Exception, asyncio.CancelledError, every other BaseException        a failure of this message alone
    KeyboardInterrupt, SystemExit                                           the program is to end (`ENDING`)

A listener or replier that raises one of `ENDING` gives its message back at once and ends: `run()` lets the others end
as well and raises SystemExit, or returns after KeyboardInterrupt; behind `start()`, where nothing waits, an error is
logged. In asyncio both leave the event loop, as they do out of any task. A transaction checker ends nothing: it is
asked again.
"""

from __future__ import annotations

from collections.abc import Callable
from types import AsyncGeneratorType, GeneratorType
from typing import Any, Final, TypeVar

from shmq.errors import UsageError

OutcomeT = TypeVar("OutcomeT")
ENDING: Final = (KeyboardInterrupt, SystemExit)
"""What a function raises to end the program."""

_UNFINISHED = (GeneratorType, AsyncGeneratorType)


def check_callable(function: object) -> None:
    """Let pass what can be called.

    Raises:
        UsageError: it cannot; the decorator's own call may be missing.
    """
    if not callable(function):
        raise UsageError(
            f"{function!r:.100} cannot be called with a message",
            hint='decorate a function: @mq.listener("orders", group="billing")',
        )


def check_function(function: Callable[..., Any]) -> None:
    """Let pass what runs when it is called.

    Raises:
        UsageError: it is a coroutine function or a generator function.
    """
    import inspect  # not at the import of shmq, which is fast

    check_callable(function)
    if _is_any(function, inspect.iscoroutinefunction):
        raise UsageError(
            f"{_name(function)} is an async def, which a synchronous connection never runs",
            hint="use shmq.aio.connect(), or a def",
        )
    check_runnable(function)


def check_coroutine_function(function: Callable[..., Any]) -> None:
    """Let pass what can be awaited when it is called.

    Raises:
        UsageError: it is another kind of function.
    """
    import inspect

    check_runnable(function)
    if not inspect.iscoroutinefunction(function):
        raise UsageError(f"{function!r} is no coroutine function", hint="async def, or use shmq.connect()")


def finished(outcome: OutcomeT) -> OutcomeT:
    """Return what a function returned, if that means it has run.

    Raises:
        UsageError: it is a coroutine or the like that has not run; it is closed.
    """
    if outcome is None or not (isinstance(outcome, _UNFINISHED) or hasattr(type(outcome), "__await__")):
        return outcome
    for name in ("close", "cancel"):  # of coroutines and generators, of tasks and futures
        if callable(end := getattr(outcome, name, None)):
            end()
            break
    raise UsageError(
        f"the function returned {type(outcome).__name__}, which never runs: its message was not handled",
        hint="return when the work is done, or use shmq.aio.connect() and an async def",
    )


def check_runnable(function: Callable[..., Any]) -> None:
    """Let pass what runs when it is called, or when what it returns is awaited.

    Raises:
        UsageError: it is a generator function.
    """
    import inspect

    if _is_any(function, inspect.isgeneratorfunction) or _is_any(function, inspect.isasyncgenfunction):
        raise UsageError(
            f"{_name(function)} has a yield: calling it runs nothing", hint="leave the yield out, or return instead"
        )


def _is_any(function: Callable[..., Any], is_kind: Callable[[object], bool]) -> bool:
    """Whether a function is of a kind, or an object whose call is."""
    import inspect

    return is_kind(function) or is_kind(inspect.getattr_static(type(function), "__call__", None))


def _name(function: object) -> str:
    return f"{getattr(function, '__qualname__', repr(function))}()"
