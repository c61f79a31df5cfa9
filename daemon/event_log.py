"""One line on stderr for each event of a daemon process; nothing else of the daemon writes there once it runs.

A line has a name and fields, as text or as JSON.

    text   2026-11-20T08:41:07.113Z keeper log.rolled files=3 allocated_end=3221225472
    json   {"time": "2026-11-20T08:41:07.113Z", "process": "keeper", "event": "log.rolled", "files": 3, …}

    one cause     the event's name, and `about` where several peers cause the same, or how its text begins
    10 lines      of a cause in 10 s; the next line of it says suppressed=N, or when none comes, log.suppressed does
    it goes on    where the line behind 10 is the same but for its numbers, the next 10 have twice the time, up to ten
                  minutes: what lasts a day is said 1,500 times and not 100,000 times; another line is said at once

Rules: (1) a line is written with one system call, so the processes of a broker can share a stderr;
(2) a line that cannot be written at once is dropped: a full pipe must not stop a broker (`standard_streams.py`);
(3) what is left out is counted, and the count is logged: of dropped lines before the next one that can be written, and
by `shmq health`;
(4) no message bodies: values are names, numbers and reasons, and a line is cut at what a pipe takes as a whole;
(5) uncaught exceptions, and what libraries log, are events as well; faults of ours are counted.
"""

import json
import logging
import os
import re
import select
import sys
import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Any

from shmq.shm.counters import INTERNAL_ERRORS, LATEST, LOG_LINES_DROPPED, Counter, Counters, LooseCounters

INTERNAL_ERROR = "internal.error"
_FAULT = "process.fault"

_LINE_BYTES_MAX = select.PIPE_BUF - 1
_LINES_PER_CAUSE = 10
_WINDOW_SECONDS, _WINDOW_SECONDS_MAX = 10.0, 600.0
_CAUSES_MAX = 256
_CAUSE_CHARACTERS = 24
_NUMBERS = re.compile(r"\d+")
_SUPPRESSED = "log.suppressed"
_DROPPED = "log.dropped"
_ALWAYS = ("time", "process", "event")


@dataclass(slots=True)
class _Cause:
    """The lines of one cause in its window, which began with `first`."""

    until: float
    seconds: float = _WINDOW_SECONDS
    first: str = ""
    lines: int = 0
    suppressed: int = 0

    def taken(self) -> int:
        """Take how many lines were left out, so that no other event tells of them, too."""
        suppressed, self.suppressed = self.suppressed, 0
        return suppressed


