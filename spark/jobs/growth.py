"""Watches a topic grow while executors send to it, from the driver, for the progress line and the report.

Messages of other producers count as well, so this is a curve and never the count of a run.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, Final, Self

from shmq.errors import ShmqError
from shmq.spark.access.way import open_place

_LOOK_SECONDS: Final = 0.25
_SAY_SECONDS: Final = 5.0
_SAMPLES_MAX: Final = 400  # then every other one is dropped, and looks are half as many


class Growth:
    """A thread that looks, for the length of a with block; `samples` are the looks, seconds since its start."""

    def __init__(self, place: Mapping[str, str], topic: str, told: Callable[[str], None]) -> None:
        self.samples: list[dict[str, Any]] = []
        self._place = dict(place)
        self._topic = topic
        self._told = told
        self._first = 0
        self._began = self._said = time.monotonic()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="growth", daemon=True)

    def __enter__(self) -> Self:
        self._first = self._messages()
        self._note()
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._ended.set()
        self._thread.join()
        with contextlib.suppress(ShmqError):
            self._note()

    def _run(self) -> None:
        pause = _LOOK_SECONDS
        while not self._ended.wait(pause):
            with contextlib.suppress(ShmqError):  # the broker is away for a moment
                self._note()
            if len(self.samples) > _SAMPLES_MAX:
                self.samples[:] = self.samples[::2]
                pause *= 2

    def _note(self) -> None:
        now = time.monotonic()
        count = self._messages() - self._first
        self.samples.append({"at_seconds": round(now - self._began, 3), "messages": count})
        if now - self._said >= _SAY_SECONDS:
            self._said = now
            self._told(f"{self._topic} has grown by {count:,} messages, {count / (now - self._began):,.0f} a second")

    def _messages(self) -> int:
        access = open_place(self._place)
        return sum(access.bounds(queue)[1] for queue in access.queues(self._topic))
