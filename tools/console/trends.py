"""The last hour: a ring of samples that a thread of the console takes.

A sample is a look that the pages share. How far they are apart follows from what a look costs, so that an idle console
takes at most half a percent of a processor, however many queues there are.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import Any

from shmq.tools.console.source import Look

SAMPLES_MAX = 720
PAUSE_SECONDS = 5.0
COST_SHARE = 0.005
FIELDS = ("at", "stored", "delivered", "lag", "flush_behind", "log_bytes")


def pause_after(cost_seconds: float) -> float:
    """Return how long to wait after a look that took so much processor time."""
    return max(PAUSE_SECONDS, cost_seconds / COST_SHARE)


def sample_of(look: Look) -> tuple[float | int | None, ...]:
    """Return the figures of a look in the order of `FIELDS`; None is not known."""
    snapshot, picture = look.snapshot, look.picture
    log = snapshot.log
    return (
        round(snapshot.at, 3),
        picture.in_rate,
        picture.out_rate,
        sum(group.lag for group in look.groups),
        log.flush_behind_bytes if log else None,
        log.end - log.begin if log else None,
    )


class Trends:
    """The ring; `start` begins to fill it."""

    def __init__(self, look: Callable[[], Look]) -> None:
        self._look = look
        self._samples: deque[tuple[float | int | None, ...]] = deque(maxlen=SAMPLES_MAX)
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Take samples until `close`."""
        self._thread = threading.Thread(target=self._run, name="console-trends", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Take no more."""
        self._ended.set()
        if self._thread is not None:
            self._thread.join()

    def sample(self) -> float:
        """Take one sample; return how long to wait before the next one."""
        look = self._look()
        sample = sample_of(look)
        if not self._samples or self._samples[-1][0] != sample[0]:
            self._samples.append(sample)
        return pause_after(look.cost_seconds)

    def columns(self) -> dict[str, list[Any]]:
        """Return the samples by field, the oldest first."""
        samples = list(self._samples)
        return {name: [sample[place] for sample in samples] for place, name in enumerate(FIELDS)}

    def _run(self) -> None:
        pause = 0.0
        while not self._ended.wait(pause):
            pause = self.sample()