class EventLog:
    """Writes events of one process; any thread may.

    Args:
        process: what the process is: supervisor, keeper, bridge.
        log_format: "text" or "json".
        descriptor: where to; stderr by default.
        now: seconds on a clock that never goes back.
    """

    def __init__(
        self,
        process: str,
        log_format: str = "text",
        *,
        descriptor: int = 2,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._process = process
        self._json = log_format == "json"
        self._descriptor = descriptor
        self._now = now
        self._causes: dict[tuple[str, str], _Cause] = {}
        self._first_end = 0.0  # no window ends before it
        self._lock = threading.RLock()  # a signal handler or a finalizer may come in between
        self._poll = select.poll()
        self._poll.register(descriptor, select.POLLOUT)
        self._unsaid = 0  # lines dropped since that was logged
        self._is_torn = False  # whether a part of a line was the last that was written
        self._totals: dict[str, tuple[Counter, Counter]] = {}
        self.count_in(LooseCounters())

    def __call__(self, event: str, *, about: str = "", **values: Any) -> None:
        """Write one event.

        Args:
            about: the peer that caused it; peers are limited apart from each other.
            values: numbers, strings, or lists of them.
        """
        with self._lock:
            if event in (INTERNAL_ERROR, _FAULT):
                self._count(INTERNAL_ERRORS)
            # A line with a text of its own has as many causes as beginnings.
            key = event, about or _NUMBERS.sub("", str(values.get("text", ""))).lstrip()[:_CAUSE_CHARACTERS]
            self._tell_ended(besides=key)
            suppressed = self._admit(key, values)
            if suppressed is not None:
                self._write(event, {**values, "suppressed": suppressed} if suppressed else values)

    def tick(self) -> None:
        """Log what was left out since; called now and then, in case no line follows."""
        with self._lock:
            self._tell_ended()
            self._say_dropped()

    def count_in(self, counters: Counters) -> None:
        """Count dropped lines and faults of ours there from now on, with what was counted before."""
        with self._lock:
            for family in (LOG_LINES_DROPPED, INTERNAL_ERRORS):
                total, latest = counters.counter(family), counters.counter(family + LATEST)
                if before := self._totals.get(family):
                    total.add(before[0].value)
                    latest.set(max(latest.value, before[1].value))
                self._totals[family] = total, latest

    def own_everything(self) -> None:
        """Make events of uncaught exceptions and warnings and of what libraries log; for the process' start.

        Each of them would write to stderr itself, where a line may be torn and is not counted.
        """
        sys.excepthook = self._uncaught
        sys.unraisablehook = lambda hook: self._uncaught(hook.exc_type, hook.exc_value, hook.exc_traceback)
        threading.excepthook = lambda hook: self._uncaught(
            hook.exc_type, hook.exc_value or hook.exc_type(), hook.exc_traceback
        )
        logging.captureWarnings(True)
        logging.getLogger().addHandler(_Handler(self))

    # -- limits

    def _admit(self, key: tuple[str, str], values: dict[str, Any]) -> int | None:
        """Count a line; return how many were left out before it, None when it is left out itself."""
        now = self._now()
        before = self._causes.get(key)
        if before is None and len(self._causes) >= _CAUSES_MAX:
            key = "", ""  # so many causes are one
            before = self._causes.setdefault(key, _Cause(now + _WINDOW_SECONDS))
        first = _NUMBERS.sub("", str(values))
        is_same = before is not None and before.first == first
        if before is not None and now < before.until and (is_same or before.seconds == _WINDOW_SECONDS):
            if before.lines >= _LINES_PER_CAUSE:
                before.suppressed += 1
                return None
            before.lines += 1
            return 0
        goes_on = before is not None and is_same and before.lines >= _LINES_PER_CAUSE
        seconds = min(before.seconds * 2, _WINDOW_SECONDS_MAX) if before and goes_on else _WINDOW_SECONDS
        self._causes[key] = _Cause(now + seconds, seconds, first, lines=1)
        self._first_end = min(self._first_end, now + seconds)
        return before.taken() if before is not None else 0

    def _tell_ended(self, besides: tuple[str, str] | None = None) -> None:
        """Log what was left out in windows that have ended; forget causes that are quiet for as long again."""
        now = self._now()
        if now < self._first_end:
            return
        for key, cause in list(self._causes.items()):
            if now < cause.until or key == besides:
                continue
            suppressed = cause.taken()
            if cause.lines < _LINES_PER_CAUSE or now >= cause.until + cause.seconds:
                self._causes.pop(key, None)  # an event of a signal handler or a finalizer may have come in between
            if suppressed:
                event, about = key
                of_peer = {"about": about} if about else {}
                self._write(_SUPPRESSED, {"cause": event or "many", **of_peer, "suppressed": suppressed})
        ends = (cause.until + cause.seconds * (now >= cause.until) for cause in list(self._causes.values()))
        self._first_end = min(ends, default=now + _WINDOW_SECONDS)

    # -- writing

    def _uncaught(self, kind: type[BaseException], error: BaseException | None, trace: TracebackType | None) -> None:
        if error is not None and not issubclass(kind, KeyboardInterrupt | SystemExit):
            self(_FAULT, reason=f"{kind.__name__}: {error}", trace=format_trace(error.with_traceback(trace), frames=8))

    def _write(self, event: str, values: dict[str, Any]) -> None:
        self._say_dropped()
        if self._unsaid or not self._put(event, values):
            self._unsaid += 1
            self._count(LOG_LINES_DROPPED)

    def _say_dropped(self) -> None:
        if self._unsaid and self._put(_DROPPED, {"dropped": self._unsaid}):
            self._unsaid = 0

    def _put(self, event: str, values: dict[str, Any]) -> bool:
        """Write one line; False when that cannot be done now."""
        now = time.time()
        moment = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(now)) + f".{int(now * 1000) % 1000:03d}Z"
        if self._json:
            line = _json_line({"time": moment, "process": self._process, "event": event, **values})
        else:
            line = " ".join(
                (moment, self._process, event, *(f"{name}={_text(value)}" for name, value in values.items()))
            ).encode(errors="backslashreplace")[:_LINE_BYTES_MAX]
        line = b"\n" * self._is_torn + line + b"\n"
        if not self._poll.poll(0):  # the descriptor may be one that waits
            return False
        try:
            written = os.write(self._descriptor, line)
        except OSError:
            return False
        self._is_torn = written < len(line)  # a terminal takes as much as it has room for
        return not self._is_torn

    def _count(self, family: str) -> None:
        total, latest = self._totals[family]
        total.add()
        latest.set(time.time_ns() // 1_000_000)


class _Handler(logging.Handler):
    """Makes events of what libraries log."""

    def __init__(self, log: EventLog) -> None:
        super().__init__(logging.WARNING)
        self._log = log

    def emit(self, record: logging.LogRecord) -> None:
        """Write one record."""
        self._log("library.message", source=record.name, level=record.levelname, text=record.getMessage())


def format_trace(error: BaseException, *, frames: int = 4) -> str:
    """Return the last frames of an exception's traceback, and what it says."""
    return "".join(traceback.format_exception(error, limit=-frames))


def _json_line(values: dict[str, Any]) -> bytes:
    """One object, also when it would be too long: then its longest texts are cut, and it says so."""
    line = json.dumps(values, default=str).encode()
    for characters in (512, 32, 0):
        if len(line) <= _LINE_BYTES_MAX:
            break
        short = {
            name: value if isinstance(value, int | float) or name in _ALWAYS else str(value)[:characters]
            for name, value in values.items()
            if characters or name in _ALWAYS
        }
        line = json.dumps({**short, "cut": True}, default=str).encode()
    return line


def _text(value: Any) -> str:
    text = str(value)
    return json.dumps(text) if not text or any(character in text for character in ' "=\n\r\t') else text
