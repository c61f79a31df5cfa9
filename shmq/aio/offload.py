"""Moves blocking calls of the sync client off the event loop, and makes the methods of a twin from its sync object.

Calls that end by themselves within their timeout run on the loop's own executor;
waiting for messages, which may last for ever, runs on a daemon thread of ours, so it never keeps a process from ending.
"""

from __future__ import annotations

import asyncio
import contextvars
import functools
import inspect
import queue
import threading
import weakref
from collections.abc import Callable, Coroutine, Iterable
from concurrent.futures import Future
from operator import attrgetter
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar

from shmq.client.background import begun, carry_out, started

ParametersT = ParamSpec("ParametersT")
ResultT = TypeVar("ResultT")
SyncT = TypeVar("SyncT")
Calls = queue.SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None]


async def offload(
    call: Callable[ParametersT, ResultT], *args: ParametersT.args, **kwargs: ParametersT.kwargs
) -> ResultT:
    """Run a call that ends by itself in a thread; the loop goes on meanwhile."""
    return await submit(functools.partial(call, *args, **kwargs))


async def carried_out(
    call: Callable[ParametersT, ResultT], *args: ParametersT.args, **kwargs: ParametersT.kwargs
) -> ResultT:
    """The same of a call that must not be left out: a task that waits may be cancelled, the call is not."""
    return await asyncio.shield(submit(functools.partial(call, *args, **kwargs)))


def submit(call: Callable[..., ResultT], *given: Any) -> asyncio.Future[ResultT]:
    """Begin a call in a thread."""
    inside = contextvars.copy_context()  # what is current here, such as a span, is so there
    try:
        return asyncio.get_running_loop().run_in_executor(None, inside.run, call, *given)
    except RuntimeError:  # the main thread has ended, and with it every executor
        return asyncio.wrap_future(begun(functools.partial(inside.run, call, *given), name="shmq-aio-last"))


def awaited(
    call: Callable[Concatenate[Any, ParametersT], ResultT],
) -> Callable[Concatenate[Any, ParametersT], Coroutine[Any, Any, ResultT]]:
    """Return the twin of a sync method: the same parameters and documentation, called in a thread, and awaited."""

    @functools.wraps(call)
    async def twin(self: Any, /, *args: ParametersT.args, **kwargs: ParametersT.kwargs) -> ResultT:
        return await offload(call, await self._open(), *args, **kwargs)

    return twin


def taking(
    call: Callable[Concatenate[Any, ParametersT], object],
) -> Callable[[Callable[..., ResultT]], Callable[Concatenate[Any, ParametersT], ResultT]]:
    """Give a method of a twin the parameters of a sync one, under which it is called, read in help(), and checked.

    The method itself takes all of them by name, those that were left out as their defaults.
    """
    signature = inspect.signature(call)
    own = next(iter(signature.parameters))

    def decorate(make: Callable[..., ResultT]) -> Callable[Concatenate[Any, ParametersT], ResultT]:
        @functools.wraps(make)
        def twin(self: Any, /, *args: ParametersT.args, **kwargs: ParametersT.kwargs) -> ResultT:
            bound = signature.bind(self, *args, **kwargs)
            bound.apply_defaults()
            return make(self, **{name: value for name, value in bound.arguments.items() if name != own})

        made: Any = twin
        made.__signature__ = signature.replace(return_annotation=inspect.signature(make).return_annotation)
        return twin

    return decorate


def read_through(twin: type, sync: type, names: Iterable[str]) -> None:
    """Let these attributes of a twin be those of its sync object, with their documentation."""
    for name in names:
        setattr(twin, name, property(attrgetter(f"_sync.{name}"), doc=getattr(sync, name).__doc__))


class Twin(Generic[SyncT]):
    """The twin of a sync object that is there already."""

    __slots__ = ("_sync",)

    def __init__(self, sync: SyncT) -> None:
        self._sync = sync

    async def _open(self) -> SyncT:
        return self._sync


class Waiter:
    """One daemon thread for calls that may wait long, one after the other; it starts with the first."""

    def __init__(self) -> None:
        self._calls: Calls = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def submit(self, call: Callable[[], ResultT]) -> Future[ResultT]:
        """Run the call after those before it; the future may be dropped, the result then waits in it."""
        future: Future[ResultT] = Future()
        if self._thread is None:
            serves = threading.Thread(target=_serve, args=(self._calls,), name="shmq-aio", daemon=True)
            self._thread = started(serves)
            weakref.finalize(self, self._calls.put, None).atexit = False  # it may be dropped without `stop()`
        self._calls.put((future, functools.partial(contextvars.copy_context().run, call)))
        return future

    def stop(self) -> None:
        """Let the thread end after what it is doing."""
        self._calls.put(None)


def _serve(calls: Calls) -> None:
    while (entry := calls.get()) is not None:
        future, call = entry
        if not future.set_running_or_notify_cancel():
            continue  # from here on it can only be waited for, so no result gets lost
        carry_out(future, call)
        del entry, future, call
