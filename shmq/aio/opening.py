"""Objects that a thread opens for an event loop: on first use, with `await`, or with `async with`.

    first use ──▶ Opening, a call in a thread ──▶ made ──▶ every task that waits has it
                     └─ all that waited were cancelled ──▶ the thread closes what it makes, as soon as that is there

Invariants:
    (1) what a thread has opened is used, or closed by a thread: a cancelled opening leaves no member, no connection, no
        room in the log and no transaction behind;
    (2) a use that comes while a call goes on takes over what it makes; one that comes while that is closed opens anew
        behind it. So does another object that is made for the same purpose (`what`);
    (3) closing is carried out, also when the task that waits for it is cancelled; a second close, and an opening for
        the same purpose, wait for it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import Callable, Coroutine, Generator
from concurrent.futures import Future
from typing import Any, Generic, Self

from shmq.aio.offload import SyncT, carried_out, submit
from shmq.errors import UsageError
from shmq.shm.pickling import stays_here

Call = Callable[[], SyncT]


class Opening(Generic[SyncT]):
    """A call in a thread, and what becomes of its result; `ended` has it, or None when that was closed again."""

    def __init__(self, call: Call[SyncT], close: Callable[[SyncT], object], what: object = None) -> None:
        self.what = what
        self.closing: asyncio.Future[Any] | None = None  # of what it made
        self.ended: Future[SyncT | None] = Future()
        self.ended.set_running_or_notify_cancel()  # the wait may be cancelled, the call is not
        self._call = call
        self._close = close
        self._lock = threading.Lock()
        self._waiting_count = 0
        self._is_wanted = True
        self._is_taken = False

    def begin(self) -> Self:
        """Run the call on a thread of the event loop's."""
        submit(self.run)
        return self

    def run(self) -> None:
        """Make it, unless nothing waits for it any more; on a thread."""
        if not self._is_wanted:
            return self.ended.set_result(None)
        try:
            made = self._call()
        except BaseException as error:  # it belongs to the tasks that wait
            return self.ended.set_exception(error)
        with self._lock:
            if self._is_wanted:
                return self.ended.set_result(made)
        self._give_up(made)

    async def wait(self) -> SyncT | None:
        """Return what the call made; None when that was closed, because nothing waited for it any more."""
        with self._lock:
            self._waiting_count += 1
            self._is_wanted = True
        try:
            made = await asyncio.wrap_future(self.ended)
        except asyncio.CancelledError:
            self._leave()
            raise
        self._is_taken = True
        return made

    async def refuse(self) -> None:
        """Let what the call makes be closed, and wait for that; tasks that wait get None."""
        with self._lock:
            self._is_wanted = False
        with contextlib.suppress(Exception):  # it has made nothing
            await asyncio.wrap_future(self.ended)

    async def left(self) -> None:
        """Wait for the end of a call that nothing waits for, and for what it made to be closed, if it just is."""
        while not self._is_wanted and not self.ended.done():
            with contextlib.suppress(Exception):
                await asyncio.wrap_future(self.ended)
        if self.closing is not None and not self.closing.done():
            with contextlib.suppress(Exception):
                await asyncio.shield(self.closing)

    async def close(self, close: Callable[..., object], made: SyncT, *given: object) -> None:
        """Close what the call made, or wait until it is closed where that is going on."""
        if self.closing is None or self.closing.done():
            self.closing = submit(self._closed_by, close, made, *given)
        await asyncio.shield(self.closing)

    def _closed_by(self, close: Callable[..., object], made: SyncT, *given: object) -> None:
        close(made, *given)  # a method, so that the thread keeps us for an opening that looks for others

    def _leave(self) -> None:
        """A task that waited was cancelled."""
        with self._lock:
            self._waiting_count -= 1
            if self._waiting_count or self._is_taken:
                return
            self._is_wanted = False
            if not self.ended.done() or self.ended.exception() is not None:
                return
            made = self.ended.result()
            self.ended = Future()
            self.ended.set_running_or_notify_cancel()
        submit(self._give_up, made)

    def _give_up(self, made: SyncT | None) -> None:
        try:
            if made is not None:
                self._close(made)
        except Exception:
            logging.getLogger("shmq").exception("what a cancelled task had opened could not be closed in order")
        finally:
            self.ended.set_result(None)


class Opened(Generic[SyncT]):
    """A twin whose sync object is made on first use, `async with`, or `await`.

    `prepare` returns the opening, not begun yet; it may wait for what is needed first.
    """

    __reduce_ex__ = stays_here("hand over what its connection was made with, and make one of its own there")

    def __init__(self, prepare: Callable[[], Coroutine[Any, Any, Opening[SyncT]]]) -> None:
        self._prepare = prepare
        self._made: SyncT | None = None
        self._opening: Opening[SyncT] | None = None
        self._opened_by: Opening[SyncT] | None = None  # kept, so that others find out that it is being closed
        self._closed = False

    async def _open(self) -> SyncT:
        while (made := self._made) is None:
            if self._closed:
                raise UsageError(f"{self!r} was closed", hint="make another one")
            opening = self._opening
            if opening is None:
                prepared = await self._prepare()
                if self._opening is None and self._made is None and not self._closed:
                    self._opening = prepared.begin()
                continue
            await self._take(opening)
        return made

    async def _take(self, opening: Opening[SyncT]) -> None:
        is_over = True
        try:
            made = await opening.wait()
        except asyncio.CancelledError:
            is_over = False  # the next use takes over what is being made
            raise
        finally:
            if is_over and self._opening is opening:
                self._opening = None
        if made is None or self._made is not None:
            return
        if self._closed:  # in this moment
            await carried_out(opening._close, made)
            return
        self._made, self._opened_by = made, opening
        self._opened(made)

    def _opened(self, made: SyncT) -> None:
        """Take what the twin needs from the object just made."""

    async def _ready(self) -> Self:
        await self._open()
        return self

    def __await__(self) -> Generator[Any, Any, Self]:
        return self._ready().__await__()

    async def __aenter__(self) -> Self:
        return await self._ready()


class Face(Opened[SyncT]):
    """The same of what is closed at the end of its `async with` block."""

    async def close(self) -> None:
        """Close; twice is harmless."""
        raise NotImplementedError

    async def _end(self, close: Callable[..., object], *given: object) -> None:
        """Close what is open with `close(made, …)`, or what is just being opened."""
        self._closed = True
        if (opening := self._opening) is not None:
            await opening.refuse()
        if self._made is None or self._opened_by is None:
            return
        await self._opened_by.close(close, self._made, *given)

    async def __aexit__(self, *exc: object) -> None:
        await self.close()
