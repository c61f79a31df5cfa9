"""A thread that sleeps on the log for the event loop, until other processes append or the keeper flushes.

Held pulls and answers that wait for the disk are a list of queues and one log position. The thread waits for them like
any other reader of the segments, woken by the same bit as a local consumer, so a pull over TCP waits for a local
producer without polling.

    loop: publish(what is waited for) -> thread: BrokerLog.wait_queues -> loop: news(queues) -> loop: publish(...)

Invariants:
 1. The thread sleeps on what was published last, and reports news once for each publication.
 2. Nothing that became visible between two publications is missed: the core looks before it sleeps.
 3. Where a reader waits again at an offset that was news, the next look comes after _DOUBT_SECONDS: it waits there for
    the keeper to rebuild a unit, or for the disk, and each look would find the same.
 4. A store that cannot be waited on now is tried again each second; a reason is logged once.
"""

import asyncio
import threading
from collections.abc import Callable, Sequence

from shmq.daemon.broker.log import Wanted
from shmq.errors import ShmqError
from shmq.shm.core import BrokerLog, Store

_SLICE_SECONDS = 1.0
_STOP_SECONDS = 5.0
_DOUBT_SECONDS = 0.02


class LogWatch:
    """Wakes the loop of the thread that makes it.

    Args:
        news: called in the loop with the queues (by index) that may have new visible messages; the durable end may have
            risen too. It has to end with `publish`.
        failed: called in the loop when the store cannot be waited on.
    """

    def __init__(
        self,
        store: Store,
        broker_log: BrokerLog,
        *,
        news: Callable[[Sequence[int]], None],
        failed: Callable[[ShmqError], None],
    ) -> None:
        self._store = store
        self._broker_log = broker_log
        self._news = news
        self._failed = failed
        self._loop = asyncio.get_running_loop()
        self._changed = threading.Condition()
        self._wanted = Wanted()
        self._version = 0
        self._is_waiting = False
        self._is_stopped = False
        self._told: dict[int, int] = {}
        self._thread = threading.Thread(target=self._run, name="log-watch", daemon=True)
        self._thread.start()

    def publish(self, wanted: Wanted) -> None:
        """Sleep on this from now on."""
        with self._changed:
            self._wanted = wanted
            self._version += 1
            self._changed.notify()
            is_waiting = self._is_waiting
        if is_waiting:
            self._broker_log.wake_self()

    def close(self) -> None:
        """End the thread; no news after it."""
        with self._changed:
            self._is_stopped = True
            self._changed.notify()
        self._broker_log.wake_self()
        self._thread.join(_STOP_SECONDS)

    def _run(self) -> None:
        seen, complaint = 0, ""
        while (taken := self._take(seen)) is not None:
            seen, wanted = taken
            try:
                queues = self._sleep(seen, wanted)
                if queues is not None:
                    self._tell(self._news, queues)
                complaint = ""
            except ShmqError as error:
                if str(error) != complaint:
                    complaint = str(error)
                    self._tell(self._failed, error)
                seen = self._pause()

    def _pause(self) -> int:
        """Wait a moment, no longer than until the end; return the version that lets the same be tried again."""
        with self._changed:
            self._is_waiting = False
            self._changed.wait_for(lambda: self._is_stopped, _SLICE_SECONDS)
        return 0

    def _take(self, seen: int) -> tuple[int, Wanted] | None:
        """The next publication that there is something to wait for in; None at the end."""
        with self._changed:
            self._is_waiting = False
            while not self._is_stopped and (self._version == seen or self._wanted.is_nothing):
                self._changed.wait()
            self._is_waiting = True
            return None if self._is_stopped else (self._version, self._wanted)

    def _sleep(self, seen: int, wanted: Wanted) -> list[int] | None:
        """The queues with news; None when something else is waited for by now."""
        queues, offsets = list(wanted.queues), list(wanted.queues.values())
        told, self._told = self._told, {}
        if told.items() & wanted.queues.items():
            with self._changed:
                self._changed.wait_for(lambda: self._is_stopped, _DOUBT_SECONDS)
        while not self._is_stopped and self._version == seen:
            if self._broker_log.wait_queues(queues, offsets, _SLICE_SECONDS, safe_end=wanted.durable_end):
                risen = self._broker_log.queues_risen(queues, offsets)
                self._told = {queue: wanted.queues[queue] for queue in risen}
                if risen or (wanted.durable_end is not None and self._store.safe_end >= wanted.durable_end):
                    return risen
        return None

    def _tell(self, action: Callable[..., None], *values: object) -> None:
        if not self._is_stopped:
            try:
                self._loop.call_soon_threadsafe(action, *values)
            except RuntimeError:
                return  # the loop has ended
