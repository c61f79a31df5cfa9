"""The one background thread of a connection, which runs jobs when they are due, and the clock by which they are due.

Rebalancing, redelivery and re-attaching are jobs. Sending and receiving are not, so an idle consumer and a producer
without groups never start the thread. The clock runs like `time.monotonic()` and can be moved ahead, never back: tests
move it instead of sleeping. Waits inside the core, the store's timestamps and the broker's own clock stay as they are.

Invariants:
    (1) jobs run one at a time, in the order of their due time, jobs of the same time in the order they came;
    (2) a job that raises is reported and forgotten, the thread goes on;
    (3) after `stop()` no job starts, and jobs that come later are dropped;
    (4) the thread is a daemon thread: it never keeps a process alive;
    (5) a job that is a method does not keep its object: what is dropped is collected, and has nothing more to do;
    (6) where no thread can be started, `begin` says so, and jobs wait for the next call that can start it.
"""

from __future__ import annotations

import heapq
import threading
import time
import weakref
from collections.abc import Callable
from types import MethodType
from typing import Any, TypeVar

from shmq.client.background import started
from shmq.client.kinds import real_in
from shmq.errors import ConnectError, UsageError

Job = Callable[[], None]
_MOVE_MOST = 100 * 365.25 * 86_400
ResultT = TypeVar("ResultT")


class Clock:
    """Monotonic seconds plus an amount that tests add."""

    __slots__ = ("_ahead",)

    def __init__(self) -> None:
        self._ahead = 0.0

    def now(self) -> float:
        """Return seconds since an arbitrary start."""
        return time.monotonic() + self._ahead

    def advance(self, seconds: float) -> None:
        """Move the clock ahead; the caller wakes the threads that wait on it.

        Raises:
            UsageError: `seconds` is negative, or no time.
        """
        self._ahead += check_move(seconds)


def check_move(seconds: float) -> float:
    """Return how far a clock is to be moved.

    Raises:
        UsageError: it is negative, longer than a century, or no time.
    """
    number = real_in(seconds)
    if number is None or not 0 <= number <= _MOVE_MOST:
        raise UsageError(
            f"a clock cannot be moved by {seconds!r:.80} s", hint="a century at most, never back: advance(60)"
        )
    return number


class Timetable:
    """Jobs, and the thread that runs them; it starts with the first one."""

    def __init__(self, clock: Clock, *, name: str = "shmq-timetable") -> None:
        self.clock = clock
        self._name = name
        self.start_over()

    def start_over(self) -> None:
        """Begin with no job and no thread; in a forked child both are the parent's."""
        self._changed = threading.Condition()
        self._jobs: list[tuple[float, int, Callable[[], Job | None]]] = []
        self._sequence = 0
        self._stopped = False
        self._thread: threading.Thread | None = None

    @property
    def is_current(self) -> bool:
        """Whether the caller is a job."""
        return threading.current_thread() is self._thread

    def begin(self) -> None:
        """Start the thread, for what cannot do without jobs.

        Raises:
            ConnectError: no thread can be started any more.
        """
        with self._changed:
            if self._thread is None and not self._stopped:
                self._thread = started(threading.Thread(target=self._run, name=self._name, daemon=True))

    def call_at(self, due: float, job: Job) -> None:
        """Run `job` when the clock has reached `due`; never blocks for the job."""
        with self._changed:
            if self._stopped:
                return
            self._sequence += 1
            kept = weakref.WeakMethod(job) if isinstance(job, MethodType) else lambda: job
            heapq.heappush(self._jobs, (due, self._sequence, kept))
            if self._thread is None:
                try:
                    self.begin()
                except ConnectError as error:
                    import logging

                    logging.getLogger("shmq").warning("a background job waits: %s", error)
            elif self._jobs[0][1] == self._sequence:
                self._changed.notify()

    def call_soon(self, job: Job) -> None:
        """Run `job` after the jobs that are due already."""
        self.call_at(self.clock.now(), job)

    def call_after(self, seconds: float, job: Job) -> None:
        """Run `job` when `seconds` have passed on the clock."""
        self.call_at(self.clock.now() + seconds, job)

    def clock_moved(self) -> None:
        """Look at the clock again: `advance` moved it."""
        with self._changed:
            self._changed.notify()

    def stop(self, timeout: float) -> bool:
        """Drop all jobs and wait for a running one; False when it did not end in time or is the caller."""
        with self._changed:
            self._stopped = True
            self._jobs.clear()
            self._changed.notify()
            thread = self._thread
        if thread is None:
            return True
        if thread is threading.current_thread():
            return False
        thread.join(max(0.0, timeout))
        return not thread.is_alive()

    def _next_job(self) -> Job | None:
        with self._changed:
            while not self._stopped:
                if not self._jobs:
                    self._changed.wait()
                    continue
                pause = self._jobs[0][0] - self.clock.now()
                if pause <= 0:
                    if (job := heapq.heappop(self._jobs)[2]()) is not None:
                        return job
                    continue
                self._changed.wait(pause)
            return None

    def _run(self) -> None:
        while (job := self._next_job()) is not None:
            try:
                job()
            except Exception:
                # The outermost loop of this thread: one broken job must not take redelivery and rebalancing with it.
                import logging

                logging.getLogger("shmq").exception("a background job of the connection failed; it is not repeated")
            del job


def loosely(method: Callable[..., ResultT], *, gone: Any = None) -> Callable[..., ResultT]:
    """Return what calls a method without keeping its object; once that is collected, `gone` is returned."""
    found = weakref.WeakMethod(method)

    def call(*given: Any) -> Any:
        target = found()
        return gone if target is None else target(*given)

    return call
