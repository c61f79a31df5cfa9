"""How blocking calls of the sync client leave the event loop.

Calls that end by themselves within their timeout run on the loop's own executor;
waiting for messages, which may last for ever, runs on a daemon thread of ours, so it never keeps a process from ending.
"""

from __future__ import annotations

import asyncio
import contextvars
import functools
import queue
import threading
from collections.abc import Callable, Coroutine, Generator
from concurrent.futures import Future
from typing import Any, Generic, ParamSpec, Self, TypeVar

ParametersT = ParamSpec("ParametersT")
ResultT = TypeVar("ResultT")
SyncT = TypeVar("SyncT")


async def offload(
    call: Callable[ParametersT, ResultT], *args: ParametersT.args, **kwargs: ParametersT.kwargs
) -> ResultT:
    """Run a call that ends by itself in a thread; the loop goes on meanwhile."""
    inside = contextvars.copy_context()  # what is current here, such as a span, is so there
    return await asyncio.get_running_loop().run_in_executor(None, functools.partial(inside.run, call, *args, **kwargs))


class Waiter:
    """One daemon thread for calls that may wait long, one after the other; it starts with the first."""

    def __init__(self) -> None:
        self._calls: queue.SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def submit(self, call: Callable[[], ResultT]) -> Future[ResultT]:
        """Run the call after those before it; the future may be dropped, the result then waits in it."""
        future: Future[ResultT] = Future()
        self._calls.put((future, functools.partial(contextvars.copy_context().run, call)))
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="shmq-aio", daemon=True)
            self._thread.start()
        return future

    def stop(self) -> None:
        """Let the thread end after what it is doing."""
        self._calls.put(None)

    def _run(self) -> None:
        while (entry := self._calls.get()) is not None:
            future, call = entry
            if not future.set_running_or_notify_cancel():
                continue  # from here on it can only be waited for, so no result gets lost
            try:
                future.set_result(call())
            except BaseException as error:
                # It belongs to whoever awaits the future; this thread serves others too.
                future.set_exception(error)
            del entry, future, call


class Face(Generic[SyncT]):
    """An asyncio twin: its sync object is made by `make` on first use, `async with`, or `await`."""

    def __init__(self, make: Callable[[], Coroutine[Any, Any, SyncT]]) -> None:
        self._make = make
        self._made: SyncT | None = None
        self._making = asyncio.Lock()

    async def _open(self) -> SyncT:
        made = self._made
        if made is None:
            async with self._making:
                made = self._made
                if made is None:
                    made = self._made = await self._make()
                    self._opened(made)
        return made

    def _opened(self, made: SyncT) -> None:
        """Take what the twin needs from the object just made."""

    async def close(self) -> None:
        """Close; twice is harmless."""
        raise NotImplementedError

    async def _ready(self) -> Self:
        await self._open()
        return self

    def __await__(self) -> Generator[Any, Any, Self]:
        return self._ready().__await__()

    async def __aenter__(self) -> Self:
        return await self._ready()

    async def __aexit__(self, *exc: object) -> None:
        await self.close()
