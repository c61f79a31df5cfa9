"""Shows Spark's progress while a job waits for it: a line on a terminal, now and then one elsewhere.

    every 0.5 s   Spark's own count of the tasks that run and have ended ─▶ "3 of 12 tasks, 4 running"
    20 s          tasks wait and none was ever taken: the cluster gives the job nothing, which Spark itself only logs

Rules: (1) it never makes a job fail: what Spark does not report is not shown; (2) all other output meanwhile goes
through `say`, so that a line that is drawn is never written into.
"""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from typing import TYPE_CHECKING, Final, NamedTuple, Self

if TYPE_CHECKING:
    from pyspark import SparkContext

    from shmq.tools.terminal.output import Terminal

_LOOK_SECONDS: Final = 0.5
_SAY_SECONDS: Final = 15.0  # between two lines where nothing is drawn
_IDLE_SECONDS: Final = 20.0  # an executor of a free cluster takes a few to start


class Standing(NamedTuple):
    """Tasks of the stages that are at work."""

    total: int
    ended: int
    running: int

    def __str__(self) -> str:
        return f"{self.ended:,} of {self.total:,} tasks, {self.running:,} running"


def standing(context: SparkContext) -> Standing | None:
    """Return how far the stages at work are, None when there is none."""
    tracker = context.statusTracker()
    stages = [found for each in tracker.getActiveStageIds() if (found := tracker.getStageInfo(each)) is not None]
    if not stages:
        return None
    counts = [(each.numTasks, each.numCompletedTasks, each.numActiveTasks) for each in stages]
    return Standing(*(sum(column) for column in zip(*counts, strict=True)))


class Stages:
    """A thread that looks and tells, for the length of a with block."""

    def __init__(self, context: SparkContext, terminal: Terminal) -> None:
        self._context = context
        self._terminal = terminal
        self._ended = threading.Event()
        self._talking = threading.Lock()
        self._drawn = False
        self._thread = threading.Thread(target=self._run, name="stages", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._ended.set()
        self._thread.join()

    def say(self, text: str) -> None:
        """Talk beside the line that is drawn."""
        with self._talking:
            self._clear()
            self._terminal.say(text)

    def _run(self) -> None:
        idle = Idle(time.monotonic())
        said = time.monotonic()
        while not self._ended.wait(_LOOK_SECONDS):
            try:
                found = standing(self._context)
            except Exception:  # Spark is ending
                break
            now = time.monotonic()
            if idle.is_due(found, now):
                self._warn()
            elif found is None:
                said = now
                self._draw(None)
            elif self._terminal.wants_progress():
                self._draw(str(found))
            elif now - said >= _SAY_SECONDS:
                said = now
                self.say(str(found))
        self._draw(None)

    def _warn(self) -> None:
        self.say(
            f"warning: {self._context.master} has taken no task for {_IDLE_SECONDS:g} s: it has no free core, or no "
            "worker with enough memory (--conf spark.executor.memory=1g is the default); its web page says more"
        )

    def _draw(self, text: str | None) -> None:
        with self._talking, contextlib.suppress(OSError, ValueError):
            self._clear()
            if text is not None:
                sys.stderr.write(text)
                sys.stderr.flush()
                self._drawn = True

    def _clear(self) -> None:
        if self._drawn:
            sys.stderr.write("\r\x1b[2K")
            sys.stderr.flush()
            self._drawn = False


class Idle:
    """Whether tasks wait and none was ever taken: said once. Pure; times are seconds."""

    def __init__(self, now: float) -> None:
        self._since = now
        self._over = False

    def is_due(self, found: Standing | None, now: float) -> bool:
        """Say whether it is time to say so."""
        if found is None:
            self._since = now
        elif found.running or found.ended:
            self._over = True
        if self._over or now - self._since < _IDLE_SECONDS:
            return False
        self._over = True
        return True
