"""The requests of one connection that wait for their replies: who reads, who is woken, who gave up.

Where replies have to be read, `poll(seconds)` brings some. Where they are pushed, `arrived` is called.

    a thread in `wait`     reads itself as long as nobody else does: its reply needs no other thread to get here
    the others             sleep; who stops reading wakes one of them, which reads on
    futures of `begin`     a thread of ours reads for them, looks at their deadlines, and ends when none has been asked
                           for in a while

Rules:
    (1) at most one thread polls at a time;
    (2) every request ends once: by its reply, by its deadline, or by `close()`;
    (3) a reply nobody waits for is dropped.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Final

from shmq.client import options
from shmq.errors import RequestTimeout, ShmqError, UsageError

if TYPE_CHECKING:
    from concurrent.futures import Future

IDLE_SECONDS: Final = 5.0
"""How long the thread that reads for futures waits for another one."""


class _Bell:
    """Wakes one thread; a lock costs a tenth of what an Event does, and every request has one."""

    __slots__ = ("_lock",)

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lock.acquire()

    def ring(self) -> None:
        with contextlib.suppress(RuntimeError):  # rung already
            self._lock.release()

    def wait(self, seconds: float) -> None:
        self._lock.acquire(timeout=max(0.0, seconds))


class Waiting:
    """One request without its reply."""

    __slots__ = ("correlation_id", "deadline", "error", "future", "reply", "timeout", "topic", "woken")

    def __init__(self, correlation_id: str, topic: str, timeout: float, future: Future[Any] | None = None) -> None:
        self.correlation_id = correlation_id
        self.topic = topic
        self.timeout = timeout
        self.deadline = time.monotonic() + timeout
        self.future = future
        self.reply: Any = None
        self.error: Exception | None = None
        self.woken = _Bell()

    @property
    def is_over(self) -> bool:
        """Whether its reply is there, or there will be none."""
        return self.reply is not None or self.error is not None

    def timed_out(self) -> RequestTimeout:
        """Return the error of a request that nobody answered."""
        return RequestTimeout(
            f'no reply to a request on topic "{self.topic}" within {self.timeout:g} s',
            hint="does a replier run, and is it fast enough? shmq group list shows who reads",
        )


class WaitingRequests:
    """All of them; any thread may use it."""

    def __init__(self, poll: Callable[[float], Iterable[tuple[str, Any]]] | None) -> None:
        """
        Args:
            poll: waits so many seconds at most and returns (correlation id, reply) of what came; None: it is pushed.
        """
        self._poll = poll
        self._lock = threading.Lock()
        self._reading = threading.Lock()
        self._open: dict[str, Waiting] = {}
        self._futures = 0
        self._wanted = threading.Event()
        self._thread: threading.Thread | None = None
        self._closed = False

    @property
    def is_empty(self) -> bool:
        """Whether nobody waits."""
        return not self._open

    def add(self, waiting: Waiting) -> None:
        """Begin to wait; call it before the request is sent."""
        with self._lock:
            if self._closed:
                raise UsageError("the connection is closed", hint="connect again with shmq.connect()")
            self._open[waiting.correlation_id] = waiting
            if waiting.future is not None:
                self._futures += 1
                self._wanted.set()
                if self._thread is None:
                    self._thread = threading.Thread(target=self._read_for_futures, name="shmq-replies", daemon=True)
                    self._thread.start()

    def drop(self, waiting: Waiting) -> None:
        """Stop to wait."""
        with self._lock:
            if self._open.pop(waiting.correlation_id, None) is not None and waiting.future is not None:
                self._futures -= 1

    def wait(self, waiting: Waiting) -> Any:
        """Return the reply, None when the deadline has passed.

        Raises:
            ShmqError: replies cannot be read any more, or the request could not be sent.
        """
        while not waiting.is_over and not self._closed:
            remaining = waiting.deadline - time.monotonic()
            if remaining <= 0:
                break
            if self._poll is not None and self._reading.acquire(blocking=False):
                try:
                    while not waiting.is_over and not self._closed:
                        remaining = waiting.deadline - time.monotonic()
                        if remaining <= 0:
                            break
                        self._take(min(remaining, options.ITERATION_SLICE))
                finally:
                    self._stop_reading()
            else:
                waiting.woken.wait(min(remaining, options.ITERATION_SLICE))
        if waiting.error is not None:
            raise waiting.error
        if waiting.reply is None and self._closed:
            raise UsageError("the connection was closed before the reply came", hint="wait for replies, then close")
        return waiting.reply

    def close(self) -> None:
        """End every wait; twice is harmless."""
        with self._lock:
            self._closed = True
            waiting = list(self._open.values())
        self._wanted.set()
        for each in waiting:
            each.woken.ring()
            self._fail(each, UsageError("the connection was closed before the reply came"))

    def arrived(self, correlation_id: str, reply: Any) -> None:
        """Hand a reply to whoever waits for it; one nobody waits for, and a second one, is dropped."""
        waiting = self._open.get(correlation_id)
        if waiting is None or waiting.is_over:
            return
        waiting.reply = reply
        if waiting.future is None:
            waiting.woken.ring()
            return
        self.drop(waiting)
        _settle(waiting.future, reply, None)

    def fail(self, waiting: Waiting, error: Exception) -> None:
        """End a request that could not be sent."""
        if not waiting.is_over:
            waiting.error = error
            waiting.woken.ring()
            self._fail(waiting, error)

    def _take(self, seconds: float) -> None:
        if self._poll is None:
            time.sleep(seconds)
            return
        for correlation_id, reply in self._poll(seconds):
            self.arrived(correlation_id, reply)

    def _stop_reading(self) -> None:
        self._reading.release()
        with self._lock:
            successor = next((each for each in self._open.values() if each.future is None and not each.is_over), None)
        if successor is not None:
            successor.woken.ring()

    # -- the thread that reads for futures
    def _read_for_futures(self) -> None:
        while not self._closed:
            if not self._wanted.wait(IDLE_SECONDS):
                with self._lock:
                    if not self._wanted.is_set():
                        self._thread = None
                        return
            with self._lock:
                if not self._futures:
                    self._wanted.clear()
                    continue
            self._reading.acquire()
            try:
                self._take_and_expire()
            except ShmqError as error:
                for each in self._with_futures():
                    self._fail(each, error)
            finally:
                self._stop_reading()

    def _take_and_expire(self) -> None:
        soonest = min((each.deadline for each in self._with_futures()), default=0.0)
        remaining = soonest - time.monotonic()
        if remaining > 0:
            self._take(min(remaining, options.REPLY_SLICE))
        now = time.monotonic()
        for each in self._with_futures():
            if each.deadline <= now:
                self._fail(each, None)

    def _with_futures(self) -> list[Waiting]:
        with self._lock:
            return [each for each in self._open.values() if each.future is not None]

    def _fail(self, waiting: Waiting, error: Exception | None) -> None:
        self.drop(waiting)
        if waiting.future is not None:
            _settle(waiting.future, None, error or waiting.timed_out())


def _settle(future: Future[Any], reply: Any, error: Exception | None) -> None:
    from concurrent.futures import InvalidStateError

    with contextlib.suppress(InvalidStateError):  # cancelled in this moment
        if error is None:
            future.set_result(reply)
        else:
            future.set_exception(error)
