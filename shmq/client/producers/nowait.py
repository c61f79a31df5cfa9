"""Sends that the caller does not wait for: a bounded queue and one worker thread, so that their order is kept.

Invariants:
    1. Messages are stored in the order in which `submit()` was called.
    2. Every future ends: with a receipt, with the error of its send, or cancelled when `drain()` ran out of time.
    3. At most `limit` sends wait; then `submit()` waits too, and gives up with FlowControl at its deadline.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from shmq.client.background import carry_out, started
from shmq.errors import FlowControl, UsageError

Call = Callable[[], Any]


class NowaitQueue:
    """Sends in the background of one producer; the thread starts with the first one."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._changed = threading.Condition()
        self._waiting: deque[tuple[Future[Any], Call]] = deque()
        self._running = False
        self._closed = False
        self._thread: threading.Thread | None = None

    def submit(self, call: Call, timeout: float) -> Future[Any]:
        """Queue one send and return its future.

        Raises:
            FlowControl: the queue stayed full for `timeout` seconds.
            UsageError: the producer is closed.
            ConnectError: no thread can be started to send.
        """
        future: Future[Any] = Future()
        with self._changed:
            deadline = time.monotonic() + timeout
            while len(self._waiting) >= self._limit and not self._closed:
                if not self._changed.wait(deadline - time.monotonic()):
                    raise FlowControl(
                        f"{len(self._waiting)} sends wait in this producer, and none left within {timeout:g} s",
                        hint="wait for some of the futures, or see `shmq health` for what holds the broker up",
                    )
            if self._closed:
                raise UsageError("the producer is closed", hint="send before leaving its `with` block")
            if self._thread is None:
                self._thread = started(threading.Thread(target=self._run, name="shmq-send-nowait", daemon=True))
            self._waiting.append((future, call))
            self._changed.notify_all()
        return future

    def drain(self, timeout: float) -> bool:
        """Refuse new sends, wait for the waiting ones, cancel what is left; False when something was cancelled."""
        deadline = time.monotonic() + timeout
        with self._changed:
            self._closed = True
            self._changed.notify_all()
            while self._waiting or self._running:
                if not self._changed.wait(deadline - time.monotonic()):
                    break
            left = [future for future, _ in self._waiting]
            self._waiting.clear()
            complete = not left and not self._running
        for future in left:
            future.cancel()
        return complete

    def _run(self) -> None:
        while True:
            with self._changed:
                self._running = False
                self._changed.notify_all()
                while not self._waiting:
                    if self._closed:
                        return
                    self._changed.wait()
                future, call = self._waiting.popleft()
                self._running = True
            if not future.set_running_or_notify_cancel():
                continue
            carry_out(future, call)
            del future, call
